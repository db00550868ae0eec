// Contract: encoder_attention v1. out[b,i,h] = softmax_j(scale * q_i.k_j) @ v_j over j < seq_lens[b]; padded rows zero.
// Idea: one team; every thread takes a contiguous run of (sequence, head, query block) items and packs a head's K (transposed)
//       and V (row pairs interleaved) once into its scratch; 4x4-vector register tiles do both products (VDPBF16PS where the
//       machine has it, float32 FMA otherwise); scores of a query block against 128 keys stay in L1; online softmax beyond 128.
// Bound by: vector multiply-add throughput, then by the latency of the cold strided reads, which are prefetched.

#define AI static inline __attribute__((always_inline))

namespace {

constexpr int MR = 4;
constexpr int KB = 128;
constexpr int D = head_dim;
constexpr long RS = 3L * num_heads * head_dim;   // elements between tokens of qkv
constexpr long HS = (long)num_heads * head_dim;  // elements between q, k, v and between tokens of out

#if defined(__AVX512F__)
constexpr int W = 16, NR = 4;
typedef __m512 vf;
AI vf vset(float x) { return _mm512_set1_ps(x); }
AI vf vload(const float* p) { return _mm512_loadu_ps(p); }
AI void vstore(float* p, vf x) { _mm512_storeu_ps(p, x); }
AI vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
AI vf vmaxf(vf a, vf b) { return _mm512_max_ps(a, b); }
AI float vhmax(vf a) { return _mm512_reduce_max_ps(a); }
AI float vhsum(vf a) { return _mm512_reduce_add_ps(a); }
#else
constexpr int W = 8, NR = 2;
typedef float vf __attribute__((vector_size(32)));
typedef int vi __attribute__((vector_size(32)));
AI vf vset(float x) { vf r = {x, x, x, x, x, x, x, x}; return r; }
AI vf vload(const float* p) { vf r; std::memcpy(&r, p, sizeof(r)); return r; }
AI void vstore(float* p, vf x) { std::memcpy(p, &x, sizeof(x)); }
AI vf vfma(vf a, vf b, vf c) { return a * b + c; }
AI vf vmaxf(vf a, vf b) { return (a > b) ? a : b; }
AI float vhmax(vf a) {
    float m = a[0];
    for (int i = 1; i < 8; ++i) m = a[i] > m ? a[i] : m;
    return m;
}
AI float vhsum(vf a) { return ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7])); }
#endif

#if defined(__AVX512F__) && defined(__AVX512BF16__)
constexpr bool DP = std::is_same_v<T, bfloat16>;
#else
constexpr bool DP = false;
#endif
constexpr bool FOLD = !std::is_same_v<T, float>;  // scores in units of log 2

constexpr int NW = W * NR;
constexpr int NDP = (D + NW - 1) / NW;
constexpr int DPAD = NDP * NW;
constexpr int KW = DP ? D / 2 : D;     // words along the head dimension
constexpr int VK = DP ? KB / 2 : KB;   // words along the keys

constexpr long items_of(int qb) { return (long)batch_size * num_heads * ((seq_len + qb - 1) / qb); }
constexpr int QB = seq_len > KB
    ? (items_of(64) >= 4L * num_sms ? 64 : (items_of(32) >= 4L * num_sms ? 32 : 16))
    : ((items_of(16) >= 8L * num_sms || items_of(16) % num_sms == 0) ? 16 : 8);

constexpr long THREAD_BYTES = 1536L * head_dim + 102400L;

// exp (float32) or exp2 (16-bit storage, log2(e) folded into the scale) of x <= 0
AI vf vexp(vf x) {
#if defined(__AVX512F__)
    if constexpr (FOLD) {
        x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);  // second operand comes through when x is NaN
        const vf n = _mm512_roundscale_ps(x, 0x08);
        const vf r = _mm512_sub_ps(x, n);
        vf p;
        if constexpr (std::is_same_v<T, bfloat16>) {
            p = vset(9.618437357674640e-3f);
        } else {
            p = vfma(vset(1.339887440266574e-3f), r, vset(9.618437357674640e-3f));
        }
        p = vfma(p, r, vset(5.550332471162809e-2f));
        p = vfma(p, r, vset(2.402264791363012e-1f));
        p = vfma(p, r, vset(6.931472028550421e-1f));
        p = vfma(p, r, vset(1.0f));
        return _mm512_scalef_ps(p, n);
    } else {
        x = _mm512_max_ps(_mm512_set1_ps(-140.0f), x);
        const vf n = _mm512_roundscale_ps(_mm512_mul_ps(x, vset(1.44269504088896341f)), 0x08);
        vf r = _mm512_fnmadd_ps(n, vset(0.693359375f), x);
        r = _mm512_fnmadd_ps(n, vset(-2.12194440e-4f), r);
        vf p = vfma(vset(1.9875691500e-4f), r, vset(1.3981999507e-3f));
        p = vfma(p, r, vset(8.3334519073e-3f));
        p = vfma(p, r, vset(4.1665795894e-2f));
        p = vfma(p, r, vset(1.6666665459e-1f));
        p = vfma(p, r, vset(5.0000001201e-1f));
        p = vfma(p, _mm512_mul_ps(r, r), r);
        p = _mm512_add_ps(p, vset(1.0f));
        return _mm512_scalef_ps(p, n);
    }
#else
    const vf lo = vset(FOLD ? -125.0f : -86.0f);
    const vi under = x < lo;
    x = under ? lo : x;
    const vf magic = vset(12582912.0f);
    vf t, p;
    if constexpr (FOLD) {
        t = x + magic;
        const vf n = t - magic;
        const vf r = x - n;
        p = vfma(vset(1.339887440266574e-3f), r, vset(9.618437357674640e-3f));
        p = vfma(p, r, vset(5.550332471162809e-2f));
        p = vfma(p, r, vset(2.402264791363012e-1f));
        p = vfma(p, r, vset(6.931472028550421e-1f));
        p = vfma(p, r, vset(1.0f));
    } else {
        t = x * vset(1.44269504088896341f) + magic;
        const vf n = t - magic;
        vf r = x - n * vset(0.693359375f);
        r = r - n * vset(-2.12194440e-4f);
        p = vfma(vset(1.9875691500e-4f), r, vset(1.3981999507e-3f));
        p = vfma(p, r, vset(8.3334519073e-3f));
        p = vfma(p, r, vset(4.1665795894e-2f));
        p = vfma(p, r, vset(1.6666665459e-1f));
        p = vfma(p, r, vset(5.0000001201e-1f));
        p = vfma(p, r * r, r);
        p = p + vset(1.0f);
    }
    vi ti, pi;
    std::memcpy(&ti, &t, sizeof(ti));
    std::memcpy(&pi, &p, sizeof(pi));
    const vi magici = {0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000};
    const vi k = ti - magici;
    const vi shifted = (k * 8388608) + pi;
    vf res;
    std::memcpy(&res, &shifted, sizeof(res));
    const vi isnan_mask = x != x;
    res = isnan_mask ? x : res;
    return under ? vset(0.0f) : res;
#endif
}

// acc[MR][NR] += A (MR rows of K words, broadcast) times B (K rows of NW words)
AI void mm(vf (&acc)[MR][NR], const char* const (&a)[MR], const float* b, int K) {
    const char* a0 = a[0];
    const char* a1 = a[1];
    const char* a2 = a[2];
    const char* a3 = a[3];
    for (int k = 0; k < K; ++k) {
        vf bv[NR];
#pragma GCC unroll 4
        for (int n = 0; n < NR; ++n) bv[n] = vload(b + (long)k * NW + n * W);
        float av[MR];
        std::memcpy(&av[0], a0 + 4L * k, 4);
        std::memcpy(&av[1], a1 + 4L * k, 4);
        std::memcpy(&av[2], a2 + 4L * k, 4);
        std::memcpy(&av[3], a3 + 4L * k, 4);
#pragma GCC unroll 4
        for (int r = 0; r < MR; ++r) {
            const vf x = vset(av[r]);
#pragma GCC unroll 4
            for (int n = 0; n < NR; ++n) {
#if defined(__AVX512F__) && defined(__AVX512BF16__)
                if constexpr (DP)
                    acc[r][n] = _mm512_dpbf16_ps(acc[r][n], (__m512bh)x, (__m512bh)bv[n]);
                else
                    acc[r][n] = vfma(x, bv[n], acc[r][n]);
#else
                acc[r][n] = vfma(x, bv[n], acc[r][n]);
#endif
            }
        }
    }
}

#if defined(__AVX512F__)
AI void transpose16(__m512i (&r)[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
        const __m512i x = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
        const __m512i y = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        const __m512i z = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        const __m512i w = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        t[c] = _mm512_shuffle_i32x4(x, z, 0x88);
        t[8 + c] = _mm512_shuffle_i32x4(x, z, 0xdd);
        t[4 + c] = _mm512_shuffle_i32x4(y, w, 0x88);
        t[12 + c] = _mm512_shuffle_i32x4(y, w, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) r[i] = t[i];
}

AI __m256i load_half(const void* p, bool full) {
    if (full) return _mm256_loadu_si256((const __m256i*)p);
    return _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i*)p));
}

AI vf load16f(const T* p, bool full) {  // 16 elements, or 8 and zeros
    if constexpr (std::is_same_v<T, float>) {
        return _mm512_maskz_loadu_ps(full ? (__mmask16)0xffff : (__mmask16)0x00ff, (const void*)p);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(p, full)), 16));
    } else {
        return _mm512_cvtph_ps(load_half(p, full));
    }
}
#endif

AI void prefetch_row(const T* p) {
    const char* c = (const char*)p;
    for (int o = 0; o < (int)(D * sizeof(T)); o += 64) __builtin_prefetch(c + o, 0, 3);
}

__attribute__((noinline)) void pack_k(float* __restrict__ Kp, const T* k, int nk) {
    const int panels = (nk + NW - 1) / NW;
#if defined(__AVX512F__)
    for (int p = 0; p < panels; ++p) {
        for (int n = 0; n < NR; ++n) {
            const int j0 = p * NW + n * W;
            float* dst = Kp + (long)p * KW * NW + n * W;
            if (j0 >= nk) {
                for (int c = 0; c < KW; ++c) vstore(dst + (long)c * NW, vset(0.0f));
                continue;
            }
            const int nend = std::min(nk, j0 + 2 * W);
            for (int j = j0 + W; j < nend; ++j) prefetch_row(k + (long)j * RS);
            const int rows = std::min(W, nk - j0);
            const T* src = k + (long)j0 * RS;
            for (int c = 0; c < KW; c += 16) {
                const int cn = KW - c < 16 ? KW - c : 16;
                __m512i r[16];
                if (rows == 16) {
#pragma GCC unroll 16
                    for (int i = 0; i < 16; ++i) {
                        if constexpr (DP)
                            r[i] = _mm512_maskz_loadu_epi32((__mmask16)(0xffffu >> (16 - cn)),
                                                            (const char*)(src + (long)i * RS) + 4L * c);
                        else
                            r[i] = _mm512_castps_si512(load16f(src + (long)i * RS + c, cn == 16));
                    }
                } else {
#pragma GCC unroll 16
                    for (int i = 0; i < 16; ++i) {
                        r[i] = _mm512_setzero_si512();
                        if (i < rows) {
                            if constexpr (DP)
                                r[i] = _mm512_maskz_loadu_epi32((__mmask16)(0xffffu >> (16 - cn)),
                                                                (const char*)(src + (long)i * RS) + 4L * c);
                            else
                                r[i] = _mm512_castps_si512(load16f(src + (long)i * RS + c, cn == 16));
                        }
                    }
                }
                transpose16(r);
                float* o = dst + (long)c * NW;
                if (cn == 16) {
#pragma GCC unroll 16
                    for (int i = 0; i < 16; ++i) vstore(o + (long)i * NW, _mm512_castsi512_ps(r[i]));
                } else {
#pragma GCC unroll 16
                    for (int i = 0; i < 16; ++i)
                        if (i < cn) vstore(o + (long)i * NW, _mm512_castsi512_ps(r[i]));
                }
            }
        }
    }
#else
    for (int p = 0; p < panels; ++p) {
        float* dst = Kp + (long)p * KW * NW;
        for (int j = 0; j < NW; ++j) {
            const int jj = p * NW + j;
            if (jj < nk) {
                const T* src = k + (long)jj * RS;
                for (int c = 0; c < D; ++c) dst[(long)c * NW + j] = to_float(src[c]);
            } else {
                for (int c = 0; c < D; ++c) dst[(long)c * NW + j] = 0.0f;
            }
        }
    }
#endif
}

__attribute__((noinline)) void pack_v(float* __restrict__ Vp, const T* v, int nk) {
#if defined(__AVX512F__)
    if constexpr (DP) {
        for (int jp = 0; 2 * jp < nk; ++jp) {
            const T* a = v + (long)(2 * jp) * RS;
            const bool two = 2 * jp + 1 < nk;
            for (int dv = 0; dv < DPAD / 16; ++dv) {
                const int d = dv * 16;
                __m512i x = _mm512_setzero_si512();
                if (d < D) {
                    const bool full = d + 16 <= D;
                    x = _mm512_cvtepu16_epi32(load_half(a + d, full));
                    if (two)
                        x = _mm512_or_si512(
                            x, _mm512_slli_epi32(_mm512_cvtepu16_epi32(load_half(a + RS + d, full)), 16));
                }
                vstore(Vp + ((long)(dv / NR) * VK + jp) * NW + (dv % NR) * W, _mm512_castsi512_ps(x));
            }
        }
    } else {
        for (int j = 0; j < nk; ++j) {
            const T* a = v + (long)j * RS;
            for (int dv = 0; dv < DPAD / 16; ++dv) {
                const int d = dv * 16;
                vf x = vset(0.0f);
                if (d < D) x = load16f(a + d, d + 16 <= D);
                vstore(Vp + ((long)(dv / NR) * VK + j) * NW + (dv % NR) * W, x);
            }
        }
    }
#else
    for (int j = 0; j < nk; ++j) {
        const T* a = v + (long)j * RS;
        for (int p = 0; p < NDP; ++p) {
            float* dst = Vp + ((long)p * VK + j) * NW;
            for (int i = 0; i < NW; ++i) {
                const int d = p * NW + i;
                dst[i] = d < D ? to_float(a[d]) : 0.0f;
            }
        }
    }
#endif
}

AI void write_out(T* o, vf x, int d) {  // elements d .. d+W of a row, as far as the row goes
    if (d >= D) return;
#if defined(__AVX512F__)
    const bool full = d + 16 <= D;
    if constexpr (std::is_same_v<T, float>) {
        _mm512_mask_storeu_ps((void*)(o + d), full ? (__mmask16)0xffff : (__mmask16)0x00ff, x);
    } else {
        __m256i h;
        if constexpr (std::is_same_v<T, bfloat16>) {
            const __m512i u = _mm512_castps_si512(x);
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
            __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
            const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
            r = _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7fc00000));
            h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
        } else {
            h = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        }
        if (full)
            _mm256_storeu_si256((__m256i*)(o + d), h);
        else
            _mm_storeu_si128((__m128i*)(o + d), _mm256_castsi256_si128(h));
    }
#else
    float t[W];
    vstore(t, x);
    for (int i = 0; i < W; ++i) o[d + i] = from_float<T>(t[i]);
#endif
}

// one row: maximum, exponentials, sum. NV > 0: that many vectors, known.
template <int NV>
AI void soft_row(float* s, uint16_t* p, int nv_dyn, bool first, float& m, float& l, float& corr) {
    const int nv = NV > 0 ? NV : nv_dyn;
    vf m0 = vload(s);
    vf m1 = m0;
    if constexpr (NV > 0) {
#pragma GCC unroll 16
        for (int v = 0; v + 1 < NV; v += 2) {
            m0 = vmaxf(m0, vload(s + v * W));
            m1 = vmaxf(m1, vload(s + (v + 1) * W));
        }
    } else {
        for (int v = 1; v < nv; ++v) m0 = vmaxf(m0, vload(s + v * W));
    }
    float mx = vhmax(vmaxf(m0, m1));
    if (!first) {
        mx = mx > m ? mx : m;
        float tmp[W];
        vstore(tmp, vexp(vset(m - mx)));
        corr = tmp[0];
    } else {
        corr = 0.0f;
    }
    const vf mv = vset(mx);
    vf s0 = vset(0.0f), s1 = vset(0.0f);
    auto one = [&](int v) __attribute__((always_inline)) {
        const vf e = vexp(vload(s + v * W) - mv);
#if defined(__AVX512F__) && defined(__AVX512BF16__)
        if constexpr (DP)
            _mm256_storeu_si256((__m256i*)(p + v * W), (__m256i)_mm512_cvtneps_pbh(e));
        else
            vstore(s + v * W, e);
#else
        vstore(s + v * W, e);
#endif
        return e;
    };
    if constexpr (NV > 0) {
#pragma GCC unroll 4
        for (int v = 0; v + 1 < NV; v += 2) {
            s0 = s0 + one(v);
            s1 = s1 + one(v + 1);
        }
    } else {
        for (int v = 0; v < nv; ++v) s0 = s0 + one(v);
    }
    const float sum = vhsum(s0 + s1);
    l = first ? sum : l * corr + sum;
    m = mx;
}

void run_items(const T* __restrict__ qkv, const int* __restrict__ seq_lens, T* __restrict__ out, float scale,
               char* ws, long lo, long hi) {
    float* Kp = (float*)ws;
    float* Vp = Kp + (long)KB * KW;
    float* S = Vp + (long)NDP * VK * NW;
    uint16_t* P = (uint16_t*)(S + (long)QB * KB);
    float* O = (float*)(P + (long)QB * KB);
    float* Qf = O + (long)QB * DPAD;

    constexpr int NQB = (seq_len + QB - 1) / QB;
    constexpr bool DIRECT = DP || std::is_same_v<T, float>;
    const float sc = FOLD ? scale * 1.44269504088896341f : scale;
    long packed = -1;
    float mrow[QB], lrow[QB], corr[QB];

    for (long it = lo; it < hi; ++it) {
        const long bh = it / NQB;
        const int q0 = (int)(it % NQB) * QB;
        const int b = (int)(bh / num_heads), h = (int)(bh % num_heads);
        const int len = std::min(std::max(seq_lens[b], 1), seq_len);
        const int qend = std::min(q0 + QB, seq_len);
        const int nq = std::max(0, std::min(qend, len) - q0);
        T* obase = out + ((long)b * seq_len) * HS + (long)h * D;
        for (int i = q0 + nq; i < qend; ++i) std::memset((void*)(obase + (long)i * HS), 0, D * sizeof(T));
        if (nq == 0) continue;

        const T* qb = qkv + ((long)b * seq_len) * RS + (long)h * D;
        const T* kb = qb + HS;
        const T* vb = kb + HS;
        const bool cached = len <= KB && packed == bh;
        if (!cached) {
            const int n = std::min(len, W);
            for (int j = 0; j < n; ++j) prefetch_row(kb + (long)j * RS);
            for (int i = 0; i < nq; ++i) prefetch_row(qb + (long)(q0 + i) * RS);
        }
        {   // the queries of the next item of this head
            const int e = std::min(q0 + 2 * QB, len);
            for (int i = q0 + QB; i < e; ++i) prefetch_row(qb + (long)i * RS);
        }
        if constexpr (!DIRECT) {
            for (int i = 0; i < nq; ++i) {
                const T* src = qb + (long)(q0 + i) * RS;
                for (int d = 0; d < D; ++d) Qf[(long)i * D + d] = to_float(src[d]);
            }
        }
        const int groups = (nq + MR - 1) / MR;

        for (int t0 = 0; t0 < len; t0 += KB) {
            const int nk = std::min(KB, len - t0);
            const bool first = t0 == 0, last = t0 + KB >= len;
            const T* kt = kb + (long)t0 * RS;
            const T* vt = vb + (long)t0 * RS;
            if (!cached) pack_k(Kp, kt, nk);

            // scores
            const int panels = (nk + NW - 1) / NW;
            const int calls = panels * groups;
            const int pstep = (nk + calls - 1) / calls;
            int pf = 0;
            for (int p = 0; p < panels; ++p) {
                for (int g = 0; g < groups; ++g) {
                    if (!cached) {
                        const int pe = std::min(nk, pf + pstep);
                        for (; pf < pe; ++pf) prefetch_row(vt + (long)pf * RS);
                    }
                    const char* a[MR];
                    for (int r = 0; r < MR; ++r) {
                        const int i = std::min(g * MR + r, nq - 1);
                        if constexpr (DIRECT)
                            a[r] = (const char*)(qb + (long)(q0 + i) * RS);
                        else
                            a[r] = (const char*)(Qf + (long)i * D);
                    }
                    vf acc[MR][NR];
#pragma GCC unroll 4
                    for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
                        for (int n = 0; n < NR; ++n) acc[r][n] = vset(0.0f);
                    mm(acc, a, Kp + (long)p * KW * NW, KW);
                    const vf scv = vset(sc);
                    float* s = S + (long)g * MR * KB + p * NW;
#pragma GCC unroll 4
                    for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
                        for (int n = 0; n < NR; ++n) vstore(s + r * KB + n * W, acc[r][n] * scv);
                }
            }

            // softmax
            const int nv = (nk + W - 1) / W;
            if (nk == KB) {
                for (int i = 0; i < nq; ++i)
                    soft_row<KB / W>(S + (long)i * KB, P + (long)i * KB, nv, first, mrow[i], lrow[i], corr[i]);
            } else {
                for (int i = 0; i < nq; ++i) {
                    float* s = S + (long)i * KB;
                    for (int j = nk; j < nv * W; ++j) s[j] = -INFINITY;
                    soft_row<0>(s, P + (long)i * KB, nv, first, mrow[i], lrow[i], corr[i]);
                }
            }

            // values
            if (!cached) {
                pack_v(Vp, vt, nk);
                packed = len <= KB ? bh : -1;
            }
            const int kw = DP ? (nk + 1) / 2 : nk;
            for (int p = 0; p < NDP; ++p) {
                for (int g = 0; g < groups; ++g) {
                    const char* a[MR];
                    for (int r = 0; r < MR; ++r) {
                        const int i = std::min(g * MR + r, nq - 1);
                        if constexpr (DP)
                            a[r] = (const char*)(P + (long)i * KB);
                        else
                            a[r] = (const char*)(S + (long)i * KB);
                    }
                    vf acc[MR][NR];
#pragma GCC unroll 4
                    for (int r = 0; r < MR; ++r)
#pragma GCC unroll 4
                        for (int n = 0; n < NR; ++n) acc[r][n] = vset(0.0f);
                    mm(acc, a, Vp + (long)p * VK * NW, kw);
#pragma GCC unroll 4
                    for (int r = 0; r < MR; ++r) {
                        const int i = g * MR + r;
                        if (i < nq) {
                            float* o = O + (long)i * DPAD + p * NW;
                            if (!first) {
                                const vf c = vset(corr[i]);
#pragma GCC unroll 4
                                for (int n = 0; n < NR; ++n) acc[r][n] = vfma(vload(o + n * W), c, acc[r][n]);
                            }
                            if (last) {
                                T* dst = obase + (long)(q0 + i) * HS;
                                if constexpr (std::is_same_v<T, float>) {
                                    const vf lv = vset(lrow[i]);
#pragma GCC unroll 4
                                    for (int n = 0; n < NR; ++n) write_out(dst, acc[r][n] / lv, p * NW + n * W);
                                } else {
                                    const vf iv = vset(1.0f / lrow[i]);
#pragma GCC unroll 4
                                    for (int n = 0; n < NR; ++n) write_out(dst, acc[r][n] * iv, p * NW + n * W);
                                }
                            } else {
#pragma GCC unroll 4
                                for (int n = 0; n < NR; ++n) vstore(o + n * W, acc[r][n]);
                            }
                        }
                    }
                }
            }
        }
    }
}

}  // namespace

extern "C" void encoder_attention_cpu(
    const T* __restrict__ qkv,
    const int* __restrict__ seq_lens,
    T* __restrict__ out,
    float scale,
    void* __restrict__ workspace) {
    char* base = (char*)(((uintptr_t)workspace + 63) & ~(uintptr_t)63);
    constexpr long items = items_of(QB);
#pragma omp parallel
    {
        const int nt = std::min(omp_get_num_threads(), (int)num_sms);
        const int t = omp_get_thread_num();
        if (t < nt) {
            const long lo = items * t / nt;
            const long hi = items * (t + 1) / nt;
            if (lo < hi) run_items(qkv, seq_lens, out, scale, base + (long)t * THREAD_BYTES, lo, hi);
        }
    }
}
