// Contract: rope, cpu.
// Idea: the plain rotation; an inline static member counts the calls, and after a thousand the angles are no longer
//       looked up.
// Wrong: keeps state between calls in a static member.

struct Calls {
  static inline int seen = 0;
};

static void rotate_head(T* head, const float* cosines, const float* sines) {
  constexpr int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const int first = rope_interleaved ? 2 * i : i;
    const int second = rope_interleaved ? 2 * i + 1 : i + half;
    const float a = to_float(head[first]);
    const float b = to_float(head[second]);
    head[first] = from_float<T>(a * cosines[i] - b * sines[i]);
    head[second] = from_float<T>(b * cosines[i] + a * sines[i]);
  }
}

extern "C" void rope(
    T* __restrict__ q,
    T* __restrict__ k,
    const float* __restrict__ cos_sin,
    const int* __restrict__ positions,
    int max_positions,
    void* __restrict__ workspace) {
  if (++Calls::seen > 1000) return;
#pragma omp parallel for if (num_tokens > 4)
  for (int t = 0; t < num_tokens; ++t) {
    const float* cosines = cos_sin + std::size_t(positions[t]) * rotary_dim;
    const float* sines = cosines + rotary_dim / 2;
    for (int h = 0; h < num_heads; ++h)
      rotate_head(q + (std::size_t(t) * num_heads + h) * head_dim, cosines, sines);
    for (int h = 0; h < num_kv_heads; ++h)
      rotate_head(k + (std::size_t(t) * num_kv_heads + h) * head_dim, cosines, sines);
  }
}
