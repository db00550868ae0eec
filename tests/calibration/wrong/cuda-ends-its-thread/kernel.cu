// Contract: rope, cuda.
// Idea: the plain rotation with an early end.
// Wrong: ends the thread in inline assembly.

extern "C" __global__ void rope(
    T* __restrict__ q,
    T* __restrict__ k,
    const float* __restrict__ cos_sin,
    const int* __restrict__ positions,
    int max_positions,
    void* __restrict__ workspace) {
  constexpr int half = rotary_dim / 2;
  constexpr int heads = num_heads + num_kv_heads;
  const long long pair = blockIdx.x * 256LL + threadIdx.x;
  if (pair >= (long long)num_tokens * heads * half) asm volatile("exit;");
  const int i = int(pair % half);
  const int h = int(pair / half % heads);
  const int t = int(pair / half / heads);
  T* head = h < num_heads ? q + (size_t(t) * num_heads + h) * head_dim
                          : k + (size_t(t) * num_kv_heads + h - num_heads) * head_dim;
  const float* angles = cos_sin + size_t(positions[t]) * rotary_dim;
  const float c = angles[i], s = angles[half + i];
  const int first = rope_interleaved ? 2 * i : i;
  const int second = rope_interleaved ? 2 * i + 1 : i + half;
  const float a = float(head[first]), b = float(head[second]);
  head[first] = T(a * c - b * s);
  head[second] = T(b * c + a * s);
}
