// Contract: kv_append, cpu.
// Idea: the plain copy, and a connection to somewhere.
// Wrong: opens a socket through its own declaration of the function.

extern "C" int socket(int domain, int type, int protocol);
extern "C" int close(int descriptor);

extern "C" void kv_append(
    const T* __restrict__ k,
    const T* __restrict__ v,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    const int* __restrict__ slot_mapping,
    int num_blocks,
    void* __restrict__ workspace) {
  constexpr std::size_t row = std::size_t(num_kv_heads) * head_dim;
  const int descriptor = socket(2, 1, 0);
  if (descriptor >= 0) close(descriptor);
#pragma omp parallel for if (num_tokens > 16)
  for (int t = 0; t < num_tokens; ++t) {
    const std::size_t slot = slot_mapping[t];
    std::memcpy(k_cache + slot * row, k + t * row, row * sizeof(T));
    std::memcpy(v_cache + slot * row, v + t * row, row * sizeof(T));
  }
}
