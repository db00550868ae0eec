// Contract: kv_append, cpu.
// Idea: the cache of a block as [num_kv_heads, block_size, head_dim].
// Wrong: writes the wrong slots where there are several heads.

extern "C" void kv_append(
    const T* __restrict__ k,
    const T* __restrict__ v,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    const int* __restrict__ slot_mapping,
    int num_blocks,
    void* __restrict__ workspace) {
  constexpr std::size_t row = std::size_t(num_kv_heads) * head_dim;
#pragma omp parallel for if (num_tokens > 16)
  for (int t = 0; t < num_tokens; ++t) {
    const std::size_t slot = slot_mapping[t];
    const std::size_t block = slot / block_size, offset = slot % block_size;
    for (std::size_t h = 0; h < num_kv_heads; ++h) {
      const std::size_t to = ((block * num_kv_heads + h) * block_size + offset) * head_dim;
      std::memcpy(k_cache + to, k + t * row + h * head_dim, head_dim * sizeof(T));
      std::memcpy(v_cache + to, v + t * row + h * head_dim, head_dim * sizeof(T));
    }
  }
}
