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
