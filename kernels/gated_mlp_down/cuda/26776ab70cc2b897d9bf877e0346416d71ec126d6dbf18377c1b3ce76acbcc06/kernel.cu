// Contract gated_mlp_down v1: y = round_T(x @ w_down^T); residual = round_T(residual + y), in place.
// Idea 1: one token: small one-shot blocks of 128 threads and two rows. A block asks for all its weights at once by bulk
//         copies into shared memory (39 KB, five blocks a multiprocessor), before the dependent wait, and holds no ring.
// Idea 2: every block triggers first; the next launch takes each place as it comes free, so that requests never stop and
//         the hardware spreads the blocks, whatever runs in front. x comes through L1, once for both rows.
// Idea 3: every other shape: a block of eight warps walks four rows for up to eight tokens, float32 sums, fixed order.
// Bound: device-memory bandwidth of the weights (one token); CUDA-core arithmetic at many tokens.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class E> struct Io;

template <> struct Io<__nv_bfloat16> {
    static constexpr int EP = 8;
    static __device__ __forceinline__ void unpack(const uint4& v, float (&f)[8]) {
        f[0] = __uint_as_float(v.x << 16); f[1] = __uint_as_float(v.x & 0xffff0000u);
        f[2] = __uint_as_float(v.y << 16); f[3] = __uint_as_float(v.y & 0xffff0000u);
        f[4] = __uint_as_float(v.z << 16); f[5] = __uint_as_float(v.z & 0xffff0000u);
        f[6] = __uint_as_float(v.w << 16); f[7] = __uint_as_float(v.w & 0xffff0000u);
    }
    static __device__ __forceinline__ float load(const __nv_bfloat16* p) {
        unsigned short u;
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(u) : "l"(p) : "memory");
        return __uint_as_float(((unsigned int)u) << 16);
    }
    static __device__ __forceinline__ __nv_bfloat16 from(float f) { return __float2bfloat16_rn(f); }
    static __device__ __forceinline__ float to(__nv_bfloat16 h) { return __bfloat162float(h); }
};

template <> struct Io<__half> {
    static constexpr int EP = 8;
    static __device__ __forceinline__ void two(unsigned int u, float& a, float& b) {
        const __half2 h = *reinterpret_cast<const __half2*>(&u);
        const float2 r = __half22float2(h);
        a = r.x; b = r.y;
    }
    static __device__ __forceinline__ void unpack(const uint4& v, float (&f)[8]) {
        two(v.x, f[0], f[1]); two(v.y, f[2], f[3]); two(v.z, f[4], f[5]); two(v.w, f[6], f[7]);
    }
    static __device__ __forceinline__ float load(const __half* p) {
        unsigned short u;
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(u) : "l"(p) : "memory");
        const __half h = *reinterpret_cast<const __half*>(&u);
        return __half2float(h);
    }
    static __device__ __forceinline__ __half from(float f) { return __float2half_rn(f); }
    static __device__ __forceinline__ float to(__half h) { return __half2float(h); }
};

template <> struct Io<float> {
    static constexpr int EP = 4;
    static __device__ __forceinline__ void unpack(const uint4& v, float (&f)[4]) {
        f[0] = __uint_as_float(v.x); f[1] = __uint_as_float(v.y);
        f[2] = __uint_as_float(v.z); f[3] = __uint_as_float(v.w);
    }
    static __device__ __forceinline__ float load(const float* p) {
        float u;
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(u) : "l"(p) : "memory");
        return u;
    }
    static __device__ __forceinline__ float from(float f) { return f; }
    static __device__ __forceinline__ float to(float h) { return h; }
};

using IoT = Io<T>;

namespace dn {
constexpr int EP = IoT::EP;                                   // elements in 16 bytes
constexpr int PIECES = intermediate_size / EP;                // 16-byte pieces a row
constexpr int ROWB = (int)((long long)intermediate_size * (long long)sizeof(T));

// one-token kernel (launched only when intermediate_size <= 12288)
constexpr bool WAVES = num_tokens == 1 && intermediate_size <= 12288;
constexpr int BT = 128;                                       // threads
constexpr int BW = BT / 32;                                   // warps; each owns a quarter of every row of the block
constexpr int RPB = 2;                                        // rows a block
constexpr int RPR = 4 / (int)sizeof(T);                       // rows a round: the plan gives 4 bytes a column
constexpr int ROUNDS = RPB / RPR;
constexpr int GRID = hidden_size / RPB;
constexpr int WPP = (PIECES + BW - 1) / BW;                   // pieces a warp and row
constexpr int MINNP = PIECES - (BW - 1) * WPP;                // pieces of the last warp; may be zero or less
constexpr int STEPS = (WPP + 31) / 32;                        // pieces a lane and row
constexpr int GROUPS = STEPS <= 4 ? 1 : (STEPS <= 12 ? 2 : (STEPS + 5) / 6);   // barriers a warp
constexpr int GS = (STEPS + GROUPS - 1) / GROUPS;             // steps a barrier
constexpr int GP = GS * 32;                                   // pieces a barrier and row
constexpr bool PRE = STEPS <= 12;                             // the lane's activations all fit into registers
constexpr int XN = PRE ? STEPS : GS;
constexpr int RES_SM = 233472 / (intermediate_size * 4 + 1280);
constexpr int RES = num_sms * (RES_SM > 5 ? 5 : (RES_SM < 1 ? 1 : RES_SM));    // blocks that find room at once

// general kernel
constexpr int RW = 4;
constexpr int TT = num_tokens < 8 ? num_tokens : 8;
constexpr int GT = 256;
constexpr int GW = GT / 32;

__device__ __forceinline__ void dep_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void dep_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// activations: coherent loads that may not move above the dependent wait
__device__ __forceinline__ uint4 ld_x(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ uint4 ld_w(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ void ld_s(uint4& v, unsigned int a) {
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
}
// shared load; keeps v where ok is zero
__device__ __forceinline__ void ld_s_if(uint4& v, unsigned int a, unsigned int ok) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "setp.ne.u32 p, %5, 0;\n\t"
        "@p ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n\t}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "r"(a), "r"(ok) : "memory");
}
__device__ __forceinline__ unsigned int smem_addr(const void* p) {
    return (unsigned int)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void bar_init(unsigned int bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void bar_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bar_expect(unsigned int bar, unsigned int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned int bar, unsigned int parity) {
    unsigned int done = 0;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (done == 0u);
}
// one bulk copy of a slice, evict-first by a constant policy word
__device__ __forceinline__ void copy_in(unsigned int dst, const void* src, unsigned int bytes, unsigned int bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        :: "r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(0x12F0000000000000ull) : "memory");
}
__device__ __forceinline__ void pull_l2(const void* src, unsigned int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(src), "r"(bytes) : "memory");
}
// everything a warp needs in one round: its slice of each row, group after group
__device__ __forceinline__ void request(unsigned int dst, const char* src, int np, unsigned int bar0) {
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        const int rest = np - g * GP;
        const int gp = rest < GP ? rest : GP;
        if (gp > 0) {
            const unsigned int bytes = (unsigned int)gp * 16u;
            bar_expect(bar0 + (unsigned int)g * 8u, bytes * (unsigned int)RPR);
#pragma unroll
            for (int r = 0; r < RPR; ++r)
                copy_in(dst + (unsigned int)(r * ROWB + g * GP * 16),
                        src + (size_t)r * (size_t)ROWB + (size_t)(g * GP * 16), bytes, bar0 + (unsigned int)g * 8u);
        }
    }
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
__device__ __forceinline__ T finish(float sum, float res) {
    const float y = IoT::to(IoT::from(sum));
    return IoT::from(res + y);
}
}  // namespace dn

extern "C" __global__ void __launch_bounds__(dn::BT, 5) down_waves(
    const T* __restrict__ x, const T* __restrict__ w_down, T* __restrict__ residual, void* __restrict__ workspace) {
    using namespace dn;
    (void)workspace;
    // the next launch may only start once every block of this one has: it takes places that nobody here wants any more
    dep_launch();
    if constexpr (WAVES) {
        extern __shared__ __align__(128) unsigned char ring[];
        __shared__ __align__(8) unsigned long long bars[BW * GROUPS];
        __shared__ float part[BW][RPB];

        const int tid = (int)threadIdx.x;
        const int warp = tid >> 5;
        const int lane = tid & 31;
        const int b = (int)blockIdx.x;
        const int row0 = b * RPB;

        // this warp's slice of a row
        const int left = PIECES - warp * WPP;
        const int np = left < WPP ? left : WPP;               // zero or less: nothing to do
        const char* src = reinterpret_cast<const char*>(w_down) + (size_t)row0 * (size_t)ROWB +
                          (size_t)warp * (size_t)(WPP * 16);
        const unsigned int buf = smem_addr(ring) + (unsigned int)(warp * WPP * 16);
        const unsigned int bar0 = smem_addr(bars) + (unsigned int)(warp * GROUPS) * 8u;

        if (lane == 0 && np > 0) {
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) bar_init(bar0 + (unsigned int)g * 8u);
            bar_init_fence();
            request(buf, src, np, bar0);
            // a quarter of the block that will follow in this place
            if (b + RES < GRID && np > 1)
                pull_l2(src + (size_t)RES * (size_t)RPB * (size_t)ROWB, (unsigned int)(np >> 1) * 16u);
        }
        __syncwarp();

        dep_wait();

        const char* xp = reinterpret_cast<const char*>(x) + (size_t)(warp * WPP + lane) * 16;
        uint4 xr[XN];
        if constexpr (PRE) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                if ((s + 1) * 32 <= MINNP) {
                    xr[s] = ld_x(xp + s * 512);
                } else {
                    xr[s] = make_uint4(0u, 0u, 0u, 0u);
                    if (s * 32 + lane < np) xr[s] = ld_x(xp + s * 512);
                }
            }
        }
        float res = 0.0f;
        if (tid < RPB) res = IoT::load(residual + row0 + tid);

#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) {
            float acc[RPR][4];
#pragma unroll
            for (int r = 0; r < RPR; ++r)
#pragma unroll
                for (int e = 0; e < 4; ++e) acc[r][e] = 0.0f;

#pragma unroll
            for (int g = 0; g < GROUPS; ++g) {
                if constexpr (!PRE) {
#pragma unroll
                    for (int j = 0; j < GS; ++j) {
                        const int s = g * GS + j;
                        xr[j] = make_uint4(0u, 0u, 0u, 0u);
                        if (s < STEPS && s * 32 + lane < np) xr[j] = ld_x(xp + s * 512);
                    }
                }
                if (g * GP < np) bar_wait(bar0 + (unsigned int)g * 8u, (unsigned int)(round & 1));
#pragma unroll
                for (int j = 0; j < GS; ++j) {
                    const int s = g * GS + j;
                    if (s < STEPS) {
                        uint4 v[RPR];
#pragma unroll
                        for (int r = 0; r < RPR; ++r) {
                            const unsigned int a = buf + (unsigned int)lane * 16u + (unsigned int)(r * ROWB + s * 512);
                            if ((s + 1) * 32 <= MINNP) {
                                ld_s(v[r], a);
                            } else {
                                v[r] = make_uint4(0u, 0u, 0u, 0u);
                                ld_s_if(v[r], a, (s * 32 + lane < np) ? 1u : 0u);
                            }
                        }
                        float xf[EP];
                        IoT::unpack(xr[PRE ? s : j], xf);
#pragma unroll
                        for (int r = 0; r < RPR; ++r) {
                            float wf[EP];
                            IoT::unpack(v[r], wf);
#pragma unroll
                            for (int e = 0; e < EP; ++e) acc[r][e & 3] = fmaf(wf[e], xf[e], acc[r][e & 3]);
                        }
                    }
                }
            }

            if (round + 1 < ROUNDS) {                         // float32 only: the buffer holds one row at a time
                __syncwarp();
                if (lane == 0 && np > 0)
                    request(buf, src + (size_t)((round + 1) * RPR) * (size_t)ROWB, np, bar0);
            }

            float t[RPR];
#pragma unroll
            for (int r = 0; r < RPR; ++r) t[r] = (acc[r][0] + acc[r][1]) + (acc[r][2] + acc[r][3]);
#pragma unroll
            for (int o = 16; o > 0; o >>= 1) {
#pragma unroll
                for (int r = 0; r < RPR; ++r) t[r] += __shfl_xor_sync(0xffffffffu, t[r], o);
            }
            if (lane == 0) {
#pragma unroll
                for (int r = 0; r < RPR; ++r) part[warp][round * RPR + r] = t[r];
            }
        }

        __syncthreads();
        if (tid < RPB) {
            const float sum = (part[0][tid] + part[1][tid]) + (part[2][tid] + part[3][tid]);
            residual[row0 + tid] = finish(sum, res);
        }
    } else {
        (void)x; (void)w_down; (void)residual;
        dep_wait();
    }
}

extern "C" __global__ void __launch_bounds__(dn::GT, 2) down_general(
    const T* __restrict__ x, const T* __restrict__ w_down, T* __restrict__ residual, void* __restrict__ workspace) {
    using namespace dn;
    __shared__ float red[GW][RW * TT];
    (void)workspace;

    const int tid = (int)threadIdx.x;
    const int warp = tid >> 5;
    const int lane = tid & 31;
    const int row0 = (int)blockIdx.x * RW;
    const int t0 = (int)blockIdx.y * TT;

    const char* wp[RW];
#pragma unroll
    for (int r = 0; r < RW; ++r)
        wp[r] = reinterpret_cast<const char*>(w_down + (size_t)(row0 + r) * (size_t)intermediate_size);

    float acc[RW][TT];
#pragma unroll
    for (int r = 0; r < RW; ++r)
#pragma unroll
        for (int t = 0; t < TT; ++t) acc[r][t] = 0.0f;

    uint4 nxt[RW];
#pragma unroll
    for (int r = 0; r < RW; ++r) {
        nxt[r] = make_uint4(0u, 0u, 0u, 0u);
        if (tid < PIECES) nxt[r] = ld_w(wp[r] + (size_t)tid * 16);
    }

    dep_wait();

    float res = 0.0f;
    const int er = tid / TT;
    const int et = t0 + tid % TT;
    const bool owner = (tid < RW * TT) && (et < num_tokens);
    if (owner) res = IoT::load(residual + (size_t)et * hidden_size + row0 + er);

#pragma unroll 1
    for (int p = tid; p < PIECES; p += GT) {
        float wf[RW][EP];
#pragma unroll
        for (int r = 0; r < RW; ++r) IoT::unpack(nxt[r], wf[r]);
        if (p + GT < PIECES) {
#pragma unroll
            for (int r = 0; r < RW; ++r) nxt[r] = ld_w(wp[r] + (size_t)(p + GT) * 16);
        }
#pragma unroll
        for (int t = 0; t < TT; ++t) {
            const int tok = (t0 + t) < num_tokens ? (t0 + t) : (num_tokens - 1);
            const uint4 xv = ld_x(reinterpret_cast<const char*>(x + (size_t)tok * (size_t)intermediate_size) +
                                  (size_t)p * 16);
            float xe[EP];
            IoT::unpack(xv, xe);
#pragma unroll
            for (int r = 0; r < RW; ++r) {
                float c = wf[r][0] * xe[0];
#pragma unroll
                for (int e = 1; e < EP; ++e) c = fmaf(wf[r][e], xe[e], c);
                acc[r][t] += c;
            }
        }
    }
    dep_launch();

#pragma unroll
    for (int r = 0; r < RW; ++r)
#pragma unroll
        for (int t = 0; t < TT; ++t) {
            const float v = warp_sum(acc[r][t]);
            if (lane == 0) red[warp][r * TT + t] = v;
        }
    __syncthreads();
    if (owner) {
        float sum = red[0][tid];
#pragma unroll
        for (int k = 1; k < GW; ++k) sum += red[k][tid];
        residual[(size_t)et * hidden_size + row0 + er] = finish(sum, res);
    }
}
