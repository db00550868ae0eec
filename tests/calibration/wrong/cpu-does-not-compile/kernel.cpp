// Contract: gated_mlp_down, cpu.
// Idea: the plain projection.
// Wrong: assigns a float to an element of type T.

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

template <int ROWS>
static void add_projection(const T* x, const T* w_row, T* residual) {
  float sums[ROWS];
  row_dots<ROWS>(w_row, x, intermediate_size, sums);
  for (int r = 0; r < ROWS; ++r) {
    T& target = residual[std::size_t(r) * hidden_size];
    const float projected = to_float(from_float<T>(sums[r]));  // the binding round before the sum
    target = to_float(target) + projected;
  }
}

extern "C" void gated_mlp_down(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace) {
#pragma omp parallel for
  for (int i = 0; i < hidden_size; ++i) {
    const T* w_row = w_down + std::size_t(i) * intermediate_size;
    int t = 0;
    for (; t + 4 <= num_tokens; t += 4)
      add_projection<4>(x + std::size_t(t) * intermediate_size, w_row, residual + std::size_t(t) * hidden_size + i);
    for (; t < num_tokens; ++t)
      add_projection<1>(x + std::size_t(t) * intermediate_size, w_row, residual + std::size_t(t) * hidden_size + i);
  }
}
