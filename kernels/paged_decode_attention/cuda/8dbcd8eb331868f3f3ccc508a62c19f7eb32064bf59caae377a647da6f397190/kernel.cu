// Contract: paged_decode_attention version 1 (one query row a sequence, paged keys and values, grouped heads).
// Idea: one cluster a (row, key head); its CTAs are the splits, and every warp owns whole 16-token tiles, interleaved
//   by position: K straight into mma.m16n8k16 fragments, V there too or, at two CTAs an SM, through lane-private slots;
//   warps meet in shared memory and splits meet by pushing float32 partials over distributed shared memory, in order.
// Bound: the latency chain (length and table, K and V, merge) at one row; device-memory bandwidth at eight rows.
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
constexpr int U = S * NW;                        // warps that share a sequence
constexpr bool FAST = (sizeof(T) == 2) && (D <= 256);
constexpr bool UNI = (BS % 16 == 0);             // a 16-token tile never straddles cache blocks
constexpr int KC = (D + 31) / 32;
constexpr int VC = (D + 63) / 64;
constexpr int QSTR = (KC | 1) * 32;              // elements a query row in shared memory
constexpr int HS = D + 8;                        // floats a head row of a warp partial
constexpr int PAIRS = GT * D / 2;
constexpr int SL = (PAIRS + S - 1) / S;          // output pairs a CTA finishes
constexpr int PARTF = NW * GT * HS;
constexpr int RECVF = (S * SL * 2 + 3) / 4 * 4;
constexpr size_t RS = (size_t)HKV * D;           // elements from token to token
constexpr int MINB = (FAST && D <= 128 && BASE * S > num_sms) ? 2 : 1;
constexpr bool VSM = MINB == 2 && num_tokens > 1;  // values travel through lane-private slots in shared memory
constexpr unsigned int VSTAGE = VC * 4 * 512;      // bytes of one value tile of a warp
constexpr int QBYTES = 32 * D + 1024;              // bytes set aside for the query

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
template <class TT> __device__ __forceinline__ float2 unpack2(unsigned int u) {
    if constexpr (same<TT, __half>::v) {
        __half2 h = *reinterpret_cast<__half2*>(&u);
        return __half22float2(h);
    } else {
        return make_float2(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u));
    }
}
template <class TT> __device__ __forceinline__ void store2(TT* p, float a, float b) {
    if constexpr (sizeof(TT) == 4) *reinterpret_cast<float2*>(p) = make_float2(a, b);
    else *reinterpret_cast<unsigned int*>(p) = pack2<TT>(a, b);
}

__device__ __forceinline__ void ldg16(unsigned int (&r)[4], const void* p, bool ok) {
    r[0] = 0u; r[1] = 0u; r[2] = 0u; r[3] = 0u;
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %5, 0;\n\t"
        "@pp ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
        "}\n"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
        : "l"(p), "r"((unsigned int)ok));
}

// keys and values are read once: they should not push anything else out of L2
__device__ __forceinline__ unsigned long long stream_policy() {
    unsigned long long p;
    if constexpr (HT == 1) asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    else asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(p));
    return p;
}
__device__ __forceinline__ void ldkv16(unsigned int (&r)[4], const void* p, bool ok, unsigned long long pol) {
    r[0] = 0u; r[1] = 0u; r[2] = 0u; r[3] = 0u;
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %5, 0;\n\t"
        "@pp ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6;\n\t"
        "}\n"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
        : "l"(p), "r"((unsigned int)ok), "l"(pol));
}
// 16 bytes into shared memory, zeros where not ok (nothing is read then)
__device__ __forceinline__ void cpa16(unsigned int dst, const void* p, bool ok, unsigned long long pol) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\n"
                 :: "r"(dst), "l"(p), "r"(ok ? 16u : 0u), "l"(pol) : "memory");
}
__device__ __forceinline__ void cpa_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
__device__ __forceinline__ void cpa_wait1() { asm volatile("cp.async.wait_group 1;\n" ::: "memory"); }
__device__ __forceinline__ void lds16m(unsigned int (&r)[4], unsigned int addr) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

__device__ __forceinline__ void lds16(unsigned int (&r)[4], unsigned int addr) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr));
}

// shared memory of another CTA of the cluster
__device__ __forceinline__ unsigned int peer(const void* p, int cta) {
    unsigned int r;
    const unsigned int a = (unsigned int)__cvta_generic_to_shared(p);
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(r) : "r"(a), "r"(cta));
    return r;
}
__device__ __forceinline__ void push2(unsigned int addr, float x, float y) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};\n" :: "r"(addr), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void push1(unsigned int addr, float x) {
    asm volatile("st.shared::cluster.f32 [%0], %1;\n" :: "r"(addr), "f"(x) : "memory");
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

__device__ __forceinline__ int table_at(const int* tab, int tile, int cols) {
    const int col = tile * 16 / BS;
    return col < cols ? __ldg(tab + col) : 0;
}

// address of the row of token j of this key head
__device__ __forceinline__ const T* row_of(const T* cache, const int* tab, int j, bool ok, int kvh) {
    const int page = ok ? __ldg(tab + j / BS) : 0;
    const int slot = ok ? j % BS : 0;
    return cache + ((size_t)page * BS + slot) * RS + (size_t)kvh * D;
}

__device__ __forceinline__ void load_k(unsigned int (&kr)[KC][2][4], const T* cache, const int* tab, int tile,
                                       int page, int start, int L, int kvh, int g, int t4,
                                       unsigned long long pol) {
    const int j0 = tile * 16 + g, j1 = j0 + 8;
    const bool ok0 = j0 >= start && j0 < L;
    const bool ok1 = j1 >= start && j1 < L;
    const T* p0;
    const T* p1;
    if constexpr (UNI) {
        const int pg = tile * 16 < L ? page : 0;
        p0 = cache + ((size_t)pg * BS + (tile * 16) % BS + g) * RS + (size_t)kvh * D + t4 * 8;
        p1 = p0 + 8 * RS;
    } else {
        p0 = row_of(cache, tab, j0, ok0, kvh) + t4 * 8;
        p1 = row_of(cache, tab, j1, ok1, kvh) + t4 * 8;
    }
#pragma unroll
    for (int c = 0; c < KC; ++c) {
        const bool d = (D % 32 == 0) || (c * 32 + t4 * 8 < D);
        ldkv16(kr[c][0], p0 + c * 32, ok0 && d, pol);
        ldkv16(kr[c][1], p1 + c * 32, ok1 && d, pol);
    }
}

template <int N>
__device__ __forceinline__ void load_v(unsigned int (&vr)[N][4][4], const T* cache, const int* tab, int tile,
                                       int page, int start, int L, int kvh, int g, int t4,
                                       unsigned long long pol) {
    const T* base = cache;
    if constexpr (UNI) {
        const int pg = tile * 16 < L ? page : 0;
        base = cache + ((size_t)pg * BS + (tile * 16) % BS + 2 * t4) * RS + (size_t)kvh * D + g * 8;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int off = (i & 1) + (i >> 1) * 8;          // tokens 2t, 2t+1, 2t+8, 2t+9
        const int j = tile * 16 + 2 * t4 + off;
        const bool ok = j >= start && j < L;
        const T* p;
        if constexpr (UNI) p = base + (size_t)off * RS;
        else p = row_of(cache, tab, j, ok, kvh) + g * 8;
#pragma unroll
        for (int v = 0; v < N; ++v) {
            const bool d = (D % 64 == 0) || (v * 64 + g * 8 < D);
            ldkv16(vr[v][i], p + v * 64, ok && d, pol);
        }
    }
}

// the same pieces into the lane's own slots: the lane that copies a piece is the one that reads it
__device__ __forceinline__ void copy_v(unsigned int slot, const T* cache, const int* tab, int tile,
                                       int page, int start, int L, int kvh, int g, int t4,
                                       unsigned long long pol) {
    const T* base = cache;
    if constexpr (UNI) {
        const int pg = tile * 16 < L ? page : 0;
        base = cache + ((size_t)pg * BS + (tile * 16) % BS + 2 * t4) * RS + (size_t)kvh * D + g * 8;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int off = (i & 1) + (i >> 1) * 8;          // tokens 2t, 2t+1, 2t+8, 2t+9
        const int j = tile * 16 + 2 * t4 + off;
        const bool ok = j >= start && j < L;
        const T* p;
        if constexpr (UNI) p = base + (size_t)off * RS;
        else p = row_of(cache, tab, j, ok, kvh) + g * 8;
#pragma unroll
        for (int v = 0; v < VC; ++v) {
            const bool d = (D % 64 == 0) || (v * 64 + g * 8 < D);
            cpa16(slot + (unsigned int)(v * 4 + i) * 512u, p + v * 64, ok && d, pol);
        }
    }
}

// every warp leaves maximum, sum and weighted values of its tiles in shared memory
template <class TT>
__device__ __forceinline__ void partials_fast(const TT* q, const TT* kc, const TT* vc, const int* tab,
                                              const int* seq_lens, int cols, float scale, int row, int kvh, int ht,
                                              int rank, float* part, float* sm_m, float* sm_l, void* qsv,
                                              void* vsv) {
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3;
    const unsigned int full = 0xffffffffu;
    const int unit = warp * S + rank;
    const unsigned long long pol = stream_policy();

    // length, table and query travel together; table entries are read ahead but followed only when they are in range
    int page = 0, npage = 0;
    const int L = __ldg(seq_lens + row);
    if constexpr (UNI && sliding_window == 0) {
        page = table_at(tab, unit, cols);
        npage = table_at(tab, unit + U, cols);
    }
    unsigned int qv[4];
    const int qh = tid / (KC * 4), qc = tid % (KC * 4);
    {
        const bool ok = qh < 8 && ht * 8 + qh < G && qc * 8 < D;
        const TT* qp = q + ((size_t)row * num_heads + (size_t)kvh * G + (ok ? ht * 8 + qh : 0)) * D + (ok ? qc * 8 : 0);
        ldg16(qv, qp, ok);
    }
    int start = 0;
    if constexpr (sliding_window > 0) start = L > sliding_window ? L - sliding_window : 0;
    const int ntile = (L + 15) / 16;
    int tile = start / 16 + unit;
    if constexpr (UNI && sliding_window != 0) {
        page = table_at(tab, tile, cols);
        npage = table_at(tab, tile + U, cols);
    }

    unsigned int kr[KC][2][4];
    unsigned int vr[VSM ? 1 : VC][4][4];
    unsigned int slot = 0, oslot = 0;      // this tile's values, the next tile's values
    load_k(kr, kc, tab, tile, page, start, L, kvh, g, t4, pol);
    if constexpr (VSM) {
        slot = (unsigned int)__cvta_generic_to_shared(vsv) + (unsigned int)warp * (2u * VSTAGE) + (unsigned int)lane * 16u;
        oslot = slot + VSTAGE;
        if (tile < ntile) copy_v(slot, vc, tab, tile, page, start, L, kvh, g, t4, pol);
        cpa_commit();
        if (tile + U < ntile) copy_v(oslot, vc, tab, tile + U, npage, start, L, kvh, g, t4, pol);
        cpa_commit();
    } else {
        load_v(vr, vc, tab, tile, page, start, L, kvh, g, t4, pol);
    }
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

    TT* qs = reinterpret_cast<TT*>(qsv);
    if (qh < 8) {
        *reinterpret_cast<uint4*>(qs + qh * QSTR + qc * 8) = make_uint4(qv[0], qv[1], qv[2], qv[3]);
    }
    __syncthreads();
    const unsigned int qaddr = (unsigned int)__cvta_generic_to_shared(qs + g * QSTR + t4 * 8);

    const float sf = score_factor(scale);
    float m0 = ninf(), m1 = ninf(), l0 = 0.f, l1 = 0.f;
    float acc[VC][4][4];
#pragma unroll
    for (int v = 0; v < VC; ++v)
#pragma unroll
        for (int w = 0; w < 4; ++w)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[v][w][i] = 0.f;

    while (tile < ntile) {
        const int next = tile + U;
        // scores of 16 tokens against 8 heads; the order of the dims inside a 32-wide chunk is permuted alike on both sides
        float sa[4] = {0.f, 0.f, 0.f, 0.f}, sb[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
        for (int c = 0; c < KC; ++c) {
            unsigned int qf[4];
            lds16(qf, qaddr + c * 64);
            mma<TT>(sa, kr[c][0][0], kr[c][1][0], kr[c][0][1], kr[c][1][1], qf[0], qf[1]);
            mma<TT>(sb, kr[c][0][2], kr[c][1][2], kr[c][0][3], kr[c][1][3], qf[2], qf[3]);
        }
        int page2 = 0;
        if (next < ntile) {
            load_k(kr, kc, tab, next, npage, start, L, kvh, g, t4, pol);
            if constexpr (UNI) page2 = table_at(tab, next + U, cols);
        }
        const int j0 = tile * 16 + g, j1 = j0 + 8;
        const bool ok0 = j0 >= start && j0 < L;
        const bool ok1 = j1 >= start && j1 < L;
        const float x0 = ok0 ? (sa[0] + sb[0]) * sf : ninf();
        const float x1 = ok0 ? (sa[1] + sb[1]) * sf : ninf();
        const float x2 = ok1 ? (sa[2] + sb[2]) * sf : ninf();
        const float x3 = ok1 ? (sa[3] + sb[3]) * sf : ninf();
        float n0 = fmaxf(x0, x2), n1 = fmaxf(x1, x3);
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) {
            n0 = fmaxf(n0, __shfl_xor_sync(full, n0, o));
            n1 = fmaxf(n1, __shfl_xor_sync(full, n1, o));
        }
        n0 = fmaxf(n0, m0);
        n1 = fmaxf(n1, m1);
        const float u0 = n0 == ninf() ? 0.f : n0;
        const float u1 = n1 == ninf() ? 0.f : n1;
        const float f0 = ex(m0 - u0), f1 = ex(m1 - u1);
        m0 = n0;
        m1 = n1;
        const unsigned int r0 = pack2<TT>(ex(x0 - u0), ex(x1 - u1));
        const unsigned int r1 = pack2<TT>(ex(x2 - u0), ex(x3 - u1));
        const float2 pa = unpack2<TT>(r0), pb = unpack2<TT>(r1);
        l0 = l0 * f0 + (pa.x + pb.x);
        l1 = l1 * f1 + (pa.y + pb.y);

        // transpose the weights from (token, head pair) to (token pair, head)
        const int src = t4 * 8 + (g >> 1);
        const unsigned int y0 = __shfl_sync(full, r0, src), y1 = __shfl_sync(full, r0, src + 4);
        const unsigned int y2 = __shfl_sync(full, r1, src), y3 = __shfl_sync(full, r1, src + 4);
        const unsigned int sel = (g & 1) ? 0x7632u : 0x5410u;
        const unsigned int b0 = __byte_perm(y0, y1, sel), b1 = __byte_perm(y2, y3, sel);

#pragma unroll
        for (int v = 0; v < VC; ++v)
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                acc[v][w][0] *= f0;
                acc[v][w][1] *= f1;
                acc[v][w][2] *= f0;
                acc[v][w][3] *= f1;
            }
        if constexpr (VSM) cpa_wait1();
#pragma unroll
        for (int v = 0; v < VC; ++v) {
            const int vi = VSM ? 0 : v;
            if constexpr (VSM) {
#pragma unroll
                for (int i = 0; i < 4; ++i) lds16m(vr[0][i], slot + (unsigned int)(v * 4 + i) * 512u);
            }
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const unsigned int a0 = __byte_perm(vr[vi][0][w], vr[vi][1][w], 0x5410u);
                const unsigned int a1 = __byte_perm(vr[vi][0][w], vr[vi][1][w], 0x7632u);
                const unsigned int a2 = __byte_perm(vr[vi][2][w], vr[vi][3][w], 0x5410u);
                const unsigned int a3 = __byte_perm(vr[vi][2][w], vr[vi][3][w], 0x7632u);
                mma<TT>(acc[v][w], a0, a1, a2, a3, b0, b1);
            }
        }
        if constexpr (VSM) {
            __syncwarp();
            if (next + U < ntile) copy_v(slot, vc, tab, next + U, page2, start, L, kvh, g, t4, pol);
            cpa_commit();
            const unsigned int sw = slot;
            slot = oslot;
            oslot = sw;
        } else {
            if (next < ntile) load_v(vr, vc, tab, next, npage, start, L, kvh, g, t4, pol);
        }
        npage = page2;
        tile = next;
    }

#pragma unroll
    for (int o = 4; o < 32; o <<= 1) {
        l0 += __shfl_xor_sync(full, l0, o);
        l1 += __shfl_xor_sync(full, l1, o);
    }
    if (g == 0) {
        sm_m[warp * 8 + 2 * t4] = m0;
        sm_m[warp * 8 + 2 * t4 + 1] = m1;
        sm_l[warp * 8 + 2 * t4] = l0;
        sm_l[warp * 8 + 2 * t4 + 1] = l1;
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int h = 2 * t4 + e;
        if (h < GT) {
            float* dst = part + (warp * GT + h) * HS;
#pragma unroll
            for (int v = 0; v < VC; ++v) {
                const int d = v * 64 + g * 8;
                if (D % 64 == 0 || d < D) {
                    *reinterpret_cast<float4*>(dst + d) =
                        make_float4(acc[v][0][e], acc[v][0][2 + e], acc[v][1][e], acc[v][1][2 + e]);
                    *reinterpret_cast<float4*>(dst + d + 4) =
                        make_float4(acc[v][2][e], acc[v][2][2 + e], acc[v][3][e], acc[v][3][2 + e]);
                }
            }
        }
    }
}

// float32 storage and very wide heads: one token a warp at a time on the ordinary cores
template <class TT>
__device__ __forceinline__ void partials_any(const TT* q, const TT* kc, const TT* vc, const int* tab,
                                             const int* seq_lens, float scale, int row, int kvh, int ht,
                                             int rank, float* part, float* sm_m, float* sm_l, void* qsv) {
    constexpr int E = (D + 31) / 32;
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    const unsigned int full = 0xffffffffu;
    float* qs = reinterpret_cast<float*>(qsv);
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
        const T* kp = row_of(kc, tab, j, true, kvh);
        const T* vp = vc + (kp - kc);
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
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
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
    using namespace pda;
    extern __shared__ __align__(16) float smem[];
    float* part = smem;                       // [NW][GT][HS]
    float* recv = part + PARTF;               // [S][SL] pairs, written by the other splits
    float* sm_m = recv + RECVF;               // [NW][8]
    float* sm_l = sm_m + 64;
    float* rm = sm_l + 64;                    // [S][8], written by the other splits
    float* rl = rm + 64;
    void* qs = rl + 64;

    const int tid = threadIdx.x;
    const int rank = S > 1 ? (int)blockIdx.x : 0;
    const int kvh = (int)blockIdx.y / HT;
    const int ht = (int)blockIdx.y % HT;
    const int row = (int)blockIdx.z;

    // says that this CTA's shared memory may be written; waited for just before the first push
    if constexpr (S > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    // pointers become opaque here, so that no read-only load moves above the wait
    const T* qp = opaque(q);
    const T* kp = opaque(k_cache);
    const T* vp = opaque(v_cache);
    const int* bt = opaque(block_table);
    const int* sl = opaque(seq_lens);
    const int* tab = bt + (size_t)row * max_blocks_per_seq;

    if constexpr (FAST) {
        partials_fast<T>(qp, kp, vp, tab, sl, max_blocks_per_seq, scale, row, kvh, ht, rank, part, sm_m, sm_l, qs,
                         reinterpret_cast<char*>(qs) + QBYTES);
    } else {
        partials_any<T>(qp, kp, vp, tab, sl, scale, row, kvh, ht, rank, part, sm_m, sm_l, qs);
    }
    __syncthreads();
    if constexpr (S > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");

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
                store2<T>(out + ((size_t)row * num_heads + (size_t)kvh * G + ht * 8 + h) * D + 2 * dp, ax / l, ay / l);
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
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
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
                    store2<T>(out + ((size_t)row * num_heads + (size_t)kvh * G + ht * 8 + h) * D + 2 * dp,
                              ax / l, ay / l);
                }
            }
        }
    }
}
