// Contract: residual_rmsnorm version 1. s = round_T(x + residual) (or x), residual <- s,
//   r = 1 / sqrt(mean(s * s) + eps) in float32, out = round_T(round_T(s * r) * weight).
// Idea: one block a row, the row in registers as 16-byte pieces (one a thread up to 8192 elements of 2 bytes).
//   Gamma is loaded before the dependent-launch wait, x and residual right behind it, all in flight together;
//   one shuffle tree, one barrier, and every warp adds all the partials itself in the same fixed order.
// Bound: latency (launch, one trip to device memory, one reduction) at few rows; bandwidth at many rows.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace rn {

// ---- shape of the block; the launch plan computes the same number of threads ----
constexpr int kEltsPerPiece = 16 / (int)sizeof(T);
constexpr int kPieces = hidden_size / kEltsPerPiece;
constexpr int kUnits = (hidden_size + 8191) / 8192;
constexpr int kThreads = (((hidden_size + 8 * kUnits - 1) / (8 * kUnits)) + 31) / 32 * 32;
constexpr int kWarps = kThreads / 32;
constexpr int kWarpsPad = (kWarps + 3) / 4 * 4;
constexpr int kP = (kPieces + kThreads - 1) / kThreads;
constexpr bool kFull = (kP * kThreads == kPieces);
constexpr bool kGammaEarly = (kP <= 2);
constexpr bool kTriggerFirst = (num_tokens <= num_sms);

// ---- arithmetic on one 32-bit word of a piece ----
template <class E> struct Ops;

template <> struct Ops<__nv_bfloat16> {
    static __device__ __forceinline__ unsigned add(unsigned a, unsigned b) {
        __nv_bfloat162 va = *reinterpret_cast<__nv_bfloat162*>(&a);
        __nv_bfloat162 vb = *reinterpret_cast<__nv_bfloat162*>(&b);
        __nv_bfloat162 vc = __hadd2(va, vb);
        return *reinterpret_cast<unsigned*>(&vc);
    }
    static __device__ __forceinline__ float square(unsigned w, float acc) {
        const float lo = __uint_as_float(w << 16);
        const float hi = __uint_as_float(w & 0xffff0000u);
        return fmaf(hi, hi, fmaf(lo, lo, acc));
    }
    static __device__ __forceinline__ unsigned scale(unsigned w, float r, unsigned g) {
        const float lo = __uint_as_float(w << 16);
        const float hi = __uint_as_float(w & 0xffff0000u);
        __nv_bfloat162 n = __floats2bfloat162_rn(__fmul_rn(lo, r), __fmul_rn(hi, r));
        __nv_bfloat162 vg = *reinterpret_cast<__nv_bfloat162*>(&g);
        __nv_bfloat162 o = __hmul2(n, vg);
        return *reinterpret_cast<unsigned*>(&o);
    }
    static __device__ __forceinline__ float root(float total, float eps) {
        return rsqrtf(fmaf(total, 1.0f / (float)hidden_size, eps));
    }
};

template <> struct Ops<__half> {
    static __device__ __forceinline__ unsigned add(unsigned a, unsigned b) {
        __half2 va = *reinterpret_cast<__half2*>(&a);
        __half2 vb = *reinterpret_cast<__half2*>(&b);
        __half2 vc = __hadd2(va, vb);
        return *reinterpret_cast<unsigned*>(&vc);
    }
    static __device__ __forceinline__ float square(unsigned w, float acc) {
        const float2 f = __half22float2(*reinterpret_cast<__half2*>(&w));
        return fmaf(f.y, f.y, fmaf(f.x, f.x, acc));
    }
    static __device__ __forceinline__ unsigned scale(unsigned w, float r, unsigned g) {
        const float2 f = __half22float2(*reinterpret_cast<__half2*>(&w));
        __half2 n = __floats2half2_rn(__fmul_rn(f.x, r), __fmul_rn(f.y, r));
        __half2 vg = *reinterpret_cast<__half2*>(&g);
        __half2 o = __hmul2(n, vg);
        return *reinterpret_cast<unsigned*>(&o);
    }
    static __device__ __forceinline__ float root(float total, float eps) {
        return rsqrtf(fmaf(total, 1.0f / (float)hidden_size, eps));
    }
};

template <> struct Ops<float> {
    static __device__ __forceinline__ unsigned add(unsigned a, unsigned b) {
        return __float_as_uint(__fadd_rn(__uint_as_float(a), __uint_as_float(b)));
    }
    static __device__ __forceinline__ float square(unsigned w, float acc) {
        const float f = __uint_as_float(w);
        return fmaf(f, f, acc);
    }
    static __device__ __forceinline__ unsigned scale(unsigned w, float r, unsigned g) {
        return __float_as_uint(__fmul_rn(__fmul_rn(__uint_as_float(w), r), __uint_as_float(g)));
    }
    static __device__ __forceinline__ float root(float total, float eps) {
        const float mean = __fdiv_rn(total, (float)hidden_size);
        return __frcp_rn(__fsqrt_rn(__fadd_rn(mean, eps)));
    }
};

// ---- memory ----
// The volatile loads keep their place relative to the dependent-launch wait.
static __device__ __forceinline__ uint4 load_stream(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
static __device__ __forceinline__ uint4 load_const(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
static __device__ __forceinline__ void store_piece(uint4* p, uint4 v) { *p = v; }

static __device__ __forceinline__ void wait_predecessor() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
static __device__ __forceinline__ void let_dependents_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- fixed pairwise tree over p[Lo .. Lo + N) ----
template <int Lo, int N>
static __device__ __forceinline__ float tree(const float (&p)[kWarpsPad]) {
    if constexpr (N == 1) {
        return p[Lo];
    } else {
        constexpr int kHalf = N / 2;
        return __fadd_rn(tree<Lo, kHalf>(p), tree<Lo + kHalf, N - kHalf>(p));
    }
}

static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, m));
    return v;
}

}  // namespace rn

extern "C" __global__ void __launch_bounds__(rn::kThreads) residual_rmsnorm_row(
    const T* __restrict__ x,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
    using namespace rn;
    using Op = Ops<T>;
    (void)workspace;

    __shared__ __align__(16) float partial[kWarpsPad];

    const int tid = (int)threadIdx.x;
    const size_t row = (size_t)blockIdx.x * (size_t)kPieces;
    const uint4* xp = reinterpret_cast<const uint4*>(x) + row;
    const uint4* gp = reinterpret_cast<const uint4*>(weight);
    uint4* op = reinterpret_cast<uint4*>(out) + row;

    // A few blocks compete with nobody: the next launch may be set up at once.
    if constexpr (kTriggerFirst) let_dependents_start();

    // Gamma is a constant of the model, written by no predecessor: its trip starts before the wait.
    uint4 g[kP];
    if constexpr (kGammaEarly) {
#pragma unroll
        for (int i = 0; i < kP; ++i) {
            const int piece = tid + i * kThreads;
            g[i] = make_uint4(0u, 0u, 0u, 0u);
            if (kFull || piece < kPieces) g[i] = load_const(gp + piece);
        }
    }

    wait_predecessor();

    uint4 s[kP];
    if constexpr (has_residual != 0) {
        uint4* rp = reinterpret_cast<uint4*>(residual) + row;
        uint4 q[kP];
#pragma unroll
        for (int i = 0; i < kP; ++i) {
            const int piece = tid + i * kThreads;
            s[i] = make_uint4(0u, 0u, 0u, 0u);
            q[i] = make_uint4(0u, 0u, 0u, 0u);
            if (kFull || piece < kPieces) {
                s[i] = load_stream(xp + piece);
                q[i] = load_stream(rp + piece);
            }
        }
        if constexpr (!kTriggerFirst) let_dependents_start();
#pragma unroll
        for (int i = 0; i < kP; ++i) {
            const int piece = tid + i * kThreads;
            s[i].x = Op::add(s[i].x, q[i].x);
            s[i].y = Op::add(s[i].y, q[i].y);
            s[i].z = Op::add(s[i].z, q[i].z);
            s[i].w = Op::add(s[i].w, q[i].w);
            if (kFull || piece < kPieces) store_piece(rp + piece, s[i]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < kP; ++i) {
            const int piece = tid + i * kThreads;
            s[i] = make_uint4(0u, 0u, 0u, 0u);
            if (kFull || piece < kPieces) s[i] = load_stream(xp + piece);
        }
        if constexpr (!kTriggerFirst) let_dependents_start();
    }

    // Sum of squares of the rounded row: four chains a thread, then fixed trees.
    float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, a3 = 0.0f;
#pragma unroll
    for (int i = 0; i < kP; ++i) {
        a0 = Op::square(s[i].x, a0);
        a1 = Op::square(s[i].y, a1);
        a2 = Op::square(s[i].z, a2);
        a3 = Op::square(s[i].w, a3);
    }
    float total = warp_sum(__fadd_rn(__fadd_rn(a0, a1), __fadd_rn(a2, a3)));

    if constexpr (kWarps > 1) {
        const int lane = tid & 31;
        if (lane == 0) partial[tid >> 5] = total;
        __syncthreads();
        if constexpr (kWarps <= 16) {
            // Broadcast reads of all partials, added in one order by everybody.
            float p[kWarpsPad];
#pragma unroll
            for (int i = 0; i < kWarpsPad / 4; ++i) {
                const float4 f = reinterpret_cast<const float4*>(partial)[i];
                p[4 * i + 0] = f.x;
                p[4 * i + 1] = f.y;
                p[4 * i + 2] = f.z;
                p[4 * i + 3] = f.w;
            }
            total = tree<0, kWarps>(p);
        } else {
            total = warp_sum(lane < kWarps ? partial[lane] : 0.0f);
        }
    }

    const float r = Op::root(total, eps);

#pragma unroll
    for (int i = 0; i < kP; ++i) {
        const int piece = tid + i * kThreads;
        if (kFull || piece < kPieces) {
            uint4 w;
            if constexpr (kGammaEarly) {
                w = g[i];
            } else {
                w = load_const(gp + piece);
            }
            uint4 o;
            o.x = Op::scale(s[i].x, r, w.x);
            o.y = Op::scale(s[i].y, r, w.y);
            o.z = Op::scale(s[i].z, r, w.z);
            o.w = Op::scale(s[i].w, r, w.w);
            store_piece(op + piece, o);
        }
    }
}
