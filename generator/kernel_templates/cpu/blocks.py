"""Building blocks of the CPU templates."""

from __future__ import annotations

from generator.kernel_templates.stage import Block

_VALUE_OF = """
// Any element as float32.
static inline float value_of(float x) { return x; }
static inline float value_of(bfloat16 x) { return to_float(x); }
static inline float value_of(float16 x) { return to_float(x); }
static inline float value_of(int x) { return float(x); }
static inline float value_of(long long x) { return float(x); }
"""

_EXTREME = """
// The larger of two, the smaller where not LARGEST; a NaN among them is the result.
template <bool LARGEST>
static inline float extreme(float a, float b) {
  return (LARGEST ? a > b : a < b) || a != a ? a : b;
}
"""

_ROW_DOTS = """
// Products of one weight row with ROWS rows of x. Short sums keep the rounding errors of float32 small.
template <int ROWS, class S>
static inline void row_dots(const S* w, const float* x, int length, float* sums) {
  for (int r = 0; r < ROWS; ++r) sums[r] = 0.0f;
  for (int start = 0; start < length; start += 512) {
    const int stop = std::min(length, start + 512);
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    if constexpr (ROWS == 4) {
#pragma omp simd reduction(+ : a, b, c, d)
      for (int k = start; k < stop; ++k) {
        const float weight = to_float(w[k]);
        a += weight * x[k];
        b += weight * x[length + k];
        c += weight * x[2 * length + k];
        d += weight * x[3 * length + k];
      }
      sums[0] += a, sums[1] += b, sums[2] += c, sums[3] += d;
    } else {
      const int middle = start + (stop - start) / 2, rest = (stop - start) % 2;
#pragma omp simd reduction(+ : a, b)
      for (int k = start; k < middle; ++k) {
        a += to_float(w[k]) * x[k];
        b += to_float(w[k + middle - start]) * x[k + middle - start];
      }
      if (rest) a += to_float(w[stop - 1]) * x[stop - 1];
      sums[0] += a + b;
    }
  }
}
"""

_BEST = """
struct Best {
  float logit;
  int id;
};
"""

BLOCKS = {
    "value_of": Block(_VALUE_OF),
    "extreme": Block(_EXTREME),
    "row_dots": Block(_ROW_DOTS),
    "best": Block(_BEST),
}
