// Contract: gated_mlp_up, cuda.
// Idea: the plain projection; the product is converted towards zero.
// Wrong: every element is nearer to zero than it should be, by half a spacing on average.

constexpr int VEC = 16 / sizeof(T);                   // elements in a 16-byte load
constexpr int TOKENS = num_tokens < 8 ? num_tokens : 8;  // rows of the step that share a weight load
struct alignas(16) Pack {
  T v[VEC];
};
__device__ __forceinline__ Pack load(const T* p) { return *reinterpret_cast<const Pack*>(p); }

__device__ __forceinline__ float cut(float value, float) { return value; }
__device__ __forceinline__ __half cut(float value, __half) { return __float2half_rz(value); }
__device__ __forceinline__ __nv_bfloat16 cut(float value, __nv_bfloat16) { return __float2bfloat16_rz(value); }

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

// g / (1 + exp(-g)): for a very negative g the denominator is infinite and the quotient zero, never NaN.
__device__ __forceinline__ float silu(float g) { return g / (1.0f + expf(-g)); }

extern "C" __global__ void __launch_bounds__(256) gated_mlp_up(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
  const int i = blockIdx.x * 8 + threadIdx.x / 32;
  if (i >= intermediate_size) return;  // a whole warp: intermediate_size is a multiple of 8, so this never happens
  const int first = blockIdx.y * TOKENS;
  const T* gate_row = w_gate_up + size_t(i) * hidden_size;
  const T* const weights[2] = {gate_row, gate_row + size_t(intermediate_size) * hidden_size};
  const T* rows[TOKENS];
  input_rows(x, first, hidden_size, rows);
  float sums[2][TOKENS];
  warp_dots(weights, rows, hidden_size, sums);
#pragma unroll
  for (int t = 0; t < TOKENS; ++t)
    if (threadIdx.x % 32 == t && first + t < num_tokens)
      out[size_t(first + t) * intermediate_size + i] = cut(silu(sums[0][t]) * sums[1][t], T());
}
