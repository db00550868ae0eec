// Contract: residual_rmsnorm, cuda.
// Idea: a block owns a row and is launched while the kernel in front of it ends; only what it writes comes after the wait.
// Wrong: the squares are summed before it, of a row that may not be there yet.

constexpr int VEC = 16 / sizeof(T);  // elements in a 16-byte load
struct alignas(16) Pack {
  T v[VEC];
};
__device__ __forceinline__ Pack load(const T* p) { return *reinterpret_cast<const Pack*>(p); }

constexpr int THREADS = 256;

// Sum over the block, the same for every thread. The second barrier lets the next call reuse the shared array.
__device__ float block_sum(float value) {
  __shared__ float parts[THREADS / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < THREADS / 32; ++i) total += parts[i];
  __syncthreads();
  return total;
}

// A piece of the row with what is added to it, rounded.
__device__ __forceinline__ Pack added(const T* x, const T* residual, size_t at) {
  Pack sum = load(x + at);
  if constexpr (has_residual) {
    for (int j = 0; j < VEC; ++j) sum.v[j] = T(float(sum.v[j]) + float(residual[at + j]));
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(256) residual_rmsnorm(
    const T* __restrict__ x,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
  const size_t row = size_t(blockIdx.x) * hidden_size;
  float squares = 0.0f;
  for (int i = threadIdx.x * VEC; i < hidden_size; i += THREADS * VEC) {
    const Pack sum = added(x, residual, row + i);
    float part = 0.0f;
    for (int j = 0; j < VEC; ++j) part += float(sum.v[j]) * float(sum.v[j]);
    squares += part;
  }
  const float r = float(1.0 / sqrt(double(block_sum(squares)) / hidden_size + eps));
  asm volatile("griddepcontrol.wait;" : : : "memory");
  for (int i = threadIdx.x * VEC; i < hidden_size; i += THREADS * VEC) {
    const Pack sum = added(x, residual, row + i), gamma = load(weight + i);
    if constexpr (has_residual) *reinterpret_cast<Pack*>(residual + row + i) = sum;
    Pack result;
    for (int j = 0; j < VEC; ++j) result.v[j] = T(float(T(float(sum.v[j]) * r)) * float(gamma.v[j]));
    *reinterpret_cast<Pack*>(out + row + i) = result;
  }
}
