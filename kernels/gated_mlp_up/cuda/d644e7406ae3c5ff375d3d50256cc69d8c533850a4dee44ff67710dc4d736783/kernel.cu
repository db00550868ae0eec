// gated_mlp_up version 1: out = round_T(silu(x @ Wg^T) * (x @ Wu^T)), sums in float32.
//
// Idea: four small blocks of four warps a multiprocessor. A warp keeps a whole pair of rows (gate j, up j) in flight in
// its registers and requests the next pair into the registers it has just multiplied; the last rounds of pairs are drawn
// from a counter. x comes by a bulk copy, past the queue of weight loads. The next launch takes each block's place.
// Bound: device memory bandwidth over the 2 * intermediate_size * hidden_size weights, each byte read once.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// ---------------------------------------------------------------- constants
constexpr int GU_N = intermediate_size;
constexpr int GU_WARPS = 4;                          // warps a block
constexpr int GU_THREADS = GU_WARPS * 32;
constexpr int GU_BPS = 4;                            // blocks a multiprocessor
constexpr int GU_BLOCKS = num_sms * GU_BPS;
constexpr int GU_W = GU_BLOCKS * GU_WARPS;           // warps of the grid
constexpr int GU_XS = 128;                           // offset of x in shared memory, behind the barrier

constexpr int GU_RB = hidden_size * (int)sizeof(T);  // bytes of a row
constexpr int GU_STEPS = GU_RB / 512;                // steps of a warp along a row
constexpr bool GU_STREAM_OK = (sizeof(T) == 2) && (num_tokens == 1) && (GU_RB % 512 == 0)
                              && (GU_STEPS >= 2) && (GU_STEPS <= 10);
constexpr int GU_SA = GU_STREAM_OK ? (GU_STEPS + 1) / 2 : 1;       // steps of the first group
constexpr int GU_SB = GU_STREAM_OK ? GU_STEPS - GU_SA : 1;         // steps of the second group

constexpr bool GU_DYN = (GU_N / GU_W) >= 3;          // draw the last rounds from a counter
constexpr int GU_S0 = GU_N / GU_W - 1;
constexpr int GU_S = GU_S0 < 2 ? 2 : GU_S0;          // static rounds
constexpr int GU_D = GU_N - GU_S * GU_W;             // pairs that are drawn
// Each warp draws until it fails once, so the number of draws is known.
constexpr int GU_LAST_TICKET = GU_D + GU_W - 1;

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
// the same, first to be evicted from L2
__device__ __forceinline__ uint4 gu_ld_weight(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(0x12F0000000000000ULL));
    return v;
}

// ---------------------------------------------------------------- barrier and bulk copy of x
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
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}

// ---------------------------------------------------------------- pieces of the stream
template <int S>
__device__ __forceinline__ void gu_fetch(uint4 (&g)[S], uint4 (&u)[S],
                                         const unsigned char* pg, const unsigned char* pu) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
        g[s] = gu_ld_weight(pg + s * 512);
        u[s] = gu_ld_weight(pu + s * 512);
    }
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

template <int S>
__device__ __forceinline__ void gu_consume(const uint4 (&g)[S], const uint4 (&u)[S], const uint4* xs,
                                           float& g0, float& g1, float& u0, float& u1) {
#pragma unroll
    for (int s = 0; s < S; ++s) {
        const uint4 v = xs[s * 32];
        gu_fma2(g[s].x, u[s].x, v.x, g0, g1, u0, u1);
        gu_fma2(g[s].y, u[s].y, v.y, g0, g1, u0, u1);
        gu_fma2(g[s].z, u[s].z, v.z, g0, g1, u0, u1);
        gu_fma2(g[s].w, u[s].w, v.w, g0, g1, u0, u1);
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
extern "C" __global__ void __launch_bounds__(GU_THREADS, GU_BPS) gu_stream(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
    if constexpr (GU_STREAM_OK) {
        extern __shared__ __align__(128) unsigned char gu_smem[];

        // The grid fills the registers of the device: the next launch gets a place only when a block has ended.
        gu_dep_launch();

        const int lane = (int)(threadIdx.x & 31u);
        const int warp = (int)(threadIdx.x >> 5);
        const unsigned char* wb = reinterpret_cast<const unsigned char*>(w_gate_up) + lane * 16;
        int cur = (int)blockIdx.x * GU_WARPS + warp;

        uint4 ga[GU_SA], ua[GU_SA];
        uint4 gb[GU_SB], ub[GU_SB];

        // Weights need no predecessor: request the whole first pair.
        {
            const int pr = cur < GU_N ? cur : GU_N - 1;
            const unsigned char* pg = wb + (long long)pr * GU_RB;
            const unsigned char* pu = pg + (long long)GU_N * GU_RB;
            gu_fetch<GU_SA>(ga, ua, pg, pu);
            gu_fetch<GU_SB>(gb, ub, pg + GU_SA * 512, pu + GU_SA * 512);
        }

        const uint32_t bar = (uint32_t)__cvta_generic_to_shared(gu_smem);
        if (threadIdx.x == 0) {
            gu_bar_init(bar);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        }

        gu_dep_wait();

        if (threadIdx.x == 0) gu_bulk(bar + (uint32_t)GU_XS, x, (uint32_t)GU_RB, bar);
        __syncthreads();
        gu_bar_wait(bar, 0u);

        if (cur >= GU_N) return;

        const uint4* xs = reinterpret_cast<const uint4*>(gu_smem + GU_XS) + lane;
        unsigned int* counter = reinterpret_cast<unsigned int*>(workspace);
        unsigned int ticket = 0u;   // lane 0: drawn for the pair after the next
        int k = 0;                  // round of this warp

#pragma unroll 1
        while (true) {
            // The pair after this one.
            int nxt = cur + GU_W;
            if constexpr (GU_DYN) {
                if (k + 1 >= GU_S) {
                    const unsigned int t = __shfl_sync(0xffffffffu, ticket, 0);
                    if (lane == 0 && t == (unsigned int)GU_LAST_TICKET) {
                        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;"
                                     :: "l"(counter), "r"(0u) : "memory");
                    }
                    nxt = GU_S * GU_W + (int)t;
                }
            }
            const bool more = nxt < GU_N;
            if constexpr (GU_DYN) {
                // Draw for the pair after the next, in front of the loads that will be waited for first.
                if (more && k + 2 >= GU_S && lane == 0) {
                    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;"
                                 : "=r"(ticket) : "l"(counter), "r"(1u) : "memory");
                }
            }
            const unsigned char* ng = wb + (long long)nxt * GU_RB;
            const unsigned char* nu = ng + (long long)GU_N * GU_RB;

            float g0 = 0.0f, g1 = 0.0f, u0 = 0.0f, u1 = 0.0f;

            gu_consume<GU_SA>(ga, ua, xs, g0, g1, u0, u1);
            if (more) gu_fetch<GU_SA>(ga, ua, ng, nu);

            gu_consume<GU_SB>(gb, ub, xs + GU_SA * 32, g0, g1, u0, u1);
            if (more) gu_fetch<GU_SB>(gb, ub, ng + GU_SA * 512, nu + GU_SA * 512);

            // Lower half of the warp sums the gate, upper half the up row.
            const float g = g0 + g1;
            const float u = u0 + u1;
            const bool upper = (lane & 16) != 0;
            const float give = upper ? g : u;
            float keep = upper ? u : g;
            keep += __shfl_xor_sync(0xffffffffu, give, 16);
#pragma unroll
            for (int o = 8; o > 0; o >>= 1) keep += __shfl_xor_sync(0xffffffffu, keep, o);
            const float usum = __shfl_sync(0xffffffffu, keep, 16);
            if (lane == 0) gu_put(out + cur, gu_silu_mul(keep, usum));

            if (!more) break;
            cur = nxt;
            ++k;
        }
    } else {
        gu_generic(x, w_gate_up, out);
    }
}
