// Contract: o_proj_residual_rmsnorm, cuda.
// Idea: one cooperative launch, a block a multiprocessor: warps stride over the projection, all blocks meet, and
//       blocks stride over the rows to normalise. The last to leave the meeting resets its counters.
// Bound by: memory bandwidth of the weights for few rows, then by the loads of attn from L1.

constexpr int VEC = 16 / sizeof(T);                   // elements in a 16-byte load
constexpr int TOKENS = num_tokens < 8 ? num_tokens : 8;  // rows of the step that share a weight load
struct alignas(16) Pack {
  T v[VEC];
};
__device__ __forceinline__ Pack load(const T* p) { return *reinterpret_cast<const Pack*>(p); }

// Products of two weight rows with TOKENS input rows by one warp; every lane gets all sums. Eight products are added
// up before they meet the running sum, which keeps the rounding errors of a long float32 sum small.
__device__ __forceinline__ void warp_dots(
    const T* const (&w)[2], const T* const (&x)[TOKENS], int length, float (&sums)[2][TOKENS]) {
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) sums[0][t] = sums[1][t] = 0.0f;
#pragma unroll 2
  for (int k = threadIdx.x % 32 * VEC; k < length; k += 32 * VEC) {
    const Pack w0 = load(w[0] + k), w1 = load(w[1] + k);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const Pack row = load(x[t] + k);
      float part0 = 0.0f, part1 = 0.0f;
#pragma unroll
      for (int j = 0; j < VEC; ++j) {
        part0 += float(w0.v[j]) * float(row.v[j]);
        part1 += float(w1.v[j]) * float(row.v[j]);
      }
      sums[0][t] += part0;
      sums[1][t] += part1;
    }
  }
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      sums[0][t] += __shfl_xor_sync(0xffffffffu, sums[0][t], offset);
      sums[1][t] += __shfl_xor_sync(0xffffffffu, sums[1][t], offset);
    }
  }
}

// Input rows first .. first + TOKENS - 1; past the last row the last one again, whose sums nobody stores.
__device__ __forceinline__ void input_rows(const T* x, int first, int length, const T* (&rows)[TOKENS]) {
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) rows[t] = x + size_t(min(first + t, num_tokens - 1)) * length;
}

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

__device__ __forceinline__ unsigned read_acquire(const unsigned* p) {
  unsigned value;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

// All blocks of the grid meet; all of them run at the same time, because the launch is cooperative. `counters`: two,
// zero before and after.
__device__ void meet(unsigned* counters) {
  __threadfence();  // what this thread wrote is visible to the device
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(counters, 1u);
    while (read_acquire(counters) < gridDim.x) {
    }
    if (atomicAdd(counters + 1, 1u) == gridDim.x - 1) counters[0] = counters[1] = 0;  // everybody has seen it
  }
  __syncthreads();
  __threadfence();
}

// Another block may have written it: read from L2, not from what L1 kept of the time before.
__device__ __forceinline__ Pack load_written(const T* p) {
  const uint4 raw = __ldcg(reinterpret_cast<const uint4*>(p));
  return *reinterpret_cast<const Pack*>(&raw);
}

extern "C" __global__ void __launch_bounds__(256) o_proj_residual_rmsnorm(
    const T* __restrict__ attn,
    const T* __restrict__ w_o,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
  constexpr int pairs = hidden_size / 2, tiles = (num_tokens + TOKENS - 1) / TOKENS;
  for (int item = blockIdx.x * 8 + threadIdx.x / 32; item < pairs * tiles; item += gridDim.x * 8) {
    const int i = item % pairs * 2, first = item / pairs * TOKENS;
    const T* const weights[2] = {w_o + size_t(i) * in_features, w_o + size_t(i + 1) * in_features};
    const T* rows[TOKENS];
    input_rows(attn, first, in_features, rows);
    float sums[2][TOKENS];
    warp_dots(weights, rows, in_features, sums);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      if (threadIdx.x % 32 != t || first + t >= num_tokens) continue;
      T* target = residual + size_t(first + t) * hidden_size + i;
      target[0] = T(float(target[0]) + float(T(sums[0][t])));  // the product is rounded before it is added
      target[1] = T(float(target[1]) + float(T(sums[1][t])));
    }
  }
  meet(static_cast<unsigned*>(workspace));
  for (int t = blockIdx.x; t < num_tokens; t += gridDim.x) {
    const size_t row = size_t(t) * hidden_size;
    float squares = 0.0f;
    for (int i = threadIdx.x * VEC; i < hidden_size; i += THREADS * VEC) {
      const Pack sum = load_written(residual + row + i);
      float part = 0.0f;
      for (int j = 0; j < VEC; ++j) part += float(sum.v[j]) * float(sum.v[j]);
      squares += part;
    }
    const float r = float(1.0 / sqrt(double(block_sum(squares)) / hidden_size + eps));
    for (int i = threadIdx.x * VEC; i < hidden_size; i += THREADS * VEC) {
      const Pack sum = load_written(residual + row + i), gamma = load(weight + i);
      Pack result;
      for (int j = 0; j < VEC; ++j) result.v[j] = T(float(T(float(sum.v[j]) * r)) * float(gamma.v[j]));
      *reinterpret_cast<Pack*>(out + row + i) = result;
    }
  }
}
