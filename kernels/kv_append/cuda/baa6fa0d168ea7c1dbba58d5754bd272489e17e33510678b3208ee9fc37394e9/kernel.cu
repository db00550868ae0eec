// Contract: kv_append v1. For every row t: row slot_mapping[t] of k_cache and v_cache becomes k[t] and v[t], raw bits.
//   Every pointer is 16-byte aligned and head_dim % 8 == 0, so every row is a whole number of 16-byte pieces.
// Idea:
//   1. Flat index over 16-byte pieces of all rows; a thread moves the same piece of k and of v. Slot, key and value
//      loads are issued together, so the dependent chain is one memory round trip and one store.
//   2. (slot / block_size) * block_size + slot % block_size == slot, so the destination is slot * row length, 64-bit.
//   3. Dependent launch: all index arithmetic in front of the wait, trigger right after the last load is issued.
// Bound: launch latency plus one memory round trip at decode; device memory bandwidth at prefill.

static constexpr int kv_pieces_per_8 = (int)(8 * sizeof(T) / 16);                 // 1 for 16-bit types, 2 for float32
static constexpr int kv_row_pieces   = num_kv_heads * head_dim / 8 * kv_pieces_per_8;
static constexpr int kv_total_pieces = num_tokens * kv_row_pieces;                // at most 2^28

__device__ __forceinline__ uint4 kv_load16(const uint4* p)
{
    uint4 r;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
    return r;
}

__device__ __forceinline__ int kv_load_slot(const int* p)
{
    int r;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(r) : "l"(p));
    return r;
}

// A block of THREADS threads moves THREADS * N consecutive pieces of k and the same ones of v.
template <int THREADS, int N>
__device__ __forceinline__ void kv_copy(const T* k, const T* v, T* k_cache, T* v_cache, const int* slot_mapping)
{
    constexpr int  chunk   = THREADS * N;
    constexpr bool tail    = (kv_total_pieces % chunk) != 0;
    constexpr bool uniform = (kv_row_pieces % THREADS) == 0;   // one row for each group of THREADS pieces

    const int tid  = (int)threadIdx.x;
    const int base = (int)blockIdx.x * chunk;

    const uint4* ks = reinterpret_cast<const uint4*>(k);
    const uint4* vs = reinterpret_cast<const uint4*>(v);
    uint4* kd = reinterpret_cast<uint4*>(k_cache);
    uint4* vd = reinterpret_cast<uint4*>(v_cache);

    int   row[N];
    int   col[N];
    int   slot[N];
    uint4 a[N];
    uint4 b[N];

#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int first = base + i * THREADS;
        if constexpr (uniform) {
            row[i] = (int)((unsigned)first / (unsigned)kv_row_pieces);
            col[i] = first - row[i] * kv_row_pieces + tid;
        } else {
            const int p = first + tid;
            row[i] = (int)((unsigned)p / (unsigned)kv_row_pieces);
            col[i] = p - row[i] * kv_row_pieces;
        }
    }

    // Order with whatever produced k, v and slot_mapping, and with earlier readers of the cache.
    asm volatile("griddepcontrol.wait;" ::: "memory");

#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int p = base + i * THREADS + tid;
        if (!tail || p < kv_total_pieces) {
            slot[i] = kv_load_slot(slot_mapping + row[i]);
            a[i]    = kv_load16(ks + p);
            b[i]    = kv_load16(vs + p);
        } else {
            slot[i] = 0;
            a[i]    = make_uint4(0u, 0u, 0u, 0u);
            b[i]    = make_uint4(0u, 0u, 0u, 0u);
        }
    }

    asm volatile("griddepcontrol.launch_dependents;");

#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int p = base + i * THREADS + tid;
        if (!tail || p < kv_total_pieces) {
            const long long d = (long long)slot[i] * kv_row_pieces + col[i];
            kd[d] = a[i];
            vd[d] = b[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(128) kv_append_decode(
    const T* __restrict__ k,
    const T* __restrict__ v,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    const int* __restrict__ slot_mapping,
    int num_blocks,
    void* __restrict__ workspace)
{
    (void)num_blocks;
    (void)workspace;
    kv_copy<128, kv_pieces_per_8>(k, v, k_cache, v_cache, slot_mapping);
}

extern "C" __global__ void __launch_bounds__(256) kv_append_prefill(
    const T* __restrict__ k,
    const T* __restrict__ v,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    const int* __restrict__ slot_mapping,
    int num_blocks,
    void* __restrict__ workspace)
{
    (void)num_blocks;
    (void)workspace;
    kv_copy<256, 2 * kv_pieces_per_8>(k, v, k_cache, v_cache, slot_mapping);
}
