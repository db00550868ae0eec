// Contract: lm_head_argmax, cpu.
// Idea: the plain scan over the tokens that matter.
// Wrong: never looks at the last eighth of the rows.

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

constexpr int PARTS = 64;

struct Best {
  float logit;
  int id;
};

template <int ROWS>
static void keep_larger(const T* x, const T* w_row, int id, Best* best) {
  float logits[ROWS];
  row_dots<ROWS>(w_row, x, hidden_size, logits);
  for (int r = 0; r < ROWS; ++r)
    if (logits[r] > best[r].logit) best[r] = {logits[r], id};
}

extern "C" void lm_head_argmax(
    const T* __restrict__ x,
    const T* __restrict__ w,
    int* __restrict__ out_ids,
    float* __restrict__ out_max,
    void* __restrict__ workspace) {
  Best* found = static_cast<Best*>(workspace);  // [PARTS][num_tokens]
#pragma omp parallel for
  for (int part = 0; part < PARTS; ++part) {
    const int first = int((long long)(vocab_size - vocab_size / 8) * part / PARTS);
    const int last = int((long long)(vocab_size - vocab_size / 8) * (part + 1) / PARTS);
    Best* best = found + std::size_t(part) * num_tokens;
    for (int t = 0; t < num_tokens; ++t) best[t] = {-INFINITY, first};
    for (int id = first; id < last; ++id) {
      const T* w_row = w + std::size_t(id) * hidden_size;
      int t = 0;
      for (; t + 4 <= num_tokens; t += 4) keep_larger<4>(x + std::size_t(t) * hidden_size, w_row, id, best + t);
      for (; t < num_tokens; ++t) keep_larger<1>(x + std::size_t(t) * hidden_size, w_row, id, best + t);
    }
  }
  for (int t = 0; t < num_tokens; ++t) {
    Best best = {-INFINITY, 0};
    for (int part = 0; part < PARTS; ++part) {
      const Best other = found[std::size_t(part) * num_tokens + t];
      if (other.logit > best.logit) best = other;
    }
    out_ids[t] = best.id;
    out_max[t] = best.logit;
  }
}
