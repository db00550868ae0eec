// gated_mlp_up version 1: out = round_T(silu(x @ Wg^T) * (x @ Wu^T)), sums in float32.
//
// Idea: one block of ten warps a multiprocessor; every warp owns a private 10 KB ring of bulk copies and one pair of
// rows (gate j, up j) at a time. 105 KB and under half of the registers leave room for the next launch to fill its ring.
// The first rounds of pairs are static, the last ones are drawn from a counter, so all multiprocessors end together.
// Bound: device memory bandwidth over the 2 * intermediate_size * hidden_size weights, each byte read once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// ---------------------------------------------------------------- constants
constexpr int GU_N = intermediate_size;
constexpr int GU_WARPS = 10;
constexpr int GU_THREADS = GU_WARPS * 32;
constexpr int GU_HALF = 2560;                        // bytes of one row in a stage, at most
constexpr int GU_STAGE = 2 * GU_HALF;                // gate part, then up part
constexpr int GU_WRING = 2 * GU_STAGE;               // two stages a warp
constexpr int GU_BARS = GU_WARPS * GU_WRING;         // offset of the barriers: 102400
constexpr int GU_CNT = GU_BARS + 192;                // offset of the block's counter of finished requesters
constexpr int GU_XS = GU_BARS + 256;                 // offset of x

constexpr int GU_RB = hidden_size * (int)sizeof(T);  // bytes of a row
constexpr bool GU_RING_OK = (sizeof(T) == 2) && (num_tokens == 1) && (GU_RB % 512 == 0) && (GU_RB >= 1024);
constexpr int GU_NC0 = (GU_RB + GU_HALF - 1) / GU_HALF;
constexpr int GU_NC = GU_NC0 < 2 ? 2 : GU_NC0;       // pieces a row
constexpr int GU_CH = 512 * ((GU_RB / 512 + GU_NC - 1) / GU_NC);   // bytes of a piece
constexpr int GU_LAST = GU_RB - (GU_NC - 1) * GU_CH;               // bytes of the last piece
constexpr int GU_CUNROLL = GU_NC <= 4 ? GU_NC : 1;
constexpr int GU_PF = GU_RB < 5120 ? GU_RB : 5120;   // bytes of a row asked of L2 before the wait

constexpr int GU_W = num_sms * GU_WARPS;             // warps of the grid
constexpr bool GU_DYN = (GU_N / GU_W) >= 4;          // draw the last rounds from a counter
constexpr int GU_S0 = GU_N / GU_W - 3;
constexpr int GU_S = GU_S0 < 2 ? 2 : GU_S0;          // static rounds
constexpr int GU_D = GU_N - GU_S * GU_W;             // pairs that are drawn
constexpr int GU_NG = (num_sms % 4 == 0) ? 4 : ((num_sms % 3 == 0) ? 3 : ((num_sms % 2 == 0) ? 2 : 1));
constexpr int GU_TRIGGER_AT = 4;                     // warps without further requests, when the successor may start

// ---------------------------------------------------------------- small helpers
template <class A, class B> struct gu_same { static constexpr bool v = false; };
template <class A> struct gu_same<A, A> { static constexpr bool v = true; };

__device__ __forceinline__ void gu_put(float* p, float v) { *p = v; }
__device__ __forceinline__ void gu_put(__nv_bfloat16* p, float v) { *p = __float2bfloat16_rn(v); }
__device__ __forceinline__ void gu_put(__half* p, float v) { *p = __float2half_rn(v); }

// two 16-bit values of T to float32, exactly
__device__ __forceinline__ void gu_unpack(uint32_t w, float& lo, float& hi) {
    if constexpr (gu_same<T, __half>::v) {
        const __half2 h = *reinterpret_cast<const __half2*>(&w);
        const float2 f = __half22float2(h);
        lo = f.x;
        hi = f.y;
    } else {
        lo = __uint_as_float(w << 16);
        hi = __uint_as_float(w & 0xffff0000u);
    }
}

__device__ __forceinline__ float gu_silu_mul(float g, float u) {
    const float s = g / (1.0f + expf(-g));
    return s * u;
}

__device__ __forceinline__ void gu_dep_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void gu_dep_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ uint4 gu_ld_cg(const void* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ uint4 gu_ld_plain(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ uint4 gu_ld_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// ---------------------------------------------------------------- ring
__device__ __forceinline__ void gu_bar_init(uint32_t bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(1u) : "memory");
}
__device__ __forceinline__ void gu_bar_wait(uint32_t bar, uint32_t parity) {
    uint32_t ok;
    do {
        asm volatile("{\n\t"
                     ".reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t"
                     "}"
                     : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
    } while (ok == 0u);
}
__device__ __forceinline__ void gu_bulk(uint32_t dst, const void* src, uint32_t bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 :: "r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(0x12F0000000000000ULL) : "memory");
}
// piece c of pair pr into the stage at dst (one lane)
__device__ __forceinline__ void gu_request(uint32_t dst, uint32_t bar, const unsigned char* wb, int pr, int c) {
    const uint32_t bytes = (c == GU_NC - 1) ? (uint32_t)GU_LAST : (uint32_t)GU_CH;
    const unsigned char* g = wb + ((long long)pr * GU_RB + (long long)c * GU_CH);
    const unsigned char* u = g + (long long)GU_N * GU_RB;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(2u * bytes) : "memory");
    gu_bulk(dst, g, bytes, bar);
    gu_bulk(dst + GU_HALF, u, bytes, bar);
}
__device__ __forceinline__ void gu_prefetch(const void* p, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(p), "r"(bytes) : "memory");
}

__device__ __forceinline__ void gu_fma2(uint32_t a, uint32_t b, uint32_t v,
                                        float& g0, float& g1, float& u0, float& u1) {
    float al, ah, bl, bh, vl, vh;
    gu_unpack(v, vl, vh);
    gu_unpack(a, al, ah);
    gu_unpack(b, bl, bh);
    g0 = fmaf(al, vl, g0);
    g1 = fmaf(ah, vh, g1);
    u0 = fmaf(bl, vl, u0);
    u1 = fmaf(bh, vh, u1);
}

template <int STEPS>
__device__ __forceinline__ void gu_consume(const uint4* wg, const uint4* wu, const uint4* xs,
                                           float& g0, float& g1, float& u0, float& u1) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const uint4 a = wg[s * 32];
        const uint4 b = wu[s * 32];
        const uint4 v = xs[s * 32];
        gu_fma2(a.x, b.x, v.x, g0, g1, u0, u1);
        gu_fma2(a.y, b.y, v.y, g0, g1, u0, u1);
        gu_fma2(a.z, b.z, v.z, g0, g1, u0, u1);
        gu_fma2(a.w, b.w, v.w, g0, g1, u0, u1);
    }
}

// ---------------------------------------------------------------- any shape, any type: a warp a pair and up to 8 tokens
__device__ __forceinline__ float gu_dot(const uint4& w, const uint4& v, float acc) {
    if constexpr (sizeof(T) == 4) {
        acc = fmaf(__uint_as_float(w.x), __uint_as_float(v.x), acc);
        acc = fmaf(__uint_as_float(w.y), __uint_as_float(v.y), acc);
        acc = fmaf(__uint_as_float(w.z), __uint_as_float(v.z), acc);
        acc = fmaf(__uint_as_float(w.w), __uint_as_float(v.w), acc);
    } else {
        float wl, wh, vl, vh;
        gu_unpack(w.x, wl, wh);
        gu_unpack(v.x, vl, vh);
        acc = fmaf(wl, vl, acc);
        acc = fmaf(wh, vh, acc);
        gu_unpack(w.y, wl, wh);
        gu_unpack(v.y, vl, vh);
        acc = fmaf(wl, vl, acc);
        acc = fmaf(wh, vh, acc);
        gu_unpack(w.z, wl, wh);
        gu_unpack(v.z, vl, vh);
        acc = fmaf(wl, vl, acc);
        acc = fmaf(wh, vh, acc);
        gu_unpack(w.w, wl, wh);
        gu_unpack(v.w, vl, vh);
        acc = fmaf(wl, vl, acc);
        acc = fmaf(wh, vh, acc);
    }
    return acc;
}

__device__ __forceinline__ void gu_generic(const T* x, const T* w, T* out) {
    constexpr int VEC = 16 / (int)sizeof(T);
    constexpr int NP = hidden_size / VEC;                 // 16-byte pieces a row
    constexpr int TT = num_tokens < 8 ? num_tokens : 8;   // tokens a warp
    constexpr int NT = (num_tokens + TT - 1) / TT;

    gu_dep_wait();

    const int lane = threadIdx.x & 31;
    const int nwarps = (int)gridDim.x * ((int)blockDim.x >> 5);
    const int first = (int)blockIdx.x * ((int)blockDim.x >> 5) + ((int)threadIdx.x >> 5);
    const uint4* xp = reinterpret_cast<const uint4*>(x);
    const uint4* wp = reinterpret_cast<const uint4*>(w);

    for (int it = first; it < GU_N * NT; it += nwarps) {
        const int pair = it / NT;
        const int t0 = (it - pair * NT) * TT;
        const uint4* wg = wp + (size_t)pair * NP;
        const uint4* wu = wp + ((size_t)pair + (size_t)GU_N) * NP;
        float ga[TT];
        float ua[TT];
#pragma unroll
        for (int t = 0; t < TT; ++t) {
            ga[t] = 0.0f;
            ua[t] = 0.0f;
        }
#pragma unroll 2
        for (int p = lane; p < NP; p += 32) {
            const uint4 a = gu_ld_stream(wg + p);
            const uint4 b = gu_ld_stream(wu + p);
#pragma unroll
            for (int t = 0; t < TT; ++t) {
                const int row = (t0 + t < num_tokens) ? (t0 + t) : (num_tokens - 1);
                const uint4 v = gu_ld_plain(xp + (size_t)row * NP + p);
                ga[t] = gu_dot(a, v, ga[t]);
                ua[t] = gu_dot(b, v, ua[t]);
            }
        }
        float gs = 0.0f;
        float us = 0.0f;
#pragma unroll
        for (int t = 0; t < TT; ++t) {
            float g = ga[t];
            float u = ua[t];
#pragma unroll
            for (int o = 16; o > 0; o >>= 1) {
                g += __shfl_xor_sync(0xffffffffu, g, o);
                u += __shfl_xor_sync(0xffffffffu, u, o);
            }
            if (lane == t) {
                gs = g;
                us = u;
            }
        }
        if (lane < TT && t0 + lane < num_tokens) {
            gu_put(out + ((size_t)(t0 + lane) * GU_N + pair), gu_silu_mul(gs, us));
        }
    }
    gu_dep_launch();
}

extern "C" __global__ void __launch_bounds__(256) gu_rows(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
    gu_generic(x, w_gate_up, out);
}

// ---------------------------------------------------------------- one token
extern "C" __global__ void __launch_bounds__(GU_THREADS, 2) gu_ring(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
    if constexpr (GU_RING_OK) {
        extern __shared__ __align__(128) unsigned char gu_smem[];

        const int lane = (int)(threadIdx.x & 31u);
        const int warp = (int)(threadIdx.x >> 5);
        unsigned char* ring = gu_smem + warp * GU_WRING;
        const uint32_t ring_s = (uint32_t)__cvta_generic_to_shared(ring);
        const uint32_t bar_s = (uint32_t)__cvta_generic_to_shared(gu_smem + GU_BARS) + (uint32_t)warp * 16u;
        uint4* xs = reinterpret_cast<uint4*>(gu_smem + GU_XS);
        int* finished = reinterpret_cast<int*>(gu_smem + GU_CNT);
        const unsigned char* wb = reinterpret_cast<const unsigned char*>(w_gate_up);

        int cur = warp * num_sms + (int)blockIdx.x;

        // Weights need no predecessor: fill the ring, then ask L2 for the pair after it.
        if (lane == 0) {
            gu_bar_init(bar_s);
            gu_bar_init(bar_s + 8u);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            if (cur < GU_N) {
                gu_request(ring_s, bar_s, wb, cur, 0);
                gu_request(ring_s + GU_STAGE, bar_s + 8u, wb, cur, 1);
            }
            if (cur + GU_W < GU_N) {
                const unsigned char* g = wb + (long long)(cur + GU_W) * GU_RB;
                gu_prefetch(g, (uint32_t)GU_PF);
                gu_prefetch(g + (long long)GU_N * GU_RB, (uint32_t)GU_PF);
            }
        }
        if (threadIdx.x == 0) *finished = 0;
        __syncwarp();

        gu_dep_wait();

        {
            const uint4* xp = reinterpret_cast<const uint4*>(x);
            for (int i = (int)threadIdx.x; i < GU_RB / 16; i += GU_THREADS) xs[i] = gu_ld_cg(xp + i);
        }
        __syncthreads();

        if (cur >= GU_N) {
            if (lane == 0) {
                if (atomicAdd(finished, 1) == GU_TRIGGER_AT - 1) gu_dep_launch();
            }
            return;
        }

        const int q = (int)blockIdx.x % GU_NG;
        unsigned int* counter =
            reinterpret_cast<unsigned int*>(reinterpret_cast<unsigned char*>(workspace) + q * 256);
        // Each warp of the group draws until it fails once, so the number of draws is known.
        const unsigned int last_ticket = (unsigned int)((GU_D - q + GU_NG - 1) / GU_NG
                                         + GU_WARPS * ((num_sms - q + GU_NG - 1) / GU_NG) - 1);

        uint32_t n = 0;   // pieces consumed by this warp
        int k = 0;        // pairs consumed by this warp
        while (true) {
            // The pair after this one.
            int nxt = cur + GU_W;
            if constexpr (GU_DYN) {
                if (k + 1 >= GU_S) {
                    unsigned int ticket = 0u;
                    if (lane == 0) {
                        asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                                     : "=r"(ticket) : "l"(counter), "r"(1u) : "memory");
                        if (ticket == last_ticket) {
                            asm volatile("st.relaxed.gpu.global.u32 [%0], %1;"
                                         :: "l"(counter), "r"(0u) : "memory");
                        }
                    }
                    ticket = __shfl_sync(0xffffffffu, ticket, 0);
                    nxt = GU_S * GU_W + (int)ticket * GU_NG + q;
                }
            }
            const bool done = nxt >= GU_N;   // nothing left to request for this warp
            if (done && lane == 0) {
                if (atomicAdd(finished, 1) == GU_TRIGGER_AT - 1) gu_dep_launch();
            }

            float g0 = 0.0f, g1 = 0.0f, u0 = 0.0f, u1 = 0.0f;
#pragma unroll GU_CUNROLL
            for (int c = 0; c < GU_NC; ++c) {
                const uint32_t st = (GU_NC % 2 == 0) ? (uint32_t)(c & 1) : (n & 1u);
                const uint32_t bar = bar_s + st * 8u;
                gu_bar_wait(bar, (n >> 1) & 1u);
                const uint4* sg = reinterpret_cast<const uint4*>(ring + st * GU_STAGE) + lane;
                const uint4* su = sg + GU_HALF / 16;
                const uint4* sx = xs + c * (GU_CH / 16) + lane;
                if (c < GU_NC - 1) {
                    gu_consume<GU_CH / 512>(sg, su, sx, g0, g1, u0, u1);
                } else {
                    gu_consume<GU_LAST / 512>(sg, su, sx, g0, g1, u0, u1);
                }
                __syncwarp();
                if (lane == 0) {
                    const uint32_t dst = ring_s + st * (uint32_t)GU_STAGE;
                    if (c + 2 < GU_NC) {
                        gu_request(dst, bar, wb, cur, c + 2);
                    } else if (!done) {
                        gu_request(dst, bar, wb, nxt, c + 2 - GU_NC);
                    }
                }
                ++n;
            }

            float g = g0 + g1;
            float u = u0 + u1;
#pragma unroll
            for (int o = 16; o > 0; o >>= 1) {
                g += __shfl_xor_sync(0xffffffffu, g, o);
                u += __shfl_xor_sync(0xffffffffu, u, o);
            }
            if (lane == 0) gu_put(out + cur, gu_silu_mul(g, u));

            if (done) break;
            cur = nxt;
            ++k;
        }
    } else {
        gu_generic(x, w_gate_up, out);
    }
}
