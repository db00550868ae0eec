// Contract: residual_rmsnorm, cpu.
// Idea: a row is shared by all threads, which add up its squares together.
// Wrong: a data race on the sum of squares.

static void normalise_row(const T* x, T* residual, const T* weight, T* out, float eps) {
  volatile float squares = 0.0f;
#pragma omp parallel num_threads(4)
  for (int i = omp_get_thread_num(); i < hidden_size; i += omp_get_num_threads()) {
    T sum = x[i];
    if constexpr (has_residual) {
      sum = from_float<T>(to_float(x[i]) + to_float(residual[i]));
      residual[i] = sum;
    }
    const float s = to_float(sum);
    squares = squares + s * s;
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
  for (int t = 0; t < num_tokens; ++t) {
    const std::size_t row = std::size_t(t) * hidden_size;
    normalise_row(x + row, has_residual ? residual + row : nullptr, weight, out + row, eps);
  }
}
