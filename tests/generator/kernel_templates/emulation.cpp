// A cluster of CUDA blocks as threads of this process, for the tensor-core templates: their building blocks are
// replaced, their bodies run as they are. Copies arrive as late as the waits allow, so that a wait too few is seen.
// "body.inc" defines the dims, the launch (GRID_X, GRID_Z, THREADS_A_BLOCK, CLUSTER, SHARED_BYTES) and `kernel`.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

using std::min;
using std::size_t;

struct T {
  std::uint16_t bits;
  T() = default;
  explicit T(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    bits = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
  }
  explicit operator float() const {
    const std::uint32_t word = std::uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &word, 4);
    return value;
  }
};

struct Index {
  int x, y, z;
};
struct Warp {
  std::barrier<> meeting{32};
  const void* rows[32];
  unsigned a[32][4], b[32][2];
};
struct alignas(128) Line {
  unsigned char bytes[128];
};
struct Block {
  std::barrier<> meeting;
  std::vector<Line> memory;
  std::vector<std::unique_ptr<Warp>> warps;
  Block(int threads, int bytes) : meeting(threads), memory(bytes / 128 + 1) {
    for (auto& line : memory) std::memset(line.bytes, 0xff, 128);  // NaN, so that what was never written shows
    for (int i = 0; i < threads / 32; ++i) warps.push_back(std::make_unique<Warp>());
  }
  unsigned char* base() { return memory.data()->bytes; }
};
struct Copy {
  void* to;
  const void* from;
  bool inside;
};

thread_local Index threadIdx, blockIdx;
Index gridDim;
thread_local Block* block;
thread_local Warp* my_warp;
thread_local std::vector<std::unique_ptr<Block>>* cluster;
thread_local std::barrier<>* cluster_meeting;
thread_local std::vector<Copy> open_group;
thread_local std::deque<std::vector<Copy>> groups;

void __syncthreads() { block->meeting.arrive_and_wait(); }
void copy_async(void* to, const void* from, bool inside) { open_group.push_back({to, from, inside}); }
void commit_copies() {
  groups.push_back(open_group);
  open_group.clear();
}
template <int PENDING>
void wait_copies() {
  for (; int(groups.size()) > PENDING; groups.pop_front())
    for (const Copy& copy : groups.front())
      copy.inside ? std::memcpy(copy.to, copy.from, 16) : std::memset(copy.to, 0, 16);
}
void load_matrices(const void* row, unsigned (&m)[4]) {
  const int lane = threadIdx.x % 32;
  my_warp->rows[lane] = row;
  my_warp->meeting.arrive_and_wait();
  for (int i = 0; i < 4; ++i)
    std::memcpy(&m[i], static_cast<const char*>(my_warp->rows[8 * i + lane / 4]) + lane % 4 * 4, 4);
  my_warp->meeting.arrive_and_wait();
}
float half_of(unsigned word, int upper) {
  T element;
  element.bits = std::uint16_t(word >> (16 * upper));
  return float(element);
}
// The fragments of mma.m16n8k16 as the PTX manual lays them out.
template <class S>
void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const int lane = threadIdx.x % 32;
  std::memcpy(my_warp->a[lane], a, 16);
  my_warp->b[lane][0] = b0, my_warp->b[lane][1] = b1;
  my_warp->meeting.arrive_and_wait();
  for (int i = 0; i < 4; ++i) {
    const int r = lane / 4 + i / 2 * 8, c = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k)
      sums[i] += half_of(my_warp->a[r % 8 * 4 + k % 8 / 2][r / 8 + k / 8 * 2], k % 2) *
                 half_of(my_warp->b[c * 4 + k % 8 / 2][k / 8], k % 2);
  }
  my_warp->meeting.arrive_and_wait();
}
unsigned cluster_rank() { return blockIdx.y; }
void cluster_barrier() { cluster_meeting->arrive_and_wait(); }
float read_remote(const float* mine, unsigned rank) {
  const auto offset = reinterpret_cast<const unsigned char*>(mine) - block->base();
  return *reinterpret_cast<const float*>((*cluster)[rank]->base() + offset);
}
template <int, int, int, bool, int ROWS, int TOKENS, class S>
struct Dots {  // for other types; never run here
  static void run(const S* const (&)[ROWS], const S* const (&)[TOKENS], int, float (&)[ROWS][TOKENS]) {}
};

#include "body.inc"

int main() {
  gridDim = {GRID_X, CLUSTER, GRID_Z};
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<T> x(size_t(num_rows) * num_inputs), w(size_t(num_outputs) * num_inputs), out(num_rows * num_outputs);
  for (auto& value : x) value = T(normal(generator));
  for (auto& value : w) value = T(normal(generator) / std::sqrt(float(num_inputs)));
  for (auto& value : out) value = T(NAN);
  for (int z = 0; z < GRID_Z; ++z)
    for (int bx = 0; bx < GRID_X; ++bx) {
      std::vector<std::unique_ptr<Block>> blocks;
      std::barrier<> meeting(THREADS_A_BLOCK * CLUSTER);
      for (int r = 0; r < CLUSTER; ++r) blocks.push_back(std::make_unique<Block>(THREADS_A_BLOCK, SHARED_BYTES));
      std::vector<std::thread> threads;
      for (int r = 0; r < CLUSTER; ++r)
        for (int t = 0; t < THREADS_A_BLOCK; ++t)
          threads.emplace_back([&, r, t] {
            block = blocks[r].get(), my_warp = block->warps[t / 32].get();
            cluster = &blocks, cluster_meeting = &meeting;
            threadIdx = {t, 0, 0}, blockIdx = {bx, r, z};
            kernel(x.data(), w.data(), out.data(), block->base());
          });
      for (auto& thread : threads) thread.join();
    }
  double worst = 0;
  for (int i = 0; i < num_rows; ++i)
    for (int j = 0; j < num_outputs; ++j) {
      double sum = 0;
      for (int k = 0; k < num_inputs; ++k)
        sum += double(float(x[i * num_inputs + k])) * double(float(w[j * num_inputs + k]));
      const double error = std::fabs(sum - float(out[i * num_outputs + j]));
      if (!std::isnan(worst) && !(error <= worst)) worst = error;  // a NaN is the worst there is
    }
  std::printf("%g\n", worst);
}
