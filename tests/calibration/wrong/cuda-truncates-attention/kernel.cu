// Contract: paged_decode_attention, cuda.
// Idea: the plain kernel, a block a head, teams of lanes over its tokens; the output is converted towards zero.
// Wrong: every element is nearer to zero than it should be, by half a spacing on average.

constexpr int VEC = 16 / sizeof(T);    // elements in a 16-byte load
constexpr int PACKS = head_dim / VEC;  // 16-byte packs in a head
// A team of lanes, a power of two, holds a head; with more packs than lanes a lane owns several of them.
constexpr int LANES = PACKS > 16 ? 32 : PACKS > 8 ? 16 : PACKS > 4 ? 8 : PACKS > 2 ? 4 : PACKS > 1 ? 2 : 1;
constexpr int OWN = (PACKS + LANES - 1) / LANES;
constexpr int KEYS = 4;  // keys a team has in flight

struct alignas(16) Pack {
  T v[VEC];
};
__device__ __forceinline__ float cut(float value, float) { return value; }
__device__ __forceinline__ __half cut(float value, __half) { return __float2half_rz(value); }
__device__ __forceinline__ __nv_bfloat16 cut(float value, __nv_bfloat16) { return __float2bfloat16_rz(value); }
__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }
__device__ __forceinline__ bool owns(int lane, int i) { return lane + i * LANES < PACKS; }
__device__ __forceinline__ Pack load(const T* head, int lane, int i) {
  return *reinterpret_cast<const Pack*>(head + (lane + i * LANES) * VEC);
}
__device__ __forceinline__ float dot(const Pack& a, const Pack& b) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < VEC; ++j) sum += float(a.v[j]) * float(b.v[j]);
  return sum;
}

// Softmax state of a team: the largest score so far, the sum of weights and of weighted values under it.
struct State {
  float largest = -infinity();
  float total = 0.0f;
  float values[OWN][VEC] = {};
};

// KEYS keys of a team. Every lane of the warp takes part in the shuffles; a key that is not live changes nothing.
__device__ __forceinline__ void attend(
    State& state, const Pack (&query)[OWN], const T* const (&keys)[KEYS], const T* const (&values)[KEYS],
    const bool (&live)[KEYS], float scale, int lane) {
  float scores[KEYS];
  Pack rows[KEYS][OWN];
#pragma unroll
  for (int u = 0; u < KEYS; ++u) {
    scores[u] = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
      if (!owns(lane, i)) continue;
      scores[u] += dot(query[i], load(keys[u], lane, i));
      rows[u][i] = load(values[u], lane, i);
    }
  }
  float largest = state.largest;
#pragma unroll
  for (int u = 0; u < KEYS; ++u) {
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
      scores[u] += __shfl_xor_sync(0xffffffffu, scores[u], offset);
    scores[u] *= scale;
    if (live[u]) largest = fmaxf(largest, scores[u]);
  }
  const float shrink = state.largest == largest ? 1.0f : expf(state.largest - largest);
  state.largest = largest;
  state.total *= shrink;
#pragma unroll
  for (int i = 0; i < OWN; ++i)
#pragma unroll
    for (int j = 0; j < VEC; ++j) state.values[i][j] *= shrink;
#pragma unroll
  for (int u = 0; u < KEYS; ++u) {
    if (!live[u]) continue;
    const float weight = expf(scores[u] - largest);
    state.total += weight;
#pragma unroll
    for (int i = 0; i < OWN; ++i)
      if (owns(lane, i))
#pragma unroll
        for (int j = 0; j < VEC; ++j) state.values[i][j] += weight * float(rows[u][i].v[j]);
  }
}

constexpr int THREADS = 256;
constexpr int TEAMS = THREADS / LANES;

extern "C" __global__ void __launch_bounds__(256) paged_decode_attention(
    const T* __restrict__ q,
    const T* __restrict__ k_cache,
    const T* __restrict__ v_cache,
    const int* __restrict__ block_table,
    const int* __restrict__ seq_lens,
    T* __restrict__ out,
    float scale,
    int num_blocks,
    int max_blocks_per_seq,
    void* __restrict__ workspace) {
  __shared__ float largest[TEAMS], total[TEAMS], factor[TEAMS], sums[TEAMS][head_dim];
  const int h = blockIdx.x, t = blockIdx.y;
  const int g = h / (num_heads / num_kv_heads);
  const int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
  const int* blocks = block_table + size_t(t) * max_blocks_per_seq;
  const int length = seq_lens[t];
  const int begin = sliding_window > 0 ? max(0, length - sliding_window) : 0;
  const T* head = q + (size_t(t) * num_heads + h) * head_dim;
  Pack query[OWN];
#pragma unroll
  for (int i = 0; i < OWN; ++i)
    if (owns(lane, i)) query[i] = load(head, lane, i);
  State state;
  for (int first = begin; first < length; first += TEAMS * KEYS) {  // the same number of rounds for every team
    const T *keys[KEYS], *values[KEYS];
    bool live[KEYS];
#pragma unroll
    for (int u = 0; u < KEYS; ++u) {
      const int token = min(first + u * TEAMS + team, length - 1);
      live[u] = first + u * TEAMS + team < length;
      const size_t slot = size_t(blocks[token / block_size]) * block_size + token % block_size;
      keys[u] = k_cache + (slot * num_kv_heads + g) * head_dim;
      values[u] = v_cache + (slot * num_kv_heads + g) * head_dim;
    }
    attend(state, query, keys, values, live, scale, lane);
  }
  if (lane == 0) {
    largest[team] = state.largest;
    total[team] = state.total;
  }
#pragma unroll
  for (int i = 0; i < OWN; ++i)
    if (owns(lane, i))
#pragma unroll
      for (int j = 0; j < VEC; ++j) sums[team][(lane + i * LANES) * VEC + j] = state.values[i][j];
  __syncthreads();
  if (threadIdx.x < TEAMS) {
    float top = largest[0];
    for (int i = 1; i < TEAMS; ++i) top = fmaxf(top, largest[i]);
    factor[threadIdx.x] = expf(largest[threadIdx.x] - top);  // exp(-inf) = 0 for a team without a token
  }
  __syncthreads();
  for (int d = threadIdx.x; d < head_dim; d += THREADS) {
    float sum = 0.0f, weight = 0.0f;
    for (int i = 0; i < TEAMS; ++i) {
      sum += factor[i] * sums[i][d];
      weight += factor[i] * total[i];
    }
    out[(size_t(t) * num_heads + h) * head_dim + d] = cut(sum / weight, T());
  }
}
