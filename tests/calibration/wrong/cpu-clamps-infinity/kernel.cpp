// Contract: residual_rmsnorm, cpu.
// Idea: the plain norm; float16 cannot hold the sums of a model that was trained in bfloat16, so they are clamped.
// Wrong: a sum beyond the type's range is stored as its largest number, and nobody learns of the overflow.

template <class S>
static S narrow(float value) {
  const float largest = std::is_same<S, float16>::value ? 65504.0f : 3.3895314e38f;
  return from_float<S>(std::min(std::max(value, -largest), largest));
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
        sum = narrow<T>(to_float(x[i]) + to_float(residual[i]));
        residual[i] = sum;
      }
      const float s = to_float(sum);
      part += s * s;
    }
    squares += part;
  }
  const float r = float(1.0 / std::sqrt(double(squares) / hidden_size + eps));
  const T* row = has_residual ? residual : x;
#pragma omp simd
  for (int i = 0; i < hidden_size; ++i) {
    const T normed = from_float<T>(to_float(row[i]) * r);
    out[i] = from_float<T>(to_float(normed) * to_float(weight[i]));
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
