// Contract: residual_rmsnorm, cpu. Made from a template.
// Idea: rows, in 2 launches at most; which of them run follows from the dims.
// Bound by: latency for a step, memory beyond.

// Any element as float32.
static inline float value_of(float x) { return x; }
static inline float value_of(bfloat16 x) { return to_float(x); }
static inline float value_of(float16 x) { return to_float(x); }
static inline float value_of(int x) { return float(x); }
static inline float value_of(long long x) { return float(x); }

// The larger of two, the smaller where not LARGEST; a NaN among them is the result.
template <bool LARGEST>
static inline float extreme(float a, float b) {
  return (LARGEST ? a > b : a < b) || a != a ? a : b;
}

extern "C" void add_and_normalise(
    const T* __restrict__ x,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
  const long long rows = num_tokens;
  const int columns = hidden_size;
#pragma omp parallel for if (rows * columns > 16384)
  for (long long row = 0; row < rows; ++row) {
    const long long i0 = row;
    float sum_v__variance = 0.0f;
    for (int start = 0; start < columns; start += 512) {
      const int stop = std::min(columns, start + 512);
      float part = 0.0f;
#pragma omp simd reduction(+ : part)
      for (int i = start; i < stop; ++i) {
        const float v_x = value_of(x[size_t(i0) * hidden_size + size_t(i)]);
        const float v_residual = value_of(residual[size_t(i0) * hidden_size + size_t(i)]);
        const float v_added = v_x + v_residual;
        const float v_s = to_float(from_float<T>(v_added));
        const float v__square = v_s * v_s;
        part += v__square;
      }
      sum_v__variance += part;
    }
    const float v__variance = sum_v__variance / float(columns);
    const float v__stable = v__variance + eps;
    const float v__root = 1.0f / std::sqrt(v__stable);
    for (int i = 0; i < columns; ++i) {
      const float v_x = value_of(x[size_t(i0) * hidden_size + size_t(i)]);
      const float v_residual = value_of(residual[size_t(i0) * hidden_size + size_t(i)]);
      const float v_weight = value_of(weight[size_t(i)]);
      const float v_added = v_x + v_residual;
      const float v_s = to_float(from_float<T>(v_added));
      const float v__plain = v_s * v__root;
      const float v__rounded = to_float(from_float<T>(v__plain));
      const float v__scaled = v__rounded * v_weight;
      const float v_normed = v__scaled;
      residual[size_t(i0) * hidden_size + size_t(i)] = from_float<T>(v_s);
      out[size_t(i0) * hidden_size + size_t(i)] = from_float<T>(v_normed);
    }
  }
}

extern "C" void normalise(
    const T* __restrict__ x,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
  const long long rows = num_tokens;
  const int columns = hidden_size;
#pragma omp parallel for if (rows * columns > 16384)
  for (long long row = 0; row < rows; ++row) {
    const long long i0 = row;
    float sum_v__variance = 0.0f;
    for (int start = 0; start < columns; start += 512) {
      const int stop = std::min(columns, start + 512);
      float part = 0.0f;
#pragma omp simd reduction(+ : part)
      for (int i = start; i < stop; ++i) {
        const float v_x = value_of(x[size_t(i0) * hidden_size + size_t(i)]);
        const float v__square = v_x * v_x;
        part += v__square;
      }
      sum_v__variance += part;
    }
    const float v__variance = sum_v__variance / float(columns);
    const float v__stable = v__variance + eps;
    const float v__root = 1.0f / std::sqrt(v__stable);
    for (int i = 0; i < columns; ++i) {
      const float v_x = value_of(x[size_t(i0) * hidden_size + size_t(i)]);
      const float v_weight = value_of(weight[size_t(i)]);
      const float v__plain = v_x * v__root;
      const float v__rounded = to_float(from_float<T>(v__plain));
      const float v__scaled = v__rounded * v_weight;
      const float v_normed = v__scaled;
      out[size_t(i0) * hidden_size + size_t(i)] = from_float<T>(v_normed);
    }
  }
}
