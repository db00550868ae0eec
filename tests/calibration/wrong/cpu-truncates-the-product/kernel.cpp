// Contract: gated_mlp_up, cpu.
// Idea: the plain projection; the product is stored by cutting off the bits that do not fit.
// Wrong: every element is nearer to zero than it should be, by half a spacing on average.

template <class S>
static S cut(float value) {
  S result = from_float<S>(value);
  if constexpr (sizeof(S) == 2)
    if (std::fabs(to_float(result)) > std::fabs(value)) result.bits -= 1;  // one step towards zero
  return result;
}

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

// g / (1 + exp(-g)): for a very negative g the denominator is infinite and the quotient zero, never NaN.
static float silu(float g) { return g / (1.0f + std::exp(-g)); }

template <int ROWS>
static void activate(const T* x, const T* gate_row, const T* up_row, T* out) {
  float gate[ROWS], up[ROWS];
  row_dots<ROWS>(gate_row, x, hidden_size, gate);
  row_dots<ROWS>(up_row, x, hidden_size, up);
  for (int r = 0; r < ROWS; ++r) out[std::size_t(r) * intermediate_size] = cut<T>(silu(gate[r]) * up[r]);
}

extern "C" void gated_mlp_up(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
#pragma omp parallel for
  for (int i = 0; i < intermediate_size; ++i) {
    const T* gate_row = w_gate_up + std::size_t(i) * hidden_size;
    const T* up_row = gate_row + std::size_t(intermediate_size) * hidden_size;
    int t = 0;
    for (; t + 4 <= num_tokens; t += 4)
      activate<4>(x + std::size_t(t) * hidden_size, gate_row, up_row, out + std::size_t(t) * intermediate_size + i);
    for (; t < num_tokens; ++t)
      activate<1>(x + std::size_t(t) * hidden_size, gate_row, up_row, out + std::size_t(t) * intermediate_size + i);
  }
}
