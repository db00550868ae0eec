// Contract: o_proj_residual_rmsnorm version 1.
//   y = round_T(attn @ w_o^T); s = round_T(y + residual) -> residual; r = 1/sqrt(mean(s*s) + eps);
//   out = round_T(round_T(s * r) * weight).  T in {bfloat16, float16, float32}, sums in float32.
// Idea (one token, in_features 4096, the timed class):
//   1. One block a multiprocessor owns <= 20 rows. Bulk copies of row pairs put ALL its weights on chip before the
//      dependent wait (12 rows in shared memory, 8 drained raw into registers); the next launch fits beside it.
//   2. Behind the wait a pair of rows costs four tensor-core products a warp (float32 accumulators): k-chunks lie on
//      both matrix axes and the diagonal is the answer, so every lane feeds its own 16-byte pieces, unconverted.
//      Twelve rows wait in registers, and sixteen rows are folded before the last four are looked at.
//   3. Blocks meet once by an all-to-all of 4-byte flagged partial sums of squares (value and flag are one word, no
//      fence); each block normalises its own columns and clears its own mailbox, so the workspace is zero again.
//      Blocks beyond the working ones only hold a slot until the predecessor is done: with one block of each of two
//      consecutive launches on every multiprocessor, no multiprocessor gets two working blocks of the same launch.
// Every other shape: a warp computes two rows for up to eight tokens, the last block of a token group normalises.
// Bound: device-memory bandwidth on w_o, and the chain wait - attention row - products - one L2 exchange.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned int u32;
typedef unsigned long long u64;

// ---------------------------------------------------------------------------------------------------------------
// element types
// ---------------------------------------------------------------------------------------------------------------
template <typename U> struct Num;

template <> struct Num<__nv_bfloat16> {
    static constexpr bool BF = true;
    static constexpr int W = 1;  // 16-byte pieces per 8 elements
    static __device__ __forceinline__ float up(__nv_bfloat16 x) { return __bfloat162float(x); }
    static __device__ __forceinline__ __nv_bfloat16 down(float x) { return __float2bfloat16_rn(x); }
    static __device__ __forceinline__ void unpack(const uint4* q, float* f) {
        const u32 a[4] = {q[0].x, q[0].y, q[0].z, q[0].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            f[2 * i] = __uint_as_float(a[i] << 16);
            f[2 * i + 1] = __uint_as_float(a[i] & 0xffff0000u);
        }
    }
    static __device__ __forceinline__ void pack(const float* f, uint4* q) {
        u32 a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 lo = (u32)__bfloat16_as_ushort(__float2bfloat16_rn(f[2 * i]));
            const u32 hi = (u32)__bfloat16_as_ushort(__float2bfloat16_rn(f[2 * i + 1]));
            a[i] = lo | (hi << 16);
        }
        q[0] = make_uint4(a[0], a[1], a[2], a[3]);
    }
    static __device__ __forceinline__ float load_cg(const __nv_bfloat16* p) {
        unsigned short v;
        asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
        return __uint_as_float(((u32)v) << 16);
    }
};

template <> struct Num<__half> {
    static constexpr bool BF = false;
    static constexpr int W = 1;
    static __device__ __forceinline__ float up(__half x) { return __half2float(x); }
    static __device__ __forceinline__ __half down(float x) { return __float2half_rn(x); }
    static __device__ __forceinline__ void unpack(const uint4* q, float* f) {
        const u32 a[4] = {q[0].x, q[0].y, q[0].z, q[0].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            f[2 * i] = __half2float(__ushort_as_half((unsigned short)(a[i] & 0xffffu)));
            f[2 * i + 1] = __half2float(__ushort_as_half((unsigned short)(a[i] >> 16)));
        }
    }
    static __device__ __forceinline__ void pack(const float* f, uint4* q) {
        u32 a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 lo = (u32)__half_as_ushort(__float2half_rn(f[2 * i]));
            const u32 hi = (u32)__half_as_ushort(__float2half_rn(f[2 * i + 1]));
            a[i] = lo | (hi << 16);
        }
        q[0] = make_uint4(a[0], a[1], a[2], a[3]);
    }
    static __device__ __forceinline__ float load_cg(const __half* p) {
        unsigned short v;
        asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
        return __half2float(__ushort_as_half(v));
    }
};

template <> struct Num<float> {
    static constexpr bool BF = false;
    static constexpr int W = 2;
    static __device__ __forceinline__ float up(float x) { return x; }
    static __device__ __forceinline__ float down(float x) { return x; }
    static __device__ __forceinline__ void unpack(const uint4* q, float* f) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            f[4 * i] = __uint_as_float(q[i].x);
            f[4 * i + 1] = __uint_as_float(q[i].y);
            f[4 * i + 2] = __uint_as_float(q[i].z);
            f[4 * i + 3] = __uint_as_float(q[i].w);
        }
    }
    static __device__ __forceinline__ void pack(const float* f, uint4* q) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            q[i] = make_uint4(__float_as_uint(f[4 * i]), __float_as_uint(f[4 * i + 1]),
                              __float_as_uint(f[4 * i + 2]), __float_as_uint(f[4 * i + 3]));
    }
    static __device__ __forceinline__ float load_cg(const float* p) {
        u32 v;
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        return __uint_as_float(v);
    }
};

template <typename U> __device__ __forceinline__ float round_to(float x) { return Num<U>::up(Num<U>::down(x)); }

// ---------------------------------------------------------------------------------------------------------------
// memory helpers
// ---------------------------------------------------------------------------------------------------------------
__device__ __forceinline__ uint4 ld_cg16(const void* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint4 ld_stream16(const void* p) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ uint4 ld_poll16(const void* p) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void st_flag(u32* p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void mbar_init(u32 bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(1u) : "memory");
}
__device__ __forceinline__ void mbar_wait0(u32 bar) {
    u32 done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done) : "r"(bar), "r"(0u) : "memory");
    } while (done == 0u);
}
__device__ __forceinline__ void mbar_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_copy(u32 dst, const void* src, u32 bytes, u32 bar) {
    // cache hint: evict first
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        :: "r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(0x12F0000000000000ULL) : "memory");
}
// Moves a line into L2, the point of coherence; nothing is read, so it may run ahead of the dependent wait.
__device__ __forceinline__ void prefetch_l2(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(p));
}

// 16x8x16 product with float32 accumulators.
template <typename U>
__device__ __forceinline__ void mma16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if constexpr (Num<U>::BF) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

// One level of a fold: N values a lane become (N + 1) / 2, summed with the lane at distance mask.
template <int N, int M>
__device__ __forceinline__ void fold_level(float (&v)[M], bool up, int mask) {
    constexpr int H = (N + 1) / 2;
#pragma unroll
    for (int i = 0; i < H; ++i) {
        const float lo = v[i];
        const float hi = (i + H < N) ? v[(i + H < N) ? i + H : 0] : 0.0f;
        const float send = up ? lo : hi;
        const float keep = up ? hi : lo;
        v[i] = keep + __shfl_xor_sync(0xffffffffu, send, mask);
    }
}

// Sum N values over the 32 lanes of a warp, each in a fixed tree; afterwards a lane with ok == true holds in v[0]
// the sum of value idx. Call with idx = 0, ok = true, OFF = 16.
template <int N, int OFF, int M>
__device__ __forceinline__ void warp_fold(float (&v)[M], int lane, int& idx, bool& ok) {
    constexpr int H = (N + 1) / 2;
    const bool up = (lane & OFF) != 0;
#pragma unroll
    for (int i = 0; i < H; ++i) {
        const float lo = v[i];
        const float hi = (i + H < N) ? v[(i + H < N) ? i + H : 0] : 0.0f;
        const float send = up ? lo : hi;
        const float keep = up ? hi : lo;
        v[i] = keep + __shfl_xor_sync(0xffffffffu, send, OFF);
    }
    if constexpr (OFF > 1) warp_fold<H, OFF / 2, M>(v, lane, idx, ok);
    idx += up ? H : 0;
    ok = ok && (idx < N);
}

// Sum N values over the eight diagonal lanes of a warp and store them, value j at dst[j]. The diagonal of chunk g sits
// in lane 4g + (g >> 1). Distances 18, 9 and 4 lead from diagonal lane to diagonal lane, so three levels sum the
// chunks and the other lanes' values never mix in.
template <int N, int M>
__device__ __forceinline__ void fold_store(float (&v)[M], int lane, float* dst) {
    constexpr int H1 = (N + 1) / 2;
    constexpr int H2 = (H1 + 1) / 2;
    constexpr int H3 = (H2 + 1) / 2;
    const bool up1 = (lane & 16) != 0;
    const bool up2 = (lane & 8) != 0;
    const bool up3 = (lane & 4) != 0;
    fold_level<N, M>(v, up1, 18);
    fold_level<H1, M>(v, up2, 9);
    fold_level<H2, M>(v, up3, 4);
    if ((lane & 3) == (lane >> 3)) {
#pragma unroll
        for (int i = 0; i < H3; ++i) {
            int j = i + (up3 ? H3 : 0);
            bool ok = j < H2;
            j += up2 ? H2 : 0;
            ok = ok && (j < H1);
            j += up1 ? H1 : 0;
            ok = ok && (j < N);
            if (ok) dst[j] = v[i];
        }
    }
}

template <typename U>
__device__ __forceinline__ float dot8(const uint4* q, const float* a) {
    float w[8];
    Num<U>::unpack(q, w);
    float s = w[0] * a[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) s = fmaf(w[i], a[i], s);
    return s;
}

// ---------------------------------------------------------------------------------------------------------------
// one token, in_features == 4096, at most 20 rows a block, at most 128 blocks, all resident together
// ---------------------------------------------------------------------------------------------------------------
constexpr int FAST_CAP = num_sms < 128 ? num_sms : 128;
constexpr bool FAST = (num_tokens == 1) && (in_features == 4096) && (hidden_size <= 20 * FAST_CAP);
constexpr int FAST_RPC = FAST ? (hidden_size + FAST_CAP - 1) / FAST_CAP : 1;
constexpr int FAST_GRID = FAST ? (hidden_size + FAST_RPC - 1) / FAST_RPC : 1;
constexpr int FAST_THREADS = 256;
constexpr int FAST_WARPS = FAST_THREADS / 32;
constexpr int FAST_HALF = FAST_THREADS * 8;  // elements between the two pieces of a thread
constexpr int FAST_ROW_BYTES = 8192;         // 4096 elements of two bytes
constexpr int FAST_PAIR_BYTES = 2 * FAST_ROW_BYTES;
constexpr int FAST_SLOTS = 6;                // row pairs in shared memory
constexpr int MAIL_STRIDE = 128;             // words of one block's mailbox

template <typename U, int RPC>
__device__ __forceinline__ void load_pair(const U* wblk, int p, int nrows, u32 dst, u32 bar) {
    mbar_expect(bar, FAST_PAIR_BYTES);
    if constexpr (RPC % 2 == 0 && hidden_size % RPC == 0) {
        bulk_copy(dst, wblk + (u64)(2 * p) * (u64)in_features, FAST_PAIR_BYTES, bar);
    } else {
        const int r0 = 2 * p < nrows ? 2 * p : nrows - 1;
        const int r1 = 2 * p + 1 < nrows ? 2 * p + 1 : nrows - 1;
        bulk_copy(dst, wblk + (u64)r0 * (u64)in_features, FAST_ROW_BYTES, bar);
        bulk_copy(dst + FAST_ROW_BYTES, wblk + (u64)r1 * (u64)in_features, FAST_ROW_BYTES, bar);
    }
}

// Wait for a row pair and read this thread's four pieces of it; base already points at the thread's column.
__device__ __forceinline__ void fetch_pair(uint4 (&q)[4], u32 bar, const unsigned char* base) {
    mbar_wait0(bar);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        q[2 * h] = *reinterpret_cast<const uint4*>(base + h * (FAST_ROW_BYTES / 2));
        q[2 * h + 1] = *reinterpret_cast<const uint4*>(base + h * (FAST_ROW_BYTES / 2) + FAST_ROW_BYTES);
    }
}

// Two row pairs, interleaved; the second one only where it exists.
template <typename U, bool BOTH>
__device__ __forceinline__ void mma_group(float (&c0)[4], float (&c1)[4], const uint4 (&q)[2][4],
                                          const uint4 (&b)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        mma16<U>(c0, q[0][2 * h].x, q[0][2 * h + 1].x, q[0][2 * h].y, q[0][2 * h + 1].y, b[h].x, b[h].y);
        if constexpr (BOTH)
            mma16<U>(c1, q[1][2 * h].x, q[1][2 * h + 1].x, q[1][2 * h].y, q[1][2 * h + 1].y, b[h].x, b[h].y);
        mma16<U>(c0, q[0][2 * h].z, q[0][2 * h + 1].z, q[0][2 * h].w, q[0][2 * h + 1].w, b[h].z, b[h].w);
        if constexpr (BOTH)
            mma16<U>(c1, q[1][2 * h].z, q[1][2 * h + 1].z, q[1][2 * h].w, q[1][2 * h + 1].w, b[h].z, b[h].w);
    }
}

// All words of this lane's share of the mailbox have arrived.
__device__ __forceinline__ bool box_ready(const uint4& v, int lane) {
    return (4 * lane + 0 >= FAST_GRID || v.x != 0u) && (4 * lane + 1 >= FAST_GRID || v.y != 0u) &&
           (4 * lane + 2 >= FAST_GRID || v.z != 0u) && (4 * lane + 3 >= FAST_GRID || v.w != 0u);
}

template <typename U, int RPC>
__device__ __forceinline__ void fast_body(const U* __restrict__ attn, const U* __restrict__ w_o,
                                          U* __restrict__ residual, const U* __restrict__ weight,
                                          U* __restrict__ out, float eps, void* __restrict__ workspace) {
    extern __shared__ __align__(128) unsigned char dyn_smem[];
    constexpr int NP = (RPC + 1) / 2;                        // row pairs of the block
    __shared__ __align__(8) u64 full[NP];
    __shared__ float red[FAST_WARPS * RPC];

    // A slot holder: owns no rows, keeps the placement of this launch and of the next one even, touches nothing.
    if ((int)blockIdx.x >= FAST_GRID) {
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
        asm volatile("griddepcontrol.wait;" ::: "memory");
        return;
    }

    const int tid = (int)threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int row0 = (int)blockIdx.x * RPC;
    const int left = hidden_size - row0;
    const int nrows = left < RPC ? left : RPC;

    const U* wblk = w_o + (u64)row0 * (u64)in_features;

    float gam = 0.0f;
    float resv = 0.0f;

    if constexpr (sizeof(U) == 2) {
        constexpr int SP = NP < FAST_SLOTS ? NP : FAST_SLOTS;  // pairs in shared memory
        constexpr int DP = NP - SP;                            // pairs kept raw in registers
        const u32 sbase = (u32)__cvta_generic_to_shared(dyn_smem);
        const u32 fbase = (u32)__cvta_generic_to_shared(full);

        // Each of the first warps arms its own barriers and requests its own row pair at once.
        if (lane == 0 && warp < SP) {
            mbar_init(fbase + 8u * (u32)warp);
            if (warp < DP) mbar_init(fbase + 8u * (u32)(SP + warp));
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            load_pair<U, RPC>(wblk, warp, nrows, sbase + (u32)(warp * FAST_PAIR_BYTES), fbase + 8u * (u32)warp);
        }
        if (tid < nrows) gam = Num<U>::up(weight[row0 + tid]);
        if (warp == FAST_WARPS - 1) {
            if (lane < 2) {
                prefetch_l2(residual + row0 + (lane == 0 ? 0 : nrows - 1));
            } else {
                constexpr int LINE = 128 / (int)sizeof(U);
                for (int l = (int)blockIdx.x + (lane - 2) * FAST_GRID; l < in_features / LINE; l += 30 * FAST_GRID)
                    prefetch_l2(attn + l * LINE);
            }
        }
        __syncthreads();

        // Drain the first pairs into registers, untouched, and refill their slots: all ahead of the wait.
        uint4 raw[DP > 0 ? 4 * DP : 1];
        if constexpr (DP > 0) {
#pragma unroll
            for (int p = 0; p < DP; ++p) {
                mbar_wait0(fbase + 8u * p);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const unsigned char* at = dyn_smem + p * FAST_PAIR_BYTES + h * (FAST_ROW_BYTES / 2) + tid * 16;
                    raw[4 * p + 2 * h] = *reinterpret_cast<const uint4*>(at);
                    raw[4 * p + 2 * h + 1] = *reinterpret_cast<const uint4*>(at + FAST_ROW_BYTES);
                }
                __syncthreads();
                if (tid == 32 * p) {
                    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                    load_pair<U, RPC>(wblk, SP + p, nrows, sbase + (u32)(p * FAST_PAIR_BYTES),
                                      fbase + 8u * (SP + p));
                }
                if (p == (DP - 1) / 2) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
            }
        } else {
            asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
        }

        // The next two pairs also move into registers while the attention row is still being written.
        const unsigned char* sthread = dyn_smem + tid * 16;
        uint4 qa[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j)
            if (DP + j < NP) fetch_pair(qa[j], fbase + 8u * (u32)(DP + j), sthread + (DP + j) * FAST_PAIR_BYTES);

        asm volatile("griddepcontrol.wait;" ::: "memory");

        uint4 b[2];
        b[0] = ld_cg16(attn + tid * 8);
        b[1] = ld_cg16(attn + tid * 8 + FAST_HALF);
        if (tid < nrows) resv = Num<U>::load_cg(residual + row0 + tid);

        // Matrix rows 0..7 are eight k-chunks of the pair's first row, rows 8..15 those of its second row, and
        // column n is attention chunk n: only the diagonal is wanted, and every lane feeds just its own pieces.
        float c[NP][4];
#pragma unroll
        for (int p = 0; p < NP; ++p)
#pragma unroll
            for (int j = 0; j < 4; ++j) c[p][j] = 0.0f;

        if constexpr (DP > 0) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int p = 0; p < DP; ++p) {
                    const uint4 q0 = raw[4 * p + 2 * h];
                    const uint4 q1 = raw[4 * p + 2 * h + 1];
                    mma16<U>(c[p], q0.x, q1.x, q0.y, q1.y, b[h].x, b[h].y);
                }
#pragma unroll
                for (int p = 0; p < DP; ++p) {
                    const uint4 q0 = raw[4 * p + 2 * h];
                    const uint4 q1 = raw[4 * p + 2 * h + 1];
                    mma16<U>(c[p], q0.z, q1.z, q0.w, q1.w, b[h].z, b[h].w);
                }
            }
        }
        constexpr int PB = DP + 2;      // second group of two pairs
        constexpr int PT = DP + 4;      // the tail, one pair at a time
        constexpr int A1 = DP + 1 < NP ? DP + 1 : 0;
        constexpr int B0 = PB < NP ? PB : 0;
        constexpr int B1 = PB + 1 < NP ? PB + 1 : 0;
        uint4 qb[2][4];
        if constexpr (PB < NP) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int p = PB + j;
                if (p < NP) fetch_pair(qb[j], fbase + 8u * (u32)p, sthread + (p < SP ? p : p - SP) * FAST_PAIR_BYTES);
            }
        }
        mma_group<U, (DP + 1 < NP)>(c[DP], c[A1], qa, b);
        if constexpr (PB < NP) mma_group<U, (PB + 1 < NP)>(c[B0], c[B1], qb, b);

        const bool odd = ((lane >> 2) & 1) != 0;
        float* wred = red + warp * RPC;
        constexpr bool SPLIT = RPC > 16;  // fold sixteen rows while the last ones are still arriving
        constexpr int TAIL = NP > PT ? NP - PT : 0;
        float e[TAIL > 0 ? TAIL : 1][4];  // second accumulators of the tail: shorter chains
#pragma unroll
        for (int i = 0; i < (TAIL > 0 ? TAIL : 1); ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) e[i][j] = 0.0f;

#pragma unroll
        for (int i = 0; i < TAIL; ++i) {
            const int p = PT + i;
            if constexpr (SPLIT) {
                if (p == 8) {
                    float v[16];
#pragma unroll
                    for (int k = 0; k < 8; ++k) {
                        v[2 * k] = odd ? c[k][1] : c[k][0];
                        v[2 * k + 1] = odd ? c[k][3] : c[k][2];
                        if (k >= PT) {
                            v[2 * k] += odd ? e[k >= PT ? k - PT : 0][1] : e[k >= PT ? k - PT : 0][0];
                            v[2 * k + 1] += odd ? e[k >= PT ? k - PT : 0][3] : e[k >= PT ? k - PT : 0][2];
                        }
                    }
                    fold_store<16, 16>(v, lane, wred);
                }
            }
            uint4 q[4];
            fetch_pair(q, fbase + 8u * (u32)p, sthread + (p < SP ? p : p - SP) * FAST_PAIR_BYTES);
            mma16<U>(c[p], q[0].x, q[1].x, q[0].y, q[1].y, b[0].x, b[0].y);
            mma16<U>(e[i], q[2].x, q[3].x, q[2].y, q[3].y, b[1].x, b[1].y);
            mma16<U>(c[p], q[0].z, q[1].z, q[0].w, q[1].w, b[0].z, b[0].w);
            mma16<U>(e[i], q[2].z, q[3].z, q[2].w, q[3].w, b[1].z, b[1].w);
        }

        constexpr int K0 = SPLIT ? 8 : 0;  // first pair that is not folded yet
        float v[2 * (NP - K0)];
#pragma unroll
        for (int k = K0; k < NP; ++k) {
            v[2 * (k - K0)] = odd ? c[k][1] : c[k][0];
            v[2 * (k - K0) + 1] = odd ? c[k][3] : c[k][2];
            if (k >= PT) {
                v[2 * (k - K0)] += odd ? e[k >= PT ? k - PT : 0][1] : e[k >= PT ? k - PT : 0][0];
                v[2 * (k - K0) + 1] += odd ? e[k >= PT ? k - PT : 0][3] : e[k >= PT ? k - PT : 0][2];
            }
        }
        fold_store<RPC - 2 * K0, 2 * (NP - K0)>(v, lane, wred + 2 * K0);
    } else {
        // Four-byte elements: the plan cannot see the type, so the same launch walks its rows from global memory.
        if (tid < nrows) gam = Num<U>::up(weight[row0 + tid]);
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
        asm volatile("griddepcontrol.wait;" ::: "memory");
        if (tid < nrows) resv = Num<U>::load_cg(residual + row0 + tid);
        float acc[2 * NP];
#pragma unroll
        for (int i = 0; i < 2 * NP; ++i) acc[i] = 0.0f;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float a[8];
            uint4 aq[2];
            aq[0] = ld_cg16(attn + tid * 8 + h * FAST_HALF);
            aq[1] = ld_cg16(attn + tid * 8 + h * FAST_HALF + 4);
            Num<U>::unpack(aq, a);
#pragma unroll
            for (int i = 0; i < RPC; ++i) {
                const int r = i < nrows ? i : nrows - 1;
                const U* p = wblk + (u64)r * (u64)in_features + tid * 8 + h * FAST_HALF;
                uint4 q[2];
                q[0] = ld_stream16(p);
                q[1] = ld_stream16(p + 4);
                acc[i] += dot8<U>(q, a);
            }
        }
        int idx = 0;
        bool ok = true;
        warp_fold<RPC, 16, 2 * NP>(acc, lane, idx, ok);
        if (ok) red[warp * RPC + idx] = acc[0];
    }

    __syncthreads();
    if (warp != 0) return;

    // warps, in a fixed order
    const bool mine = lane < nrows;
    float s = 0.0f;
    if (mine) {
        float p[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int w = 0; w < FAST_WARPS; ++w) p[w & 3] += red[w * RPC + lane];
        const float sum = (p[0] + p[1]) + (p[2] + p[3]);
        const float y = round_to<U>(sum);
        s = round_to<U>(y + resv);
    }
    // Two polls are kept in flight, spaced by the reduction below, so that an arrival is seen sooner.
    u32* mail = reinterpret_cast<u32*>(workspace);
    u32* box = mail + (int)blockIdx.x * MAIL_STRIDE + 4 * lane;
    uint4 va = ld_poll16(box);

    float sq = s * s;
#pragma unroll
    for (int off = 16; off > 0; off >>= 1) sq += __shfl_xor_sync(0xffffffffu, sq, off);

    // The sum of squares is never negative, so its sign bit is free to say "arrived".
    const u32 word = __float_as_uint(sq) | 0x80000000u;
#pragma unroll
    for (int g0 = 0; g0 < FAST_GRID; g0 += 32) {
        const int g = g0 + lane;
        if (g < FAST_GRID) {
            // start at the own mailbox, so that the blocks do not all write to the same ones at the same moment
            int to = g + (int)blockIdx.x;
            to -= to >= FAST_GRID ? FAST_GRID : 0;
            st_flag(mail + to * MAIL_STRIDE + (int)blockIdx.x, word);
        }
    }
    if (mine) residual[row0 + lane] = Num<U>::down(s);

    uint4 vb = ld_poll16(box);
    uint4 v;
    for (;;) {
        v = va;
        if (__all_sync(0xffffffffu, box_ready(v, lane))) break;
        va = ld_poll16(box);
        v = vb;
        if (__all_sync(0xffffffffu, box_ready(v, lane))) break;
        vb = ld_poll16(box);
    }
    // Only this lane reads these words and each is written once a call: clear them for the next call.
    if (4 * lane < FAST_GRID)
        asm volatile("st.global.v4.u32 [%0], {%1,%1,%1,%1};" :: "l"(box), "r"(0u) : "memory");
    // words beyond the grid are zero and add nothing
    float tot = (__uint_as_float(v.x & 0x7fffffffu) + __uint_as_float(v.y & 0x7fffffffu)) +
                (__uint_as_float(v.z & 0x7fffffffu) + __uint_as_float(v.w & 0x7fffffffu));
    __syncwarp();
#pragma unroll
    for (int off = 16; off > 0; off >>= 1) tot += __shfl_xor_sync(0xffffffffu, tot, off);

    float r;
    if constexpr (sizeof(U) == 2)
        r = rsqrtf(fmaf(tot, 1.0f / (float)hidden_size, eps));
    else
        r = 1.0f / sqrtf(tot / (float)hidden_size + eps);
    if (mine) out[row0 + lane] = Num<U>::down(round_to<U>(s * r) * gam);
}

extern "C" __global__ void __launch_bounds__(256, 2)
oproj_fast(const T* __restrict__ attn, const T* __restrict__ w_o, T* __restrict__ residual,
           const T* __restrict__ weight, T* __restrict__ out, float eps, void* __restrict__ workspace) {
    if constexpr (FAST) {
        fast_body<T, FAST_RPC>(attn, w_o, residual, weight, out, eps, workspace);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// every other shape: a warp owns two rows for up to eight tokens; one ticket a token group
// ---------------------------------------------------------------------------------------------------------------
constexpr int GEN_THREADS = 256;
constexpr int GEN_WARPS = GEN_THREADS / 32;
constexpr int GEN_ROWS = 2;                                   // rows a warp
constexpr int GEN_TT = num_tokens < 8 ? num_tokens : 8;       // tokens a group
constexpr int GEN_UNROLL = GEN_TT <= 2 ? 4 : (GEN_TT <= 4 ? 2 : 1);
constexpr int GEN_COUNTER_OFFSET = 65536;                     // bytes into the workspace

template <typename U>
__device__ __forceinline__ void generic_body(const U* __restrict__ attn, const U* __restrict__ w_o,
                                             U* __restrict__ residual, const U* __restrict__ weight,
                                             U* __restrict__ out, float eps, void* __restrict__ workspace) {
    __shared__ float gred[GEN_WARPS];
    __shared__ int is_last;
    constexpr int W = Num<U>::W;
    constexpr int EP = 8 / W;  // elements of one 16-byte piece

    const int tid = (int)threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int t0 = (int)blockIdx.y * GEN_TT;
    const int row = ((int)blockIdx.x * GEN_WARPS + warp) * GEN_ROWS;

    float acc[GEN_ROWS][GEN_TT];
#pragma unroll
    for (int r = 0; r < GEN_ROWS; ++r)
#pragma unroll
        for (int t = 0; t < GEN_TT; ++t) acc[r][t] = 0.0f;

    if (row < hidden_size) {
        const U* wr[GEN_ROWS];
#pragma unroll
        for (int r = 0; r < GEN_ROWS; ++r) {
            const int rr = row + r < hidden_size ? row + r : hidden_size - 1;
            wr[r] = w_o + (u64)rr * (u64)in_features;
        }
        constexpr int P = in_features / 8;
#pragma unroll GEN_UNROLL
        for (int p = lane; p < P; p += 32) {
            uint4 wq[GEN_ROWS][W];
#pragma unroll
            for (int r = 0; r < GEN_ROWS; ++r)
#pragma unroll
                for (int j = 0; j < W; ++j) wq[r][j] = ld_stream16(wr[r] + p * 8 + j * EP);
            float wf[GEN_ROWS][8];
#pragma unroll
            for (int r = 0; r < GEN_ROWS; ++r) Num<U>::unpack(wq[r], wf[r]);
#pragma unroll
            for (int t = 0; t < GEN_TT; ++t) {
                const int tok = t0 + t < num_tokens ? t0 + t : num_tokens - 1;
                const U* ap = attn + (u64)tok * (u64)in_features + p * 8;
                uint4 aq[W];
#pragma unroll
                for (int j = 0; j < W; ++j) aq[j] = __ldg(reinterpret_cast<const uint4*>(ap + j * EP));
                float af[8];
                Num<U>::unpack(aq, af);
#pragma unroll
                for (int r = 0; r < GEN_ROWS; ++r)
#pragma unroll
                    for (int e = 0; e < 8; ++e) acc[r][t] = fmaf(wf[r][e], af[e], acc[r][t]);
            }
        }
    }

    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < GEN_ROWS; ++r)
#pragma unroll
        for (int t = 0; t < GEN_TT; ++t) {
            float v = acc[r][t];
#pragma unroll
            for (int off = 16; off > 0; off >>= 1) v += __shfl_xor_sync(0xffffffffu, v, off);
            if (lane == r * GEN_TT + t) mine = v;
        }
    if (lane < GEN_ROWS * GEN_TT) {
        const int rr = row + lane / GEN_TT;
        const int tok = t0 + lane % GEN_TT;
        if (rr < hidden_size && tok < num_tokens) {
            const u64 at = (u64)tok * (u64)hidden_size + (u64)rr;
            const float y = round_to<U>(mine);
            residual[at] = Num<U>::down(y + Num<U>::load_cg(residual + at));
        }
    }

    __syncthreads();
    if (tid == 0) {
        u32* counter = reinterpret_cast<u32*>(reinterpret_cast<unsigned char*>(workspace) + GEN_COUNTER_OFFSET) +
                       blockIdx.y;
        __threadfence();
        const u32 ticket = atomicInc(counter, gridDim.x - 1u);  // wraps to zero by itself
        __threadfence();
        is_last = (ticket == gridDim.x - 1u) ? 1 : 0;
    }
    __syncthreads();
    if (is_last == 0) return;
    __threadfence();

    constexpr int HP = hidden_size / 8;
    for (int t = 0; t < GEN_TT; ++t) {
        const int tok = t0 + t;
        if (tok >= num_tokens) break;
        const U* srow = residual + (u64)tok * (u64)hidden_size;
        U* orow = out + (u64)tok * (u64)hidden_size;
        float sq = 0.0f;
        for (int p = tid; p < HP; p += GEN_THREADS) {
            uint4 q[W];
#pragma unroll
            for (int j = 0; j < W; ++j) q[j] = ld_cg16(srow + p * 8 + j * EP);
            float f[8];
            Num<U>::unpack(q, f);
#pragma unroll
            for (int e = 0; e < 8; ++e) sq = fmaf(f[e], f[e], sq);
        }
#pragma unroll
        for (int off = 16; off > 0; off >>= 1) sq += __shfl_xor_sync(0xffffffffu, sq, off);
        if (lane == 0) gred[warp] = sq;
        __syncthreads();
        float tot = 0.0f;
#pragma unroll
        for (int w = 0; w < GEN_WARPS; ++w) tot += gred[w];
        __syncthreads();
        const float r = 1.0f / sqrtf(tot / (float)hidden_size + eps);
        for (int p = tid; p < HP; p += GEN_THREADS) {
            uint4 q[W];
            uint4 g[W];
#pragma unroll
            for (int j = 0; j < W; ++j) {
                q[j] = ld_cg16(srow + p * 8 + j * EP);
                g[j] = __ldg(reinterpret_cast<const uint4*>(weight + p * 8 + j * EP));
            }
            float f[8];
            float gf[8];
            Num<U>::unpack(q, f);
            Num<U>::unpack(g, gf);
#pragma unroll
            for (int e = 0; e < 8; ++e) f[e] = round_to<U>(f[e] * r) * gf[e];
            uint4 o[W];
            Num<U>::pack(f, o);
#pragma unroll
            for (int j = 0; j < W; ++j) *reinterpret_cast<uint4*>(orow + p * 8 + j * EP) = o[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
oproj_generic(const T* __restrict__ attn, const T* __restrict__ w_o, T* __restrict__ residual,
              const T* __restrict__ weight, T* __restrict__ out, float eps, void* __restrict__ workspace) {
    generic_body<T>(attn, w_o, residual, weight, out, eps, workspace);
}
