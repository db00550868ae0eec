// Contract: gated_mlp_up v1: out = round_T(silu(x @ Wg^T) * (x @ Wu^T)), float32 sums, one pass over the weights.
// Idea: each block owns an exact share of the outputs (about intermediate/num_sms) and keeps all of its sums in
//   registers while it walks k in chunks of 128 through a cp.async ring; gate rows sit on M rows 0-7 and up rows on
//   M rows 8-15 of one mma tile, so both sums meet in one lane; k slots are permuted so fragments are 16-byte loads.
// Bound: device memory bandwidth on the weights; at 64 tokens also L2 traffic of x and shared-memory reads.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace gmu {

constexpr int H = hidden_size;
constexpr int I = intermediate_size;
constexpr int NTHREADS = 256;
constexpr int KC = 128;                       // contraction elements a chunk
constexpr int PITCH = KC * 2;                 // bytes of a row in a stage
constexpr int MT = 5;                         // m tiles a warp (8 outputs each)
constexpr int MG = 2;                         // m groups
constexpr int WROWS = MG * MT * 16;           // 160 weight rows a stage
constexpr int MAXOUT = MG * MT * 8;           // 80 outputs a block
constexpr int TOKTILE = 64;
constexpr int NTOK = num_tokens < TOKTILE ? num_tokens : TOKTILE;
constexpr int NTT = (NTOK + 7) / 8;
constexpr int WN = NTT >= 4 ? 2 : 1;          // n groups
constexpr int KS = 4 / WN;                    // k slices inside a chunk
constexpr int NPW = (NTT + WN - 1) / WN;      // n tiles a warp
constexpr int XROWS = NPW * WN * 8;
constexpr int STAGE = (WROWS + XROWS) * PITCH;
constexpr int SMEM_MAX = 229376;
constexpr int STAGES_FIT = SMEM_MAX / STAGE;
constexpr int S = STAGES_FIT > 6 ? 6 : STAGES_FIT;
constexpr int NCH = (H + KC - 1) / KC;
constexpr int XW = XROWS >= 32 ? 2 : 1;       // warps that load x
constexpr int LX = XW * 32;
constexpr int LW = NTHREADS - LX;
constexpr int XSTEP = LX / 16;
constexpr int WSTEP = LW / 16;
constexpr int XIT = XROWS / XSTEP;
constexpr int WIT = (WROWS + WSTEP - 1) / WSTEP;
constexpr int UNITS = MT * NPW;
static_assert(S >= 3, "ring too short");
static_assert(XROWS % XSTEP == 0, "x rows");
static_assert(MG * WN * KS * UNITS * 512 <= SMEM_MAX, "reduction space");

__device__ __forceinline__ void dep_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void dep_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ void cp16(uint32_t dst, const void* src, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(dst), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }

__device__ __forceinline__ uint4 lds16(uint32_t a) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
    return v;
}

__device__ __forceinline__ void mma16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                      uint32_t b0, uint32_t b1, const __nv_bfloat16*) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                      uint32_t b0, uint32_t b1, const __half*) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void put(__nv_bfloat16* p, float v) { *p = __float2bfloat16_rn(v); }
__device__ __forceinline__ void put(__half* p, float v) { *p = __float2half_rn(v); }
__device__ __forceinline__ void put(float* p, float v) { *p = v; }

__device__ __forceinline__ float silu_mul(float g, float u) {
    return g / (1.0f + expf(-g)) * u;
}

// ---------------------------------------------------------------- tensor-core path (16-bit storage)
template <typename U>
__device__ __forceinline__ void load_w(const U* __restrict__ wb, uint32_t stage, int chunk, int n_out, int tid) {
    const int c = tid & 15;
    const int r0 = tid >> 4;
    const int k = chunk * KC + c * 8;
    const bool kin = (H % KC == 0) || (k < H);
    const int bytes = kin ? 16 : 0;
    const U* src = wb + (kin ? k : 0);
#pragma unroll
    for (int i = 0; i < WIT; ++i) {
        const int r = r0 + i * WSTEP;
        const int j = (r >> 4) * 8 + (r & 7);
        const int hrow = (r >> 3) & 1;
        if (r < WROWS && j < n_out) {
            const long long row = (long long)(j + hrow * I);
            cp16(stage + r * PITCH + ((c ^ ((r & 1) << 2)) << 4), src + row * H, bytes);
        }
    }
}

template <typename U>
__device__ __forceinline__ void load_x(const U* __restrict__ x, uint32_t stage, int chunk, int tok0, int tid) {
    const int c = tid & 15;
    const int r0 = tid >> 4;
    const int k = chunk * KC + c * 8;
    const bool kin = (H % KC == 0) || (k < H);
#pragma unroll
    for (int i = 0; i < XIT; ++i) {
        const int r = r0 + i * XSTEP;
        const int tok = tok0 + r;
        const bool in = kin && tok < num_tokens;
        const U* src = in ? x + (long long)tok * H + k : x;
        cp16(stage + (WROWS + r) * PITCH + ((c ^ ((r & 1) << 2)) << 4), src, in ? 16 : 0);
    }
}

template <typename U>
__device__ __forceinline__ void run_tc(const U* __restrict__ x, const U* __restrict__ w, U* __restrict__ out,
                                       unsigned char* smem) {
    const int tid = (int)threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int j0 = (int)((long long)blockIdx.x * I / (long long)gridDim.x);
    const int j1 = (int)((long long)(blockIdx.x + 1) * I / (long long)gridDim.x);
    const int n_out = j1 - j0;
    const int tok0 = (int)blockIdx.y * TOKTILE;
    const U* wb = w + (long long)j0 * H;
    const uint32_t sbase = (uint32_t)__cvta_generic_to_shared(smem);
    const bool is_w = tid < LW;
    const int start = (int)(blockIdx.x % (unsigned)NCH);   // spreads the reads of x over L2

    // chunk and ring slot of the next load
    int lchunk = start;
    uint32_t lstage = sbase;

    if (!is_w) dep_wait();
#pragma unroll
    for (int p = 0; p < S - 1; ++p) {
        if (p < NCH) {
            if (is_w) load_w<U>(wb, lstage, lchunk, n_out, tid);
            else load_x<U>(x, lstage, lchunk, tok0, tid - LW);
            lchunk = (lchunk + 1 == NCH) ? 0 : lchunk + 1;
        }
        cp_commit();
        lstage += STAGE;
    }
    if (is_w) dep_wait();

    const int mg = warp & 1;
    const int rest = warp >> 1;               // 0..3
    const int ng = rest % WN;
    const int ks = rest / WN;
    const int g = lane >> 2;
    const int q = lane & 3;

    float acc[MT][NPW][4];
#pragma unroll
    for (int t = 0; t < MT; ++t)
#pragma unroll
        for (int n = 0; n < NPW; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) acc[t][n][c] = 0.0f;

    const uint32_t a_off = (uint32_t)((mg * MT * 16 + g) * PITCH + q * 16);
    const uint32_t b_off = (uint32_t)((WROWS + ng * NPW * 8 + g) * PITCH + q * 16);

    constexpr int TRIGGER_AT = NCH > S ? NCH - S : 0;
    uint32_t cstage = sbase;

#pragma unroll 1
    for (int it = 0; it < NCH; ++it) {
        cp_wait<S - 2>();
        __syncthreads();
        if (it + S - 1 < NCH) {
            if (is_w) load_w<U>(wb, lstage, lchunk, n_out, tid);
            else load_x<U>(x, lstage, lchunk, tok0, tid - LW);
            lchunk = (lchunk + 1 == NCH) ? 0 : lchunk + 1;
        }
        cp_commit();
        lstage = (lstage == sbase + (uint32_t)((S - 1) * STAGE)) ? sbase : lstage + STAGE;
        if (it == TRIGGER_AT) dep_trigger();

#pragma unroll
        for (int i = 0; i < 4 / KS; ++i) {
            const int s = ks * (4 / KS) + i;
            const uint32_t so = (uint32_t)((s ^ (g & 1)) << 6);
            const uint32_t ab = cstage + a_off + so;
            const uint32_t bb = cstage + b_off + so;
            uint4 ag[MT], au[MT];
#pragma unroll
            for (int t = 0; t < MT; ++t) {
                ag[t] = lds16(ab + t * 16 * PITCH);
                au[t] = lds16(ab + (t * 16 + 8) * PITCH);
            }
            uint4 b[NPW];
#pragma unroll
            for (int n = 0; n < NPW; ++n) b[n] = lds16(bb + n * 8 * PITCH);
#pragma unroll
            for (int n = 0; n < NPW; ++n) {
#pragma unroll
                for (int t = 0; t < MT; ++t)
                    mma16(acc[t][n], ag[t].x, au[t].x, ag[t].y, au[t].y, b[n].x, b[n].y, (const U*)nullptr);
#pragma unroll
                for (int t = 0; t < MT; ++t)
                    mma16(acc[t][n], ag[t].z, au[t].z, ag[t].w, au[t].w, b[n].z, b[n].w, (const U*)nullptr);
            }
        }
        cstage = (cstage == sbase + (uint32_t)((S - 1) * STAGE)) ? sbase : cstage + STAGE;
    }

    // meet the k slices in a fixed order; each slice owns every KS-th unit
    cp_wait<0>();
    __syncthreads();
    float4* red = reinterpret_cast<float4*>(smem) + (mg * WN + ng) * (KS * UNITS * 32) + lane;
#pragma unroll
    for (int t = 0; t < MT; ++t)
#pragma unroll
        for (int n = 0; n < NPW; ++n) {
            const int u = t * NPW + n;
            if ((u % KS) != ks)
                red[(ks * UNITS + u) * 32] = make_float4(acc[t][n][0], acc[t][n][1], acc[t][n][2], acc[t][n][3]);
        }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < MT; ++t)
#pragma unroll
        for (int n = 0; n < NPW; ++n) {
            const int u = t * NPW + n;
            if ((u % KS) == ks) {
                float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                for (int k = 0; k < KS; ++k) {
                    float4 o;
                    if (k == ks) o = make_float4(acc[t][n][0], acc[t][n][1], acc[t][n][2], acc[t][n][3]);
                    else o = red[(k * UNITS + u) * 32];
                    v.x += o.x; v.y += o.y; v.z += o.z; v.w += o.w;
                }
                const int jl = (mg * MT + t) * 8 + g;
                const int tok = tok0 + (ng * NPW + n) * 8 + 2 * q;
                if (jl < n_out) {
                    U* o = out + (long long)tok * I + (j0 + jl);
                    if (tok < num_tokens) put(o, silu_mul(v.x, v.z));
                    if (tok + 1 < num_tokens) put(o + I, silu_mul(v.y, v.w));
                }
            }
        }
}

// ---------------------------------------------------------------- float32 storage
template <typename U>
__device__ __forceinline__ void run_simt(const U* __restrict__ x, const U* __restrict__ w, U* __restrict__ out) {
    constexpr int TB = num_tokens < 8 ? num_tokens : 8;
    const int lane = (int)threadIdx.x & 31;
    const int warp = (int)threadIdx.x >> 5;
    const int j0 = (int)((long long)blockIdx.x * I / (long long)gridDim.x);
    const int j1 = (int)((long long)(blockIdx.x + 1) * I / (long long)gridDim.x);
    const int tok0 = (int)blockIdx.y * TOKTILE;
    const int tok1 = tok0 + TOKTILE < num_tokens ? tok0 + TOKTILE : num_tokens;
    dep_wait();
    dep_trigger();
    for (int j = j0 + warp; j < j1; j += NTHREADS / 32) {
        const float* wg = reinterpret_cast<const float*>(w) + (long long)j * H;
        const float* wu = reinterpret_cast<const float*>(w) + ((long long)j + I) * H;
        for (int tb = tok0; tb < tok1; tb += TB) {
            float ag[TB], au[TB];
#pragma unroll
            for (int t = 0; t < TB; ++t) { ag[t] = 0.0f; au[t] = 0.0f; }
#pragma unroll 2
            for (int k = lane * 4; k < H; k += 128) {
                const float4 a = __ldg(reinterpret_cast<const float4*>(wg + k));
                const float4 b = __ldg(reinterpret_cast<const float4*>(wu + k));
#pragma unroll
                for (int t = 0; t < TB; ++t) {
                    const int tok = tb + t < tok1 ? tb + t : tok1 - 1;
                    const float4 v = *reinterpret_cast<const float4*>(
                        reinterpret_cast<const float*>(x) + (long long)tok * H + k);
                    ag[t] = fmaf(a.x, v.x, ag[t]); ag[t] = fmaf(a.y, v.y, ag[t]);
                    ag[t] = fmaf(a.z, v.z, ag[t]); ag[t] = fmaf(a.w, v.w, ag[t]);
                    au[t] = fmaf(b.x, v.x, au[t]); au[t] = fmaf(b.y, v.y, au[t]);
                    au[t] = fmaf(b.z, v.z, au[t]); au[t] = fmaf(b.w, v.w, au[t]);
                }
            }
#pragma unroll
            for (int t = 0; t < TB; ++t) {
                float a = ag[t], b = au[t];
#pragma unroll
                for (int m = 16; m > 0; m >>= 1) {
                    a += __shfl_xor_sync(0xffffffffu, a, m);
                    b += __shfl_xor_sync(0xffffffffu, b, m);
                }
                if (lane == 0 && tb + t < tok1) put(out + (long long)(tb + t) * I + j, silu_mul(a, b));
            }
        }
    }
}

template <typename U>
__device__ __forceinline__ void run_any(const U* __restrict__ x, const U* __restrict__ w, U* __restrict__ out,
                                        unsigned char* smem) {
    if constexpr (sizeof(U) == 2) run_tc<U>(x, w, out, smem);
    else run_simt<U>(x, w, out);
}

}  // namespace gmu

extern "C" __global__ void __launch_bounds__(256, 1) gmu_thin(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
    extern __shared__ __align__(128) unsigned char gmu_smem[];
    gmu::run_any<T>(x, w_gate_up, out, gmu_smem);
}
