// Contract: gated_mlp_up, cpu. Made from a template.
// Idea: gemv, in 1 launches at most; which of them run follows from the dims.
// Bound by: the read of the weights for few rows.

// Any element as float32.
static inline float value_of(float x) { return x; }
static inline float value_of(bfloat16 x) { return to_float(x); }
static inline float value_of(float16 x) { return to_float(x); }
static inline float value_of(int x) { return float(x); }
static inline float value_of(long long x) { return float(x); }

// Products of one weight row with ROWS rows of x, 1 or 4. Short sums keep the rounding errors of float32 small.
template <int ROWS, class S>
static inline void row_dots(const S* w, const float* x, int length, float* sums) {
  if constexpr (ROWS == 1) {
    // Four vectors of sums for the whole row, folded once. Weights are asked for ahead of time, one line of two: this
    // loop waits for memory alone, and the processor follows a stream too late at the start of a page.
    constexpr int LANES = 64, AHEAD = 2048 / int(sizeof(S));
    float lanes[LANES] = {}, sum = 0.0f;
    int k = 0;
    for (; k + LANES <= length; k += LANES) {
      __builtin_prefetch(w + k + AHEAD);
#pragma omp simd
      for (int l = 0; l < LANES; ++l) lanes[l] += to_float(w[k + l]) * x[k + l];
    }
    for (; k < length; ++k) sum += to_float(w[k]) * x[k];
#pragma omp simd reduction(+ : sum)
    for (int l = 0; l < LANES; ++l) sum += lanes[l];
    sums[0] = sum;
  } else {
    for (int r = 0; r < ROWS; ++r) sums[r] = 0.0f;
    for (int start = 0; start < length; start += 512) {
      const int stop = std::min(length, start + 512);
      float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
#pragma omp simd reduction(+ : a, b, c, d)
      for (int k = start; k < stop; ++k) {
        const float weight = to_float(w[k]);
        a += weight * x[k];
        b += weight * x[length + k];
        c += weight * x[2 * length + k];
        d += weight * x[3 * length + k];
      }
      sums[0] += a, sums[1] += b, sums[2] += c, sums[3] += d;
    }
  }
}

extern "C" void project(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
  using S = T;
  const int M = num_tokens, N = intermediate_size;
  constexpr int K = hidden_size, PARTS = 2;
  constexpr int ROWS = K <= 32768 ? 4 : 1;  // rows of x that share a read of the weight
  constexpr int BLOCK = 64;
#pragma omp parallel for
  for (int first = 0; first < N; first += BLOCK) {
    for (int row0 = 0; row0 < M; ) {
      const bool several = ROWS > 1 && M - row0 > 1;
      const int count = std::min(M - row0, several ? ROWS : 1);
      float values[ROWS * K];
      for (int r = 0; r < (several ? ROWS : 1); ++r)
        for (int k = 0; k < K; ++k)
          values[r * K + k] = row0 + r < M ? to_float(x[std::size_t(row0 + r) * K + k]) : 0.0f;
      for (int column = first; column < std::min(N, first + BLOCK); ++column) {
        float sums[PARTS][ROWS];
        if (several) row_dots<ROWS, S>(w_gate_up + std::size_t(column) * K, values, K, sums[0]);
        else row_dots<1, S>(w_gate_up + std::size_t(column) * K, values, K, sums[0]);
        if (several) row_dots<ROWS, S>(w_gate_up + std::size_t(intermediate_size + column) * K, values, K, sums[1]);
        else row_dots<1, S>(w_gate_up + std::size_t(intermediate_size + column) * K, values, K, sums[1]);
        for (int r = 0; r < count; ++r) {
          const int row = row0 + r;
          const float v_acc0 = sums[0][r];
          const float v_acc1 = sums[1][r];
          const float v_g = v_acc0 / (1.0f + std::exp(-v_acc0));
          const float v_y = v_g * v_acc1;
          out[size_t(row) * intermediate_size + size_t(column)] = from_float<T>(v_y);
        }
      }
      row0 += several ? ROWS : 1;
    }
  }
}
