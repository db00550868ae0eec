"""Building blocks of the CUDA templates: small functions, each told by one comment what it does."""

from __future__ import annotations

from generator.kernel_templates.stage import Block

_PACK = """
// COUNT neighbouring elements, moved as 16 bytes at once where they fill them.
template <class S, int COUNT>
struct alignas(COUNT * sizeof(S) < 16 ? COUNT * sizeof(S) : 16) Pack {
  S v[COUNT];
};
"""

_LOAD_PACK = """
// Elements first .. first + COUNT - 1 of a row of `length`; zeros past its end. `aligned`: the row's packs are.
template <int COUNT, class S>
__device__ __forceinline__ Pack<S, COUNT> load_pack(const S* row, int first, int length, bool aligned) {
  if (aligned && first + COUNT <= length) return *reinterpret_cast<const Pack<S, COUNT>*>(row + first);
  Pack<S, COUNT> found;
#pragma unroll
  for (int j = 0; j < COUNT; ++j) found.v[j] = first + j < length ? row[first + j] : S(0.0f);
  return found;
}
"""

_STORE_PACK = """
template <int COUNT, class S>
__device__ __forceinline__ void store_pack(S* row, int first, int length, bool aligned, const Pack<S, COUNT>& pack) {
  if (aligned && first + COUNT <= length) {
    *reinterpret_cast<Pack<S, COUNT>*>(row + first) = pack;
    return;
  }
#pragma unroll
  for (int j = 0; j < COUNT; ++j)
    if (first + j < length) row[first + j] = pack.v[j];
}
"""

_WARP_SUM = """
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
"""

_WARP_EXTREME = """
// Largest of a warp's values, the smallest where not LARGEST; a NaN among them is the result.
template <bool LARGEST>
__device__ __forceinline__ float extreme(float a, float b) {
  return (LARGEST ? a > b : a < b) || a != a ? a : b;
}
template <bool LARGEST>
__device__ __forceinline__ float warp_extreme(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = extreme<LARGEST>(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
"""

_GROUP_SUM = """
// Sum over GROUP threads, the same for each. Beyond a warp the group is the block; the second barrier lets the next
// call reuse the shared array.
template <int GROUP>
__device__ __forceinline__ float group_sum(float value) {
  value = warp_sum(value);
  if constexpr (GROUP > 32) {
    __shared__ float parts[GROUP / 32];
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
#pragma unroll
    for (int i = 0; i < GROUP / 32; ++i) value += parts[i];
    __syncthreads();
  }
  return value;
}
"""

_GROUP_EXTREME = """
template <int GROUP, bool LARGEST>
__device__ __forceinline__ float group_extreme(float value) {
  value = warp_extreme<LARGEST>(value);
  if constexpr (GROUP > 32) {
    __shared__ float parts[GROUP / 32];
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
#pragma unroll
    for (int i = 1; i < GROUP / 32; ++i) value = extreme<LARGEST>(value, parts[i]);
    __syncthreads();
  }
  return value;
}
"""

_STREAM = """
// 16 bytes of a weight, read once by the whole device: they need not stay in L1.
template <class S>
__device__ __forceinline__ Pack<S, 16 / sizeof(S)> stream(const S* p) {
  Pack<unsigned, 4> raw;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(raw.v[0]), "=r"(raw.v[1]), "=r"(raw.v[2]), "=r"(raw.v[3])
      : "l"(p));
  return *reinterpret_cast<const Pack<S, 16 / sizeof(S)>*>(&raw);
}
"""

_DOTS = """
// Products of ROWS weight rows with TOKENS rows of x, over the 16-byte packs that lane `lane` of LANES owns. A round is
// UNROLL packs of each weight row, on their way before the first is used; with AHEAD the next round's are too. Few
// products are added up before they meet the running sum, which keeps the rounding errors of a long float32 sum small.
// LENGTH is whole packs.
template <int LENGTH, int LANES, int UNROLL, bool AHEAD, int ROWS, int TOKENS, class S>
struct Dots {
  static constexpr int VEC = 16 / sizeof(S);
  static constexpr int STEP = LANES * VEC;
  static constexpr int STEPS = (LENGTH + STEP - 1) / STEP;
  static constexpr int ROUNDS = LENGTH / STEP / UNROLL;
  static constexpr int REST = STEPS - ROUNDS * UNROLL;

  template <int COUNT, bool GUARD>
  static __device__ __forceinline__ void fetch(
      const S* const (&w)[ROWS], int k, Pack<S, VEC> (&weights)[COUNT][ROWS]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (!GUARD || k + i * STEP < LENGTH) weights[i][r] = stream(w[r] + k + i * STEP);
  }

  template <int COUNT, bool GUARD>
  static __device__ __forceinline__ void accumulate(
      const Pack<S, VEC> (&weights)[COUNT][ROWS], const S* const (&x)[TOKENS], int k, float (&sums)[ROWS][TOKENS]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (GUARD && k + i * STEP >= LENGTH) continue;
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        const Pack<S, VEC> row = *reinterpret_cast<const Pack<S, VEC>*>(x[t] + k + i * STEP);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          float part = 0.0f;
#pragma unroll
          for (int j = 0; j < VEC; ++j) part += float(weights[i][r].v[j]) * float(row.v[j]);
          sums[r][t] += part;
        }
      }
    }
  }

  static __device__ __forceinline__ void run(
      const S* const (&w)[ROWS], const S* const (&x)[TOKENS], int lane, float (&sums)[ROWS][TOKENS]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) sums[r][t] = 0.0f;
    int k = lane * VEC;
    Pack<S, VEC> last[REST > 0 ? REST : 1][ROWS];
    if constexpr (AHEAD && ROUNDS > 0) {
      Pack<S, VEC> now[UNROLL][ROWS], next[UNROLL][ROWS];
      fetch<UNROLL, false>(w, k, now);
#pragma unroll 2
      for (int i = 1; i < ROUNDS; ++i, k += UNROLL * STEP) {
        fetch<UNROLL, false>(w, k + UNROLL * STEP, next);
        accumulate<UNROLL, false>(now, x, k, sums);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
          for (int r = 0; r < ROWS; ++r) now[u][r] = next[u][r];
      }
      if constexpr (REST > 0) fetch<REST, true>(w, k + UNROLL * STEP, last);
      accumulate<UNROLL, false>(now, x, k, sums);
      k += UNROLL * STEP;
    } else {
#pragma unroll 1
      for (int i = 0; i < ROUNDS; ++i, k += UNROLL * STEP) {
        Pack<S, VEC> now[UNROLL][ROWS];
        fetch<UNROLL, false>(w, k, now);
        accumulate<UNROLL, false>(now, x, k, sums);
      }
      if constexpr (REST > 0) fetch<REST, true>(w, k, last);
    }
    if constexpr (REST > 0) accumulate<REST, true>(last, x, k, sums);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) sums[r][t] = warp_sum(sums[r][t]);
  }
};
"""

_WAIT = """
// A dependent launch may have begun before its predecessor ended: nothing is read before this returns.
__device__ __forceinline__ void after_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
"""

_BEST = """
struct Best {
  float logit;
  int id;
};
constexpr int NOBODY = 0x7fffffff;
__device__ __forceinline__ Best nothing() { return {__int_as_float(0xff800000), NOBODY}; }

// The larger logit, on a tie the lower id. A NaN never wins.
__device__ __forceinline__ Best better(Best a, Best b) {
  return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}
__device__ __forceinline__ Best warp_best(Best best) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float logit = __shfl_xor_sync(0xffffffffu, best.logit, offset);
    const int id = __shfl_xor_sync(0xffffffffu, best.id, offset);
    best = better(best, {logit, id});
  }
  return best;
}
"""

_CP_ASYNC = """
// 16 bytes from device to shared memory, past L1; zeros where not `inside` (nothing is read then).
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
"""

_MMA = """
// Four 8x8 matrices of 2-byte elements from shared memory; lane i gives the address of row i.
__device__ __forceinline__ void load_matrices(const void* row, unsigned (&m)[4]) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// sums (16x8, float32) += a (16x16) * b (16x8), elements of type S.
template <class S>
__device__ __forceinline__ void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (IsHalf<S>::value) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
"""

_IS_HALF = """
template <class S>
struct IsHalf {
  static constexpr bool value = false;
};
template <>
struct IsHalf<__half> {
  static constexpr bool value = true;
};
"""

_CLUSTER = """
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// A float of the shared memory of block `rank` of the cluster, at the address `mine` has here.
__device__ __forceinline__ float read_remote(const float* mine, unsigned rank) {
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(mine));
  unsigned remote;
  float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote) : "memory");
  return value;
}
"""

BLOCKS = {
    "pack": Block(_PACK),
    "load_pack": Block(_LOAD_PACK, ("pack",)),
    "store_pack": Block(_STORE_PACK, ("pack",)),
    "warp_sum": Block(_WARP_SUM),
    "extreme": Block(_WARP_EXTREME),
    "group_sum": Block(_GROUP_SUM, ("warp_sum",)),
    "group_extreme": Block(_GROUP_EXTREME, ("extreme",)),
    "stream": Block(_STREAM, ("pack",)),
    "dots": Block(_DOTS, ("stream", "warp_sum")),
    "wait": Block(_WAIT),
    "best": Block(_BEST),
    "cp_async": Block(_CP_ASYNC),
    "is_half": Block(_IS_HALF),
    "mma": Block(_MMA, ("is_half",)),
    "cluster": Block(_CLUSTER),
}
