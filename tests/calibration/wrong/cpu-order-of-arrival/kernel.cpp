// Contract: gated_mlp_down, cpu.
// Idea: the sum is split into parts that threads take as they come and add atomically.
// Wrong: not deterministic, where the contract asks for it.

constexpr int PART = 16;

extern "C" void gated_mlp_down(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace) {
  float* totals = static_cast<float*>(workspace);  // [num_tokens][hidden_size]
  std::fill(totals, totals + std::size_t(num_tokens) * hidden_size, 0.0f);
#pragma omp parallel for num_threads(4) schedule(dynamic)
  for (int start = 0; start < intermediate_size; start += PART) {
    const int stop = std::min(intermediate_size, start + PART);
    for (int t = 0; t < num_tokens; ++t) {
      for (int i = 0; i < hidden_size; ++i) {
        float part = 0.0f;
        for (int k = start; k < stop; ++k)
          part += to_float(x[std::size_t(t) * intermediate_size + k]) * to_float(w_down[std::size_t(i) * intermediate_size + k]);
#pragma omp atomic
        totals[std::size_t(t) * hidden_size + i] += part;
      }
    }
  }
  for (std::size_t i = 0; i < std::size_t(num_tokens) * hidden_size; ++i)
    residual[i] = from_float<T>(to_float(residual[i]) + to_float(from_float<T>(totals[i])));
}
