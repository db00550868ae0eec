// Calls every kernel on its example and compares with what the kernel gave when it was judged.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include <cuda_runtime.h>
@HEADERS@

static int failed(const char* name, int error) {
  std::printf("%s: error %d\n", name, error);
  return 1;
}

static std::vector<unsigned char> read_file(const std::string& path, size_t size) {
  std::vector<unsigned char> content(size);
  FILE* file = std::fopen(path.c_str(), "rb");
  if (!file || std::fread(content.data(), 1, size, file) != size) {
    std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
    std::exit(2);
  }
  std::fclose(file);
  return content;
}

static double number(const unsigned char* at, const std::string& type, size_t index) {
  if (type == "float32") {
    float value;
    std::memcpy(&value, at + 4 * index, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at + 2 * index, 2);
  if (type == "bfloat16") {
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  int exponent = (bits >> 10) & 31;
  double fraction = bits & 1023;
  double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) size = fraction ? NAN : INFINITY;
  return bits & 0x8000 ? -size : size;
}

// Another compiler or processor may order sums otherwise: what differs is compared with the size of the values.
static int compare(const char* name, const std::string& tensor, const std::string& type,
                   const std::vector<unsigned char>& got, const std::vector<unsigned char>& wanted) {
  if (got == wanted) {
    std::printf("%s.%s: the same bits\n", name, tensor.c_str());
    return 0;
  }
  size_t item = type == "float32" ? 4 : 2, count = got.size() / item;
  double allowed = type == "float32" ? 1e-5 : type == "float16" ? 4e-3 : 3e-2, squares = 0, apart = 0;
  for (size_t i = 0; i < count; ++i) {
    double a = number(got.data(), type, i), b = number(wanted.data(), type, i);
    if (std::isnan(a) != std::isnan(b)) apart = INFINITY;
    if (std::isfinite(a) && std::isfinite(b)) squares += b * b, apart += (a - b) * (a - b);
  }
  double relative = std::sqrt(apart / (squares > 0 ? squares : 1));
  std::printf("%s.%s: differs by %.2e, %.0e allowed\n", name, tensor.c_str(), relative, allowed);
  return relative <= allowed ? 0 : 1;
}

static void* device_memory(size_t size) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, size ? size : 1) != cudaSuccess) {
    std::fprintf(stderr, "no device memory\n");
    std::exit(2);
  }
  cudaMemset(memory, 0, size ? size : 1);
  return memory;
}

class Buffer {
 public:
  Buffer(const char* folder, const char* name, size_t size, bool given)
      : name_(name), wanted_(read_file(std::string(folder) + name + ".bin", size)), memory_(device_memory(size)) {
    if (given) cudaMemcpy(memory_, wanted_.data(), size, cudaMemcpyHostToDevice);
    else cudaMemset(memory_, 0xFF, size);
  }
  ~Buffer() { cudaFree(memory_); }
  void* data() { return memory_; }
  int compare(const char* kernel, const char* type) {
    std::vector<unsigned char> got(wanted_.size());
    cudaError_t error = cudaMemcpy(got.data(), memory_, got.size(), cudaMemcpyDeviceToHost);
    return error ? failed(kernel, error) : ::compare(kernel, name_, type, got, wanted_);
  }

 private:
  std::string name_;
  std::vector<unsigned char> wanted_;
  void* memory_;
};

class Workspace {
 public:
  explicit Workspace(long long size) : memory_(device_memory(size)) {}
  ~Workspace() { cudaFree(memory_); }
  void* data() { return memory_; }

 private:
  void* memory_;
};

@CASES@
int main() {
  int wrong = 0;
@CALLS@
  std::printf(wrong ? "wrong\n" : "all right\n");
  return wrong ? 1 : 0;
}
