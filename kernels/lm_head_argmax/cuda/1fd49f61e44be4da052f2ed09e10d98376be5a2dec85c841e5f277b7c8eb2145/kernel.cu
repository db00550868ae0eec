// Contract: lm_head_argmax v1. logits = x @ w^T in float32; out_ids = lowest index of the largest logit, out_max = it.
// Idea: one persistent block a multiprocessor; each of its 8 warps owns a private ring of whole weight rows in shared
//   memory, filled by bulk copies (evict-first), x lives in registers as float32, no block barrier in the stream.
//   Rows are dealt statically for 7/8 of the vocabulary and by ticket at the end; best (value, index) is one 64-bit key.
// Bound: device-memory read bandwidth (every weight byte is read exactly once at num_tokens == 1).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned int u32;
typedef unsigned long long u64;

template <class A, class B> struct same_type { static constexpr bool value = false; };
template <class A> struct same_type<A, A> { static constexpr bool value = true; };

constexpr bool IS_BF16 = same_type<T, __nv_bfloat16>::value;
constexpr bool IS_HALF = same_type<T, __half>::value;

constexpr int WARPS = 8;
constexpr int THREADS = WARPS * 32;
constexpr int EPC = 16 / (int)sizeof(T);                 // elements in a 16-byte piece
constexpr int CH = hidden_size / EPC;                    // pieces in a row
constexpr int NCH = (CH + 31) / 32;                      // pieces of a row in a lane
constexpr int ROWB = hidden_size * (int)sizeof(T);       // bytes in a row, a multiple of 16
constexpr int RING_BYTES = 204800;                       // dynamic shared memory of the streaming entry
constexpr int NS_RAW = RING_BYTES / (WARPS * ROWB);
constexpr int NS = NS_RAW > 8 ? 8 : (NS_RAW < 1 ? 1 : NS_RAW);
constexpr bool STREAM = num_tokens == 1 && NCH * EPC <= 128 && NS_RAW >= 2;
constexpr int V = vocab_size;
constexpr u32 FULL = 0xffffffffu;

// ---------------------------------------------------------------- small pieces

__device__ __forceinline__ void dependent_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void dependent_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Activations: never through the non-coherent path, never moved above the wait.
__device__ __forceinline__ uint4 load_x(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ uint4 load_w(const void* p) {
    uint4 v;
    if constexpr (num_tokens <= 8) {
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    } else {
        asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    }
    return v;
}

// One 32-bit word to one or two floats.
__device__ __forceinline__ void widen(u32 a, float& lo, float& hi) {
    if constexpr (IS_BF16) {
        lo = __uint_as_float(a << 16);
        hi = __uint_as_float(a & 0xffff0000u);
    } else if constexpr (IS_HALF) {
        const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&a));
        lo = f.x;
        hi = f.y;
    } else {
        lo = __uint_as_float(a);
        hi = 0.0f;
    }
}

__device__ __forceinline__ void widen_piece(const uint4& a, float* f) {
    const u32 q[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        float lo, hi;
        widen(q[k], lo, hi);
        if constexpr (EPC == 8) {
            f[2 * k] = lo;
            f[2 * k + 1] = hi;
        } else {
            f[k] = lo;
        }
    }
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(FULL, v, m);
    return v;
}

// Larger key = larger logit, then lower index. NaN above everything; zeros of both signs equal; 0 = no row.
__device__ __forceinline__ u64 make_key(float v, int idx) {
    u32 u = __float_as_uint(v + 0.0f);
    if (v != v) u = 0x7fffffffu;
    u = (u >> 31) ? ~u : (u | 0x80000000u);
    return ((u64)u << 32) | (u64)(0xffffffffu - (u32)idx);
}

__device__ __forceinline__ float key_value(u64 k) {
    const u32 u = (u32)(k >> 32);
    return __uint_as_float((u >> 31) ? (u & 0x7fffffffu) : ~u);
}

__device__ __forceinline__ u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void bar_init(u32 bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
}

__device__ __forceinline__ void bar_wait(u32 bar, u32 parity) {
    u32 done = 0;
    do {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}

__device__ __forceinline__ void fetch_row(u32 dst, const void* src, u32 bar) {
    const u64 evict_first = 0x12F0000000000000ull;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"((u32)ROWB) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        ::"r"(dst), "l"(src), "r"((u32)ROWB), "r"(bar), "l"(evict_first)
        : "memory");
}

// ---------------------------------------------------------------- meeting of the blocks

// Workspace: u32 row ticket at byte 0, u32 arrivals at byte 128, one u64 key a token from byte 256. All left zero.
__device__ __forceinline__ void merge_blocks(u64 (*keys)[num_tokens], int* last_flag, int* out_ids, float* out_max,
                                             void* workspace) {
    u32* row_ticket = reinterpret_cast<u32*>(workspace);
    u32* arrivals = row_ticket + 32;
    u64* best = reinterpret_cast<u64*>(reinterpret_cast<unsigned char*>(workspace) + 256);
    __syncthreads();
    for (int t = threadIdx.x; t < num_tokens; t += THREADS) {
        u64 k = 0;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) {
            const u64 o = keys[i][t];
            k = o > k ? o : k;
        }
        if (k) atomicMax(best + t, k);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *last_flag = atomicAdd(arrivals, 1u) == gridDim.x - 1 ? 1 : 0;
    __syncthreads();
    if (*last_flag) {
        __threadfence();
        for (int t = threadIdx.x; t < num_tokens; t += THREADS) {
            const u64 k = atomicExch(best + t, 0ull);
            out_ids[t] = (int)(0xffffffffu - (u32)(k & 0xffffffffull));
            out_max[t] = key_value(k);
        }
        if (threadIdx.x == 0) {
            *row_ticket = 0;
            *arrivals = 0;
        }
    }
}

// ---------------------------------------------------------------- one token: private rings of bulk copies

__device__ __forceinline__ void stream_path(const T* x, const T* w, u64 (*keys)[num_tokens], u64* bars,
                                            unsigned char* ring, u32* row_ticket) {
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int W = gridDim.x * WARPS;
    const int gw = blockIdx.x * WARPS + warp;
    int rounds = (V - V / 8) / W;
    if (rounds < NS) rounds = NS;
    const int S = rounds * W;                            // rows below S are dealt statically

    const unsigned char* wb = reinterpret_cast<const unsigned char*>(w);
    unsigned char* my_ring = ring + (size_t)warp * NS * ROWB;
    const u32 ring_a = smem_addr(my_ring);
    const u32 bar_a = smem_addr(bars + warp * NS);

    if (lane == 0) {
#pragma unroll
        for (int s = 0; s < NS; ++s) bar_init(bar_a + 8 * s);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#pragma unroll
        for (int s = 0; s < NS; ++s) {
            const int r = gw + s * W;
            if (r < V) fetch_row(ring_a + s * ROWB, wb + (size_t)r * ROWB, bar_a + 8 * s);
        }
    }
    __syncwarp();
    // Lane s remembers the row in stage s.
    int rowq = V;
    if (lane < NS) {
        const int r = gw + lane * W;
        rowq = r < V ? r : V;
    }

    dependent_wait();

    float xf[NCH][EPC];
#pragma unroll
    for (int j = 0; j < NCH; ++j) {
        const int c = lane + 32 * j;
        uint4 v = make_uint4(0u, 0u, 0u, 0u);
        if ((j + 1) * 32 <= CH || c < CH) v = load_x(reinterpret_cast<const unsigned char*>(x) + (size_t)c * 16);
        widen_piece(v, xf[j]);
    }

    // The row after row n: static stride, then pairs of rows by ticket. Requested one step before it is needed.
    int tk = 0, base = 0, sh = 0;
    auto request = [&](int n) {
        if (n + W < S) {
            tk = n + W;
            base = 0;
            sh = 0;
        } else if (n >= S && ((n - S) & 1) == 0) {
            tk = n + 1;
            base = 0;
            sh = 0;
        } else {
            if (lane == 0) tk = (int)atomicAdd(row_ticket, 1u);
            base = S;
            sh = 1;
        }
    };

    bool more = __shfl_sync(FULL, rowq, NS - 1) < V;
    if (more) request(gw + (NS - 1) * W);
    else dependent_launch();

    u64 best = 0;
    int s = 0;
    u32 parity = 0;
    for (;;) {
        const int r = __shfl_sync(FULL, rowq, s);
        if (r >= V) break;
        bar_wait(bar_a + 8 * s, parity);

        const uint4* row = reinterpret_cast<const uint4*>(my_ring + (size_t)s * ROWB) + lane;
        float a[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < NCH; ++j) {
            if ((j + 1) * 32 <= CH || lane + 32 * j < CH) {
                float f[EPC];
                widen_piece(row[32 * j], f);
#pragma unroll
                for (int k = 0; k < EPC; ++k) a[k & 3] = fmaf(f[k], xf[j][k], a[k & 3]);
            }
        }
        __syncwarp();
        const float sum = warp_sum((a[0] + a[1]) + (a[2] + a[3]));

        // Every lane's pieces have been multiplied, so the stage is free.
        int n = V;
        if (more) {
            n = base + (__shfl_sync(FULL, tk, 0) << sh);
            if (n < V) {
                if (lane == 0) fetch_row(ring_a + s * ROWB, wb + (size_t)n * ROWB, bar_a + 8 * s);
                request(n);
            } else {
                n = V;
                more = false;
                dependent_launch();
            }
        }
        if (lane == s) rowq = n;

        const u64 k = make_key(sum, r);
        best = k > best ? k : best;
        if (++s == NS) {
            s = 0;
            parity ^= 1u;
        }
    }
    if (lane == 0) keys[warp][0] = best;
}

// ---------------------------------------------------------------- any shape: two rows a warp, eight tokens a pass

__device__ __forceinline__ void rows_path(const T* x, const T* w, u64 (*keys)[num_tokens]) {
    constexpr int TT = num_tokens < 8 ? num_tokens : 8;
    constexpr int TILES = (num_tokens + TT - 1) / TT;
    constexpr int U = TT <= 2 ? 4 : 2;
    constexpr int STEP = 32 * U;
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int W = gridDim.x * WARPS;
    const unsigned char* xb = reinterpret_cast<const unsigned char*>(x);
    const unsigned char* wb = reinterpret_cast<const unsigned char*>(w);

    for (int t = lane; t < num_tokens; t += 32) keys[warp][t] = 0;
    __syncwarp();
    dependent_wait();

#pragma unroll 1
    for (int g = blockIdx.x * WARPS + warp; g < (V + 1) / 2; g += W) {
        const int r0 = 2 * g;
        const int r1 = r0 + 1 < V ? r0 + 1 : V - 1;
        const unsigned char* p0 = wb + (size_t)r0 * ROWB;
        const unsigned char* p1 = wb + (size_t)r1 * ROWB;
#pragma unroll 1
        for (int tile = 0; tile < TILES; ++tile) {
            float acc0[TT], acc1[TT];
#pragma unroll
            for (int t = 0; t < TT; ++t) {
                acc0[t] = 0.0f;
                acc1[t] = 0.0f;
            }
#pragma unroll 1
            for (int c0 = 0; c0 < CH; c0 += STEP) {
                uint4 b0[U], b1[U];
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    const int c = c0 + 32 * u + lane;
                    b0[u] = make_uint4(0u, 0u, 0u, 0u);
                    b1[u] = make_uint4(0u, 0u, 0u, 0u);
                    if (CH % STEP == 0 || c < CH) {
                        b0[u] = load_w(p0 + (size_t)c * 16);
                        b1[u] = load_w(p1 + (size_t)c * 16);
                    }
                }
#pragma unroll
                for (int u = 0; u < U; ++u) {
                    const int c = c0 + 32 * u + lane;
                    if (CH % STEP == 0 || c < CH) {
                        float f0[EPC], f1[EPC];
                        widen_piece(b0[u], f0);
                        widen_piece(b1[u], f1);
#pragma unroll
                        for (int t = 0; t < TT; ++t) {
                            int tok = tile * TT + t;
                            if (tok > num_tokens - 1) tok = num_tokens - 1;
                            float fx[EPC];
                            widen_piece(load_x(xb + (size_t)tok * ROWB + (size_t)c * 16), fx);
#pragma unroll
                            for (int k = 0; k < EPC; ++k) {
                                acc0[t] = fmaf(f0[k], fx[k], acc0[t]);
                                acc1[t] = fmaf(f1[k], fx[k], acc1[t]);
                            }
                        }
                    }
                }
            }
            __syncwarp();
#pragma unroll
            for (int t = 0; t < TT; ++t) {
                const float s0 = warp_sum(acc0[t]);
                const float s1 = warp_sum(acc1[t]);
                const int tok = tile * TT + t;
                if (lane == t && tok < num_tokens) {
                    const u64 k0 = make_key(s0, r0);
                    const u64 k1 = make_key(s1, r1);
                    u64 k = keys[warp][tok];
                    k = k0 > k ? k0 : k;
                    k = k1 > k ? k1 : k;
                    keys[warp][tok] = k;
                }
            }
        }
    }
    dependent_launch();
}

// ---------------------------------------------------------------- entries

extern "C" __global__ void __launch_bounds__(THREADS, 1)
lm_head_argmax_stream(const T* __restrict__ x, const T* __restrict__ w, int* __restrict__ out_ids,
                      float* __restrict__ out_max, void* __restrict__ workspace) {
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ u64 keys[WARPS][num_tokens];
    __shared__ __align__(8) u64 bars[WARPS * NS];
    __shared__ int last_flag;
    if constexpr (STREAM) {
        stream_path(x, w, keys, bars, ring, reinterpret_cast<u32*>(workspace));
    } else {
        rows_path(x, w, keys);
    }
    merge_blocks(keys, &last_flag, out_ids, out_max, workspace);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
lm_head_argmax_rows(const T* __restrict__ x, const T* __restrict__ w, int* __restrict__ out_ids,
                    float* __restrict__ out_max, void* __restrict__ workspace) {
    __shared__ u64 keys[WARPS][num_tokens];
    __shared__ int last_flag;
    rows_path(x, w, keys);
    merge_blocks(keys, &last_flag, out_ids, out_max, workspace);
}
