// Contract: encoder_attention, cuda.
// Idea: plain attention over the padded length.
// Wrong: ignores seq_lens for the keys.

constexpr int VEC = 16 / sizeof(T);    // elements in a 16-byte load
constexpr int PACKS = head_dim / VEC;  // 16-byte packs in a head
// A team of lanes, a power of two, holds a head; with more packs than lanes a lane owns several of them.
constexpr int LANES = PACKS > 16 ? 32 : PACKS > 8 ? 16 : PACKS > 4 ? 8 : PACKS > 2 ? 4 : PACKS > 1 ? 2 : 1;
constexpr int OWN = (PACKS + LANES - 1) / LANES;
constexpr int KEYS = 4;  // keys a team has in flight

struct alignas(16) Pack {
  T v[VEC];
};
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

constexpr int TEAMS = 32 / LANES;

extern "C" __global__ void __launch_bounds__(256) encoder_attention(
    const T* __restrict__ qkv,
    const int* __restrict__ seq_lens,
    T* __restrict__ out,
    float scale,
    void* __restrict__ workspace) {
  constexpr size_t part = size_t(num_heads) * head_dim;  // from queries to keys, from keys to values
  constexpr size_t stride = 3 * part;                    // from a token to the next
  const int query_row = blockIdx.x * 8 + threadIdx.x / 32, h = blockIdx.y, b = blockIdx.z;
  if (query_row >= seq_len) return;  // a whole warp
  const int team = threadIdx.x % 32 / LANES, lane = threadIdx.x % LANES;
  const int length = seq_lens[b];
  T* target = out + ((size_t(b) * seq_len + query_row) * num_heads + h) * head_dim;
  if (query_row >= length) {
    for (int d = threadIdx.x % 32; d < head_dim; d += 32) target[d] = T(0.0f);
    return;
  }
  const T* sequence = qkv + size_t(b) * seq_len * stride + size_t(h) * head_dim;
  Pack query[OWN];
#pragma unroll
  for (int i = 0; i < OWN; ++i)
    if (owns(lane, i)) query[i] = load(sequence + query_row * stride, lane, i);
  State state;
  const int padded = seq_len;
  for (int first = 0; first < padded; first += TEAMS * KEYS) {  // the same number of rounds for every team
    const T *keys[KEYS], *values[KEYS];
    bool live[KEYS];
#pragma unroll
    for (int u = 0; u < KEYS; ++u) {
      const int token = min(first + u * TEAMS + team, padded - 1);
      live[u] = first + u * TEAMS + team < padded;
      keys[u] = sequence + token * stride + part;
      values[u] = sequence + token * stride + 2 * part;
    }
    attend(state, query, keys, values, live, scale, lane);
  }
  float top = state.largest;
#pragma unroll
  for (int offset = LANES; offset < 32; offset *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
  const float factor = expf(state.largest - top);  // exp(-inf) = 0 for a team without a token
  float total = state.total * factor;
#pragma unroll
  for (int offset = LANES; offset < 32; offset *= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    Pack result;
#pragma unroll
    for (int j = 0; j < VEC; ++j) {
      float sum = state.values[i][j] * factor;
#pragma unroll
      for (int offset = LANES; offset < 32; offset *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
      result.v[j] = T(sum / total);
    }
    if (team == 0 && owns(lane, i)) *reinterpret_cast<Pack*>(target + (lane + i * LANES) * VEC) = result;
  }
}
