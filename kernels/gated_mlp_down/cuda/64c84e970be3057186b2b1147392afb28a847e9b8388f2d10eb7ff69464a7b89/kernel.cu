// Contract gated_mlp_down v1: y = round_T(x @ w_down^T); residual = round_T(residual + y), in place.
// Idea 1: one token: one small persistent block a multiprocessor; each warp owns 1024 columns of every row, keeps x
//         widened in registers and streams its slices by bulk copies into a private ring, no block barrier until the end.
// Idea 2: threads, registers and shared memory take less than half a multiprocessor, so that the whole dependent launch
//         fits beside its predecessor and fills its ring (and two rows of L2) while the predecessor drains.
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
constexpr int CW_RAW = (intermediate_size + 1023) / 1024;
constexpr int CW = CW_RAW < 12 ? CW_RAW : 12;                 // warps, 1024 columns each
constexpr int CT = CW * 32;
constexpr int WP = 1024 / EP;                                 // pieces a warp and row
constexpr int PP = WP / 32;                                   // pieces a lane and row
constexpr int WB = WP * 16;                                   // bytes a warp and row
constexpr int STAGES = sizeof(T) == 4 ? 2 : 5;                // rows in flight; the plan gives 10 bytes a column
constexpr int PF = 2;                                         // further rows pulled into L2 before the wait
constexpr int GRID_A = num_sms < hidden_size ? num_sms : hidden_size;
constexpr int GRID_B = (hidden_size + 255) / 256;
constexpr int GRID = GRID_A > GRID_B ? GRID_A : GRID_B;
constexpr int Q = hidden_size / GRID;
constexpr int REM = hidden_size % GRID;
constexpr int MAXN = Q + (REM > 0 ? 1 : 0);

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
__device__ __forceinline__ void fill(unsigned int dst, const void* src, unsigned int bytes, unsigned int bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        :: "r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(0x12F0000000000000ull) : "memory");
}
__device__ __forceinline__ void pull_l2(const void* src, unsigned int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(src), "r"(bytes) : "memory");
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

extern "C" __global__ void __launch_bounds__(dn::CT, 2) down_ring(
    const T* __restrict__ x, const T* __restrict__ w_down, T* __restrict__ residual, void* __restrict__ workspace) {
    using namespace dn;
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ __align__(8) unsigned long long bars[CW * STAGES];
    __shared__ float part[CW * MAXN];
    (void)workspace;

    const int tid = (int)threadIdx.x;
    const int warp = tid >> 5;
    const int lane = tid & 31;
    const int b = (int)blockIdx.x;
    const int r0 = b * Q + (b < REM ? b : REM);
    const int n = Q + (b < REM ? 1 : 0);

    // this warp's slice of a row
    const int left = PIECES - warp * WP;
    const int np = left < WP ? left : WP;
    const unsigned int bytes = (unsigned int)np * 16u;
    const char* wp = reinterpret_cast<const char*>(w_down) + (size_t)r0 * (size_t)ROWB + (size_t)warp * (size_t)WB;
    const unsigned int bar0 = smem_addr(bars) + (unsigned int)(warp * STAGES) * 8u;
    // stages of a warp are packed by its own slice size; only the last warp's slice may be short
    const unsigned int buf0 = smem_addr(ring) + (unsigned int)(warp * STAGES) * (unsigned int)WB;

    if (lane == 0) {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) bar_init(bar0 + s * 8);
        bar_init_fence();
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
            if (s < n) fill(buf0 + (unsigned int)s * bytes, wp + (size_t)s * (size_t)ROWB, bytes, bar0 + s * 8);
        }
#pragma unroll
        for (int s = STAGES; s < STAGES + PF; ++s) {
            if (s < n) pull_l2(wp + (size_t)s * (size_t)ROWB, bytes);
        }
    }
    __syncwarp();

    dep_wait();

    float xf[PP][EP];
    {
        uint4 xr[PP];
#pragma unroll
        for (int j = 0; j < PP; ++j) {
            xr[j] = make_uint4(0u, 0u, 0u, 0u);
            if (j * 32 + lane < np)
                xr[j] = ld_x(reinterpret_cast<const char*>(x) + (size_t)(warp * WP + j * 32 + lane) * 16);
        }
#pragma unroll
        for (int j = 0; j < PP; ++j) IoT::unpack(xr[j], xf[j]);
    }
    float res = 0.0f;
    if (tid < n) res = IoT::load(residual + r0 + tid);

    const int last = n - 1 - STAGES;          // the row after which nothing more is requested
    if (last < 0) dep_launch();

    const char* np_src = wp + (size_t)STAGES * (size_t)ROWB;
    unsigned int parity = 0;
#pragma unroll 1
    for (int i = 0; i < n; i += STAGES) {
        float t[STAGES];
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
            t[s] = 0.0f;
            if (i + s < n) {
                bar_wait(bar0 + s * 8, parity);
                uint4 v[PP];
                const unsigned int a = buf0 + (unsigned int)s * bytes + (unsigned int)lane * 16u;
#pragma unroll
                for (int j = 0; j < PP; ++j) {
                    v[j] = make_uint4(0u, 0u, 0u, 0u);
                    ld_s_if(v[j], a + j * 512, (j * 32 + lane < np) ? 1u : 0u);
                }
                float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int j = 0; j < PP; ++j) {
                    float wf[EP];
                    IoT::unpack(v[j], wf);
#pragma unroll
                    for (int e = 0; e < EP; ++e) c[e & 3] = fmaf(wf[e], xf[j][e], c[e & 3]);
                }
                t[s] = (c[0] + c[1]) + (c[2] + c[3]);
                __syncwarp();
                if (lane == 0 && i + s + STAGES < n)
                    fill(buf0 + (unsigned int)s * bytes, np_src + (size_t)s * (size_t)ROWB, bytes, bar0 + s * 8);
                if (i + s == last) dep_launch();
            }
        }
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
#pragma unroll
            for (int s = 0; s < STAGES; ++s) t[s] += __shfl_xor_sync(0xffffffffu, t[s], o);
        }
        if (lane == 0) {
#pragma unroll
            for (int s = 0; s < STAGES; ++s)
                if (i + s < n) part[warp * MAXN + i + s] = t[s];
        }
        np_src += (size_t)STAGES * (size_t)ROWB;
        parity ^= 1u;
    }

    __syncthreads();
#pragma unroll 1
    for (int i = tid; i < n; i += CT) {
        if (i != tid) res = IoT::load(residual + r0 + i);
        float q[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int k = 0; k < CW; ++k) q[k & 3] += part[k * MAXN + i];
        const float sum = (q[0] + q[1]) + (q[2] + q[3]);
        residual[r0 + i] = finish(sum, res);
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
