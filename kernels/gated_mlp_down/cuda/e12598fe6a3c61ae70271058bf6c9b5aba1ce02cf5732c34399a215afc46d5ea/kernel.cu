// Contract gated_mlp_down v1: y = round_T(x @ w_down^T); residual = round_T(residual + y), in place.
// Idea 1: one token: one block a multiprocessor; a producer warp brings whole weight rows by bulk copy into a ring that
//         takes under half of shared memory, so the next launch fits beside this one and fills its ring in our tail.
// Idea 2: the first ring of rows is fixed and requested before the dependent wait; later rows are drawn by ticket, so
//         a slow multiprocessor takes fewer; who computes a row never changes how: sums have one fixed order.
// Idea 3: every other shape: a block of eight warps walks four rows for up to eight tokens, float32 sums, fixed order.
// Bound: device-memory bandwidth of the weights (one token); CUDA-core arithmetic at many tokens.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class E> struct Io;

template <> struct Io<__nv_bfloat16> {
    static constexpr int EP = 8;
    using Raw = unsigned short;
    static __device__ __forceinline__ void unpack(const uint4& v, float (&f)[8]) {
        f[0] = __uint_as_float(v.x << 16); f[1] = __uint_as_float(v.x & 0xffff0000u);
        f[2] = __uint_as_float(v.y << 16); f[3] = __uint_as_float(v.y & 0xffff0000u);
        f[4] = __uint_as_float(v.z << 16); f[5] = __uint_as_float(v.z & 0xffff0000u);
        f[6] = __uint_as_float(v.w << 16); f[7] = __uint_as_float(v.w & 0xffff0000u);
    }
    static __device__ __forceinline__ Raw raw(const __nv_bfloat16* p) {
        unsigned short u;
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(u) : "l"(p) : "memory");
        return u;
    }
    static __device__ __forceinline__ float widen(Raw u) { return __uint_as_float(((unsigned int)u) << 16); }
    static __device__ __forceinline__ __nv_bfloat16 from(float f) { return __float2bfloat16_rn(f); }
    static __device__ __forceinline__ float to(__nv_bfloat16 h) { return __bfloat162float(h); }
};

template <> struct Io<__half> {
    static constexpr int EP = 8;
    using Raw = unsigned short;
    static __device__ __forceinline__ void two(unsigned int u, float& a, float& b) {
        const __half2 h = *reinterpret_cast<const __half2*>(&u);
        const float2 r = __half22float2(h);
        a = r.x; b = r.y;
    }
    static __device__ __forceinline__ void unpack(const uint4& v, float (&f)[8]) {
        two(v.x, f[0], f[1]); two(v.y, f[2], f[3]); two(v.z, f[4], f[5]); two(v.w, f[6], f[7]);
    }
    static __device__ __forceinline__ Raw raw(const __half* p) {
        unsigned short u;
        asm volatile("ld.global.u16 %0, [%1];" : "=h"(u) : "l"(p) : "memory");
        return u;
    }
    static __device__ __forceinline__ float widen(Raw u) {
        const __half h = *reinterpret_cast<const __half*>(&u);
        return __half2float(h);
    }
    static __device__ __forceinline__ __half from(float f) { return __float2half_rn(f); }
    static __device__ __forceinline__ float to(__half h) { return __half2float(h); }
};

template <> struct Io<float> {
    static constexpr int EP = 4;
    using Raw = float;
    static __device__ __forceinline__ void unpack(const uint4& v, float (&f)[4]) {
        f[0] = __uint_as_float(v.x); f[1] = __uint_as_float(v.y);
        f[2] = __uint_as_float(v.z); f[3] = __uint_as_float(v.w);
    }
    static __device__ __forceinline__ Raw raw(const float* p) {
        float u;
        asm volatile("ld.global.f32 %0, [%1];" : "=f"(u) : "l"(p) : "memory");
        return u;
    }
    static __device__ __forceinline__ float widen(Raw u) { return u; }
    static __device__ __forceinline__ float from(float f) { return f; }
    static __device__ __forceinline__ float to(float h) { return h; }
};

using IoT = Io<T>;

namespace dn {
constexpr int EP = IoT::EP;                                   // elements in 16 bytes
constexpr int PIECES = intermediate_size / EP;                // 16-byte pieces a row

// one-token kernel
constexpr int RING = 98304;                                   // dynamic shared memory asked for in the plan
constexpr int CW_RAW = (intermediate_size + 511) / 512;
constexpr int CW = CW_RAW < 24 ? CW_RAW : 24;                 // consumer warps (launched only when CW_RAW <= 24)
constexpr int CT = CW * 32;
constexpr int BT = CT + 32;                                   // and one producer warp
constexpr int PP = 16 / EP;                                   // pieces a thread and row
constexpr bool EXACT = (PIECES == CT * PP);
constexpr int ROWB = (int)((long long)intermediate_size * (long long)sizeof(T));
constexpr int GRID = num_sms < hidden_size ? num_sms : hidden_size;
constexpr int Q = hidden_size / GRID;
constexpr int D_FIT = RING / ROWB < 8 ? RING / ROWB : 8;
constexpr int D_ROWS = D_FIT < Q ? D_FIT : Q;
constexpr int D = D_ROWS > 0 ? D_ROWS : 1;                    // rows in the ring, and fixed rows a block
constexpr int RD = hidden_size - D * GRID;                    // rows drawn by ticket
constexpr int TD = D < 2 ? D : 2;                             // tickets are drawn this many rows ahead
constexpr unsigned int WRAP = (unsigned int)(RD + TD * GRID - 1);   // every block draws exactly TD tickets too many
constexpr int MINB = BT <= 640 ? 2 : 1;

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
__device__ __forceinline__ unsigned int sa(const void* p) { return (unsigned int)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void bar_init(unsigned int bar, unsigned int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void bar_arrive(unsigned int bar) {
    asm volatile("{\n\t.reg .b64 st;\n\tmbarrier.arrive.shared::cta.b64 st, [%0];\n\t}" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void bar_expect(unsigned int bar, unsigned int bytes) {
    asm volatile("{\n\t.reg .b64 st;\n\tmbarrier.arrive.expect_tx.shared::cta.b64 st, [%0], %1;\n\t}"
                 :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned int bar, unsigned int parity) {
    unsigned int ok;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
    } while (ok == 0u);
}
__device__ __forceinline__ void bulk(unsigned int dst, const void* src, unsigned int bytes, unsigned int bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
// one lane draws; the others keep what they had
__device__ __forceinline__ void draw_if(unsigned int& t, unsigned int* counter, unsigned int ok) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "setp.ne.u32 p, %2, 0;\n\t"
        "@p atom.global.inc.u32 %0, [%1], %3;\n\t}"
        : "+r"(t) : "l"(counter), "r"(ok), "r"(WRAP) : "memory");
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

extern "C" __global__ void __launch_bounds__(dn::BT, dn::MINB) down_stream(
    const T* __restrict__ x, const T* __restrict__ w_down, T* __restrict__ residual, void* __restrict__ workspace) {
    using namespace dn;
    extern __shared__ __align__(128) unsigned char ring[];
    __shared__ __align__(8) unsigned long long full[D];
    __shared__ __align__(8) unsigned long long done[D];
    __shared__ float part[D * CW];
    __shared__ int live[D];

    const int tid = (int)threadIdx.x;
    const int warp = tid >> 5;
    const int lane = tid & 31;
    const int b = (int)blockIdx.x;
    const char* wbase = reinterpret_cast<const char*>(w_down);

    const unsigned int ring_a = sa(ring);
    const unsigned int full_a = sa(full);
    const unsigned int done_a = sa(done);

    // the fixed rows are requested before anything else: weights need no predecessor
    if (tid == CT) {
#pragma unroll
        for (int s = 0; s < D; ++s) {
            bar_init(full_a + s * 8, 1u);
            bar_init(done_a + s * 8, (unsigned int)CW);
            live[s] = 1;
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#pragma unroll
        for (int s = 0; s < D; ++s) {
            bar_expect(full_a + s * 8, (unsigned int)ROWB);
            bulk(ring_a + s * ROWB, wbase + (size_t)(s * GRID + b) * (size_t)ROWB, (unsigned int)ROWB,
                 full_a + s * 8);
        }
    }
    __syncthreads();
    dep_wait();

    if (warp == CW) {
        // producer: hands out rows, and finishes a row when all consumers have left its stage
        unsigned int* counter = reinterpret_cast<unsigned int*>(workspace);
        const unsigned int first = lane == 0 ? 1u : 0u;
        int row[D];
        typename IoT::Raw res[D];
        unsigned int tk[D];
#pragma unroll
        for (int s = 0; s < D; ++s) {
            tk[s] = 0u;
            row[s] = s * GRID + b;
        }
        if constexpr (RD > 0) {
#pragma unroll
            for (int s = 0; s < TD; ++s) draw_if(tk[s], counter, first);
        }
#pragma unroll
        for (int s = 0; s < D; ++s) res[s] = IoT::raw(residual + row[s]);

        bool more = true;
        unsigned int ph = 0u;
#pragma unroll 1
        for (;;) {
#pragma unroll
            for (int s = 0; s < D; ++s) {
                if (row[s] < 0) return;
                bar_wait(done_a + s * 8, ph);
                float p = 0.0f;
                if (lane < CW) p = part[s * CW + lane];
                const int old = row[s];
                const float r = IoT::widen(res[s]);
                __syncwarp();

                row[s] = -1;
                if (more) {
                    int t = RD;
                    if constexpr (RD > 0) t = (int)__shfl_sync(0xffffffffu, tk[s], 0);
                    if (t < RD) {
                        const int nr = D * GRID + t;
                        row[s] = nr;
                        if (lane == 0) {
                            bar_expect(full_a + s * 8, (unsigned int)ROWB);
                            bulk(ring_a + s * ROWB, wbase + (size_t)nr * (size_t)ROWB, (unsigned int)ROWB,
                                 full_a + s * 8);
                        }
                        draw_if(tk[(s + TD) % D], counter, first);
                        res[s] = IoT::raw(residual + nr);
                    } else {
                        more = false;
                        if (lane == 0) {
                            live[s] = 0;
                            bar_arrive(full_a + s * 8);
                        }
                        // the last load is on its way: the next launch may fill its ring beside ours
                        dep_launch();
                    }
                    __syncwarp();
                }

                p = warp_sum(p);
                if (lane == 0) residual[old] = finish(p, r);
            }
            ph ^= 1u;
        }
    } else {
        float xf[PP][EP];
#pragma unroll
        for (int j = 0; j < PP; ++j) {
            uint4 xr = make_uint4(0u, 0u, 0u, 0u);
            if (EXACT || j * CT + tid < PIECES)
                xr = ld_x(reinterpret_cast<const char*>(x) + (size_t)(j * CT + tid) * 16);
            IoT::unpack(xr, xf[j]);
        }

        unsigned int ph = 0u;
        int s = 0;
        const unsigned char* mine = ring + tid * 16;
#pragma unroll 1
        for (;;) {
            bar_wait(full_a + s * 8, ph);
            if (live[s] == 0) break;
            const unsigned char* src = mine + s * ROWB;
            uint4 v[PP];
#pragma unroll
            for (int j = 0; j < PP; ++j) {
                v[j] = make_uint4(0u, 0u, 0u, 0u);
                if (EXACT || j * CT + tid < PIECES) v[j] = *reinterpret_cast<const uint4*>(src + j * (CT * 16));
            }
            float c0 = 0.0f, c1 = 0.0f, c2 = 0.0f, c3 = 0.0f;
#pragma unroll
            for (int j = 0; j < PP; ++j) {
                float wf[EP];
                IoT::unpack(v[j], wf);
#pragma unroll
                for (int e = 0; e < EP; e += 4) {
                    c0 = fmaf(wf[e], xf[j][e], c0);
                    c1 = fmaf(wf[e + 1], xf[j][e + 1], c1);
                    c2 = fmaf(wf[e + 2], xf[j][e + 2], c2);
                    c3 = fmaf(wf[e + 3], xf[j][e + 3], c3);
                }
            }
            const float t = warp_sum((c0 + c1) + (c2 + c3));
            __syncwarp();
            if (lane == 0) {
                part[s * CW + warp] = t;
                bar_arrive(done_a + s * 8);
            }
            if (++s == D) {
                s = 0;
                ph ^= 1u;
            }
        }
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
    if (owner) res = IoT::widen(IoT::raw(residual + (size_t)et * hidden_size + row0 + er));

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
