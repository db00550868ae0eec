// Contract: paged_decode_attention, cpu.
// Idea: plain attention with an online softmax.
// Wrong: rescales the weights' sum, but not the values'.

constexpr int CHUNK = 64;
constexpr int GROUP = num_heads / num_kv_heads;

static float dot(const T* a, const T* b) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < head_dim; ++i) sum += to_float(a[i]) * to_float(b[i]);
  return sum;
}

// Softmax state of one query head: the largest score so far, the sum of weights and of weighted values under it.
struct State {
  float largest = -INFINITY;
  float total = 0.0f;
  float values[head_dim] = {};
};

static void attend(State& state, const T* query, const T* const* keys, const T* const* values, int count, float scale) {
  float scores[CHUNK];
  float largest = state.largest;
  for (int j = 0; j < count; ++j) {
    scores[j] = scale * dot(query, keys[j]);
    largest = std::max(largest, scores[j]);
  }
  const float shrink = std::exp(state.largest - largest);  // exp(-inf) = 0 for the first chunk
  state.largest = largest;
  state.total *= shrink;
  for (int j = 0; j < count; ++j) {
    const float weight = std::exp(scores[j] - largest);
    state.total += weight;
#pragma omp simd
    for (int i = 0; i < head_dim; ++i) state.values[i] += weight * to_float(values[j][i]);
  }
}

extern "C" void paged_decode_attention(
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
#pragma omp parallel for collapse(2) schedule(dynamic)
  for (int t = 0; t < num_tokens; ++t) {
    for (int g = 0; g < num_kv_heads; ++g) {
      const int* blocks = block_table + std::size_t(t) * max_blocks_per_seq;
      const int length = seq_lens[t];
      const int begin = sliding_window > 0 ? std::max(0, length - sliding_window) : 0;
      State states[GROUP];
      for (int first = begin; first < length; first += CHUNK) {
        const int count = std::min(CHUNK, length - first);
        const T *keys[CHUNK], *values[CHUNK];
        for (int j = 0; j < count; ++j) {
          const int token = first + j;
          const std::size_t slot = std::size_t(blocks[token / block_size]) * block_size + token % block_size;
          keys[j] = k_cache + (slot * num_kv_heads + g) * head_dim;
          values[j] = v_cache + (slot * num_kv_heads + g) * head_dim;
        }
        for (int r = 0; r < GROUP; ++r) {
          const T* query = q + (std::size_t(t) * num_heads + g * GROUP + r) * head_dim;
          attend(states[r], query, keys, values, count, scale);
        }
      }
      for (int r = 0; r < GROUP; ++r) {
        T* target = out + (std::size_t(t) * num_heads + g * GROUP + r) * head_dim;
        for (int i = 0; i < head_dim; ++i) target[i] = from_float<T>(states[r].values[i] / states[r].total);
      }
    }
  }
}
