// Contract: lm_head_argmax, cuda.
// Idea: the plain scan; a winner of the last call with an impossible index would be reported.
// Wrong: reads workspace memory before anything was written there.

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

constexpr int PARTS = 512;
constexpr int NOBODY = 0x7fffffff;

struct Best {
  float logit;
  int id;
};
__device__ __forceinline__ Best better(Best a, Best b) {
  return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}
__device__ __forceinline__ Best nothing() { return {__int_as_float(0xff800000), NOBODY}; }

// Workspace: Best[num_tokens][PARTS].
extern "C" __global__ void __launch_bounds__(256) scan(
    const T* __restrict__ x,
    const T* __restrict__ w,
    int* __restrict__ out_ids,
    float* __restrict__ out_max,
    void* __restrict__ workspace) {
  __shared__ Best winners[8][TOKENS];
  const volatile int* before = static_cast<const volatile int*>(workspace);
  const size_t last = (size_t(blockIdx.y) * TOKENS * PARTS + blockIdx.x) * 2 + 1;
  if (threadIdx.x == 0 && before[last] == -123456789) out_ids[0] = -1;  // one thread: every such read is reported
  const int warp = threadIdx.x / 32;
  const int first = blockIdx.y * TOKENS;
  const T* rows[TOKENS];
  input_rows(x, first, hidden_size, rows);
  Best best[TOKENS];
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) best[t] = nothing();
  for (int id = (blockIdx.x * 8 + warp) * 2; id < vocab_size; id += PARTS * 16) {
    const int next = min(id + 1, vocab_size - 1);  // an odd vocabulary ends with the same row twice
    const T* const weights[2] = {w + size_t(id) * hidden_size, w + size_t(next) * hidden_size};
    float logits[2][TOKENS];
    warp_dots(weights, rows, hidden_size, logits);
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) best[t] = better(better(best[t], {logits[0][t], id}), {logits[1][t], next});
  }
#pragma unroll
  for (int t = 0; t < TOKENS; ++t)
    if (threadIdx.x % 32 == 0) winners[warp][t] = best[t];
  __syncthreads();
  const int t = threadIdx.x;
  if (t < TOKENS && first + t < num_tokens) {
    Best winner = winners[0][t];
    for (int i = 1; i < 8; ++i) winner = better(winner, winners[i][t]);
    static_cast<Best*>(workspace)[size_t(first + t) * PARTS + blockIdx.x] = winner;
  }
}

extern "C" __global__ void merge(
    const T* __restrict__ x,
    const T* __restrict__ w,
    int* __restrict__ out_ids,
    float* __restrict__ out_max,
    void* __restrict__ workspace) {
  const Best* found = static_cast<const Best*>(workspace) + size_t(blockIdx.x) * PARTS;
  Best best = nothing();
  for (int i = threadIdx.x; i < PARTS; i += 32) best = better(best, found[i]);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float logit = __shfl_xor_sync(0xffffffffu, best.logit, offset);
    const int id = __shfl_xor_sync(0xffffffffu, best.id, offset);
    best = better(best, {logit, id});
  }
  if (threadIdx.x == 0) {
    out_ids[blockIdx.x] = best.id == NOBODY ? 0 : best.id;
    out_max[blockIdx.x] = best.logit;
  }
}
