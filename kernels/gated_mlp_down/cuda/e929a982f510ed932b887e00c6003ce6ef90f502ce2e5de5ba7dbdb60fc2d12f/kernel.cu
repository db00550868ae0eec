// Contract gated_mlp_down v1: y = round_T(x @ w_down^T); residual = round_T(residual + y), in place.
// Idea 1: one token: two persistent blocks a multiprocessor stream contiguous rows straight into registers; a thread
//         owns the same 16 columns of every row, keeps its piece of x in registers and three rows of weights in flight.
// Idea 2: row 0 is requested before the dependent wait, x right after it, then rows 1 and 2, so x is not queued behind
//         the whole prefetch; warps never meet until one barrier at the end; partials are added in a fixed order.
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

// one-token kernel
constexpr int CW_RAW = (intermediate_size + 511) / 512;
constexpr int CW = CW_RAW < 24 ? CW_RAW : 24;                 // warps (launched only when CW_RAW <= 24)
constexpr int CT = CW * 32;
constexpr int PP = 16 / EP;                                   // pieces a thread and row
constexpr bool EXACT = (PIECES == CT * PP);
constexpr int ROWB = (int)((long long)intermediate_size * (long long)sizeof(T));
constexpr int D = 3;                                          // rows in flight
constexpr int GRID_A = 2 * num_sms < hidden_size ? 2 * num_sms : hidden_size;
constexpr int GRID_B = (hidden_size + 255) / 256;
constexpr int GRID = GRID_A > GRID_B ? GRID_A : GRID_B;
constexpr int Q = hidden_size / GRID;
constexpr int REM = hidden_size % GRID;
constexpr int MAXN = Q + (REM > 0 ? 1 : 0);
constexpr int MINB = (PP == 2 && CT <= 608) ? 2 : 1;

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
// keeps v where ok is zero
__device__ __forceinline__ void ld_w_if(uint4& v, const void* p, unsigned int ok) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "setp.ne.u32 p, %5, 0;\n\t"
        "@p ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n\t}"
        : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p), "r"(ok));
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

extern "C" __global__ void __launch_bounds__(dn::CT, dn::MINB) down_stream(
    const T* __restrict__ x, const T* __restrict__ w_down, T* __restrict__ residual, void* __restrict__ workspace) {
    using namespace dn;
    __shared__ float part[CW * MAXN];
    (void)workspace;

    const int tid = (int)threadIdx.x;
    const int warp = tid >> 5;
    const int lane = tid & 31;
    const int b = (int)blockIdx.x;
    const int r0 = b * Q + (b < REM ? b : REM);
    const int n = Q + (b < REM ? 1 : 0);

    const char* wp = reinterpret_cast<const char*>(w_down) + (size_t)r0 * (size_t)ROWB + (size_t)tid * 16;

    uint4 v[D][PP];
#pragma unroll
    for (int d = 0; d < D; ++d)
#pragma unroll
        for (int j = 0; j < PP; ++j) v[d][j] = make_uint4(0u, 0u, 0u, 0u);

    // row 0 before the wait
#pragma unroll
    for (int j = 0; j < PP; ++j) {
        if (EXACT || j * CT + tid < PIECES) v[0][j] = ld_w(wp + (size_t)j * (CT * 16));
    }

    dep_wait();

    uint4 xr[PP];
#pragma unroll
    for (int j = 0; j < PP; ++j) {
        xr[j] = make_uint4(0u, 0u, 0u, 0u);
        if (EXACT || j * CT + tid < PIECES)
            xr[j] = ld_x(reinterpret_cast<const char*>(x) + (size_t)(j * CT + tid) * 16);
    }
#pragma unroll
    for (int d = 1; d < D; ++d)
#pragma unroll
        for (int j = 0; j < PP; ++j) {
            const bool ok = (d < n) && (EXACT || j * CT + tid < PIECES);
            ld_w_if(v[d][j], wp + (size_t)d * (size_t)ROWB + (size_t)j * (CT * 16), ok ? 1u : 0u);
        }
    float res = 0.0f;
    if (tid < n) res = IoT::load(residual + r0 + tid);

    // The two blocks fill the registers of a multiprocessor: a dependent block starts only where one has left.
    dep_launch();

    wp += (size_t)D * (size_t)ROWB;
#pragma unroll 1
    for (int i = 0; i < n; i += D) {
#pragma unroll
        for (int d = 0; d < D; ++d) {
            if (i + d < n) {
                float t = 0.0f;
#pragma unroll
                for (int j = 0; j < PP; ++j) {
                    // keeps x packed: its widening must not be hoisted out of the loop
                    asm volatile("" : "+r"(xr[j].x), "+r"(xr[j].y), "+r"(xr[j].z), "+r"(xr[j].w));
                    float wf[EP], xf[EP];
                    IoT::unpack(v[d][j], wf);
                    IoT::unpack(xr[j], xf);
                    float c0 = 0.0f, c1 = 0.0f;
#pragma unroll
                    for (int e = 0; e < EP; e += 2) {
                        c0 = fmaf(wf[e], xf[e], c0);
                        c1 = fmaf(wf[e + 1], xf[e + 1], c1);
                    }
                    t += c0 + c1;
                    const bool ok = (i + d + D < n) && (EXACT || j * CT + tid < PIECES);
                    ld_w_if(v[d][j], wp + (size_t)d * (size_t)ROWB + (size_t)j * (CT * 16), ok ? 1u : 0u);
                }
                t = warp_sum(t);
                if (lane == 0) part[warp * MAXN + i + d] = t;
            }
        }
        wp += (size_t)D * (size_t)ROWB;
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
