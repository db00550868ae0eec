// Contract: paged_decode_attention version 2 (one query row a sequence, paged keys and values, grouped heads).
// Idea: trigger first; what fits is requested before the wait. Up to 64 tiles of 16 tokens one cluster a key head holds
//   the whole context (keys in registers, values in shared memory) and merges on chip. Above that a second cluster joins:
//   every warp streams its own tiles through a private ring, and pairs of CTAs meet in self-validating words of global memory.
// Bound: short contexts by the latency chain query, scores, barrier, values, cluster trip; long ones by the read of the cache.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace pda {

template <class A, class B> struct same { static constexpr bool v = false; };
template <class A> struct same<A, A> { static constexpr bool v = true; };

constexpr int D = head_dim;
constexpr int BS = block_size;
constexpr int HKV = num_kv_heads;
constexpr int G = num_heads / num_kv_heads;      // query heads a key head
constexpr int GT = G < 8 ? G : 8;                // heads a CTA
constexpr int HT = (G + 7) / 8;                  // head tiles a key head
constexpr int BASE = num_tokens * num_kv_heads * HT;
constexpr int C2 = 2 * num_sms;
// splits: 1, 2, 4 or 8, the largest that two CTAs a multiprocessor hold at once; the launch plan has the same formula
constexpr int S = C2 / (BASE * 8) > 0 ? 8 : (C2 / (BASE * 4) > 0 ? 4 : (C2 / (BASE * 2) > 0 ? 2 : 1));
constexpr int NW = 8;
constexpr int NT = NW * 32;
constexpr int U = S * NW;                        // tiles that a sequence advances an iteration
constexpr bool FAST = (sizeof(T) == 2) && (D <= 256);
constexpr bool UNI = (BS % 16 == 0);             // a 16-token tile never straddles cache blocks
constexpr int KC = (D + 31) / 32;
constexpr int MINB = (FAST && D <= 128) ? 2 : 1;

// a second cluster a key head where the device has room for both; it works only on contexts above U tiles, and the
// launch plan has the same formula
constexpr bool PAIRED = num_sms / (BASE * 16) > 0;
constexpr bool LONG = PAIRED && FAST && UNI && S == 8 && (D == 64 || D == 128);
constexpr int UX = 2 * U;                        // tiles that both clusters advance an iteration
constexpr int PIECE = 16 * D * 2;                // bytes of the keys or of the values of a tile
constexpr int RW = 3 * PIECE;                    // ring of a warp
constexpr int RINGB = LONG ? NW * RW : 0;

// fast path
constexpr int DP = (D + 15) / 16 * 16;
constexpr int NCH = DP / 8;                      // 16-byte pieces a token row, even
constexpr int VROW = DP * 2 + 16;                // bytes a token row of values in shared memory
constexpr int MTT = DP / 16;                     // tiles of 16 output dims
constexpr int MT = (MTT + NW - 1) / NW;          // of them a warp
constexpr int NC = MT == 1 ? 4 : 2;              // independent chains a tile
constexpr int GTP = (GT + 1) / 2;                // head pairs
constexpr int NL = (MTT + S - 1) / S;            // tiles a CTA finishes
constexpr int VTILES = NW * 16 * VROW;
constexpr int O_P = VTILES > RINGB ? VTILES : RINGB;
constexpr int O_M = O_P + 2048;
constexpr int O_R = O_M + 256;
constexpr int O_ML = O_R + S * NL * 8 * GTP * 16;    // [8 heads][8 ranks][2] sums of weights
constexpr int O_MX = O_ML + 512;                     // [8 heads][8 ranks] references
constexpr int O_BAR = O_MX + 256;
constexpr int O_F = O_BAR + 8;                       // set when a score is outside the range of reference 0
constexpr bool LITE = GT <= 4;                       // has the path without a maximum
constexpr bool EARLY = S * BASE <= C2;               // the whole grid is resident at once

// other path
constexpr int HS = D + 8;                        // floats a head row of a warp partial
constexpr int PAIRS = GT * D / 2;
constexpr int SL = (PAIRS + S - 1) / S;          // output pairs a CTA finishes
constexpr int PARTF = NW * GT * HS;
constexpr int RECVF = (S * SL * 2 + 3) / 4 * 4;

__device__ __forceinline__ float ninf() { return __int_as_float(0xff800000); }

// natural exponential for float32, base two for the 16-bit types
__device__ __forceinline__ float ex(float x) {
    if constexpr (sizeof(T) == 4) return expf(x);
    else return exp2f(x);
}
__device__ __forceinline__ float score_factor(float scale) {
    if constexpr (sizeof(T) == 4) return scale;
    else return scale * 1.4426950408889634f;
}
// exact power of two of a whole number <= 0; zero for minus infinity, NaN and everything below -126
__device__ __forceinline__ float pow2i(float t) {
    const float u = fmaxf(t, -127.f);
    return __uint_as_float((__float_as_uint(u + 12582912.f) << 23) + 0x3f800000u);
}

__device__ __forceinline__ float to_f(float x) { return x; }
__device__ __forceinline__ float to_f(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_f(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class TT> __device__ __forceinline__ unsigned int pack2(float a, float b) {
    if constexpr (same<TT, __half>::v) {
        __half2 h = __floats2half2_rn(a, b);
        return *reinterpret_cast<unsigned int*>(&h);
    } else {
        __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
        return *reinterpret_cast<unsigned int*>(&h);
    }
}
template <class TT> __device__ __forceinline__ unsigned int mul2(unsigned int a, unsigned int b) {
    if constexpr (same<TT, __half>::v) {
        __half2 h = __hmul2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
        return *reinterpret_cast<unsigned int*>(&h);
    } else {
        __nv_bfloat162 h = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
        return *reinterpret_cast<unsigned int*>(&h);
    }
}
template <class TT> __device__ __forceinline__ void store1(TT* p, float a) {
    if constexpr (same<TT, __half>::v) *p = __float2half_rn(a);
    else if constexpr (same<TT, __nv_bfloat16>::v) *p = __float2bfloat16_rn(a);
    else *p = a;
}
template <class TT> __device__ __forceinline__ void store2(TT* p, float a, float b) {
    if constexpr (sizeof(TT) == 4) *reinterpret_cast<float2*>(p) = make_float2(a, b);
    else *reinterpret_cast<unsigned int*>(p) = pack2<TT>(a, b);
}

// read-only data that no predecessor in flight writes
__device__ __forceinline__ void ldnc16(unsigned int (&r)[4], const void* p, bool ok) {
    r[0] = 0u; r[1] = 0u; r[2] = 0u; r[3] = 0u;
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %5, 0;\n\t"
        "@pp ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
        "}\n"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
        : "l"(p), "r"((unsigned int)ok) : "memory");
}
// past the first-level cache, which may hold an old copy of the sector
__device__ __forceinline__ void ldcg16(unsigned int (&r)[4], const void* p, bool ok) {
    r[0] = 0u; r[1] = 0u; r[2] = 0u; r[3] = 0u;
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %5, 0;\n\t"
        "@pp ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
        "}\n"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
        : "l"(p), "r"((unsigned int)ok) : "memory");
}
// ordinary load, shared by the warps of a CTA through the first-level cache
__device__ __forceinline__ void ldq16(unsigned int (&r)[4], const void* p, bool ok) {
    r[0] = 0u; r[1] = 0u; r[2] = 0u; r[3] = 0u;
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %5, 0;\n\t"
        "@pp ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
        "}\n"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
        : "l"(p), "r"((unsigned int)ok) : "memory");
}
__device__ __forceinline__ unsigned int ldcg2(const void* p, bool ok) {
    unsigned int r = 0u;
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %2, 0;\n\t"
        "@pp ld.global.cg.u16 %0, [%1];\n\t"
        "}\n"
        : "+r"(r)
        : "l"(p), "r"((unsigned int)ok) : "memory");
    return r;
}
__device__ __forceinline__ int ld_i32(const int* p) {
    int v;
    asm volatile("ld.global.nc.s32 %0, [%1];\n" : "=r"(v) : "l"(p));
    return v;
}
__device__ __forceinline__ void cp16(unsigned int dst, const void* src, unsigned int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" :: "r"(dst), "l"(src), "r"(bytes) : "memory");
}
// brings lines to the second-level cache, where they stay coherent; reads no value
__device__ __forceinline__ void to_l2(const void* p, unsigned int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" :: "l"(p), "r"(bytes) : "memory");
}
__device__ __forceinline__ void ldsm4t(unsigned int (&r)[4], unsigned int addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

// shared memory of another CTA of the cluster
__device__ __forceinline__ unsigned int peer_addr(unsigned int a, int cta) {
    unsigned int r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(r) : "r"(a), "r"(cta));
    return r;
}
__device__ __forceinline__ unsigned int peer(const void* p, int cta) {
    return peer_addr((unsigned int)__cvta_generic_to_shared(p), cta);
}
__device__ __forceinline__ void push4(unsigned int addr, unsigned int bar, float x, float y, float z, float w) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];\n"
                 :: "r"(addr), "r"(__float_as_uint(x)), "r"(__float_as_uint(y)), "r"(__float_as_uint(z)),
                    "r"(__float_as_uint(w)), "r"(bar) : "memory");
}
__device__ __forceinline__ void push2(unsigned int addr, float x, float y) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};\n" :: "r"(addr), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void push1(unsigned int addr, float x) {
    asm volatile("st.shared::cluster.f32 [%0], %1;\n" :: "r"(addr), "f"(x) : "memory");
}
__device__ __forceinline__ void bar_wait(unsigned int bar) {
    unsigned int done;
    do {
        asm volatile(
            "{\n\t"
            ".reg .pred pp;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 pp, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, pp;\n\t"
            "}\n"
            : "=r"(done) : "r"(bar), "r"(0u) : "memory");
    } while (done == 0u);
}

// a pointer whose origin the compiler cannot see, so that no read-only load moves above this place
template <class P> __device__ __forceinline__ P* opaque(P* p) {
    unsigned long long a = reinterpret_cast<unsigned long long>(p);
    asm volatile("" : "+l"(a) :: "memory");
    return reinterpret_cast<P*>(a);
}

template <class TT>
__device__ __forceinline__ void mma(float (&c)[4], unsigned int a0, unsigned int a1, unsigned int a2,
                                    unsigned int a3, unsigned int b0, unsigned int b1) {
    if constexpr (same<TT, __half>::v) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

// table entry of a tile; reads inside the table only, the caller follows it only when the tile is below the length
__device__ __forceinline__ int table_at(const int* tab, int tile, int cols) {
    const int col = tile * 16 / BS;
    return ld_i32(tab + (col < cols ? col : cols - 1));
}

// elements in front of a token's row (all key heads)
__device__ __forceinline__ size_t elem(int page, int slot) {
    return (size_t)(unsigned int)page * (size_t)(unsigned int)(BS * HKV * D) + (size_t)(unsigned int)(slot * (HKV * D));
}

// place of a token of a tile along the reduction of the value product: words of two weights are tokens (i, i + 8)
__device__ __forceinline__ int kpos(int tt) { return (tt & 6) | (tt >> 3) | ((tt & 1) << 3); }

// key fragments of a tile; MODE 0 runs before the wait and leaves the newest token out as zeros, MODE 1 runs after it
template <int MODE>
__device__ __forceinline__ void load_k(unsigned int (&kr)[KC][2][4], const T* cache, const int* tab, int tile,
                                       int page, int start, int L, int kvh, int g, int t4) {
    const int lim = MODE == 0 ? L - 1 : L;
    const int j0 = tile * 16 + g, j1 = j0 + 8;
    const bool ok0 = j0 >= start && j0 < lim;
    const bool ok1 = j1 >= start && j1 < lim;
    const T* p0 = cache;
    const T* p1 = cache;
    if constexpr (UNI) {
        p0 = cache + elem(page, (tile * 16) % BS + g) + (kvh * D + t4 * 8);
        p1 = p0 + 8 * HKV * D;
    } else {
        if (ok0) p0 = cache + elem(__ldg(tab + j0 / BS), j0 % BS) + (kvh * D + t4 * 8);
        if (ok1) p1 = cache + elem(__ldg(tab + j1 / BS), j1 % BS) + (kvh * D + t4 * 8);
    }
#pragma unroll
    for (int c = 0; c < KC; ++c) {
        const bool d = (D % 32 == 0) || (c * 32 + t4 * 8 < D);
        if constexpr (MODE == 0) {
            ldnc16(kr[c][0], p0 + c * 32, ok0 && d);
            ldnc16(kr[c][1], p1 + c * 32, ok1 && d);
        } else {
            ldcg16(kr[c][0], p0 + c * 32, ok0 && d);
            ldcg16(kr[c][1], p1 + c * 32, ok1 && d);
        }
    }
}

// values of the CTA's eight tiles into shared memory, zeros where no token counts
template <int MODE>
__device__ __forceinline__ void load_v(unsigned int vs, const T* cache, const int* tab, int first, int pg, int start,
                                       int L, int kvh, int tid) {
    const int lim = MODE == 0 ? L - 1 : L;
#pragma unroll
    for (int k = 0; k < NCH / 2; ++k) {
        const unsigned int idx = (unsigned int)tid + (unsigned int)(k * NT);
        const int tok = (int)(idx / (unsigned int)NCH);
        const int ch = (int)(idx % (unsigned int)NCH);
        const int s = tok >> 4, tt = tok & 15;
        const int j = (first + s * S) * 16 + tt;
        const bool ok = j >= start && j < lim && ((D % 16 == 0) || (ch * 8 < D));
        int page = 0;
        if constexpr (UNI) {
            page = __shfl_sync(0xffffffffu, pg, s);
        } else {
            if (ok) page = __ldg(tab + j / BS);
        }
        const T* src = ok ? cache + elem(page, j % BS) + (kvh * D + ch * 8) : cache;
        cp16(vs + (unsigned int)((s * 16 + kpos(tt)) * VROW + ch * 16), src, ok ? 16u : 0u);
    }
}

__device__ __forceinline__ void push1a(unsigned int addr, unsigned int bar, float x) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];\n"
                 :: "r"(addr), "r"(__float_as_uint(x)), "r"(bar) : "memory");
}
// brings one line to the second-level cache through the ordinary path, and with it the translation of its address
__device__ __forceinline__ void warm(const void* p) {
    asm volatile("prefetch.global.L2 [%0];\n" :: "l"(p) : "memory");
}
// replaces the four words where ok, leaves them elsewhere
__device__ __forceinline__ void ldcg16_over(unsigned int (&r)[4], const void* p, bool ok) {
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %5, 0;\n\t"
        "@pp ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
        "}\n"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
        : "l"(p), "r"((unsigned int)ok) : "memory");
}
__device__ __forceinline__ float ex2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// sums of the weights of four tiles: the same product against ones
template <class TT, int H>
__device__ __forceinline__ void sum4(float& r0, float& r1, const unsigned int (&bb)[NW][2]) {
    constexpr unsigned int one = same<TT, __half>::v ? 0x3c003c00u : 0x3f803f80u;
    float la[4] = {0.f, 0.f, 0.f, 0.f}, lb[4] = {0.f, 0.f, 0.f, 0.f};
    mma<TT>(la, one, one, one, one, bb[H][0], bb[H][1]);
    mma<TT>(lb, one, one, one, one, bb[H + 2][0], bb[H + 2][1]);
    mma<TT>(la, one, one, one, one, bb[H + 1][0], bb[H + 1][1]);
    mma<TT>(lb, one, one, one, one, bb[H + 3][0], bb[H + 3][1]);
    r0 = la[0] + lb[0];
    r1 = la[1] + lb[1];
}

// every warp sends its tiles of output dims to the CTA that finishes them; warps 0 and 1 send their halves of the
// sums of weights to all, warp 2 the references
__device__ __forceinline__ void send(const float (&acc)[MT][4], float m0, float m1, float l0, float l1,
                                     const unsigned int (&pv)[MT], unsigned int pm, unsigned char* smem,
                                     int rank, int warp, int g, int t4) {
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
        const int t = warp + mt * NW;
        if (t < MTT && t4 < GTP) {
            const int off = O_R + ((rank * NL + t / S) * (8 * GTP) + g * GTP + t4) * 16;
            if constexpr (S > 1) {
                push4(pv[mt] + (unsigned int)off, pv[mt] + (unsigned int)O_BAR,
                      acc[mt][0], acc[mt][1], acc[mt][2], acc[mt][3]);
            } else {
                *reinterpret_cast<float4*>(smem + off) = make_float4(acc[mt][0], acc[mt][1], acc[mt][2], acc[mt][3]);
            }
        }
    }
    if (warp < 3 && t4 < GTP && g < S) {
        const float y0 = warp == 2 ? m0 : l0;
        const float y1 = warp == 2 ? m1 : l1;
        const int off = warp == 2 ? O_MX + (2 * t4 * 8 + rank) * 4 : O_ML + (2 * t4 * 16 + rank * 2 + warp) * 4;
        const int step = warp == 2 ? 32 : 64;
        if constexpr (S > 1) {
            push1a(pm + (unsigned int)off, pm + (unsigned int)O_BAR, y0);
            push1a(pm + (unsigned int)(off + step), pm + (unsigned int)O_BAR, y1);
        } else {
            *reinterpret_cast<float*>(smem + off) = y0;
            *reinterpret_cast<float*>(smem + off + step) = y1;
        }
    }
}

// words of global memory that two CTAs exchange: zero is "not there yet", so every word says by itself that it is valid
__device__ __forceinline__ void put4(unsigned int* p, unsigned int a, unsigned int b, unsigned int c, unsigned int d) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};\n"
                 :: "l"(p), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void get4(unsigned int (&r)[4], const unsigned int* p) {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(p) : "memory");
}
__device__ __forceinline__ unsigned int enc(float x) {
    const unsigned int e = ~__float_as_uint(x);
    return e == 0u ? 0x80000000u : e;            // one NaN for another
}
__device__ __forceinline__ float dec(unsigned int e) { return __uint_as_float(~e); }
__device__ __forceinline__ void lds16(unsigned int (&r)[4], unsigned int addr) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

// splits of the sequence, in rank order; with PAIR the first cluster hands its result to the second, which writes
template <class TT, bool PAIR>
__device__ __forceinline__ void finish(TT* out, size_t hrow, int ht, int cnt, int rank, int hx, unsigned int* ws,
                                       unsigned char* smem, unsigned int sb) {
    const int tid = threadIdx.x, warp = tid >> 5;
    const int nout = cnt * GT * 16;
    if constexpr (S > 1) {
        if (warp == 0 || warp * 32 < nout) bar_wait(sb + (unsigned int)O_BAR);
        __syncwarp();
    } else {
        __syncthreads();
    }
    const float* recv = reinterpret_cast<const float*>(smem + O_R);
    for (int i = tid; i < nout; i += NT) {
        const int tl = i / (GT * 16), rem = i % (GT * 16);
        const int h = rem >> 4, d = rem & 15;
        const int dim = (tl * S + rank) * 16 + d;
        const float* rp = recv + (tl * (8 * GTP) + (d & 7) * GTP + (h >> 1)) * 4 + (d >> 3) * 2 + (h & 1);
        const float* lp = reinterpret_cast<const float*>(smem + O_ML) + h * 16;
        const float* mp = reinterpret_cast<const float*>(smem + O_MX) + h * 8;
        float x[S], ls[S], ms[S];
#pragma unroll
        for (int s = 0; s < S; ++s) x[s] = rp[s * (NL * 8 * GTP * 4)];
        if constexpr (S == 1) {
            ls[0] = lp[0] + lp[1];
            ms[0] = mp[0];
        } else {
#pragma unroll
            for (int s = 0; s < S; s += 2) {
                const float4 y = *reinterpret_cast<const float4*>(lp + 2 * s);
                const float2 z = *reinterpret_cast<const float2*>(mp + s);
                ls[s] = y.x + y.y;
                ls[s + 1] = y.z + y.w;
                ms[s] = z.x;
                ms[s + 1] = z.y;
            }
        }
        unsigned int any = 0u;
#pragma unroll
        for (int s = 0; s < S; ++s) any |= __float_as_uint(ms[s]);
        float a = 0.f, l = 0.f, M = 0.f;
        if (any == 0u) {
            // every split holds the reference 0
            float a2 = 0.f, l2 = 0.f;
#pragma unroll
            for (int s = 0; s < S; ++s) {
                if ((s & 1) == 0) {
                    a += x[s];
                    l += ls[s];
                } else {
                    a2 += x[s];
                    l2 += ls[s];
                }
            }
            a += a2;
            l += l2;
        } else {
            M = ninf();
#pragma unroll
            for (int s = 0; s < S; ++s) M = fmaxf(M, ms[s]);
#pragma unroll
            for (int s = 0; s < S; ++s) {
                const float c = pow2i(ms[s] - M);
                a = fmaf(c, x[s], a);
                l = fmaf(c, ls[s], l);
            }
        }
        bool mine = true;
        if constexpr (PAIR) {
            unsigned int* slot = ws + i * 4;
            if (hx == 0) {
                put4(slot, enc(a), enc(l), enc(M), 1u);
                mine = false;
            } else {
                unsigned int w[4];
                do {
                    get4(w, slot);
                } while (w[0] == 0u || w[1] == 0u || w[2] == 0u || w[3] == 0u);
                put4(slot, 0u, 0u, 0u, 0u);
                const float ao = dec(w[0]), lo = dec(w[1]), Mo = dec(w[2]);
                const float Mx = fmaxf(M, Mo);
                const float co = pow2i(Mo - Mx), cm = pow2i(M - Mx);
                a = fmaf(cm, a, co * ao);
                l = fmaf(cm, l, co * lo);
            }
        }
        if (mine && dim < D && ht * 8 + h < G) store1<TT>(out + (hrow + (size_t)h) * D + dim, __fdividef(a, l));
    }
}

// keys or values of a tile into a place of a warp's ring, zeros where no token counts. MODE 0, before the wait: all but
// the newest token, whose place is left alone; MODE 1: everything; MODE 2: the newest token alone
template <int MODE, bool KEYS>
__device__ __forceinline__ void piece(unsigned int dst, const T* cache, int tile, int page, int start, int L, int kvh,
                                      int lane) {
    constexpr int NP = D / 8;
    const int jt = tile * 16;
    const T* base = cache + elem(page, jt % BS) + (size_t)(kvh * D);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        const int idx = k * 32 + lane;
        const int r = idx / NP, ch = idx % NP;
        const int j = jt + r;
        const bool ok = j >= start && j < L;
        const bool now = MODE == 1 || ((j == L - 1) == (MODE == 2));
        const T* src = ok ? base + (size_t)(r * (HKV * D) + ch * 8) : cache;
        const int sw = KEYS ? (ch ^ ((r & 1) << 2)) : (ch ^ (r & 7));
        if (now) cp16(dst + (unsigned int)(r * (D * 2) + sw * 16), src, ok ? 16u : 0u);
    }
}

// scores of 16 tokens against 8 heads: (token g, heads 2 t4 and 2 t4 + 1), then token g + 8
template <class TT>
__device__ __forceinline__ void tile_scores(float (&x)[4], const unsigned int (&kr)[KC][2][4],
                                            const unsigned int (&qf)[KC][4], float sf, int tile, int start, int L,
                                            int g) {
    float sc[4][4];
#pragma unroll
    for (int a = 0; a < 4; ++a)
#pragma unroll
        for (int i = 0; i < 4; ++i) sc[a][i] = 0.f;
#pragma unroll
    for (int c = 0; c < KC; ++c) {
        mma<TT>(sc[(c & 1) * 2], kr[c][0][0], kr[c][1][0], kr[c][0][1], kr[c][1][1], qf[c][0], qf[c][1]);
        mma<TT>(sc[(c & 1) * 2 + 1], kr[c][0][2], kr[c][1][2], kr[c][0][3], kr[c][1][3], qf[c][2], qf[c][3]);
    }
    const int j0 = tile * 16 + g, j1 = j0 + 8;
    const bool ok0 = j0 >= start && j0 < L;
    const bool ok1 = j1 >= start && j1 < L;
    x[0] = ok0 ? ((sc[0][0] + sc[1][0]) + (sc[2][0] + sc[3][0])) * sf : ninf();
    x[1] = ok0 ? ((sc[0][1] + sc[1][1]) + (sc[2][1] + sc[3][1])) * sf : ninf();
    x[2] = ok1 ? ((sc[0][2] + sc[1][2]) + (sc[2][2] + sc[3][2])) * sf : ninf();
    x[3] = ok1 ? ((sc[0][3] + sc[1][3]) + (sc[2][3] + sc[3][3])) * sf : ninf();
}

// from (token g, heads 2 t4, 2 t4 + 1) to (head g, tokens 2 t4, 2 t4 + 1)
__device__ __forceinline__ unsigned int turn(unsigned int w, int g, int t4) {
    const int from = t4 * 8 + (g >> 1);
    const unsigned int a = __shfl_sync(0xffffffffu, w, from);
    const unsigned int b = __shfl_sync(0xffffffffu, w, from + 4);
    return __byte_perm(a, b, (g & 1) ? 0x7632u : 0x5410u);
}

// weights of a tile as the operand of the value product
template <class TT>
__device__ __forceinline__ void tile_weights(unsigned int (&b)[2], const float (&x)[4], float u0, float u1, int g,
                                             int t4) {
    const unsigned int w0 = pack2<TT>(ex2_fast(x[0] - u0), ex2_fast(x[1] - u1));
    const unsigned int w1 = pack2<TT>(ex2_fast(x[2] - u0), ex2_fast(x[3] - u1));
    b[0] = turn(w0, g, t4);
    b[1] = turn(w1, g, t4);
}

// adds the values of a tile, and the sum of its weights
template <class TT>
__device__ __forceinline__ void tile_values(float (&acc)[MTT][4], float (&la)[4], unsigned int va, unsigned int xs,
                                            const unsigned int (&b)[2]) {
    constexpr unsigned int one = same<TT, __half>::v ? 0x3c003c00u : 0x3f803f80u;
#pragma unroll
    for (int mt = 0; mt < MTT; ++mt) {
        unsigned int v[4];
        ldsm4t(v, va + ((unsigned int)(mt * 32) ^ xs));
        mma<TT>(acc[mt], v[0], v[1], v[2], v[3], b[0], b[1]);
    }
    mma<TT>(la, one, one, one, one, b[0], b[1]);
}

// contexts that one cluster cannot hold: two clusters a key head, every warp streams its own tiles.
// Order of the pieces in a warp's ring of three: V0 V1 K2 V2 K3 V3 ...; K0 and K1 are in registers.
template <class TT>
__device__ __forceinline__ void run_long(const TT* qrow, const TT* kc, const TT* vc, const int* tab, TT* out, float sf,
                                         int cols, size_t hrow, int L, int start, int pg,
                                         const unsigned int (&pv)[MT], unsigned int pm, unsigned char* smem,
                                         unsigned int sb, int rank, int hx, int kvh, int ht, int cnt,
                                         unsigned int* ws) {
    const unsigned int full = 0xffffffffu;
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3;
    const int ntile = (L + 15) / 16;
    const int t0 = start / 16 + hx * U + rank;
    const int f0 = t0 + warp * S;                                  // this warp's tiles: f0, f0 + UX, ...
    const int n = f0 < ntile ? (ntile - f0 + UX - 1) / UX : 0;     // and their number
    const int tb = t0 + (lane & 7) * S + (lane >> 3) * UX;         // tile of this lane's table entry
    const unsigned int ring = sb + (unsigned int)(warp * RW);
    const unsigned int ring_end = ring + (unsigned int)RW;

    const int p0 = __shfl_sync(full, pg, warp);
    const int p1 = __shfl_sync(full, pg, 8 + warp);
    const int p2 = __shfl_sync(full, pg, 16 + warp);
    unsigned int k0[KC][2][4], k1[KC][2][4];
    load_k<0>(k0, kc, tab, f0, p0, start, L, kvh, g, t4);
    piece<0, false>(ring, vc, f0, p0, start, L, kvh, lane);
    asm volatile("cp.async.commit_group;\n" ::: "memory");
    load_k<0>(k1, kc, tab, f0 + UX, p1, start, L, kvh, g, t4);
    piece<0, false>(ring + (unsigned int)PIECE, vc, f0 + UX, p1, start, L, kvh, lane);
    asm volatile("cp.async.commit_group;\n" ::: "memory");
    if (n > 2) piece<0, true>(ring + (unsigned int)(2 * PIECE), kc, f0 + 2 * UX, p2, start, L, kvh, lane);
    asm volatile("cp.async.commit_group;\n" ::: "memory");
    int pgn = pg;
    if (n > 4) pgn = table_at(tab, tb + 4 * UX, cols);

    if (tid == 96) warm(qrow);
    if (tid == 128) warm(out + hrow * D);
    if (tid == 160) warm(ws);
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
    asm volatile("griddepcontrol.wait;\n" ::: "memory");

    unsigned int qf[KC][4];
    {
        const bool qok = g < GT && ht * 8 + g < G;
        const TT* qp = qrow + (qok ? g : 0) * D + t4 * 8;
#pragma unroll
        for (int c = 0; c < KC; ++c) ldq16(qf[c], qp + c * 32, qok);
    }
    // the newest token, where its piece was requested before the wait
    const int jn = L - 1;
    if (n > 0 && n <= 3 && f0 + (n - 1) * UX == ntile - 1) {
        const int pn = n == 1 ? p0 : (n == 2 ? p1 : p2);
        if (n <= 2) {
            const TT* np = kc + elem(pn, jn % BS) + (size_t)(kvh * D + t4 * 8);
            const bool take = (jn & 7) == g;
            const bool up = (jn & 8) != 0;
#pragma unroll
            for (int c = 0; c < KC; ++c) {
                ldcg16_over(k0[c][0], np + c * 32, take && !up && n == 1);
                ldcg16_over(k0[c][1], np + c * 32, take && up && n == 1);
                ldcg16_over(k1[c][0], np + c * 32, take && !up && n == 2);
                ldcg16_over(k1[c][1], np + c * 32, take && up && n == 2);
            }
            piece<2, false>(ring + (unsigned int)((n - 1) * PIECE), vc, ntile - 1, pn, start, L, kvh, lane);
        } else {
            piece<2, true>(ring + (unsigned int)(2 * PIECE), kc, ntile - 1, pn, start, L, kvh, lane);
        }
        asm volatile("cp.async.wait_all;\n" ::: "memory");
    }
    __syncwarp();

    // place of this lane's row in a piece of values, and its permutation of the 16-byte pieces
    const unsigned int vrow = (unsigned int)(((lane >> 4) * 8 + (lane & 7)) * (D * 2));
    const unsigned int xs = (unsigned int)((((lane >> 3) & 1) ^ (lane & 7)) << 4);
    float acc[MTT][4], la[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        la[i] = 0.f;
#pragma unroll
        for (int mt = 0; mt < MTT; ++mt) acc[mt][i] = 0.f;
    }
    float mr0, mr1;
    int pa = __shfl_sync(full, pg, 24 + warp);       // page of the tile behind the current one
    {
        unsigned int b0[2], b1[2];
        {
            float x0[4], x1[4];
            tile_scores<TT>(x0, k0, qf, sf, f0, start, L, g);
            tile_scores<TT>(x1, k1, qf, sf, f0 + UX, start, L, g);
            mr0 = fmaxf(fmaxf(x0[0], x0[2]), fmaxf(x1[0], x1[2]));
            mr1 = fmaxf(fmaxf(x0[1], x0[3]), fmaxf(x1[1], x1[3]));
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) {
                mr0 = fmaxf(mr0, __shfl_xor_sync(full, mr0, o));
                mr1 = fmaxf(mr1, __shfl_xor_sync(full, mr1, o));
            }
            // whole numbers as references: rescaling by their differences is exact
            mr0 = ceilf(mr0);
            mr1 = ceilf(mr1);
            const float u0 = mr0 == ninf() ? 0.f : mr0;
            const float u1 = mr1 == ninf() ? 0.f : mr1;
            tile_weights<TT>(b0, x0, u0, u1, g, t4);
            tile_weights<TT>(b1, x1, u0, u1, g, t4);
        }
        asm volatile("cp.async.wait_group 2;\n" ::: "memory");
        __syncwarp();
        tile_values<TT>(acc, la, ring + vrow, xs, b0);
        __syncwarp();
        if (n > 2) piece<1, false>(ring, vc, f0 + 2 * UX, p2, start, L, kvh, lane);
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        asm volatile("cp.async.wait_group 2;\n" ::: "memory");
        __syncwarp();
        tile_values<TT>(acc, la, ring + (unsigned int)PIECE + vrow, xs, b1);
        __syncwarp();
        if (n > 3) piece<1, true>(ring + (unsigned int)PIECE, kc, f0 + 3 * UX, pa, start, L, kvh, lane);
        asm volatile("cp.async.commit_group;\n" ::: "memory");
    }

    unsigned int ks = ring + (unsigned int)(2 * PIECE);      // place of the keys of tile i
#pragma unroll 1
    for (int i = 2; i < n; ++i) {
        unsigned int vs = ks + (unsigned int)PIECE;          // place of its values
        if (vs == ring_end) vs = ring;
        float x[4];
        asm volatile("cp.async.wait_group 2;\n" ::: "memory");
        __syncwarp();
        {
            unsigned int kr[KC][2][4];
            const unsigned int kb = ks + (unsigned int)(g * (D * 2));
#pragma unroll
            for (int c = 0; c < KC; ++c) {
                const unsigned int ka = kb + (unsigned int)(((c * 4 + t4) ^ ((g & 1) << 2)) * 16);
                lds16(kr[c][0], ka);
                lds16(kr[c][1], ka + (unsigned int)(8 * D * 2));
            }
            tile_scores<TT>(x, kr, qf, sf, f0 + i * UX, start, L, g);
        }
        __syncwarp();
        if (i + 1 < n) piece<1, false>(ks, vc, f0 + (i + 1) * UX, pa, start, L, kvh, lane);
        asm volatile("cp.async.commit_group;\n" ::: "memory");

        float m0 = fmaxf(x[0], x[2]), m1 = fmaxf(x[1], x[3]);
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) {
            m0 = fmaxf(m0, __shfl_xor_sync(full, m0, o));
            m1 = fmaxf(m1, __shfl_xor_sync(full, m1, o));
        }
        m0 = fmaxf(mr0, ceilf(m0));
        m1 = fmaxf(mr1, ceilf(m1));
        const float s0 = pow2i(mr0 - m0), s1 = pow2i(mr1 - m1);
        mr0 = m0;
        mr1 = m1;
        unsigned int b[2];
        tile_weights<TT>(b, x, m0 == ninf() ? 0.f : m0, m1 == ninf() ? 0.f : m1, g, t4);
#pragma unroll
        for (int mt = 0; mt < MTT; ++mt) {
            acc[mt][0] *= s0;
            acc[mt][1] *= s1;
            acc[mt][2] *= s0;
            acc[mt][3] *= s1;
        }
        la[0] *= s0;
        la[1] *= s1;

        asm volatile("cp.async.wait_group 2;\n" ::: "memory");
        __syncwarp();
        tile_values<TT>(acc, la, vs + vrow, xs, b);
        __syncwarp();
        const int a = i + 2;
        if (a < n) {
            if ((a & 3) == 0) {
                pg = pgn;
                if (a + 4 < n) pgn = table_at(tab, tb + (a + 4) * UX, cols);
            }
            pa = __shfl_sync(full, pg, ((a & 3) << 3) | warp);
            piece<1, true>(vs, kc, f0 + a * UX, pa, start, L, kvh, lane);
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        ks = vs + (unsigned int)PIECE;
        if (ks == ring_end) ks = ring;
    }

    // warps of this CTA, in index order
    asm volatile("cp.async.wait_all;\n" ::: "memory");
    __syncwarp();
    float* sm = reinterpret_cast<float*>(smem + O_P);        // [NW][8] references, then [NW][8] sums
    if (t4 < GTP) {
#pragma unroll
        for (int mt = 0; mt < MTT; ++mt)
            *reinterpret_cast<float4*>(smem + warp * RW + ((mt * 8 + g) * GTP + t4) * 16) =
                make_float4(acc[mt][0], acc[mt][1], acc[mt][2], acc[mt][3]);
    }
    if (g == 0) {
        *reinterpret_cast<float2*>(sm + warp * 8 + 2 * t4) = make_float2(mr0, mr1);
        *reinterpret_cast<float2*>(sm + 64 + warp * 8 + 2 * t4) = make_float2(la[0], la[1]);
    }
    __syncthreads();
    {
        float2 mw[NW];
        float M0 = ninf(), M1 = ninf(), l0 = 0.f, l1 = 0.f;
#pragma unroll
        for (int w = 0; w < NW; ++w) {
            mw[w] = *reinterpret_cast<const float2*>(sm + w * 8 + 2 * t4);
            M0 = fmaxf(M0, mw[w].x);
            M1 = fmaxf(M1, mw[w].y);
        }
        float z[MT][4];
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
            for (int i = 0; i < 4; ++i) z[mt][i] = 0.f;
        const bool has = warp < MTT && t4 < GTP;
#pragma unroll
        for (int w = 0; w < NW; ++w) {
            const float c0 = pow2i(mw[w].x - M0), c1 = pow2i(mw[w].y - M1);
            const float2 lw = *reinterpret_cast<const float2*>(sm + 64 + w * 8 + 2 * t4);
            l0 = fmaf(c0, lw.x, l0);
            l1 = fmaf(c1, lw.y, l1);
            if (has) {
                const float4 y =
                    *reinterpret_cast<const float4*>(smem + w * RW + ((warp * 8 + g) * GTP + t4) * 16);
                z[0][0] = fmaf(c0, y.x, z[0][0]);
                z[0][1] = fmaf(c1, y.y, z[0][1]);
                z[0][2] = fmaf(c0, y.z, z[0][2]);
                z[0][3] = fmaf(c1, y.w, z[0][3]);
            }
        }
        send(z, M0, M1, warp == 0 ? l0 : 0.f, warp == 0 ? l1 : 0.f, pv, pm, smem, rank, warp, g, t4);
    }
    finish<TT, true>(out, hrow, ht, cnt, rank, hx, ws, smem, sb);
}

// 16-bit storage up to 256 dims
template <class TT>
__device__ __forceinline__ void run_fast(const TT* q, const TT* kc, const TT* vc, const int* tab, const int* seq_lens,
                                         TT* out, float scale, int cols, int row, int kvh, int ht, int rank,
                                         int hx, unsigned int* ws, unsigned char* smem) {
    if constexpr (EARLY) asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
    const unsigned int full = 0xffffffffu;
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3;
    const unsigned int sb = (unsigned int)__cvta_generic_to_shared(smem);
    unsigned int* flag = reinterpret_cast<unsigned int*>(smem + O_F);

    // length and table; lane i below 8 holds the table entry of tile slot i, the others those of later iterations
    const int tslot = (lane & 7) * S + (LONG ? hx * U + (lane >> 3) * UX : 0);
    const int L = ld_i32(seq_lens + row);
    int pg = 0;
    if constexpr (UNI && sliding_window == 0) pg = table_at(tab, tslot + rank, cols);
    if constexpr (LONG) {
        // the second cluster has nothing to do where the first one holds everything at once
        if (hx != 0) {
            const int L1 = ld_i32(seq_lens + row);
            int s1 = 0;
            if constexpr (sliding_window > 0) s1 = L1 > sliding_window ? L1 - sliding_window : 0;
            if ((L1 + 15) / 16 - s1 / 16 <= U) return;
        }
    }

    const size_t hrow = (size_t)row * num_heads + (size_t)(kvh * G + ht * 8);
    const TT* qrow = q + hrow * D;
    if (rank == 0 && tid == 64) {
        const int nh = G - ht * 8 < 8 ? G - ht * 8 : 8;
        to_l2(qrow, (unsigned int)(nh * D * 2));
    }

    const int cnt = (MTT - rank + S - 1) / S;       // tiles of output dims that this CTA finishes
    unsigned int pv[MT];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) pv[mt] = sb;
    unsigned int pm = sb;
    if (tid == 0) *flag = 0u;
    if constexpr (S > 1) {
        if (tid == 0) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" :: "r"(sb + O_BAR), "r"(1u) : "memory");
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                         :: "r"(sb + O_BAR), "r"((unsigned int)(S * (cnt * 8 * GTP * 16 + 24 * GTP))) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
        }
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) pv[mt] = peer_addr(sb, (warp + mt * NW) % S);
        pm = peer_addr(sb, g % S);
    }

    int start = 0;
    if constexpr (sliding_window > 0) start = L > sliding_window ? L - sliding_window : 0;
    const int first = start / 16 + rank;
    const int ntile = (L + 15) / 16;
    if constexpr (UNI && sliding_window != 0) pg = table_at(tab, first + tslot, cols);
    if constexpr (LONG) {
        if (__builtin_expect(ntile - start / 16 > U, 0)) {
            run_long<TT>(qrow, kc, vc, tab, out, score_factor(scale), cols, hrow, L, start, pg, pv, pm, smem, sb,
                         rank, hx, kvh, ht, cnt, ws);
            return;
        }
    }

    // everything but the newest token is requested before the wait
    unsigned int kr[KC][2][4];
    {
        int pk = 0;
        if constexpr (UNI) pk = __shfl_sync(full, pg, warp);
        load_k<0>(kr, kc, tab, first + warp * S, pk, start, L, kvh, g, t4);
    }
    load_v<0>(sb, vc, tab, first, pg, start, L, kvh, tid);

    // the newest token: slot of its tile when it belongs to this CTA's first tiles, else -1
    const int jn = L - 1;
    const int dn = jn / 16 - first;
    int wn = (dn >= 0 && dn < U && dn % S == 0) ? dn / S : -1;
    int pgn = 0;
    if constexpr (UNI) pgn = __shfl_sync(full, pg, wn & 7);
    else pgn = __ldg(tab + jn / BS);
    const size_t noff = elem(pgn, jn % BS) + (size_t)(kvh * D);
    const int kp = kpos(jn & 15);
    const bool mine = wn >= 0 && t4 == ((kp & 7) >> 1);
    if (warp == wn && lane == 0) {
        to_l2(kc + noff, (unsigned int)(D * 2));
        to_l2(vc + noff, (unsigned int)(D * 2));
    }
    // the translations of the query's and the output's addresses, which the chain behind the wait meets
    if (tid == 96) warm(qrow);
    if (tid == 128) warm(out + hrow * D);
    __syncwarp();
    if constexpr (!EARLY) asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
    if constexpr (S > 1) asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
    asm volatile("griddepcontrol.wait;\n" ::: "memory");

    // query fragments and the newest row
    unsigned int qf[KC][4];
    {
        const bool qok = g < GT && ht * 8 + g < G;
        const TT* qp = qrow + (qok ? g : 0) * D + t4 * 8;
#pragma unroll
        for (int c = 0; c < KC; ++c) {
            const bool d = (D % 32 == 0) || (c * 32 + t4 * 8 < D);
            ldq16(qf[c], qp + c * 32, qok && d);
        }
    }
    unsigned int vlo[MT], vhi[MT], vaddr[MT];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
        const int t = warp + mt * NW;
        const int tc = t < MTT ? t : MTT - 1;
        const int d = tc * 16 + g;
        vlo[mt] = ldcg2(vc + noff + d, mine && d < D);
        vhi[mt] = ldcg2(vc + noff + d + 8, mine && d + 8 < D);
        vaddr[mt] = sb + (unsigned int)(((lane >> 4) * 8 + (lane & 7)) * VROW + ((lane >> 3) & 1) * 16 + tc * 32);
    }
    if (warp == wn) {
        const TT* np = kc + noff + t4 * 8;
        const bool take = (jn & 7) == g;
        if ((jn & 8) != 0) {
#pragma unroll
            for (int c = 0; c < KC; ++c) {
                const bool d = (D % 32 == 0) || (c * 32 + t4 * 8 < D);
                ldcg16_over(kr[c][1], np + c * 32, take && d);
            }
        } else {
#pragma unroll
            for (int c = 0; c < KC; ++c) {
                const bool d = (D % 32 == 0) || (c * 32 + t4 * 8 < D);
                ldcg16_over(kr[c][0], np + c * 32, take && d);
            }
        }
    }
    __syncwarp();

    unsigned int* ps = reinterpret_cast<unsigned int*>(smem + O_P);
    float* sm_m = reinterpret_cast<float*>(smem + O_M);
    const int hg = g % GT;                               // head whose weights this lane feeds to the value product
    const int hp = hg ^ (hg >> 1);                       // its row of weights; this order keeps banks apart both ways
    const unsigned int* prd = ps + hp * 16 + t4 * 4;     // read:  tiles (2i, 2i + 1) at + i * 128
    const int gr = (2 * t4) ^ t4;
    unsigned int* pw0 = ps + ((warp >> 1) * 8 + gr) * 16 + (g >> 1) * 4 + (warp & 1) * 2 + (g & 1);
    unsigned int* pw1 = ps + ((warp >> 1) * 8 + (gr ^ 1)) * 16 + (g >> 1) * 4 + (warp & 1) * 2 + (g & 1);
    const float sf = score_factor(scale);

    bool pending = true;
    if constexpr (LITE) {
        // all tiles are here already: weights against reference 0, valid while no score is large
        if (__builtin_expect(first + U >= ntile, 1)) {
            constexpr float lim = same<TT, __half>::v ? 12.f : 24.f;
            const int j0 = (first + warp * S) * 16 + g, j1 = j0 + 8;
            const bool ok0 = j0 >= start && j0 < L;
            const bool ok1 = j1 >= start && j1 < L;
            const float mz = first < ntile ? 0.f : ninf();

            asm volatile("cp.async.wait_all;\n" ::: "memory");
            __syncthreads();
            unsigned int va[MT][NW][4];
#pragma unroll
            for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                for (int s = 0; s < NW; ++s) ldsm4t(va[mt][s], vaddr[mt] + (unsigned int)(s * 16 * VROW));

            float sc[4][4];
#pragma unroll
            for (int a = 0; a < 4; ++a)
#pragma unroll
                for (int i = 0; i < 4; ++i) sc[a][i] = 0.f;
#pragma unroll
            for (int c = 0; c < KC; ++c) {
                mma<TT>(sc[(c & 1) * 2], kr[c][0][0], kr[c][1][0], kr[c][0][1], kr[c][1][1], qf[c][0], qf[c][1]);
                mma<TT>(sc[(c & 1) * 2 + 1], kr[c][0][2], kr[c][1][2], kr[c][0][3], kr[c][1][3], qf[c][2], qf[c][3]);
            }
            {
                const float x0 = ((sc[0][0] + sc[1][0]) + (sc[2][0] + sc[3][0])) * sf;
                const float x1 = ((sc[0][1] + sc[1][1]) + (sc[2][1] + sc[3][1])) * sf;
                const float x2 = ((sc[0][2] + sc[1][2]) + (sc[2][2] + sc[3][2])) * sf;
                const float x3 = ((sc[0][3] + sc[1][3]) + (sc[2][3] + sc[3][3])) * sf;
                const float e0 = ex2_fast(x0), e1 = ex2_fast(x1), e2 = ex2_fast(x2), e3 = ex2_fast(x3);
                const unsigned int w0 = pack2<TT>(ok0 ? e0 : 0.f, ok1 ? e2 : 0.f);
                const unsigned int w1 = pack2<TT>(ok0 ? e1 : 0.f, ok1 ? e3 : 0.f);
                // places without a token have the score zero, or NaN where the query is not finite
                const bool fine = fabsf(x0) <= lim && fabsf(x1) <= lim && fabsf(x2) <= lim && fabsf(x3) <= lim;
                if (!fine) *flag = 1u;
                if (t4 < GTP) {
                    *pw0 = w0;
                    *pw1 = w1;
                }
            }
            __syncthreads();

            const unsigned int bad = *flag;
            uint4 pw[4];
            uint2 bw = make_uint2(0u, 0u);
#pragma unroll
            for (int i = 0; i < 4; ++i) pw[i] = make_uint4(0u, 0u, 0u, 0u);
            if (g < GT) {
#pragma unroll
                for (int i = 0; i < 4; ++i) pw[i] = *reinterpret_cast<const uint4*>(prd + i * 128);
                if (wn >= 0) bw = *reinterpret_cast<const uint2*>(prd + (wn >> 1) * 128 + (wn & 1) * 2);
            }
            __syncwarp();
            if (__builtin_expect(bad == 0u, 1)) {
                unsigned int bb[NW][2];
#pragma unroll
                for (int s = 0; s < NW; ++s) {
                    bb[s][0] = (s & 1) ? pw[s >> 1].z : pw[s >> 1].x;
                    bb[s][1] = (s & 1) ? pw[s >> 1].w : pw[s >> 1].y;
                }
                float acc[MT][4];
                float chn[MT][NC][4];
#pragma unroll
                for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        acc[mt][i] = 0.f;
#pragma unroll
                        for (int n = 0; n < NC; ++n) chn[mt][n][i] = 0.f;
                    }
#pragma unroll
                for (int s = 0; s < NW; ++s)
#pragma unroll
                    for (int mt = 0; mt < MT; ++mt)
                        mma<TT>(chn[mt][s % NC], va[mt][s][0], va[mt][s][1], va[mt][s][2], va[mt][s][3],
                                bb[s][0], bb[s][1]);
                // the newest token's values, whose place in shared memory is zero
                if (wn >= 0) {
                    const unsigned int sh = (unsigned int)(kp & 1) * 16u;
#pragma unroll
                    for (int mt = 0; mt < MT; ++mt) {
                        const unsigned int lo = vlo[mt] << sh, hi = vhi[mt] << sh;
                        mma<TT>(acc[mt], kp < 8 ? lo : 0u, kp < 8 ? hi : 0u, kp < 8 ? 0u : lo, kp < 8 ? 0u : hi,
                                bw.x, bw.y);
                    }
                }
                float l0 = 0.f, l1 = 0.f;
                if (warp == 0) sum4<TT, 0>(l0, l1, bb);
                else if (warp == 1) sum4<TT, 4>(l0, l1, bb);
#pragma unroll
                for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        float z = chn[mt][0][i] + chn[mt][1][i];
#pragma unroll
                        for (int n = 2; n < NC; n += 2) z += chn[mt][n][i] + chn[mt][n + 1][i];
                        acc[mt][i] += z;
                    }
                send(acc, mz, mz, l0, l1, pv, pm, smem, rank, warp, g, t4);
                pending = false;
            }
        }
    }

    if (pending) {
        float mrun = ninf(), lr0 = 0.f, lr1 = 0.f;
        float acc[MT][4];
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[mt][i] = 0.f;

        int base = first;
#pragma unroll 1
        for (;;) {
            const bool more = !LONG && base + U < ntile;
            int pgx = 0;
            if constexpr (UNI) {
                if (more) pgx = table_at(tab, base + U + (lane & 7) * S, cols);
            }
            asm volatile("cp.async.wait_all;\n" ::: "memory");
            __syncthreads();
            unsigned int va[MT][NW][4];
#pragma unroll
            for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                for (int s = 0; s < NW; ++s) ldsm4t(va[mt][s], vaddr[mt] + (unsigned int)(s * 16 * VROW));

            // scores of 16 tokens against 8 heads; the order of the dims inside a 32-wide chunk is permuted alike
            float sc[4][4];
#pragma unroll
            for (int a = 0; a < 4; ++a)
#pragma unroll
                for (int i = 0; i < 4; ++i) sc[a][i] = 0.f;
#pragma unroll
            for (int c = 0; c < KC; ++c) {
                mma<TT>(sc[(c & 1) * 2], kr[c][0][0], kr[c][1][0], kr[c][0][1], kr[c][1][1], qf[c][0], qf[c][1]);
                mma<TT>(sc[(c & 1) * 2 + 1], kr[c][0][2], kr[c][1][2], kr[c][0][3], kr[c][1][3], qf[c][2], qf[c][3]);
            }
            {
                const int j0 = (base + warp * S) * 16 + g, j1 = j0 + 8;
                const bool ok0 = j0 >= start && j0 < L;
                const bool ok1 = j1 >= start && j1 < L;
                const float x0 = ok0 ? ((sc[0][0] + sc[1][0]) + (sc[2][0] + sc[3][0])) * sf : ninf();
                const float x1 = ok0 ? ((sc[0][1] + sc[1][1]) + (sc[2][1] + sc[3][1])) * sf : ninf();
                const float x2 = ok1 ? ((sc[0][2] + sc[1][2]) + (sc[2][2] + sc[3][2])) * sf : ninf();
                const float x3 = ok1 ? ((sc[0][3] + sc[1][3]) + (sc[2][3] + sc[3][3])) * sf : ninf();
                float m0 = fmaxf(x0, x2), m1 = fmaxf(x1, x3);
#pragma unroll
                for (int o = 4; o < 32; o <<= 1) {
                    m0 = fmaxf(m0, __shfl_xor_sync(full, m0, o));
                    m1 = fmaxf(m1, __shfl_xor_sync(full, m1, o));
                }
                // whole numbers as references: rescaling weights by their differences is exact
                m0 = ceilf(m0);
                m1 = ceilf(m1);
                const float u0 = m0 == ninf() ? 0.f : m0;
                const float u1 = m1 == ninf() ? 0.f : m1;
                const unsigned int w0 = pack2<TT>(ex(x0 - u0), ex(x2 - u0));
                const unsigned int w1 = pack2<TT>(ex(x1 - u1), ex(x3 - u1));
                if (t4 < GTP) {
                    *pw0 = w0;
                    *pw1 = w1;
                    if (g == 0) {
                        sm_m[(2 * t4) * 8 + warp] = m0;
                        sm_m[(2 * t4 + 1) * 8 + warp] = m1;
                    }
                }
            }
            __syncthreads();

            const float4 ma = *reinterpret_cast<const float4*>(sm_m + hg * 8);
            const float4 mb = *reinterpret_cast<const float4*>(sm_m + hg * 8 + 4);
            uint4 pw[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) pw[i] = *reinterpret_cast<const uint4*>(prd + i * 128);

            if (more) load_v<1>(sb, vc, tab, base + U, pgx, start, L, kvh, tid);

            float nw[NW];
            nw[0] = ma.x; nw[1] = ma.y; nw[2] = ma.z; nw[3] = ma.w;
            nw[4] = mb.x; nw[5] = mb.y; nw[6] = mb.z; nw[7] = mb.w;
            const float top = fmaxf(fmaxf(fmaxf(fmaxf(nw[0], nw[1]), fmaxf(nw[2], nw[3])),
                                          fmaxf(fmaxf(nw[4], nw[5]), fmaxf(nw[6], nw[7]))), mrun);
            const float f = pow2i(mrun - top);
            mrun = top;

            float xt[MT][4];
            float chn[MT][NC][4];
#pragma unroll
            for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    xt[mt][i] = 0.f;
#pragma unroll
                    for (int n = 0; n < NC; ++n) chn[mt][n][i] = 0.f;
                }

            // the newest token's values, whose place in shared memory is zero
            if (wn >= 0) {
                const uint2 bw = *reinterpret_cast<const uint2*>(prd + (wn >> 1) * 128 + (wn & 1) * 2);
                const float cw = pow2i(sm_m[hg * 8 + wn] - top);
                const unsigned int cc = pack2<TT>(cw, cw);
                const unsigned int b0 = mul2<TT>(bw.x, cc), b1 = mul2<TT>(bw.y, cc);
                const unsigned int sh = (unsigned int)(kp & 1) * 16u;
#pragma unroll
                for (int mt = 0; mt < MT; ++mt) {
                    const unsigned int lo = vlo[mt] << sh, hi = vhi[mt] << sh;
                    mma<TT>(xt[mt], kp < 8 ? lo : 0u, kp < 8 ? hi : 0u, kp < 8 ? 0u : lo, kp < 8 ? 0u : hi, b0, b1);
                }
            }

            unsigned int bb[NW][2];
#pragma unroll
            for (int s = 0; s < NW; ++s) {
                const float cw = pow2i(nw[s] - top);
                const unsigned int cc = pack2<TT>(cw, cw);
                bb[s][0] = mul2<TT>((s & 1) ? pw[s >> 1].z : pw[s >> 1].x, cc);
                bb[s][1] = mul2<TT>((s & 1) ? pw[s >> 1].w : pw[s >> 1].y, cc);
#pragma unroll
                for (int mt = 0; mt < MT; ++mt)
                    mma<TT>(chn[mt][s % NC], va[mt][s][0], va[mt][s][1], va[mt][s][2], va[mt][s][3],
                            bb[s][0], bb[s][1]);
            }
            const float f0 = __shfl_sync(full, f, t4 * 8), f1 = __shfl_sync(full, f, t4 * 8 + 4);
            if (warp < 2) {
                float r0, r1;
                if (warp == 0) sum4<TT, 0>(r0, r1, bb);
                else sum4<TT, 4>(r0, r1, bb);
                lr0 = fmaf(lr0, f0, r0);
                lr1 = fmaf(lr1, f1, r1);
            }
#pragma unroll
            for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float z = xt[mt][i];
#pragma unroll
                    for (int n = 0; n < NC; n += 2) z += chn[mt][n][i] + chn[mt][n + 1][i];
                    acc[mt][i] = fmaf(acc[mt][i], (i & 1) ? f1 : f0, z);
                }

            if (!more) break;
            base += U;
            wn = -1;
            {
                int pk = 0;
                if constexpr (UNI) pk = __shfl_sync(full, pgx, warp);
                load_k<1>(kr, kc, tab, base + warp * S, pk, start, L, kvh, g, t4);
            }
        }
        const float g0 = __shfl_sync(full, mrun, t4 * 8), g1 = __shfl_sync(full, mrun, t4 * 8 + 4);
        send(acc, g0, g1, lr0, lr1, pv, pm, smem, rank, warp, g, t4);
    }

    finish<TT, false>(out, hrow, ht, cnt, rank, hx, ws, smem, sb);
}

// float32 storage and very wide heads: one token a warp at a time on the ordinary cores
template <class TT>
__device__ __forceinline__ void partials_any(const TT* q, const TT* kc, const TT* vc, const int* tab,
                                             const int* seq_lens, float scale, int row, int kvh, int ht,
                                             int rank, float* part, float* sm_m, float* sm_l, float* qs) {
    constexpr int E = (D + 31) / 32;
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    const unsigned int full = 0xffffffffu;
    for (int i = tid; i < GT * D; i += NT) {
        const int h = i / D, d = i % D;
        float x = 0.f;
        if (ht * 8 + h < G) x = to_f(q[((size_t)row * num_heads + (size_t)kvh * G + ht * 8 + h) * D + d]);
        qs[i] = x;
    }
    const int L = __ldg(seq_lens + row);
    int start = 0;
    if constexpr (sliding_window > 0) start = L > sliding_window ? L - sliding_window : 0;
    __syncthreads();
    const float sf = score_factor(scale);
    float m[GT], l[GT], acc[GT][E];
#pragma unroll
    for (int h = 0; h < GT; ++h) {
        m[h] = ninf();
        l[h] = 0.f;
#pragma unroll
        for (int e = 0; e < E; ++e) acc[h][e] = 0.f;
    }
    for (int j = start + warp * S + rank; j < L; j += U) {
        const size_t off = elem(__ldg(tab + j / BS), j % BS) + (size_t)(kvh * D);
        const TT* kp = kc + off;
        const TT* vp = vc + off;
        float kf[E], vf[E];
#pragma unroll
        for (int e = 0; e < E; ++e) {
            const int d = e * 32 + lane;
            const bool ok = (D % 32 == 0) || d < D;
            kf[e] = ok ? to_f(kp[d]) : 0.f;
            vf[e] = ok ? to_f(vp[d]) : 0.f;
        }
#pragma unroll
        for (int h = 0; h < GT; ++h) {
            float s = 0.f;
#pragma unroll
            for (int e = 0; e < E; ++e) {
                const int d = e * 32 + lane;
                if (D % 32 == 0 || d < D) s = fmaf(kf[e], qs[h * D + d], s);
            }
#pragma unroll
            for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(full, s, o);
            s *= sf;
            const float n = fmaxf(m[h], s);
            const float u = n == ninf() ? 0.f : n;
            const float f = ex(m[h] - u);
            const float p = ex(s - u);
            m[h] = n;
            l[h] = l[h] * f + p;
#pragma unroll
            for (int e = 0; e < E; ++e) acc[h][e] = fmaf(p, vf[e], acc[h][e] * f);
        }
    }
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#pragma unroll
    for (int h = 0; h < GT; ++h) {
        if (lane == 0) {
            sm_m[warp * 8 + h] = m[h];
            sm_l[warp * 8 + h] = l[h];
        }
#pragma unroll
        for (int e = 0; e < E; ++e) {
            const int d = e * 32 + lane;
            if (D % 32 == 0 || d < D) part[(warp * GT + h) * HS + d] = acc[h][e];
        }
    }
}

template <class TT>
__device__ __forceinline__ void run_any(const TT* q, const TT* kc, const TT* vc, const int* tab, const int* seq_lens,
                                        TT* out, float scale, int row, int kvh, int ht, int rank, float* smem) {
    float* part = smem;                       // [NW][GT][HS]
    float* recv = part + PARTF;               // [S][SL] pairs, written by the other splits
    float* sm_m = recv + RECVF;               // [NW][8]
    float* sm_l = sm_m + 64;
    float* rm = sm_l + 64;                    // [S][8], written by the other splits
    float* rl = rm + 64;
    float* qs = rl + 64;
    const int tid = threadIdx.x;

    // says that this CTA's shared memory may be written; waited for just before the first push
    if constexpr (S > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;\n" ::: "memory");
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
    partials_any<TT>(opaque(q), opaque(kc), opaque(vc), opaque(tab), opaque(seq_lens), scale, row, kvh, ht, rank,
                     part, sm_m, sm_l, qs);
    __syncthreads();
    if constexpr (S > 1) asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");

    // warps of this CTA, in index order
    for (int p = tid; p < PAIRS; p += NT) {
        const int h = p / (D / 2), dp = p % (D / 2);
        float mw[NW], M = ninf();
#pragma unroll
        for (int w = 0; w < NW; ++w) {
            mw[w] = sm_m[w * 8 + h];
            M = fmaxf(M, mw[w]);
        }
        float ax = 0.f, ay = 0.f, l = 0.f;
#pragma unroll
        for (int w = 0; w < NW; ++w) {
            const float c = mw[w] == ninf() ? 0.f : ex(mw[w] - M);
            const float2 x = *reinterpret_cast<const float2*>(part + (w * GT + h) * HS + 2 * dp);
            ax = fmaf(c, x.x, ax);
            ay = fmaf(c, x.y, ay);
            l = fmaf(c, sm_l[w * 8 + h], l);
        }
        if constexpr (S == 1) {
            if (ht * 8 + h < G) {
                store2<TT>(out + ((size_t)row * num_heads + (size_t)kvh * G + ht * 8 + h) * D + 2 * dp, ax / l, ay / l);
            }
        } else {
            const int dst = p / SL;
            push2(peer(recv + (rank * SL + (p - dst * SL)) * 2, dst), ax, ay);
            for (int r = dp; r < S; r += D / 2) {
                push1(peer(rm + rank * 8 + h, r), M);
                push1(peer(rl + rank * 8 + h, r), l);
            }
        }
    }

    // splits of the sequence, in index order; each CTA of the cluster finishes its slice of the outputs
    if constexpr (S > 1) {
        __syncwarp();
        asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");
        for (int i = tid; i < SL; i += NT) {
            const int p = rank * SL + i;
            if (p < PAIRS) {
                const int h = p / (D / 2), dp = p % (D / 2);
                float ms[S], M = ninf();
#pragma unroll
                for (int s = 0; s < S; ++s) {
                    ms[s] = rm[s * 8 + h];
                    M = fmaxf(M, ms[s]);
                }
                float ax = 0.f, ay = 0.f, l = 0.f;
#pragma unroll
                for (int s = 0; s < S; ++s) {
                    const float c = ms[s] == ninf() ? 0.f : ex(ms[s] - M);
                    const float2 x = *reinterpret_cast<const float2*>(recv + (s * SL + i) * 2);
                    ax = fmaf(c, x.x, ax);
                    ay = fmaf(c, x.y, ay);
                    l = fmaf(c, rl[s * 8 + h], l);
                }
                if (ht * 8 + h < G) {
                    store2<TT>(out + ((size_t)row * num_heads + (size_t)kvh * G + ht * 8 + h) * D + 2 * dp,
                               ax / l, ay / l);
                }
            }
        }
    }
}

}  // namespace pda

extern "C" __global__ void __launch_bounds__(pda::NT, pda::MINB) paged_decode_attention(
    const T* __restrict__ q,
    const T* __restrict__ k_cache,
    const T* __restrict__ v_cache,
    const int* __restrict__ block_table,
    const int* __restrict__ seq_lens,
    T* __restrict__ out,
    float scale,
    int num_blocks,
    int max_blocks_per_seq,
    void* __restrict__ workspace)
{
    extern __shared__ __align__(128) unsigned char pda_smem[];
    const int rank = pda::S > 1 ? (int)blockIdx.x % pda::S : 0;
    const int hx = pda::PAIRED ? (int)blockIdx.x / pda::S : 0;
    if constexpr (pda::PAIRED && !pda::LONG) {
        if (hx != 0) return;
    }
    const int kvh = (int)blockIdx.y / pda::HT;
    const int ht = (int)blockIdx.y % pda::HT;
    const int row = (int)blockIdx.z;
    const int* tab = block_table + (size_t)row * max_blocks_per_seq;

    if constexpr (pda::FAST) {
        // GT * 16 places of four words for a rank of a key head
        unsigned int* ws = static_cast<unsigned int*>(workspace);
        if constexpr (pda::LONG) {
            ws += (size_t)((row * (pda::HKV * pda::HT) + (int)blockIdx.y) * 8 + rank) * (size_t)(pda::GT * 64);
        }
        pda::run_fast<T>(q, k_cache, v_cache, tab, seq_lens, out, scale, max_blocks_per_seq, row, kvh, ht, rank, hx, ws,
                         pda_smem);
    } else {
        pda::run_any<T>(q, k_cache, v_cache, tab, seq_lens, out, scale, row, kvh, ht, rank,
                        reinterpret_cast<float*>(pda_smem));
    }
}
