// Contract: gated_mlp_up, cpu.
// Idea: products of sixteen bfloat16 at a time through AVX-512, of eight through AVX2; other types and processors
//       take the plain loop.
// Bound by: memory bandwidth of the weights for few rows, then by arithmetic.

// Sum of n products, n a multiple of 8.
static inline float dot(const T* w, const T* x, int n) {
  float sum = 0.0f;
  int k = 0;
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, bfloat16>) {
    const auto widen = [](const T* p) {
      const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
      return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    };
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (; k + 32 <= n; k += 32) {
      even = _mm512_fmadd_ps(widen(w + k), widen(x + k), even);
      odd = _mm512_fmadd_ps(widen(w + k + 16), widen(x + k + 16), odd);
    }
    sum = _mm512_reduce_add_ps(_mm512_add_ps(even, odd));
  }
#elif defined(__AVX2__) && defined(__FMA__)
  if constexpr (std::is_same_v<T, bfloat16>) {
    const auto widen = [](const T* p) {
      const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
      return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    };
    __m256 sums = _mm256_setzero_ps();
    for (; k + 8 <= n; k += 8) sums = _mm256_fmadd_ps(widen(w + k), widen(x + k), sums);
    alignas(32) float lanes[8];
    _mm256_store_ps(lanes, sums);
    for (float lane : lanes) sum += lane;
  }
#endif
  float rest = 0.0f;
#pragma omp simd reduction(+ : rest)
  for (int i = k; i < n; ++i) rest += to_float(w[i]) * to_float(x[i]);
  return sum + rest;
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
      sums[0] += dot(w + start, x + start, stop - start);
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
  for (int r = 0; r < ROWS; ++r) out[std::size_t(r) * intermediate_size] = from_float<T>(silu(gate[r]) * up[r]);
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
