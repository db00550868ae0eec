// Contract: o_proj_residual_rmsnorm, cuda.
// Idea: both launches may start before what comes before them has ended. The projection asks for its weights,
//       waits, and lets the norm's blocks in when its own products are done; the norm waits before it reads
//       anything.
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

__device__ __forceinline__ void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
__device__ __forceinline__ void let_successor_start() {
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}
__device__ __forceinline__ void prefetch(const T* p) { asm volatile("prefetch.global.L2 [%0];" : : "l"(p)); }

extern "C" __global__ void __launch_bounds__(256) project(
    const T* __restrict__ attn,
    const T* __restrict__ w_o,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
  const int i = (blockIdx.x * 8 + threadIdx.x / 32) * 2;
  if (i >= hidden_size) return;  // a whole warp
  const int first = blockIdx.y * TOKENS;
  const T* const weights[2] = {w_o + size_t(i) * in_features, w_o + size_t(i + 1) * in_features};
  const T* wanted = threadIdx.x % 2 ? weights[1] : weights[0];
  prefetch(wanted + min(threadIdx.x % 32 / 2 * 64, in_features - 1));  // no value of it is used
  wait_for_predecessor();
  const T* rows[TOKENS];
  input_rows(attn, first, in_features, rows);
  float sums[2][TOKENS];
  warp_dots(weights, rows, in_features, sums);
  let_successor_start();
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    if (threadIdx.x % 32 != t || first + t >= num_tokens) continue;
    T* target = residual + size_t(first + t) * hidden_size + i;
    target[0] = T(float(target[0]) + float(T(sums[0][t])));  // the product is rounded before it is added
    target[1] = T(float(target[1]) + float(T(sums[1][t])));
  }
}

extern "C" __global__ void __launch_bounds__(256) normalise(
    const T* __restrict__ attn,
    const T* __restrict__ w_o,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
  wait_for_predecessor();
  const size_t row = size_t(blockIdx.x) * hidden_size;
  float squares = 0.0f;
  for (int i = threadIdx.x * VEC; i < hidden_size; i += THREADS * VEC) {
    const Pack sum = load(residual + row + i);
    float part = 0.0f;
    for (int j = 0; j < VEC; ++j) part += float(sum.v[j]) * float(sum.v[j]);
    squares += part;
  }
  const float r = float(1.0 / sqrt(double(block_sum(squares)) / hidden_size + eps));
  for (int i = threadIdx.x * VEC; i < hidden_size; i += THREADS * VEC) {
    const Pack sum = load(residual + row + i), gamma = load(weight + i);
    Pack result;
    for (int j = 0; j < VEC; ++j) result.v[j] = T(float(T(float(sum.v[j]) * r)) * float(gamma.v[j]));
    *reinterpret_cast<Pack*>(out + row + i) = result;
  }
}
