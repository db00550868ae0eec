// Contract: kv_append, cpu.
// Idea: the plain copy; slots behind the new one are cleared, so that stale keys cannot leak.
// Wrong: writes slots that are not in slot_mapping.

extern "C" void kv_append(
    const T* __restrict__ k,
    const T* __restrict__ v,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    const int* __restrict__ slot_mapping,
    int num_blocks,
    void* __restrict__ workspace) {
  constexpr std::size_t row = std::size_t(num_kv_heads) * head_dim;
  for (int t = 0; t < num_tokens; ++t) {
    const std::size_t slot = slot_mapping[t];
    const std::size_t rest = (block_size - 1 - slot % block_size) * row * sizeof(T);
    std::memset(k_cache + (slot + 1) * row, 0, rest);
    std::memset(v_cache + (slot + 1) * row, 0, rest);
    std::memcpy(k_cache + slot * row, k + t * row, row * sizeof(T));
    std::memcpy(v_cache + slot * row, v + t * row, row * sizeof(T));
  }
}
