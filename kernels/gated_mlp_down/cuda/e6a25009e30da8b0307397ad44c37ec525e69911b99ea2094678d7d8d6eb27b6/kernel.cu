// Contract gated_mlp_down v1: y = round_T(x @ w_down^T); residual = round_T(residual + y), in place.
// Idea 1: one token: one block a multiprocessor streams its contiguous rows by bulk copies into a ring of whole rows,
//         first rows requested before the dependent wait; x stays in registers as float32, each thread owns 16 columns.
// Idea 2: warps reduce a row by shuffles, partials of warps meet in shared memory and are added in a fixed order.
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

// one-token ring kernel
constexpr int CW_RAW = (intermediate_size + 511) / 512;
constexpr int CW = CW_RAW < 24 ? CW_RAW : 24;                 // consumer warps (launched only when CW_RAW <= 24)
constexpr int CT = CW * 32;
constexpr int PP = 16 / EP;                                   // pieces a thread
constexpr bool EXACT = (PIECES == CT * PP);
constexpr int RING_MAX = 106496;
constexpr long long ROWB_LL = (long long)intermediate_size * (long long)sizeof(T);
constexpr int ROWB = (int)ROWB_LL;
constexpr int S_RAW = (int)(RING_MAX / ROWB_LL);
constexpr int S = S_RAW < 1 ? 1 : (S_RAW > 16 ? 16 : S_RAW);
constexpr int RB = 32;                                        // rows an epilogue batch
constexpr int OFF_PART = RING_MAX;
constexpr int OFF_BAR = RING_MAX + RB * 24 * 4;
constexpr int GRID = num_sms < hidden_size ? num_sms : hidden_size;
constexpr int BLOCK = CT + 32;
constexpr int MINB = BLOCK <= 704 ? 2 : 1;

// general kernel
constexpr int RW = 4;
constexpr int TT = num_tokens < 8 ? num_tokens : 8;
constexpr int GT = 256;
constexpr int GW = GT / 32;

__device__ __forceinline__ unsigned int sptr(const void* p) {
    return (unsigned int)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void bar_init(unsigned int b, unsigned int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned int b, unsigned int parity) {
    unsigned int ok;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(ok) : "r"(b), "r"(parity) : "memory");
    } while (ok == 0u);
}
__device__ __forceinline__ void bar_arrive(unsigned int b) {
    asm volatile("{\n\t.reg .b64 st;\n\tmbarrier.arrive.shared::cta.b64 st, [%0];\n\t}" ::"r"(b) : "memory");
}
__device__ __forceinline__ void bar_expect(unsigned int b, unsigned int bytes) {
    asm volatile("{\n\t.reg .b64 st;\n\tmbarrier.arrive.expect_tx.shared::cta.b64 st, [%0], %1;\n\t}"
                 ::"r"(b), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_load(unsigned int dst, const void* src, unsigned int bytes, unsigned int bar,
                                          unsigned long long pol) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(pol) : "memory");
}
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
__device__ __forceinline__ uint4 ld_s(unsigned int a) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
    return v;
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

extern "C" __global__ void __launch_bounds__(dn::BLOCK, dn::MINB) down_ring(
    const T* __restrict__ x, const T* __restrict__ w_down, T* __restrict__ residual, void* __restrict__ workspace) {
    using namespace dn;
    extern __shared__ __align__(128) unsigned char smem[];
    (void)workspace;

    const int tid = (int)threadIdx.x;
    const int warp = tid >> 5;
    const int lane = tid & 31;
    const int r0 = (int)((long long)blockIdx.x * hidden_size / GRID);
    const int r1 = (int)((long long)(blockIdx.x + 1) * hidden_size / GRID);
    const int n = r1 - r0;

    const unsigned int ring = sptr(smem);
    const unsigned int full = ring + OFF_BAR;
    const unsigned int empty = full + 16 * 8;
    float* const part = reinterpret_cast<float*>(smem + OFF_PART);

    const char* const wbase = reinterpret_cast<const char*>(w_down) + (size_t)r0 * (size_t)ROWB;
    unsigned long long pol = 0;
    const int pre = n < S ? n : S;

    if (warp == CW && lane == 0) {
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(pol));
#pragma unroll 1
        for (int s = 0; s < S; ++s) {
            bar_init(full + s * 8, 1);
            bar_init(empty + s * 8, CW);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#pragma unroll 1
        for (int i = 0; i < pre; ++i) {
            bar_expect(full + i * 8, ROWB);
            bulk_load(ring + i * ROWB, wbase + (size_t)i * (size_t)ROWB, ROWB, full + i * 8, pol);
        }
    }
    __syncthreads();

    if (warp == CW) {
        if (lane == 0) {
            int s = 0;
            unsigned int ph = 0;
#pragma unroll 1
            for (int i = pre; i < n; ++i) {
                bar_wait(empty + s * 8, ph);
                bar_expect(full + s * 8, ROWB);
                bulk_load(ring + s * ROWB, wbase + (size_t)i * (size_t)ROWB, ROWB, full + s * 8, pol);
                if (++s == S) { s = 0; ph ^= 1u; }
            }
            dep_launch();
        }
        return;
    }

    // consumers
    dep_wait();
    float xf[PP][EP];
#pragma unroll
    for (int j = 0; j < PP; ++j) {
        const int p = j * CT + tid;
        uint4 v = make_uint4(0u, 0u, 0u, 0u);
        if (EXACT || p < PIECES) v = ld_x(reinterpret_cast<const char*>(x) + (size_t)p * 16);
        IoT::unpack(v, xf[j]);
    }

    int s = 0;
    unsigned int ph = 0;
#pragma unroll 1
    for (int b0 = 0; b0 < n; b0 += RB) {
        const int m = (n - b0) < RB ? (n - b0) : RB;
        float res = 0.0f;
        if (tid < m) res = IoT::load(residual + r0 + b0 + tid);

#pragma unroll 1
        for (int i = 0; i < m; ++i) {
            bar_wait(full + s * 8, ph);
            const unsigned int a = ring + s * ROWB + tid * 16;
            uint4 v[PP];
#pragma unroll
            for (int j = 0; j < PP; ++j) {
                v[j] = make_uint4(0u, 0u, 0u, 0u);
                if (EXACT || j * CT + tid < PIECES) v[j] = ld_s(a + j * CT * 16);
            }
            float acc[PP];
#pragma unroll
            for (int j = 0; j < PP; ++j) {
                float wf[EP];
                IoT::unpack(v[j], wf);
                float c0 = 0.0f, c1 = 0.0f;
#pragma unroll
                for (int e = 0; e < EP; e += 2) {
                    c0 = fmaf(wf[e], xf[j][e], c0);
                    c1 = fmaf(wf[e + 1], xf[j][e + 1], c1);
                }
                acc[j] = c0 + c1;
            }
            __syncwarp();
            if (lane == 0) bar_arrive(empty + s * 8);
            float t = acc[0];
#pragma unroll
            for (int j = 1; j < PP; ++j) t += acc[j];
            t = warp_sum(t);
            if (lane == 0) part[warp * RB + i] = t;
            if (++s == S) { s = 0; ph ^= 1u; }
        }

        asm volatile("bar.sync 1, %0;" ::"n"(CT) : "memory");
        if (tid < m) {
            float q[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int k = 0; k < CW; ++k) q[k & 3] += part[k * RB + tid];
            const float sum = (q[0] + q[1]) + (q[2] + q[3]);
            residual[r0 + b0 + tid] = finish(sum, res);
        }
        if (b0 + RB < n) asm volatile("bar.sync 1, %0;" ::"n"(CT) : "memory");
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
