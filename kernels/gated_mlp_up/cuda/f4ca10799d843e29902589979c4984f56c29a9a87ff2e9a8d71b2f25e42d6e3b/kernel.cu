// Contract: gated_mlp_up v1: out = round_T(silu(x @ Wg^T) * (x @ Wu^T)), float32 sums, one pass over the weights.
// Idea: each block owns an exact share of the outputs (about intermediate/num_sms) and keeps all of its sums in
//   registers while it walks k through a ring of asynchronous copies; gate rows sit on M rows 0-7 and up rows on M rows
//   8-15 of each m16 slice, so both sums meet in one lane. Above 32 tokens producer warps feed (warp-group) mma.
// Bound: device memory bandwidth on the weights; at 64 tokens also the L2 traffic of x.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GMU_WGMMA 1
#else
#define GMU_WGMMA 0
#endif

namespace gmu {

constexpr int H = hidden_size;
constexpr int I = intermediate_size;
constexpr int NTHREADS = 256;
constexpr int KC = 128;                       // contraction elements a chunk
constexpr int PITCH = KC * 2;                 // bytes of a row in a stage
constexpr int MT = 5;                         // m tiles a warp (8 outputs each)
constexpr int MG = 2;                         // m groups
constexpr int WROWS = MG * MT * 16;           // 160 weight rows a stage
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
__device__ __forceinline__ void cp16_wide(uint32_t dst, const void* src, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;"
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

// ---------------------------------------------------------------- tensor-core path up to 32 tokens (16-bit storage)
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
template <typename U, int NTHR>
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
    for (int j = j0 + warp; j < j1; j += NTHR / 32) {
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
    else run_simt<U, NTHREADS>(x, w, out);
}

}  // namespace gmu

// ==================================================================== more than 32 tokens
namespace gmw {

using gmu::H;
using gmu::I;

constexpr int KC = 64;                        // one 128-byte swizzled row piece a chunk
constexpr int WROWS = 160;
constexpr int XROWS = 64;
constexpr int WBYTES = WROWS * 128;           // 20480
constexpr int STAGE = WBYTES + XROWS * 128;   // 28672, a multiple of 1024
constexpr int S = 8;
constexpr int LAG = 5;                        // chunks that a producer keeps in flight
constexpr int NCH = (H + KC - 1) / KC;
constexpr int TRIGGER_AT = NCH > LAG ? NCH - LAG : 0;
constexpr int CWARPS = 8;                     // consumer warps
constexpr int PWARPS = 4;                     // producer warps: three for w, one for x
constexpr int NTHREADS = (CWARPS + PWARPS) * 32;

__device__ __forceinline__ void bar_init(uint32_t b, uint32_t n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t b) {
    asm volatile("{\n\t.reg .b64 st;\n\tmbarrier.arrive.shared::cta.b64 st, [%0];\n\t}" :: "r"(b) : "memory");
}
__device__ __forceinline__ void bar_wait(uint32_t b, uint32_t parity) {
    uint32_t done = 0;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done) : "r"(b), "r"(parity) : "memory");
    } while (done == 0);
    __syncwarp();
}
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Fills the ring. ISW: weight rows (ROWSTEP rows a pass, skipped beyond n_out); else token rows (zero beyond the end).
template <typename U, bool ISW>
__device__ __forceinline__ void produce(const U* __restrict__ src, uint32_t sbase, uint32_t full, uint32_t empty,
                                        int t, int lane, int limit, int start) {
    constexpr int ROWSTEP = ISW ? 12 : 4;
    constexpr int NIT = ISW ? (WROWS + ROWSTEP - 1) / ROWSTEP : XROWS / ROWSTEP;
    const int c = t & 7;
    const int r0 = t >> 3;
    const U* ptr[NIT];
    uint32_t dst[NIT];
    uint32_t mask = 0;
#pragma unroll
    for (int i = 0; i < NIT; ++i) {
        const int r = r0 + i * ROWSTEP;
        long long row;
        bool ok;
        if constexpr (ISW) {
            const int j = (r >> 4) * 8 + (r & 7);
            ok = r < WROWS && j < limit;
            row = (long long)j + (((r >> 3) & 1) ? (long long)I : 0ll);
        } else {
            ok = r < limit;
            row = r;
        }
        ptr[i] = src + (ok ? row * (long long)H : 0ll);
        dst[i] = sbase + (ISW ? 0 : WBYTES) + r * 128 + ((c ^ (r & 7)) << 4);
        mask |= ok ? (1u << i) : 0u;
    }
    int chunk = start;
    int slot = 0;
    uint32_t phase = 1;                       // the first pass over the ring finds every slot free
    int done_slot = 0;
#pragma unroll 1
    for (int it = 0; it < NCH + LAG; ++it) {
        if (it < NCH) {
            bar_wait(empty + slot * 8, phase);
            const int k = chunk * KC + c * 8;
            const bool kin = (H % KC == 0) || (k < H);
            const int ko = kin ? k : 0;
            const uint32_t so = (uint32_t)(slot * STAGE);
#pragma unroll
            for (int i = 0; i < NIT; ++i) {
                const bool ok = (mask >> i) & 1u;
                if constexpr (ISW) {
                    if (ok) gmu::cp16_wide(dst[i] + so, ptr[i] + ko, kin ? 16 : 0);
                } else {
                    gmu::cp16(dst[i] + so, ptr[i] + ko, (kin && ok) ? 16 : 0);
                }
            }
            chunk = (chunk + 1 == NCH) ? 0 : chunk + 1;
            if (++slot == S) { slot = 0; phase ^= 1u; }
            if (it == NCH - 1) gmu::dep_trigger();
        }
        gmu::cp_commit();
        if (it >= LAG) {
            gmu::cp_wait<LAG>();
            fence_async();
            __syncwarp();
            if (lane == 0) bar_arrive(full + done_slot * 8);
            done_slot = (done_slot + 1 == S) ? 0 : done_slot + 1;
        }
    }
}

template <typename U>
__device__ __forceinline__ void store4(U* __restrict__ out, float a, float b, float c, float d,
                                       int jl, int n_out, int j0, int tok) {
    if (jl < n_out) {
        U* o = out + (long long)tok * I + (j0 + jl);
        if (tok < num_tokens) gmu::put(o, gmu::silu_mul(a, c));
        if (tok + 1 < num_tokens) gmu::put(o + I, gmu::silu_mul(b, d));
    }
}

#if GMU_WGMMA
__device__ __forceinline__ void wg_mma(float (&d)[32], uint64_t da, uint64_t db, const __nv_bfloat16*) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n\t}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(da), "l"(db), "r"(1));
}
__device__ __forceinline__ void wg_mma(float (&d)[32], uint64_t da, uint64_t db, const __half*) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n\t}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(da), "l"(db), "r"(1));
}

__device__ __forceinline__ uint64_t make_desc(uint32_t addr) {      // K-major, 128-byte swizzle, 1024 bytes a group
    return (uint64_t)((addr & 0x3FFFFu) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

template <typename U, int NT>
__device__ __forceinline__ void consume_wg(U* __restrict__ out, uint32_t sbase, uint32_t full, uint32_t empty,
                                           int tile0, int wwarp, int lane, int n_out, int j0, int tok0) {
    float acc[NT][32];
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
        for (int i = 0; i < 32; ++i) acc[t][i] = 0.0f;

    int slot = 0;
    uint32_t phase = 0;
    int prev = 0;
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
        for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(acc[t][i]) :: "memory");

#pragma unroll 1
    for (int it = 0; it < NCH; ++it) {
        if (it == TRIGGER_AT) gmu::dep_trigger();
        bar_wait(full + slot * 8, phase);
        const uint32_t st = sbase + (uint32_t)(slot * STAGE);
        const uint64_t da = make_desc(st + (uint32_t)tile0 * 8192u);
        const uint64_t db = make_desc(st + (uint32_t)WBYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int kk = 0; kk < 4; ++kk)
#pragma unroll
            for (int t = 0; t < NT; ++t)      // tiles tile0, tile0 + 2, ... (16384 bytes apart)
                wg_mma(acc[t], da + (uint64_t)(t * 1024 + kk * 2), db + (uint64_t)(kk * 2), (const U*)nullptr);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (it > 0 && lane == 0) bar_arrive(empty + prev * 8);
        __syncwarp();
        prev = slot;
        if (++slot == S) { slot = 0; phase ^= 1u; }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
        for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(acc[t][i]) :: "memory");

    const int g = lane >> 2;
    const int q = lane & 3;
#pragma unroll
    for (int t = 0; t < NT; ++t) {
        const int jl = ((tile0 + 2 * t) * 4 + wwarp) * 8 + g;
#pragma unroll
        for (int n = 0; n < 8; ++n)
            store4<U>(out, acc[t][n * 4], acc[t][n * 4 + 1], acc[t][n * 4 + 2], acc[t][n * 4 + 3],
                      jl, n_out, j0, tok0 + n * 8 + 2 * q);
    }
}
#else
__device__ __forceinline__ void ldsm4(uint32_t (&v)[4], uint32_t a) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(a) : "memory");
}

template <typename U>
__device__ __forceinline__ void consume_mma(U* __restrict__ out, unsigned char* smem, uint32_t sbase, uint32_t full,
                                            uint32_t empty, int warp, int lane, int n_out, int j0, int tok0) {
    const int mg = warp & 1;
    const int ng = (warp >> 1) & 1;
    const int ks = warp >> 2;
    float acc[5][4][4];
#pragma unroll
    for (int t = 0; t < 5; ++t)
#pragma unroll
        for (int n = 0; n < 4; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) acc[t][n][c] = 0.0f;

    const int ar = lane & 15;
    const int ac = lane >> 4;
    const int br = (lane & 7) + ((lane >> 4) << 3);
    const int bc = (lane >> 3) & 1;
    const int sw = lane & 7;                  // row & 7 of both operands
    const uint32_t a_off = (uint32_t)((mg * 80 + ar) * 128);
    const uint32_t b_off = (uint32_t)(WBYTES + (ng * 32 + br) * 128);

    int slot = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int it = 0; it < NCH; ++it) {
        if (it == TRIGGER_AT) gmu::dep_trigger();
        bar_wait(full + slot * 8, phase);
        const uint32_t st = sbase + (uint32_t)(slot * STAGE);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int kk = ks * 2 + i;
            uint32_t a[5][4], b[2][4];
            const uint32_t aa = st + a_off + (uint32_t)(((kk * 2 + ac) ^ sw) << 4);
            const uint32_t bb = st + b_off + (uint32_t)(((kk * 2 + bc) ^ sw) << 4);
#pragma unroll
            for (int n = 0; n < 2; ++n) ldsm4(b[n], bb + n * 2048);
#pragma unroll
            for (int t = 0; t < 5; ++t) ldsm4(a[t], aa + t * 2048);
#pragma unroll
            for (int t = 0; t < 5; ++t)
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    gmu::mma16(acc[t][n], a[t][0], a[t][1], a[t][2], a[t][3],
                               b[n >> 1][(n & 1) * 2], b[n >> 1][(n & 1) * 2 + 1], (const U*)nullptr);
        }
        __syncwarp();
        if (lane == 0) bar_arrive(empty + slot * 8);
        if (++slot == S) { slot = 0; phase ^= 1u; }
    }
    // every chunk has landed and been read: the ring is free for the meeting of the two k slices
    asm volatile("bar.sync 1, 256;" ::: "memory");
    float4* red = reinterpret_cast<float4*>(smem) + (warp & 3) * (20 * 32) + lane;
    if (ks == 1) {
#pragma unroll
        for (int t = 0; t < 5; ++t)
#pragma unroll
            for (int n = 0; n < 4; ++n)
                red[(t * 4 + n) * 32] = make_float4(acc[t][n][0], acc[t][n][1], acc[t][n][2], acc[t][n][3]);
    }
    asm volatile("bar.sync 1, 256;" ::: "memory");
    if (ks == 0) {
        const int g = lane >> 2;
        const int q = lane & 3;
#pragma unroll
        for (int t = 0; t < 5; ++t)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float4 o = red[(t * 4 + n) * 32];
                store4<U>(out, acc[t][n][0] + o.x, acc[t][n][1] + o.y, acc[t][n][2] + o.z, acc[t][n][3] + o.w,
                          (mg * 5 + t) * 8 + g, n_out, j0, tok0 + (ng * 4 + n) * 8 + 2 * q);
            }
    }
}
#endif

template <typename U>
__device__ __forceinline__ void run_wide(const U* __restrict__ x, const U* __restrict__ w, U* __restrict__ out,
                                         unsigned char* smem_raw) {
    const int tid = (int)threadIdx.x;
    const int lane = tid & 31;
    const int warp = __shfl_sync(0xffffffffu, tid >> 5, 0);
    const int j0 = (int)((long long)blockIdx.x * I / (long long)gridDim.x);
    const int j1 = (int)((long long)(blockIdx.x + 1) * I / (long long)gridDim.x);
    const int n_out = j1 - j0;
    const int tok0 = (int)blockIdx.y * 64;
    const uint32_t raw = (uint32_t)__cvta_generic_to_shared(smem_raw);
    const uint32_t sbase = (raw + 1023u) & ~1023u;
    const uint32_t full = sbase + (uint32_t)(S * STAGE);
    const uint32_t empty = full + (uint32_t)(S * 8);

    if (tid == 0) {
#pragma unroll
        for (int s = 0; s < S; ++s) {
            bar_init(full + s * 8, PWARPS);
            bar_init(empty + s * 8, CWARPS);
        }
    }
    __syncthreads();

    if (warp >= CWARPS) {
        const int start = (int)(blockIdx.x % (unsigned)((NCH + 1) / 2)) * 2;   // spreads the reads of x over L2
        const int t = tid - CWARPS * 32;
        if (warp < CWARPS + PWARPS - 1) {
            produce<U, true>(w + (long long)j0 * H, sbase, full, empty, t, lane, n_out, start);
            gmu::dep_wait();
        } else {
            gmu::dep_wait();
            const int left = num_tokens - tok0;
            produce<U, false>(x + (long long)tok0 * H, sbase, full, empty, t - (PWARPS - 1) * 32, lane,
                              left < XROWS ? left : XROWS, start);
        }
        gmu::cp_wait<0>();
    } else {
        gmu::dep_wait();
#if GMU_WGMMA
        if (warp < 4) consume_wg<U, 2>(out, sbase, full, empty, 0, warp, lane, n_out, j0, tok0);
        else consume_wg<U, 1>(out, sbase, full, empty, 1, warp - 4, lane, n_out, j0, tok0);
#else
        consume_mma<U>(out, smem_raw + (sbase - raw), sbase, full, empty, warp, lane, n_out, j0, tok0);
#endif
    }
}

template <typename U>
__device__ __forceinline__ void run_any(const U* __restrict__ x, const U* __restrict__ w, U* __restrict__ out,
                                        unsigned char* smem) {
    if constexpr (sizeof(U) == 2) run_wide<U>(x, w, out, smem);
    else gmu::run_simt<U, NTHREADS>(x, w, out);
}

}  // namespace gmw

extern "C" __global__ void __launch_bounds__(256, 1) gmu_thin(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
    extern __shared__ __align__(1024) unsigned char gmu_smem[];
    gmu::run_any<T>(x, w_gate_up, out, gmu_smem);
}

extern "C" __global__ void __launch_bounds__(384, 1) gmu_wide(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
    extern __shared__ __align__(1024) unsigned char gmu_smem[];
    gmw::run_any<T>(x, w_gate_up, out, gmu_smem);
}
