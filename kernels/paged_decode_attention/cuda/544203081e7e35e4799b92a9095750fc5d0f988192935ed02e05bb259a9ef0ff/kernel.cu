// Contract: paged_decode_attention version 2 (one query row a sequence, paged keys and values, grouped heads).
// Idea: few rows of 128-wide heads (entry _regs): two clusters of eight CTAs a (row, key head), trigger first, two CTAs a
//   multiprocessor, so that launches overlap. Up to 1,024 tokens one cluster works, each warp on 16 tokens loaded before the
//   dependent wait; beyond, both stream, two tiles ahead in registers and shared memory, merge on chip and meet once in L2.
// Bound: the latency chain (query, products, one cluster exchange) at 1,024 tokens; memory bandwidth at long context.
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
// splits and warps a CTA; the launch plan has the same formulas. Few rows: 8 splits. More rows: CTAs of 16 warps, one a
// multiprocessor, in pairs where two fit, so that every cluster is resident at once whatever the GPC sizes. Else no split.
constexpr bool FEW = BASE * 4 <= num_sms;
constexpr int S = FEW ? 8 : (BASE * 2 <= num_sms ? 2 : 1);
constexpr int NW = (!FEW && BASE <= num_sms && D <= 128) ? 16 : 8;
constexpr int NT = NW * 32;
constexpr int U = S * NW;                        // warps that share a sequence
constexpr bool FAST = (sizeof(T) == 2) && (D <= 256);
constexpr bool UNI = (BS % 16 == 0);             // a 16-token tile never straddles cache blocks
constexpr int KC = (D + 31) / 32;                // 32-wide chunks of the query
constexpr int KS = (D + 15) / 16;                // 16-wide matrix steps
constexpr int DP = KS * 16;
constexpr int CH = DP / 8;                       // 16-byte pieces a row
constexpr int RSTR = DP + 8;                     // elements a row in the ring: an odd number of 16-byte pieces
constexpr int UNITB = 16 * RSTR * 2;             // bytes a tile of keys or of values
constexpr int SLOTS = 3;
constexpr int RINGB = SLOTS * UNITB;             // bytes a warp's ring
constexpr int QSTR = KC * 32 + 8;                // elements a query row in shared memory
constexpr int HS = D + 8;                        // floats a head row of a warp partial
constexpr int PAIRS = GT * D / 2;
constexpr int SL = (PAIRS + S - 1) / S;          // output pairs a CTA finishes
constexpr int PSTR = FAST ? RINGB / 4 : GT * HS; // floats from warp partial to warp partial
constexpr int MAINF = NW * PSTR;
constexpr int RECVF = (S * SL * 2 + 3) / 4 * 4;
constexpr size_t RS = (size_t)HKV * D;           // elements from token to token
constexpr int MINB = (FAST && D <= 128 && NW == 8 && BASE * S > num_sms) ? 2 : 1;

__device__ __forceinline__ float ninf() { return __int_as_float(0xff800000); }

// natural exponential for float32, base two for the 16-bit types
__device__ __forceinline__ float ex(float x) {
    if constexpr (sizeof(T) == 4) return expf(x);
    else {
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
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

// 16 bytes from global to shared memory, zeros where not ok
__device__ __forceinline__ void cp16(unsigned int dst, const void* src, bool ok) {
    const int n = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" :: "r"(dst), "l"(src), "r"(n) : "memory");
}
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int N> __device__ __forceinline__ void cp_wait() {
    asm volatile("cp.async.wait_group %0;\n" :: "n"(N) : "memory");
}

__device__ __forceinline__ void ldsm(unsigned int (&r)[4], unsigned int addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
__device__ __forceinline__ void ldsm_t(unsigned int (&r)[4], unsigned int addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
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
__device__ __forceinline__ void mma(float (&c)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
    if constexpr (same<TT, __half>::v) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

// requests 16 token rows of this key head, whole rows by neighbouring lanes; only for tiles that hold a token
__device__ __forceinline__ void request(unsigned int dst, const T* cache, const int* tab, int tile, int page,
                                        int start, int L, int kvh, int lane) {
    const T* base = cache;
    if constexpr (UNI) base = cache + ((size_t)page * BS + (tile * 16) % BS) * RS + (size_t)kvh * D;
#pragma unroll
    for (int it = 0; it < KS; ++it) {
        const int i = it * 32 + lane;
        const int r = i / CH, c = i % CH;
        const int j = tile * 16 + r;
        const bool okj = j >= start && j < L;
        const bool ok = okj && ((D % 16 == 0) || (c * 8 < D));
        const T* src;
        if constexpr (UNI) src = base + (size_t)r * RS + c * 8;
        else src = row_of(cache, tab, j, okj, kvh) + c * 8;
        if (!ok) src = cache;
        cp16(dst + (unsigned int)(r * RSTR + c * 8) * 2u, src, ok);
    }
}

// every warp leaves maximum, sum and weighted values of its tiles in shared memory
template <class TT>
__device__ __forceinline__ void partials_fast(const TT* q, const TT* kc, const TT* vc, const int* tab,
                                              const int* seq_lens, int cols, float scale, int row, int kvh, int ht,
                                              int rank, float* part, float* sm_m, float* sm_l, void* qsv) {
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3;
    const unsigned int full = 0xffffffffu;
    const int unit = warp * S + rank;

    // length, table and query travel together; table entries are read ahead but followed only when they are in range
    int pg0 = 0, pg1 = 0, pg2 = 0;
    const int L = __ldg(seq_lens + row);
    if constexpr (UNI && sliding_window == 0) {
        pg0 = table_at(tab, unit, cols);
        pg1 = table_at(tab, unit + U, cols);
        pg2 = table_at(tab, unit + 2 * U, cols);
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
        pg0 = table_at(tab, tile, cols);
        pg1 = table_at(tab, tile + U, cols);
        pg2 = table_at(tab, tile + 2 * U, cols);
    }

    const unsigned int ring = (unsigned int)__cvta_generic_to_shared(part) + (unsigned int)(warp * RINGB);
    // units in ring order: K0 V0 K1 V1 K2 ...; three of them are in flight, one commit group each
    if (tile < ntile) request(ring, kc, tab, tile, pg0, start, L, kvh, lane);
    cp_commit();
    if (tile < ntile) request(ring + UNITB, vc, tab, tile, pg0, start, L, kvh, lane);
    cp_commit();
    if (tile + U < ntile) request(ring + 2 * UNITB, kc, tab, tile + U, pg1, start, L, kvh, lane);
    cp_commit();
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

    TT* qs = reinterpret_cast<TT*>(qsv);
    if (qh < 8) {
        *reinterpret_cast<uint4*>(qs + qh * QSTR + qc * 8) = make_uint4(qv[0], qv[1], qv[2], qv[3]);
    }
    __syncthreads();
    const unsigned int qaddr =
        (unsigned int)__cvta_generic_to_shared(qs) + (unsigned int)((lane & 7) * QSTR + (lane >> 3) * 8) * 2u;
    const unsigned int kofs = (unsigned int)((lane & 15) * RSTR + (lane >> 4) * 8) * 2u;
    const unsigned int vofs =
        (unsigned int)(((lane & 7) + (lane >> 4) * 8) * RSTR + ((lane >> 3) & 1) * 8) * 2u;

    const float sf = score_factor(scale);
    float m0 = ninf(), m1 = ninf(), l0 = 0.f, l1 = 0.f;
    float acc[KS][4];
#pragma unroll
    for (int v = 0; v < KS; ++v)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[v][i] = 0.f;

    unsigned int kslot = 0u, vslot = (unsigned int)UNITB;
    while (tile < ntile) {
        const int next = tile + U;
        cp_wait<2>();
        __syncwarp();
        // scores of 16 tokens against 8 heads
        float sa[4] = {0.f, 0.f, 0.f, 0.f}, sb[4] = {0.f, 0.f, 0.f, 0.f};
        {
            const unsigned int ka = ring + kslot + kofs;
#pragma unroll
            for (int c = 0; c < KC; ++c) {
                unsigned int qf[4], a[4];
                ldsm(qf, qaddr + c * 64);
                ldsm(a, ka + c * 64);
                mma<TT>(sa, a, qf[0], qf[1]);
                if (2 * c + 1 < KS) {
                    unsigned int b[4];
                    ldsm(b, ka + c * 64 + 32);
                    mma<TT>(sb, b, qf[2], qf[3]);
                }
            }
        }
        __syncwarp();
        // the values of the next tile take the place of these keys
        if (next < ntile) request(ring + kslot, vc, tab, next, pg1, start, L, kvh, lane);
        cp_commit();
        int pg3 = 0;
        if constexpr (UNI) {
            if (next + U < ntile) pg3 = table_at(tab, next + 2 * U, cols);
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
        for (int v = 0; v < KS; ++v) {
            acc[v][0] *= f0;
            acc[v][1] *= f1;
            acc[v][2] *= f0;
            acc[v][3] *= f1;
        }
        cp_wait<2>();
        __syncwarp();
        {
            const unsigned int va = ring + vslot + vofs;
#pragma unroll
            for (int v = 0; v < KS; ++v) {
                unsigned int a[4];
                ldsm_t(a, va + v * 32);
                mma<TT>(acc[v], a, b0, b1);
            }
        }
        __syncwarp();
        // the keys of the tile after the next take the place of these values
        if (next + U < ntile) request(ring + vslot, kc, tab, next + U, pg2, start, L, kvh, lane);
        cp_commit();
        kslot += 2u * UNITB;
        if (kslot >= (unsigned int)RINGB) kslot -= (unsigned int)RINGB;
        vslot += 2u * UNITB;
        if (vslot >= (unsigned int)RINGB) vslot -= (unsigned int)RINGB;
        pg1 = pg2;
        pg2 = pg3;
        tile = next;
    }
    cp_wait<0>();
    __syncwarp();

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
    // the partial takes the place of this warp's own ring
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int h = 2 * t4 + e;
        if (h < GT) {
            float* dst = part + warp * PSTR + h * HS;
#pragma unroll
            for (int v = 0; v < KS; ++v) {
                dst[v * 16 + g] = acc[v][e];
                if (v * 16 + 8 < D) dst[v * 16 + 8 + g] = acc[v][2 + e];
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
            if (D % 32 == 0 || d < D) part[warp * PSTR + h * HS + d] = acc[h][e];
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Few rows of 128-wide heads: entry paged_decode_attention_regs. The launch plan has the same conditions.
constexpr bool REGP = (D == 128) && (BS % 16 == 0) && (sliding_window == 0) && (G <= 8) &&
                      (num_tokens * num_kv_heads * 8 <= num_sms);
constexpr int H2 = (num_tokens * num_kv_heads * 16 <= num_sms) ? 2 : 1;  // clusters a (row, key head)
constexpr int AH = GT;                 // heads of a CTA
constexpr int AU = 64;                 // warps of a cluster
constexpr int LT = AU * H2;            // warps that share a long sequence
constexpr int SHORTL = AU * 16;        // tokens that one cluster holds, a tile a warp
constexpr int APPR = AH * 8;           // output pairs a rank finishes: 16 dims of every head
constexpr int APAIRS = AH * 64;
constexpr int VROW = 272;              // bytes from value row to value row in shared memory: 17 pieces
constexpr int VTILE = 16 * VROW;       // values of 16 tokens, or a warp's partial: 8 heads of 136 floats
constexpr int VBYTES = 8 * VTILE;      // a value slot of every warp (float32: query, later warp partials)
constexpr int KTILE = 16 * 256;        // keys of 16 tokens, the halves of odd rows' 128-byte lines swapped
constexpr int RING = 2 * VBYTES + 8 * KTILE;

__device__ __forceinline__ int ldi(const int* p) {
    int r;
    asm volatile("ld.global.nc.s32 %0, [%1];\n" : "=r"(r) : "l"(p));
    return r;
}
// table entry of a tile; past the table its last entry, which is then not followed
__device__ __forceinline__ int page_of(const int* tab, int tile, int cols) {
    const int col = tile * 16 / BS;
    return ldi(tab + (col < cols ? col : cols - 1));
}
// 16 bytes written by earlier steps, zeros where not ok
__device__ __forceinline__ void ld_early(unsigned int (&r)[4], const void* p, bool ok) {
    r[0] = 0u; r[1] = 0u; r[2] = 0u; r[3] = 0u;
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %5, 0;\n\t"
        "@pp ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
        "}\n"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
        : "l"(p), "r"((unsigned int)ok));
}
// the query, written by the kernel in front; the warps of a CTA read the same lines and share them in L1
__device__ __forceinline__ void ld_query(unsigned int (&r)[4], const void* p, bool ok) {
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
// 16 bytes that the kernel in front wrote, from L2, over what is there, where ok
__device__ __forceinline__ void ld_over(unsigned int (&r)[4], const void* p, bool ok) {
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %5, 0;\n\t"
        "@pp ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
        "}\n"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
        : "l"(p), "r"((unsigned int)ok) : "memory");
}
__device__ __forceinline__ unsigned int ld_u16(const void* p, bool ok) {
    unsigned int r = 0u;
    asm volatile(
        "{\n\t"
        ".reg .pred pp;\n\t"
        "setp.ne.u32 pp, %2, 0;\n\t"
        "@pp ld.global.cg.u16 %0, [%1];\n\t"
        "}\n"
        : "+r"(r) : "l"(p), "r"((unsigned int)ok) : "memory");
    return r;
}
// brings lines to L2 only: nothing is read, so the kernel in front may still write them there
__device__ __forceinline__ void to_l2(const void* p, unsigned int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" :: "l"(p), "r"(bytes) : "memory");
}
__device__ __forceinline__ float max8(const float4& a, const float4& b) {
    return fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
}
__device__ __forceinline__ float sum8(const float4& a, const float4& b) {
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}
// 16 bytes to a peer, counted by the peer's barrier
__device__ __forceinline__ void push4(unsigned int addr, float a, float b, float c, float d, unsigned int bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];\n"
                 :: "r"(addr), "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(__float_as_uint(c)),
                    "r"(__float_as_uint(d)), "r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_wait(unsigned int bar, unsigned int parity) {
    unsigned int done = 0u;
    do {
        asm volatile(
            "{\n\t"
            ".reg .pred pp;\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 pp, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, pp;\n\t"
            "}\n"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (done == 0u);
}

// keys of 16 tokens: lane (g, t4) holds token g and token g + 8, every fourth 16-byte piece
template <class TT>
__device__ __forceinline__ void load_k(unsigned int (&kf)[2][4][4], const TT* kc, int page, int tile, int lim, int kvh,
                                       int g, int t4) {
    const TT* p = kc + ((size_t)page * BS + (size_t)((tile * 16) % BS + g)) * RS + (size_t)(kvh * D + t4 * 8);
    const int j = tile * 16 + g;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) ld_early(kf[n][c], p + (size_t)(n * 8) * RS + c * 32, j + n * 8 < lim);
}
// the newest token's key takes its place, by the warp that owns its tile, after the wait
template <class TT>
__device__ __forceinline__ void patch_k(unsigned int (&kf)[2][4][4], const TT* kn, int lim, int g, int t4) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) ld_over(kf[n][c], kn + c * 32 + t4 * 8, n * 8 + g == (lim & 15));
}
// values of 16 tokens to shared memory, whole rows by neighbouring lanes, zeros from the newest token on
template <class TT>
__device__ __forceinline__ void request_v(unsigned int dst, const TT* vc, int page, int tile, int lim, int kvh, int lane) {
    const int r0 = lane >> 4, c = lane & 15;
    const TT* p = vc + ((size_t)page * BS + (size_t)((tile * 16) % BS + r0)) * RS + (size_t)(kvh * D + c * 8);
    const int j = tile * 16 + r0;
    const unsigned int d = dst + (unsigned int)(r0 * VROW + c * 16);
#pragma unroll
    for (int it = 0; it < 8; ++it) {
        const bool ok = j + 2 * it < lim;
        const TT* src = p + (size_t)(2 * it) * RS;
        if (!ok) src = vc;
        cp16(d + (unsigned int)(2 * it * VROW), src, ok);
    }
}

// keys of 16 tokens to shared memory, whole rows by neighbouring lanes, zeros from lim on
template <class TT>
__device__ __forceinline__ void request_k(unsigned int dst, const TT* kc, int page, int tile, int lim, int kvh, int lane) {
    const int r0 = lane >> 4, c = lane & 15;
    const TT* p = kc + ((size_t)page * BS + (size_t)((tile * 16) % BS + r0)) * RS + (size_t)(kvh * D + c * 8);
    const int j = tile * 16 + r0;
    const unsigned int d = dst + (unsigned int)(r0 * 256 + ((c ^ (r0 << 2)) << 4));
#pragma unroll
    for (int it = 0; it < 8; ++it) {
        const bool ok = j + 2 * it < lim;
        const TT* src = p + (size_t)(2 * it) * RS;
        if (!ok) src = kc;
        cp16(d + (unsigned int)(it * 512), src, ok);
    }
}
__device__ __forceinline__ void lds16(unsigned int (&r)[4], unsigned int addr) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

// two values to the other cluster through L2; each travels in one 8-byte word with its flag
__device__ __forceinline__ void st_flagged(void* p, float a, float b) {
    const unsigned long long x = (1ull << 32) | (unsigned long long)__float_as_uint(a);
    const unsigned long long y = (1ull << 32) | (unsigned long long)__float_as_uint(b);
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};\n" :: "l"(p), "l"(x), "l"(y) : "memory");
}
__device__ __forceinline__ void st_zero(void* p) {
    const unsigned long long z = 0ull;
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};\n" :: "l"(p), "l"(z), "l"(z) : "memory");
}
__device__ __forceinline__ void ld_words(unsigned long long& x, unsigned long long& y, const void* p) {
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];\n" : "=l"(x), "=l"(y) : "l"(p) : "memory");
}
__device__ __forceinline__ float low_float(unsigned long long x) {
    return __uint_as_float((unsigned int)(x & 0xffffffffull));
}

// at most a tile a warp: scores by tokens, then values by dims, so that no partial outputs meet inside the CTA
template <class TT>
__device__ __forceinline__ void short_path(unsigned int (&kf)[2][4][4], const TT* qrow, const TT* kc, const TT* vc,
                                           const int* tab, int L, float sf, int kvh, int rank, unsigned int vsm,
                                           unsigned char* pbuf, float4* recv, float* sm_m, float* sm_l, void* barp) {
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3;
    const unsigned int full = 0xffffffffu;
    const int lim = L - 1;                          // the newest token
    const int ntile = (L + 15) >> 4;
    const int lw = ((ntile - 1) >> 3) & 7;          // warp, CTA of the newest token's tile
    const bool lastcta = ((ntile - 1) & 7) == rank;
    const bool owner = lastcta && lw == warp;
    int pagel = 0;
    if (lastcta) pagel = ldi(tab + lim / BS);
    const size_t noff = ((size_t)pagel * BS + (size_t)(lim % BS)) * RS + (size_t)(kvh * D);
    const TT* kn = kc + noff;
    const TT* vn = vc + noff;
    if (owner && lane < 2) to_l2(lane == 0 ? kn : vn, (unsigned int)(D * 2));

    const unsigned int prec = peer(recv + rank * APPR, warp);
    const unsigned int pbar = peer(barp, warp);
    const unsigned int va = vsm + (unsigned int)(((lane & 7) + (lane >> 4) * 8) * VROW + ((lane >> 3) & 1) * 16 + warp * 32);
    const unsigned int pa0 = (unsigned int)__cvta_generic_to_shared(pbuf) + (unsigned int)(lane * 16);
    const int unit = warp * 8 + rank;

    __syncwarp();
    // all CTAs of the cluster run and their barriers are ready
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");

    unsigned int qf[4][4];
    {
        const TT* qp = qrow + (g < AH ? g : 0) * D + t4 * 8;
#pragma unroll
        for (int c = 0; c < 4; ++c) ld_query(qf[c], qp + c * 32, g < AH);
    }
    const unsigned int vlo = ld_u16(vn + warp * 16 + g, lastcta);
    const unsigned int vhi = ld_u16(vn + warp * 16 + g + 8, lastcta);
    if (owner) patch_k<TT>(kf, kn, lim, g, t4);

    // values of all the CTA's tokens, 16 dims a warp, while the query travels
    cp_wait<0>();
    __syncthreads();
    unsigned int vf[8][4];
#pragma unroll
    for (int k = 0; k < 8; ++k) ldsm_t(vf[k], va + (unsigned int)(k * 16 * VROW));

    // scores: rows are tokens g and g + 8, columns heads
    float s[4][4];
#pragma unroll
    for (int c = 0; c < 4; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[c][i] = 0.f;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const unsigned int a[4] = {kf[0][c][0], kf[1][c][0], kf[0][c][1], kf[1][c][1]};
        mma<TT>(s[c], a, qf[c][0], qf[c][1]);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const unsigned int a[4] = {kf[0][c][2], kf[1][c][2], kf[0][c][3], kf[1][c][3]};
        mma<TT>(s[c], a, qf[c][2], qf[c][3]);
    }
    const int j0 = unit * 16 + g;
    const bool ok0 = j0 < L, ok1 = j0 + 8 < L;
    const float x00 = ok0 ? ((s[0][0] + s[1][0]) + (s[2][0] + s[3][0])) * sf : ninf();
    const float x01 = ok0 ? ((s[0][1] + s[1][1]) + (s[2][1] + s[3][1])) * sf : ninf();
    const float x10 = ok1 ? ((s[0][2] + s[1][2]) + (s[2][2] + s[3][2])) * sf : ninf();
    const float x11 = ok1 ? ((s[0][3] + s[1][3]) + (s[2][3] + s[3][3])) * sf : ninf();
    float n0 = fmaxf(x00, x10), n1 = fmaxf(x01, x11);
#pragma unroll
    for (int o = 4; o < 32; o <<= 1) {
        n0 = fmaxf(n0, __shfl_xor_sync(full, n0, o));
        n1 = fmaxf(n1, __shfl_xor_sync(full, n1, o));
    }
    if (g == 0) {
        sm_m[t4 * 20 + warp] = n0;
        sm_m[t4 * 20 + 8 + warp] = n1;
    }
    __syncthreads();

    // one maximum a head for the whole CTA
    {
        const float4* mp = reinterpret_cast<const float4*>(sm_m + t4 * 20);
        const float4 a = mp[0], b = mp[1], c = mp[2], d = mp[3];
        n0 = max8(a, b);
        n1 = max8(c, d);
    }
    const float u0 = n0 == ninf() ? 0.f : n0;
    const float u1 = n1 == ninf() ? 0.f : n1;
    const unsigned int b0 = pack2<TT>(ex(x00 - u0), ex(x01 - u1));
    const unsigned int b1 = pack2<TT>(ex(x10 - u0), ex(x11 - u1));
    *reinterpret_cast<unsigned int*>(pbuf + warp * 256 + lane * 4) = b0;
    *reinterpret_cast<unsigned int*>(pbuf + warp * 256 + 128 + lane * 4) = b1;
    float l0, l1;
    {
        const float2 pa = unpack2<TT>(b0), pb = unpack2<TT>(b1);
        l0 = pa.x + pb.x;
        l1 = pa.y + pb.y;
    }
    if (2 * t4 < AH) {
        sm_l[t4 * 200 + g * 12 + warp] = l0;
        sm_l[t4 * 200 + 96 + g * 12 + warp] = l1;
    }
    __syncthreads();

    // values: rows are the warp's 16 dims, columns heads
    unsigned int pf[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) ldsm_t(pf[i], pa0 + (unsigned int)(i * 512));
    float o[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][e] = 0.f;
#pragma unroll
    for (int i = 0; i < 4; ++i) mma<TT>(o[i], vf[2 * i], pf[i][0], pf[i][1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) mma<TT>(o[i], vf[2 * i + 1], pf[i][2], pf[i][3]);
    float acc[4];                                   // (dim g, heads 2 t4, 2 t4 + 1), (dim g + 8, the same heads)
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[e] = (o[0][e] + o[1][e]) + (o[2][e] + o[3][e]);

    // sums over the CTA's tokens, in a fixed order
    {
        const float4* lp = reinterpret_cast<const float4*>(sm_l + t4 * 200 + g * 12);
        const float4 a = lp[0], b = lp[1];
        const float4* lq = reinterpret_cast<const float4*>(sm_l + t4 * 200 + 96 + g * 12);
        const float4 c = lq[0], d = lq[1];
        l0 = sum8(a, b);
        l1 = sum8(c, d);
#pragma unroll
        for (int x = 4; x < 32; x <<= 1) {
            l0 += __shfl_xor_sync(full, l0, x);
            l1 += __shfl_xor_sync(full, l1, x);
        }
    }
    // the newest token's value, whose row in shared memory is zero
    if (lastcta) {
        const unsigned int pp =
            *reinterpret_cast<const unsigned int*>(pbuf + lw * 256 + (lim & 15) * 16 + t4 * 4);
        const float2 p = unpack2<TT>(pp), v = unpack2<TT>(vlo | (vhi << 16));
        acc[0] = fmaf(p.x, v.x, acc[0]);
        acc[1] = fmaf(p.y, v.x, acc[1]);
        acc[2] = fmaf(p.x, v.y, acc[2]);
        acc[3] = fmaf(p.y, v.y, acc[3]);
    }
    // this warp's dims go to the rank of the same number
    if (2 * t4 < AH) push4(prec + (unsigned int)((2 * t4 * 8 + g) * 16), acc[0], acc[2], n0, l0, pbar);
    if (2 * t4 + 1 < AH) push4(prec + (unsigned int)(((2 * t4 + 1) * 8 + g) * 16), acc[1], acc[3], n1, l1, pbar);
}

// online softmax of 16 tokens: weights as matrix operand (token pair, head), rescaled accumulators
template <class TT>
__device__ __forceinline__ void weigh(const float (&sa)[4], const float (&sb)[4], int tile, int L, float sf, int g, int t4,
                                      float& m0, float& m1, float& l0, float& l1, float (&acc)[8][4],
                                      unsigned int& b0, unsigned int& b1) {
    const unsigned int full = 0xffffffffu;
    const int j0 = tile * 16 + g;
    const bool ok0 = j0 < L, ok1 = j0 + 8 < L;
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
    b0 = __byte_perm(y0, y1, sel);
    b1 = __byte_perm(y2, y3, sel);
#pragma unroll
    for (int v = 0; v < 8; ++v) {
        acc[v][0] *= f0;
        acc[v][1] *= f1;
        acc[v][2] *= f0;
        acc[v][3] *= f1;
    }
}

template <class TT>
__device__ __forceinline__ void add_values(float (&acc)[8][4], unsigned int va, unsigned int b0, unsigned int b1) {
#pragma unroll
    for (int v = 0; v < 8; ++v) {
        unsigned int a[4];
        ldsm_t(a, va + (unsigned int)(v * 32));
        mma<TT>(acc[v], a, b0, b1);
    }
}

// more than a tile a warp: every warp streams its tiles, even ones with keys in registers, odd ones all in shared memory
template <class TT>
__device__ __forceinline__ void long_path(unsigned int (&kf)[2][4][4], const TT* qrow, const TT* kc, const TT* vc,
                                          const int* tab, int cols, int page1, int L, float sf, int unit, int kvh,
                                          int rank, unsigned char* vbuf, float4* recv, float* fm, float* fl, void* barp) {
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3;
    const unsigned int full = 0xffffffffu;
    const int lim = L - 1;                          // the newest token
    const int ntile = (L + 15) >> 4;
    const int cnt = unit < ntile ? (ntile - 1 - unit) / LT + 1 : 0;
    const bool owner = (ntile - 1) % LT == unit;    // of the newest token's tile, which is its last one
    int pg2 = page_of(tab, unit + 2 * LT, cols);
    int pg3 = page_of(tab, unit + 3 * LT, cols);
    int pagel = 0;
    if (owner) pagel = ldi(tab + lim / BS);

    const unsigned int vsm = (unsigned int)__cvta_generic_to_shared(vbuf);
    const unsigned int vs0 = vsm + (unsigned int)(warp * VTILE);
    const unsigned int vs1 = vs0 + (unsigned int)VBYTES;
    const unsigned int ks = vsm + (unsigned int)(2 * VBYTES + warp * KTILE);
    if (cnt > 1) {
        request_k<TT>(ks, kc, page1, unit + LT, lim, kvh, lane);
        request_v<TT>(vs1, vc, page1, unit + LT, lim, kvh, lane);
    }
    cp_commit();
    // what finds no room on chip yet: the next tile comes to L2
    if (cnt > 2) {
        const int tile2 = unit + 2 * LT, r = lane & 15;
        if (tile2 * 16 + r < L) {
            const TT* base = lane < 16 ? kc : vc;
            to_l2(base + ((size_t)pg2 * BS + (size_t)((tile2 * 16) % BS + r)) * RS + (size_t)(kvh * D), (unsigned int)(D * 2));
        }
    }
    const size_t noff = ((size_t)pagel * BS + (size_t)(lim % BS)) * RS + (size_t)(kvh * D);
    const TT* kn = kc + noff;
    const TT* vn = vc + noff;
    if (owner && lane < 2) to_l2(lane == 0 ? kn : vn, (unsigned int)(D * 2));

    const unsigned int vofs = (unsigned int)(((lane & 7) + (lane >> 4) * 8) * VROW + ((lane >> 3) & 1) * 16);
    const unsigned int sw = (unsigned int)((g & 1) * 64);
    const unsigned int kb0 = ks + (unsigned int)(g * 256 + t4 * 16) + sw;
    const unsigned int kb1 = ks + (unsigned int)(g * 256 + t4 * 16) + (64u - sw);

    __syncwarp();
    // all CTAs of the cluster run and their barriers are ready
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");

    unsigned int qf[4][4];
    {
        const TT* qp = qrow + (g < AH ? g : 0) * D + t4 * 8;
#pragma unroll
        for (int c = 0; c < 4; ++c) ld_query(qf[c], qp + c * 32, g < AH);
    }
    // the newest token, where its tile was requested before the wait
    if (owner && cnt <= 2) {
        const int nr = lim & 15;
        if (cnt == 1) patch_k<TT>(kf, kn, lim, g, t4);
        cp_wait<0>();
        __syncwarp();
        if (lane < 16) {
            cp16((cnt == 1 ? vs0 : vs1) + (unsigned int)(nr * VROW + lane * 16), vn + lane * 8, true);
        } else if (cnt == 2) {
            const int c = lane - 16;
            cp16(ks + (unsigned int)(nr * 256 + ((c ^ ((nr & 1) << 2)) << 4)), kn + c * 8, true);
        }
    }
    cp_commit();

    float m0 = ninf(), m1 = ninf(), l0 = 0.f, l1 = 0.f;
    float acc[8][4];
#pragma unroll
    for (int v = 0; v < 8; ++v)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[v][e] = 0.f;

    // commit groups after the first wait in ring order: V(i+2), K(i+3), V(i+3); two younger ones may be pending at each use
#pragma unroll 1
    for (int i = 0; i < cnt; i += 2) {
        const int tile = unit + i * LT;
        const bool more2 = i + 2 < cnt, more3 = i + 3 < cnt;
        int np2 = 0, np3 = 0;
        if (i + 4 < cnt) {
            np2 = page_of(tab, tile + 4 * LT, cols);
            np3 = page_of(tab, tile + 5 * LT, cols);
        }
        unsigned int b0, b1;
        {
            float sa[4] = {0.f, 0.f, 0.f, 0.f}, sb[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const unsigned int a[4] = {kf[0][c][0], kf[1][c][0], kf[0][c][1], kf[1][c][1]};
                const unsigned int b[4] = {kf[0][c][2], kf[1][c][2], kf[0][c][3], kf[1][c][3]};
                mma<TT>(sa, a, qf[c][0], qf[c][1]);
                mma<TT>(sb, b, qf[c][2], qf[c][3]);
            }
            if (more2) {
                load_k<TT>(kf, kc, pg2, tile + 2 * LT, lim, kvh, g, t4);
                if (owner && i + 3 == cnt) patch_k<TT>(kf, kn, lim, g, t4);
            }
            weigh<TT>(sa, sb, tile, L, sf, g, t4, m0, m1, l0, l1, acc, b0, b1);
        }
        if (i == 0) cp_wait<0>();
        else cp_wait<2>();
        __syncwarp();
        add_values<TT>(acc, vs0 + vofs, b0, b1);
        __syncwarp();
        if (more2) request_v<TT>(vs0, vc, pg2, tile + 2 * LT, L, kvh, lane);
        cp_commit();

        if (i + 1 < cnt) {
            cp_wait<2>();
            __syncwarp();
            {
                float sa[4] = {0.f, 0.f, 0.f, 0.f}, sb[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    unsigned int x[4], y[4];
                    const unsigned int ka = ((c & 1) ? kb1 : kb0) + (unsigned int)((c >> 1) * 128);
                    lds16(x, ka);
                    lds16(y, ka + 2048u);
                    const unsigned int a[4] = {x[0], y[0], x[1], y[1]};
                    const unsigned int b[4] = {x[2], y[2], x[3], y[3]};
                    mma<TT>(sa, a, qf[c][0], qf[c][1]);
                    mma<TT>(sb, b, qf[c][2], qf[c][3]);
                }
                __syncwarp();
                if (more3) request_k<TT>(ks, kc, pg3, tile + 3 * LT, L, kvh, lane);
                cp_commit();
                weigh<TT>(sa, sb, tile + LT, L, sf, g, t4, m0, m1, l0, l1, acc, b0, b1);
            }
            cp_wait<2>();
            __syncwarp();
            add_values<TT>(acc, vs1 + vofs, b0, b1);
            __syncwarp();
            if (more3) request_v<TT>(vs1, vc, pg3, tile + 3 * LT, L, kvh, lane);
            cp_commit();
        }
        pg2 = np2;
        pg3 = np3;
    }
    cp_wait<0>();
    __syncwarp();

#pragma unroll
    for (int o = 4; o < 32; o <<= 1) {
        l0 += __shfl_xor_sync(full, l0, o);
        l1 += __shfl_xor_sync(full, l1, o);
    }
    if (g == 0) {
        fm[(2 * t4) * 8 + warp] = m0;
        fm[(2 * t4 + 1) * 8 + warp] = m1;
        fl[(2 * t4) * 8 + warp] = l0;
        fl[(2 * t4 + 1) * 8 + warp] = l1;
    }
    // the partial takes the place of this warp's first value slot
    const float* part = reinterpret_cast<const float*>(vbuf);
    float* mine = reinterpret_cast<float*>(vbuf + warp * VTILE);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int h = 2 * t4 + e;
        if (h < AH) {
            float* dst = mine + h * 136 + g;
#pragma unroll
            for (int v = 0; v < 8; ++v) {
                dst[v * 16] = acc[v][e];
                dst[v * 16 + 8] = acc[v][2 + e];
            }
        }
    }
    __syncthreads();
    // warps in index order; 16 dims of every head go to each rank
    for (int p = tid; p < APAIRS; p += 256) {
        const int dst = p / APPR, i = p - dst * APPR, h = i >> 3;
        const float* src = part + h * 136 + dst * 16 + (i & 7);
        const float4* mp = reinterpret_cast<const float4*>(fm + h * 8);
        const float4* lp = reinterpret_cast<const float4*>(fl + h * 8);
        const float4 ma = mp[0], mb = mp[1], la = lp[0], lb = lp[1];
        const float mw[8] = {ma.x, ma.y, ma.z, ma.w, mb.x, mb.y, mb.z, mb.w};
        const float lw[8] = {la.x, la.y, la.z, la.w, lb.x, lb.y, lb.z, lb.w};
        const float M = max8(ma, mb);
        float ax = 0.f, ay = 0.f, ls = 0.f;
#pragma unroll
        for (int w = 0; w < 8; ++w) {
            const float c = mw[w] == ninf() ? 0.f : ex(mw[w] - M);
            ax = fmaf(c, src[w * (VTILE / 4)], ax);
            ay = fmaf(c, src[w * (VTILE / 4) + 8], ay);
            ls = fmaf(c, lw[w], ls);
        }
        push4(peer(recv + rank * APPR + i, dst), ax, ay, M, ls, peer(barp, dst));
    }
}

template <class TT>
__device__ __forceinline__ void attend(const TT* q, const TT* kc, const TT* vc, const int* bt, const int* sl, TT* out,
                                       float scale, int cols, unsigned char* sm, unsigned char* ws) {
    unsigned char* vbuf = sm;                                        // RING: two value slots and a key slot of every warp
    float4* recv = reinterpret_cast<float4*>(sm + RING);             // [8 ranks][APPR], written by the ranks
    float* sm_m = reinterpret_cast<float*>(recv + 8 * APPR);         // [4 head pairs, stride 20][2][8 warps] maxima
    float* sm_l = sm_m + 80;                                         // [4, stride 200][2][8, stride 12][8 warps] sums
    void* barp = sm_l + 800;

    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = lane & 3;
    const unsigned int full = 0xffffffffu;
    const int rank = (int)blockIdx.x, row = (int)blockIdx.z;
    const int half = H2 == 2 ? (int)blockIdx.y / HKV : 0;            // which cluster of the sequence
    const int kvh = H2 == 2 ? (int)blockIdx.y % HKV : (int)blockIdx.y;
    const unsigned int bar = (unsigned int)__cvta_generic_to_shared(barp);

    const int* tab = bt + (size_t)row * cols;
    const int unit = half * AU + warp * 8 + rank;
    const int L = ldi(sl + row);
    const int page = page_of(tab, unit, cols);
    const int page1 = page_of(tab, unit + LT, cols);

    if (warp == 0) {
        if (lane == 0) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" :: "r"(bar), "r"(1) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                         :: "r"(bar), "r"(8 * APPR * 16) : "memory");
        }
        __syncwarp();
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    } else {
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }

    const bool longer = sizeof(TT) == 2 && L > SHORTL;
    if constexpr (H2 == 2) {
        // a short sequence needs one cluster only
        if (half == 1) {
            if (!longer) {
                asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
                return;
            }
        }
    }

    const TT* qrow = q + ((size_t)row * num_heads + (size_t)kvh * G) * D;
    const float sf = score_factor(scale);

    if constexpr (sizeof(TT) == 2) {
        // keys and values of earlier tokens, before the dependent wait
        const unsigned int vsm = (unsigned int)__cvta_generic_to_shared(vbuf);
        unsigned int kf[2][4][4];
        load_k<TT>(kf, kc, page, unit, L - 1, kvh, g, t4);
        request_v<TT>(vsm + (unsigned int)(warp * VTILE), vc, page, unit, L - 1, kvh, lane);
        cp_commit();
        if (rank == 0 && tid == 32) to_l2(qrow, (unsigned int)(AH * D * 2));
        if (!longer) {
            short_path<TT>(kf, qrow, kc, vc, tab, L, sf, kvh, rank, vsm, vbuf + VBYTES, recv, sm_m, sm_l, barp);
        } else {
            long_path<TT>(kf, qrow, kc, vc, tab, cols, page1, L, sf, unit, kvh, rank, vbuf, recv, sm_l, sm_l + 64, barp);
        }
    } else {
        // float32 storage: one token a warp at a time on the ordinary cores, after the wait
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        asm volatile("griddepcontrol.wait;" ::: "memory");
        const TT* qp = opaque(qrow);
        const TT* kp = opaque(kc);
        const TT* vp = opaque(vc);
        float* qs = reinterpret_cast<float*>(vbuf);        // the query, then the partials of the warps
        float* part = qs;
        float* fm = sm_l;                                  // [8 heads][8 warps]
        float* fl = sm_l + 64;                             // [8 heads][8 warps]
        for (int i = tid; i < AH * 128; i += 256) qs[i] = to_f(qp[i]);
        __syncthreads();
        float m[AH], l[AH], acc[AH][4];
#pragma unroll
        for (int h = 0; h < AH; ++h) {
            m[h] = ninf();
            l[h] = 0.f;
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[h][e] = 0.f;
        }
        for (int j = unit; j < L; j += AU) {
            const int pg = ldi(tab + j / BS);
            const size_t base = ((size_t)pg * BS + (size_t)(j % BS)) * RS + (size_t)(kvh * D + lane);
            float kf[4], vf[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                kf[e] = to_f(kp[base + e * 32]);
                vf[e] = to_f(vp[base + e * 32]);
            }
#pragma unroll
            for (int h = 0; h < AH; ++h) {
                float s = 0.f;
#pragma unroll
                for (int e = 0; e < 4; ++e) s = fmaf(kf[e], qs[h * 128 + e * 32 + lane], s);
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
                for (int e = 0; e < 4; ++e) acc[h][e] = fmaf(p, vf[e], acc[h][e] * f);
            }
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < AH; ++h) {
            if (lane == 0) {
                fm[h * 8 + warp] = m[h];
                fl[h * 8 + warp] = l[h];
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) part[(warp * AH + h) * 128 + e * 32 + lane] = acc[h][e];
        }
        __syncthreads();
        for (int p = tid; p < APAIRS; p += 256) {
            const int dst = p / APPR, i = p - dst * APPR, h = i >> 3;
            const float* src = part + h * 128 + dst * 16 + (i & 7);
            float M = ninf();
#pragma unroll
            for (int w = 0; w < 8; ++w) M = fmaxf(M, fm[h * 8 + w]);
            float ax = 0.f, ay = 0.f, ls = 0.f;
#pragma unroll
            for (int w = 0; w < 8; ++w) {
                const float mw = fm[h * 8 + w];
                const float c = mw == ninf() ? 0.f : ex(mw - M);
                ax = fmaf(c, src[w * AH * 128], ax);
                ay = fmaf(c, src[w * AH * 128 + 8], ay);
                ls = fmaf(c, fl[h * 8 + w], ls);
            }
            push4(peer(recv + rank * APPR + i, dst), ax, ay, M, ls, peer(barp, dst));
        }
    }

    // ranks in index order; this CTA finishes 16 dims of every head
    if (warp * 32 < APPR) {
        mbar_wait(bar, 0u);
        if (tid < APPR) {
            float4 v[8];
#pragma unroll
            for (int s = 0; s < 8; ++s) v[s] = recv[s * APPR + tid];
            float M = fmaxf(fmaxf(fmaxf(v[0].z, v[1].z), fmaxf(v[2].z, v[3].z)),
                            fmaxf(fmaxf(v[4].z, v[5].z), fmaxf(v[6].z, v[7].z)));
            float ax = 0.f, ay = 0.f, l = 0.f;
#pragma unroll
            for (int s = 0; s < 8; ++s) {
                const float c = v[s].z == ninf() ? 0.f : ex(v[s].z - M);
                ax = fmaf(c, v[s].x, ax);
                ay = fmaf(c, v[s].y, ay);
                l = fmaf(c, v[s].w, l);
            }
            if constexpr (H2 == 2 && sizeof(TT) == 2) {
                if (longer) {
                    // the first cluster hands its part to the second, which was launched after it, so that waiting is safe
                    unsigned char* w0 = ws + ((size_t)((row * HKV + kvh) * 8 + rank) * (size_t)(2 * APPR) + (size_t)tid) * 16;
                    unsigned char* w1 = w0 + APPR * 16;
                    if (half == 0) {
                        st_flagged(w0, ax, ay);
                        st_flagged(w1, M, l);
                        return;
                    }
                    unsigned long long pa, pb, pc, pd;
                    do {
                        ld_words(pa, pb, w0);
                        ld_words(pc, pd, w1);
                    } while ((pa >> 32) != 1ull || (pb >> 32) != 1ull || (pc >> 32) != 1ull || (pd >> 32) != 1ull);
                    st_zero(w0);
                    st_zero(w1);
                    const float bm = low_float(pc);
                    const float N = fmaxf(bm, M);
                    const float c0 = bm == ninf() ? 0.f : ex(bm - N);
                    const float c1 = M == ninf() ? 0.f : ex(M - N);
                    ax = fmaf(c1, ax, c0 * low_float(pa));
                    ay = fmaf(c1, ay, c0 * low_float(pb));
                    l = fmaf(c1, l, c0 * low_float(pd));
                }
            }
            TT* dst = out + ((size_t)row * num_heads + (size_t)(kvh * G + (tid >> 3))) * D + rank * 16 + (tid & 7);
            if constexpr (sizeof(TT) == 2) {
                const unsigned int y = pack2<TT>(__fdividef(ax, l), __fdividef(ay, l));
                unsigned short* d16 = reinterpret_cast<unsigned short*>(dst);
                d16[0] = (unsigned short)(y & 0xffffu);
                d16[8] = (unsigned short)(y >> 16);
            } else {
                dst[0] = ax / l;
                dst[8] = ay / l;
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
    using namespace pda;
    extern __shared__ __align__(16) float smem[];
    float* part = smem;                       // rings of the warps, later their partials [NW][PSTR]
    float* recv = part + MAINF;               // [S][SL] pairs, written by the other splits
    float* sm_m = recv + RECVF;               // [NW][8]
    float* sm_l = sm_m + NW * 8;              // [NW][8]
    float* rm = sm_l + NW * 8;                // [S][8], written by the other splits
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
        partials_fast<T>(qp, kp, vp, tab, sl, max_blocks_per_seq, scale, row, kvh, ht, rank, part, sm_m, sm_l, qs);
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
            const float2 x = *reinterpret_cast<const float2*>(part + w * PSTR + h * HS + 2 * dp);
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

extern "C" __global__ void __launch_bounds__(256, 2) paged_decode_attention_regs(
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
    extern __shared__ __align__(16) float smem[];
    if constexpr (pda::REGP) {
        pda::attend<T>(q, k_cache, v_cache, block_table, seq_lens, out, scale, max_blocks_per_seq,
                       reinterpret_cast<unsigned char*>(smem), reinterpret_cast<unsigned char*>(workspace));
    }
}
