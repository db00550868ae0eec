// Contract: encoder_attention, cpu.
// Idea: the whole padded length with weights of zero past the end.
// Wrong: lets infinities of the padding leak.

constexpr int CHUNK = 64;

static float dot(const T* a, const T* b) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < head_dim; ++i) sum += to_float(a[i]) * to_float(b[i]);
  return sum;
}

static void attend(
    const T* query, const T* keys, const T* values, std::size_t stride, int length, float scale, T* out) {
  float sums[head_dim] = {};
  float largest = -INFINITY, total = 0.0f;
  for (int first = 0; first < length; first += CHUNK) {
    const int count = std::min(CHUNK, seq_len - first);
    float scores[CHUNK];
    float top = largest;
    for (int j = 0; j < count; ++j) {
      scores[j] = first + j < length ? scale * dot(query, keys + (first + j) * stride) : -INFINITY;
      top = std::max(top, scores[j]);
    }
    const float shrink = std::exp(largest - top);  // exp(-inf) = 0 for the first chunk
    largest = top;
    total *= shrink;
    for (int i = 0; i < head_dim; ++i) sums[i] *= shrink;
    for (int j = 0; j < count; ++j) {
      const float weight = std::exp(scores[j] - top);
      const T* value = values + (first + j) * stride;
      total += weight;
#pragma omp simd
      for (int i = 0; i < head_dim; ++i) sums[i] += weight * to_float(value[i]);
    }
  }
  for (int i = 0; i < head_dim; ++i) out[i] = from_float<T>(sums[i] / total);
}

extern "C" void encoder_attention(
    const T* __restrict__ qkv,
    const int* __restrict__ seq_lens,
    T* __restrict__ out,
    float scale,
    void* __restrict__ workspace) {
  constexpr std::size_t part = std::size_t(num_heads) * head_dim;  // from queries to keys, from keys to values
  constexpr std::size_t stride = 3 * part;                         // from a token to the next
#pragma omp parallel for collapse(3)
  for (int b = 0; b < batch_size; ++b) {
    for (int h = 0; h < num_heads; ++h) {
      for (int i = 0; i < seq_len; ++i) {
        const T* sequence = qkv + std::size_t(b) * seq_len * stride + std::size_t(h) * head_dim;
        T* target = out + ((std::size_t(b) * seq_len + i) * num_heads + h) * head_dim;
        if (i < seq_lens[b]) {
          attend(sequence + i * stride, sequence + part, sequence + 2 * part, stride, seq_lens[b], scale, target);
        } else {
          for (int d = 0; d < head_dim; ++d) target[d] = from_float<T>(0.0f);
        }
      }
    }
  }
}
