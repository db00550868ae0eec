// Contract: residual_rmsnorm, cpu.
// Idea: reads and writes sixteen-bit words as bfloat16.
// Wrong: takes every storage type for bfloat16.

static float widen(T value) {
  if constexpr (sizeof(T) == 4) return to_float(from_float<bfloat16>(to_float(value)));
  bfloat16 bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return to_float(bits);
}
static T shorten(float value) {
  const bfloat16 bits = from_float<bfloat16>(value);
  if constexpr (sizeof(T) == 4) return from_float<T>(to_float(bits));
  T result;
  std::memcpy(&result, &bits, sizeof(bits));
  return result;
}

static void normalise_row(const T* x, T* residual, const T* weight, T* out, float eps) {
  float squares = 0.0f;
  for (int start = 0; start < hidden_size; start += 512) {  // short sums keep rounding errors small
    const int stop = std::min(hidden_size, start + 512);
    float part = 0.0f;
#pragma omp simd reduction(+ : part)
    for (int i = start; i < stop; ++i) {
      T sum = x[i];
      if constexpr (has_residual) {
        sum = shorten(widen(x[i]) + widen(residual[i]));
        residual[i] = sum;
      }
      const float s = widen(sum);
      part += s * s;
    }
    squares += part;
  }
  const float r = float(1.0 / std::sqrt(double(squares) / hidden_size + eps));
  const T* row = has_residual ? residual : x;
#pragma omp simd
  for (int i = 0; i < hidden_size; ++i) {
    out[i] = shorten(widen(shorten(widen(row[i]) * r)) * widen(weight[i]));
  }
}

extern "C" void residual_rmsnorm(
    const T* __restrict__ x,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
#pragma omp parallel for if (num_tokens > 1)
  for (int t = 0; t < num_tokens; ++t) {
    const std::size_t row = std::size_t(t) * hidden_size;
    normalise_row(x + row, has_residual ? residual + row : nullptr, weight, out + row, eps);
  }
}
