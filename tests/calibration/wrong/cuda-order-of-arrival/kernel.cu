// Contract: gated_mlp_down, cuda.
// Idea: the sum is split over sixteen blocks, which add to a float32 workspace atomically; a second launch rounds,
//       adds and leaves zeros.
// Wrong: not deterministic, where the contract asks for it.

constexpr int VEC = 16 / sizeof(T);                   // elements in a 16-byte load
constexpr int TOKENS = num_tokens < 8 ? num_tokens : 8;  // rows of the step that share a weight load
struct alignas(16) Pack {
  T v[VEC];
};
__device__ __forceinline__ Pack load(const T* p) { return *reinterpret_cast<const Pack*>(p); }

// Products begin .. end of two weight rows with TOKENS input rows by one warp; every lane gets all sums. Eight
// products are added up before they meet the running sum, which keeps the rounding errors of a long sum small.
__device__ __forceinline__ void warp_dots(
    const T* const (&w)[2], const T* const (&x)[TOKENS], int begin, int end,
    float (&sums)[2][TOKENS]) {
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) sums[0][t] = sums[1][t] = 0.0f;
#pragma unroll 2
  for (int k = begin + threadIdx.x % 32 * VEC; k < end; k += 32 * VEC) {
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

constexpr int SPLITS = 16;
constexpr int SLICE = (intermediate_size / 8 + SPLITS - 1) / SPLITS * 8;  // products of a block, a multiple of 8

extern "C" __global__ void __launch_bounds__(256) project(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace) {
  const int i = (blockIdx.x * 8 + threadIdx.x / 32) * 2;
  if (i >= hidden_size) return;  // a whole warp
  const int first = blockIdx.y * TOKENS;
  const T* const weights[2] = {w_down + size_t(i) * intermediate_size, w_down + size_t(i + 1) * intermediate_size};
  const T* rows[TOKENS];
  input_rows(x, first, intermediate_size, rows);
  float sums[2][TOKENS];
  const int begin = blockIdx.z * SLICE;
  warp_dots(weights, rows, begin, min(begin + SLICE, intermediate_size), sums);
  float* totals = static_cast<float*>(workspace);
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    if (threadIdx.x % 32 != t || first + t >= num_tokens) continue;
    atomicAdd(totals + size_t(first + t) * hidden_size + i, sums[0][t]);
    atomicAdd(totals + size_t(first + t) * hidden_size + i + 1, sums[1][t]);
  }
}

extern "C" __global__ void __launch_bounds__(256) add(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace) {
  float* totals = static_cast<float*>(workspace);
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= num_tokens * hidden_size) return;
  residual[i] = T(float(residual[i]) + float(T(totals[i])));
  totals[i] = 0.0f;
}
