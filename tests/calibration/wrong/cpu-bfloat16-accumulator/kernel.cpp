// Contract: o_proj_residual_rmsnorm, cpu.
// Idea: partial sums of 64 terms, added up in bfloat16.
// Wrong: accumulates in bfloat16.

static inline float narrow(float value) { return to_float(from_float<bfloat16>(value)); }

// Dot products of one weight row with ROWS input rows. Short sums keep the rounding errors of float32 small.
template <int ROWS, class X>
static inline void row_dots(const T* w, const X* x, int n, float* sums) {
  for (int r = 0; r < ROWS; ++r) sums[r] = 0.0f;
  for (int start = 0; start < n; start += 64) {
    const int stop = std::min(n, start + 64);
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
      sums[0] = narrow(sums[0] + a), sums[1] = narrow(sums[1] + b);
      sums[2] = narrow(sums[2] + c), sums[3] = narrow(sums[3] + d);
    } else {
#pragma omp simd reduction(+ : a)
      for (int k = start; k < stop; ++k) a += to_float(w[k]) * to_float(x[k]);
      sums[0] = narrow(sums[0] + a);
    }
  }
}

template <int ROWS>
static void add_projection(const T* attn, const T* w_row, T* residual) {
  float sums[ROWS];
  row_dots<ROWS>(w_row, attn, in_features, sums);
  for (int r = 0; r < ROWS; ++r) {
    T& target = residual[std::size_t(r) * hidden_size];
    const float projected = to_float(from_float<T>(sums[r]));  // the binding round before the sum
    target = from_float<T>(to_float(target) + projected);
  }
}

static void normalise_row(const T* row, const T* weight, T* out, float eps) {
  float squares = 0.0f;
  for (int start = 0; start < hidden_size; start += 512) {
    const int stop = std::min(hidden_size, start + 512);
    float part = 0.0f;
#pragma omp simd reduction(+ : part)
    for (int i = start; i < stop; ++i) part += to_float(row[i]) * to_float(row[i]);
    squares += part;
  }
  const float r = float(1.0 / std::sqrt(double(squares) / hidden_size + eps));
#pragma omp simd
  for (int i = 0; i < hidden_size; ++i) {
    const T normed = from_float<T>(to_float(row[i]) * r);
    out[i] = from_float<T>(to_float(normed) * to_float(weight[i]));
  }
}

extern "C" void o_proj_residual_rmsnorm(
    const T* __restrict__ attn,
    const T* __restrict__ w_o,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
#pragma omp parallel
  {
#pragma omp for  // its barrier makes every sum visible to the rows below
    for (int i = 0; i < hidden_size; ++i) {
      const T* w_row = w_o + std::size_t(i) * in_features;
      int t = 0;
      for (; t + 4 <= num_tokens; t += 4)
        add_projection<4>(attn + std::size_t(t) * in_features, w_row, residual + std::size_t(t) * hidden_size + i);
      for (; t < num_tokens; ++t)
        add_projection<1>(attn + std::size_t(t) * in_features, w_row, residual + std::size_t(t) * hidden_size + i);
    }
#pragma omp for
    for (int t = 0; t < num_tokens; ++t) {
      const std::size_t row = std::size_t(t) * hidden_size;
      normalise_row(residual + row, weight, out + row, eps);
    }
  }
}
