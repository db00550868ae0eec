// Contract: attention_prelude, cpu.
// Idea: the plain prelude with one weight for both.
// Wrong: uses q_norm for the keys.

// Dot products of one weight row with ROWS input rows. Short sums keep the rounding errors of float32 small.
template <int ROWS, class X>
static inline void row_dots(const T* w, const X* x, int n, float* sums) {
  for (int r = 0; r < ROWS; ++r) sums[r] = 0.0f;
  for (int start = 0; start < n; start += 512) {
    const int stop = std::min(n, start + 512);
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    if constexpr (ROWS == 4) {
#pragma omp simd reduction(+ : a, b, c, d)
      for (int k = start; k < stop; ++k) {
        const float weight = to_float(w[k]);
        a += weight * to_float(x[k]);
        b += weight * to_float(x[n + k]);
        c += weight * to_float(x[2 * n + k]);
        d += weight * to_float(x[3 * n + k]);
      }
      sums[0] += a, sums[1] += b, sums[2] += c, sums[3] += d;
    } else {
#pragma omp simd reduction(+ : a)
      for (int k = start; k < stop; ++k) a += to_float(w[k]) * to_float(x[k]);
      sums[0] += a;
    }
  }
}

static void normalise_head(float* head, const T* gamma, float eps) {
  float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
  for (int i = 0; i < head_dim; ++i) squares += head[i] * head[i];
  const float r = float(1.0 / std::sqrt(double(squares) / head_dim + eps));
  for (int i = 0; i < head_dim; ++i) head[i] = to_float(from_float<T>(head[i] * r)) * to_float(gamma[i]);
}

static void rotate_head(float* head, const float* cosines, const float* sines) {
  constexpr int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const int first = rope_interleaved ? 2 * i : i;
    const int second = rope_interleaved ? 2 * i + 1 : i + half;
    const float a = head[first], b = head[second];
    head[first] = a * cosines[i] - b * sines[i];
    head[second] = b * cosines[i] + a * sines[i];
  }
}

extern "C" void attention_prelude(
    const T* __restrict__ x,
    const T* __restrict__ w_qkv,
    const T* __restrict__ b_qkv,
    const T* __restrict__ q_norm,
    const T* __restrict__ k_norm,
    const float* __restrict__ cos_sin,
    const int* __restrict__ positions,
    const int* __restrict__ slot_mapping,
    T* __restrict__ q_out,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    float eps,
    int num_blocks,
    int max_positions,
    void* __restrict__ workspace) {
  constexpr int all_heads = num_heads + 2 * num_kv_heads;
#pragma omp parallel for
  for (int h = 0; h < all_heads; ++h) {
    const bool is_query = h < num_heads;
    const bool is_value = h >= num_heads + num_kv_heads;
    for (int first = 0; first < num_tokens; first += 4) {
      const int rows = std::min(4, num_tokens - first);
      const T* x_rows = x + std::size_t(first) * hidden_size;
      float heads[4][head_dim];
      for (int i = 0; i < head_dim; ++i) {
        const int row = h * head_dim + i;
        const T* w_row = w_qkv + std::size_t(row) * hidden_size;
        float sums[4];
        if (rows == 4) {
          row_dots<4>(w_row, x_rows, hidden_size, sums);
        } else {
          for (int r = 0; r < rows; ++r)
            row_dots<1>(w_row, x_rows + std::size_t(r) * hidden_size, hidden_size, sums + r);
        }
        const float bias = has_qkv_bias ? to_float(b_qkv[row]) : 0.0f;
        for (int r = 0; r < rows; ++r) heads[r][i] = sums[r] + bias;
      }
      for (int r = 0; r < rows; ++r) {
        const int t = first + r;
        if (!is_value) {
          if constexpr (has_qk_norm) normalise_head(heads[r], q_norm, eps);
          const float* cosines = cos_sin + std::size_t(positions[t]) * rotary_dim;
          rotate_head(heads[r], cosines, cosines + rotary_dim / 2);
        }
        const std::size_t slot = slot_mapping[t];
        T* target = is_query   ? q_out + (std::size_t(t) * num_heads + h) * head_dim
                    : is_value ? v_cache + (slot * num_kv_heads + h - num_heads - num_kv_heads) * head_dim
                               : k_cache + (slot * num_kv_heads + h - num_heads) * head_dim;
        for (int i = 0; i < head_dim; ++i) target[i] = from_float<T>(heads[r][i]);
      }
    }
  }
}
