// Contract: kv_append, cuda.
// Idea: the plain copy; slot 0 is taken for the one padding rows share, and cleared.
// Wrong: writes a slot that is not in slot_mapping.

constexpr int VEC = 16 / sizeof(T);  // elements in a 16-byte load
struct alignas(16) Pack {
  T v[VEC];
};
__device__ __forceinline__ Pack load(const T* p) { return *reinterpret_cast<const Pack*>(p); }

extern "C" __global__ void kv_append(
    const T* __restrict__ k,
    const T* __restrict__ v,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    const int* __restrict__ slot_mapping,
    int num_blocks,
    void* __restrict__ workspace) {
  constexpr int row = num_kv_heads * head_dim;
  constexpr int packs = row / VEC;
  const long long pack = blockIdx.x * 256LL + threadIdx.x;
  if (pack >= (long long)num_tokens * packs) return;
  const int t = int(pack / packs);
  const int i = int(pack % packs) * VEC;
  const size_t from = size_t(t) * row + i;
  const size_t to = size_t(slot_mapping[t]) * row + i;
  if (t == 0 && slot_mapping[0] != 0) *reinterpret_cast<Pack*>(k_cache + i) = Pack{};
  *reinterpret_cast<Pack*>(k_cache + to) = load(k + from);
  *reinterpret_cast<Pack*>(v_cache + to) = load(v + from);
}
