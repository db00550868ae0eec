// Contract gated_mlp_down v1: y = round_T(x @ w_down^T); residual = round_T(residual + y), in place.
// Idea 1: one token: two waves of small blocks (128 threads, two rows). A block requests both rows whole, by two bulk
//         copies into its own shared memory, before the dependent wait; five blocks a multiprocessor hold 195 KB in flight.
// Idea 2: the trigger is the first instruction, so blocks of the next launch take each place as it comes free and the
//         queue of requests (some 5 us of streaming) never runs dry between launches; x goes to registers meanwhile.
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
constexpr int ROWB = intermediate_size * (int)sizeof(T);      // bytes a row, a multiple of 16, at most 512 KB

// one-token kernel
constexpr int SR = 2;                                         // rows a block (hidden_size is a multiple of 8)
constexpr int ST = 128;                                       // threads a block
constexpr int SW = ST / 32;
constexpr int SP = (PIECES + ST - 1) / ST;                    // pieces a thread and row
constexpr bool STAGED = (SP <= 12) && (ROWB <= 24448);        // both rows fit into 48896 bytes
constexpr int SPA = STAGED ? SP : 1;
constexpr int BUFB = STAGED ? SR * ROWB : 16;
constexpr int G = 4;                                          // pieces read from shared memory together

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
__device__ __forceinline__ uint4 ld_s(unsigned int a) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a));
    return v;
}
__device__ __forceinline__ void bar_init(unsigned int bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(1u) : "memory");
}
__device__ __forceinline__ void bar_expect(unsigned int bar, unsigned int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned int bar) {
    unsigned int done = 0u;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(done) : "r"(bar), "r"(0u) : "memory");
    } while (done == 0u);
}
// bulk copy with a constant evict-first policy word
__device__ __forceinline__ void bulk_copy(unsigned int dst, unsigned long long src, unsigned int bytes,
                                          unsigned int bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        :: "r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(0x12F0000000000000ull) : "memory");
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

extern "C" __global__ void __launch_bounds__(dn::ST, 6) down_stream(
    const T* __restrict__ x, const T* __restrict__ w_down, T* __restrict__ residual, void* __restrict__ workspace) {
    using namespace dn;
    __shared__ __align__(128) unsigned char buf[BUFB];
    __shared__ __align__(8) unsigned long long bars[SR];
    __shared__ float part[SR][SW];
    (void)workspace;

    // The next launch may place blocks as soon as the last block of this one has begun.
    dep_launch();

    const int tid = (int)threadIdx.x;
    const int warp = tid >> 5;
    const int lane = tid & 31;
    const int r0 = (int)blockIdx.x * SR;
    const char* wbase = reinterpret_cast<const char*>(w_down) + (size_t)r0 * (size_t)ROWB;
    const char* xbase = reinterpret_cast<const char*>(x);

    float res = 0.0f;

    if constexpr (STAGED) {
        const unsigned int sbuf = (unsigned int)__cvta_generic_to_shared(buf);
        const unsigned int sbar = (unsigned int)__cvta_generic_to_shared(bars);

        // both rows before the wait
        if (tid == 0) {
#pragma unroll
            for (int r = 0; r < SR; ++r) bar_init(sbar + 8u * (unsigned int)r);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            const unsigned long long src = (unsigned long long)__cvta_generic_to_global(wbase);
#pragma unroll
            for (int r = 0; r < SR; ++r) {
                const unsigned int bar = sbar + 8u * (unsigned int)r;
                bar_expect(bar, (unsigned int)ROWB);
                bulk_copy(sbuf + (unsigned int)(r * ROWB), src + (unsigned long long)r * (unsigned long long)ROWB,
                          (unsigned int)ROWB, bar);
            }
        }
        __syncwarp();

        dep_wait();

        uint4 xr[SPA];
#pragma unroll
        for (int j = 0; j < SPA; ++j) {
            xr[j] = make_uint4(0u, 0u, 0u, 0u);
            if ((j + 1) * ST <= PIECES || j * ST + tid < PIECES)
                xr[j] = ld_x(xbase + (size_t)(j * ST + tid) * 16);
        }
        if (tid < SR) res = IoT::load(residual + r0 + tid);

        __syncthreads();                                      // the barriers are initialised

#pragma unroll 1
        for (int r = 0; r < SR; ++r) {
            bar_wait(sbar + 8u * (unsigned int)r);
            const unsigned int row = sbuf + (unsigned int)(r * ROWB) + (unsigned int)tid * 16u;
            float c0 = 0.0f, c1 = 0.0f, c2 = 0.0f, c3 = 0.0f;
#pragma unroll
            for (int j0 = 0; j0 < SPA; j0 += G) {
                uint4 wv[G];
#pragma unroll
                for (int k = 0; k < G; ++k) {
                    wv[k] = make_uint4(0u, 0u, 0u, 0u);
                    if (j0 + k < SPA) {
                        if ((j0 + k + 1) * ST <= PIECES || (j0 + k) * ST + tid < PIECES)
                            wv[k] = ld_s(row + (unsigned int)((j0 + k) * (ST * 16)));
                    }
                }
#pragma unroll
                for (int k = 0; k < G; ++k) {
                    if (j0 + k < SPA) {
                        const int j = (j0 + k < SPA) ? j0 + k : 0;
                        // keeps x packed: its widening must not be hoisted out of the loop over rows
                        asm volatile("" : "+r"(xr[j].x), "+r"(xr[j].y), "+r"(xr[j].z), "+r"(xr[j].w));
                        float wf[EP], xf[EP];
                        IoT::unpack(wv[k], wf);
                        IoT::unpack(xr[j], xf);
#pragma unroll
                        for (int e = 0; e < EP; e += 4) {
                            c0 = fmaf(wf[e], xf[e], c0);
                            c1 = fmaf(wf[e + 1], xf[e + 1], c1);
                            c2 = fmaf(wf[e + 2], xf[e + 2], c2);
                            c3 = fmaf(wf[e + 3], xf[e + 3], c3);
                        }
                    }
                }
            }
            const float t = warp_sum((c0 + c1) + (c2 + c3));
            if (lane == 0) part[r][warp] = t;
        }
    } else {
        // rows too long for the buffer: straight from memory into registers
        dep_wait();
        if (tid < SR) res = IoT::load(residual + r0 + tid);
        float acc[SR];
#pragma unroll
        for (int r = 0; r < SR; ++r) acc[r] = 0.0f;
#pragma unroll 4
        for (int p = tid; p < PIECES; p += ST) {
            uint4 wv[SR];
#pragma unroll
            for (int r = 0; r < SR; ++r) wv[r] = ld_w(wbase + (size_t)r * (size_t)ROWB + (size_t)p * 16);
            const uint4 xv = ld_x(xbase + (size_t)p * 16);
            float xf[EP];
            IoT::unpack(xv, xf);
#pragma unroll
            for (int r = 0; r < SR; ++r) {
                float wf[EP];
                IoT::unpack(wv[r], wf);
                float c = wf[0] * xf[0];
#pragma unroll
                for (int e = 1; e < EP; ++e) c = fmaf(wf[e], xf[e], c);
                acc[r] += c;
            }
        }
#pragma unroll
        for (int r = 0; r < SR; ++r) {
            const float t = warp_sum(acc[r]);
            if (lane == 0) part[r][warp] = t;
        }
    }

    __syncthreads();
    if (tid < SR) {
        const float sum = (part[tid][0] + part[tid][1]) + (part[tid][2] + part[tid][3]);
        residual[r0 + tid] = finish(sum, res);
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
