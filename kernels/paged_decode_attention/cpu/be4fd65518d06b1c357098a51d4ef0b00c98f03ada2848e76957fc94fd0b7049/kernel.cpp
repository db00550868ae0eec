// Contract: paged_decode_attention version 1 (CPU, x86_64; AVX-512, AVX2 or plain C++).
// Idea: a unit is (sequence, token split, kv head with its whole group); a thread owns a run of units that covers
//       neighbouring heads of the same tokens, so it reads whole pages. Tiles of 64 tokens: scores, one rescale,
//       values; the key pass prefetches the values, the value pass prefetches the next tile's keys. Merge in order.
// Bound: the read of the key and value cache from memory.

namespace pd {

#if defined(__AVX512F__)
typedef __m512 V;
constexpr int W = 16, HBM = 4, NACC = 16;
static inline V vzero() { return _mm512_setzero_ps(); }
static inline V vset(float x) { return _mm512_set1_ps(x); }
static inline V vld(const float* p) { return _mm512_loadu_ps(p); }
static inline void vst(float* p, V a) { _mm512_storeu_ps(p, a); }
static inline V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V vadd(V a, V b) { return _mm512_add_ps(a, b); }
static inline V vsub(V a, V b) { return _mm512_sub_ps(a, b); }
static inline V vmul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V vdiv(V a, V b) { return _mm512_div_ps(a, b); }
static inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }
static inline float vhmax(V a) { return _mm512_reduce_max_ps(a); }
static inline float vhsum(V a) { return _mm512_reduce_add_ps(a); }
static inline __m256 fold(V a) {
    const __m256 lo = _mm512_castps512_ps256(a);
    const __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
    return _mm256_add_ps(lo, hi);
}
static inline void hsum4(V a, V b, V c, V d, float scale, float* o) {
    const __m256 ab = _mm256_hadd_ps(fold(a), fold(b));
    const __m256 cd = _mm256_hadd_ps(fold(c), fold(d));
    const __m256 x = _mm256_hadd_ps(ab, cd);
    const __m128 r = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    _mm_storeu_ps(o, _mm_mul_ps(r, _mm_set1_ps(scale)));
}
static inline V vexp(V x) {
    x = _mm512_max_ps(_mm512_set1_ps(-110.0f), x);  // second operand is returned for NaN
    const V n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 8);
    V r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    V y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(y, _mm512_mul_ps(r, r), r);
    y = _mm512_add_ps(y, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}
template <class X>
static inline V vldx(const X* p, bool tail) {
    if constexpr (std::is_same_v<X, float>) {
        if (tail) return _mm512_maskz_loadu_ps((__mmask16)0xff, (const void*)p);
        return _mm512_loadu_ps((const void*)p);
    } else {
        __m256i h;
        if (tail)
            h = _mm256_inserti128_si256(_mm256_setzero_si256(), _mm_loadu_si128((const __m128i*)p), 0);
        else
            h = _mm256_loadu_si256((const __m256i*)p);
        if constexpr (std::is_same_v<X, bfloat16>)
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        else
            return _mm512_cvtph_ps(h);
    }
}
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
typedef __m256 V;
constexpr int W = 8, HBM = 2, NACC = 8;
static inline V vzero() { return _mm256_setzero_ps(); }
static inline V vset(float x) { return _mm256_set1_ps(x); }
static inline V vld(const float* p) { return _mm256_loadu_ps(p); }
static inline void vst(float* p, V a) { _mm256_storeu_ps(p, a); }
static inline V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
static inline V vadd(V a, V b) { return _mm256_add_ps(a, b); }
static inline V vsub(V a, V b) { return _mm256_sub_ps(a, b); }
static inline V vmul(V a, V b) { return _mm256_mul_ps(a, b); }
static inline V vdiv(V a, V b) { return _mm256_div_ps(a, b); }
static inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }
static inline float vhmax(V a) {
    float t[8];
    _mm256_storeu_ps(t, a);
    float m = t[0];
    for (int i = 1; i < 8; ++i) m = t[i] > m ? t[i] : m;
    return m;
}
static inline float vhsum(V a) {
    float t[8];
    _mm256_storeu_ps(t, a);
    return ((t[0] + t[4]) + (t[1] + t[5])) + ((t[2] + t[6]) + (t[3] + t[7]));
}
static inline void hsum4(V a, V b, V c, V d, float scale, float* o) {
    const __m256 x = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    const __m128 r = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    _mm_storeu_ps(o, _mm_mul_ps(r, _mm_set1_ps(scale)));
}
static inline V vexp(V x) {
    x = _mm256_max_ps(_mm256_set1_ps(-110.0f), x);
    const V n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)), 8);
    V r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    V y = _mm256_set1_ps(1.9875691500e-4f);
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
    y = _mm256_fmadd_ps(y, _mm256_mul_ps(r, r), r);
    y = _mm256_add_ps(y, _mm256_set1_ps(1.0f));
    const __m256i ni = _mm256_cvtps_epi32(n);
    const __m256i n1 = _mm256_srai_epi32(ni, 1);
    const __m256i n2 = _mm256_sub_epi32(ni, n1);
    const __m256i bias = _mm256_set1_epi32(127);
    const V s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n1, bias), 23));
    const V s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n2, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(y, s1), s2);
}
template <class X>
static inline V vldx(const X* p, bool) {
    if constexpr (std::is_same_v<X, float>)
        return _mm256_loadu_ps((const float*)p);
    else if constexpr (std::is_same_v<X, bfloat16>)
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
    else
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
}
#else
typedef float V;
constexpr int W = 1, HBM = 2, NACC = 8;
static inline V vzero() { return 0.0f; }
static inline V vset(float x) { return x; }
static inline V vld(const float* p) { return *p; }
static inline void vst(float* p, V a) { *p = a; }
static inline V vfma(V a, V b, V c) { return a * b + c; }
static inline V vadd(V a, V b) { return a + b; }
static inline V vsub(V a, V b) { return a - b; }
static inline V vmul(V a, V b) { return a * b; }
static inline V vdiv(V a, V b) { return a / b; }
static inline V vmax(V a, V b) { return a > b ? a : b; }
static inline float vhmax(V a) { return a; }
static inline float vhsum(V a) { return a; }
static inline void hsum4(V a, V b, V c, V d, float scale, float* o) {
    o[0] = a * scale; o[1] = b * scale; o[2] = c * scale; o[3] = d * scale;
}
static inline V vexp(V x) { return std::exp(x); }
template <class X>
static inline V vldx(const X* p, bool) { return to_float(*p); }
#endif

constexpr int H = num_heads, G = num_kv_heads, REP = num_heads / num_kv_heads;
constexpr int HD = head_dim, BS = block_size;
constexpr int NV = (HD + W - 1) / W, HDP = NV * W;
constexpr bool HAS_TAIL = (HD % W) != 0;
constexpr int TB = 64;                                   // tokens of a tile
constexpr int PS = ((HD + 15) / 16) * 16 + 16;           // floats of a partial
constexpr int MAXS = (256 / num_tokens) > 1 ? (256 / num_tokens) : 1;  // splits of a sequence at most
constexpr int64_t RS = (int64_t)G * HD;                  // elements of a token row

static inline V ldrow(const T* p, int d) { return vldx<T>(p + d * W, HAS_TAIL && d == NV - 1); }

static inline void pfrow(const T* p) {
    const char* c = (const char*)p;
    constexpr int bytes = HD * (int)sizeof(T);
#pragma GCC unroll 8
    for (int b = 0; b < bytes; b += 64) __builtin_prefetch(c + b, 0, 3);
}

struct Tile {
    int t, g, s, ns, j0, n;
    bool first, last;
    const int64_t* off;
};

struct State {
    alignas(64) float qf[REP * HDP];
    alignas(64) float acc[REP * HDP];
    alignas(64) float S[REP * TB];
    float m[REP];
    float l[REP];
};

template <int HB>
static inline __attribute__((always_inline)) void kphase(const float* qf, const T* kb, const int64_t* off, int n,
                                                         float* S, float scale, const T* vb, bool pf) {
    for (int i = 0; i < n; i += 4) {
        const T* k0 = kb + off[i];
        const T* k1 = kb + off[i + 1];
        const T* k2 = kb + off[i + 2];
        const T* k3 = kb + off[i + 3];
        if (pf) {
            pfrow(vb + off[i]);
            pfrow(vb + off[i + 1]);
            pfrow(vb + off[i + 2]);
            pfrow(vb + off[i + 3]);
        }
        V a0[HB], a1[HB], a2[HB], a3[HB];
#pragma GCC unroll 4
        for (int h = 0; h < HB; ++h) a0[h] = a1[h] = a2[h] = a3[h] = vzero();
#pragma GCC unroll 8
        for (int d = 0; d < NV; ++d) {
            const V x0 = ldrow(k0, d), x1 = ldrow(k1, d), x2 = ldrow(k2, d), x3 = ldrow(k3, d);
#pragma GCC unroll 4
            for (int h = 0; h < HB; ++h) {
                const V q = vld(qf + h * HDP + d * W);
                a0[h] = vfma(q, x0, a0[h]);
                a1[h] = vfma(q, x1, a1[h]);
                a2[h] = vfma(q, x2, a2[h]);
                a3[h] = vfma(q, x3, a3[h]);
            }
        }
#pragma GCC unroll 4
        for (int h = 0; h < HB; ++h) hsum4(a0[h], a1[h], a2[h], a3[h], scale, S + h * TB + i);
    }
}

template <int HB, int DN>
static inline __attribute__((always_inline)) void vchunk(const float* S, const T* vb, const int64_t* off, int n,
                                                         float* acc, int d0, const T* nk, const int64_t* noff,
                                                         int nn) {
    V a[HB][DN];
#pragma GCC unroll 4
    for (int h = 0; h < HB; ++h) {
#pragma GCC unroll 16
        for (int d = 0; d < DN; ++d) a[h][d] = vld(acc + h * HDP + (d0 + d) * W);
    }
    for (int i = 0; i < n; ++i) {
        const T* v = vb + off[i];
        if (i < nn) pfrow(nk + noff[i]);
        V p[HB];
#pragma GCC unroll 4
        for (int h = 0; h < HB; ++h) p[h] = vset(S[h * TB + i]);
#pragma GCC unroll 16
        for (int d = 0; d < DN; ++d) {
            const V x = ldrow(v, d0 + d);
#pragma GCC unroll 4
            for (int h = 0; h < HB; ++h) a[h][d] = vfma(p[h], x, a[h][d]);
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < HB; ++h) {
#pragma GCC unroll 16
        for (int d = 0; d < DN; ++d) vst(acc + h * HDP + (d0 + d) * W, a[h][d]);
    }
}

template <int HB>
static inline __attribute__((always_inline)) void vphase(const float* S, const T* vb, const int64_t* off, int n,
                                                         float* acc, const T* nk, const int64_t* noff, int nn) {
    constexpr int DC = NACC / HB;
    constexpr int FULL = NV / DC, REM = NV % DC;
    for (int c = 0; c < FULL; ++c) {
        vchunk<HB, DC>(S, vb, off, n, acc, c * DC, nk, noff, nn);
        nn = 0;
    }
    if constexpr (REM > 0) vchunk<HB, REM>(S, vb, off, n, acc, FULL * DC, nk, noff, nn);
}

static inline void store_row(T* o, const float* acc, float l) {
    alignas(64) float tmp[HDP];
    const V lv = vset(l);
    for (int d = 0; d < NV; ++d) vst(tmp + d * W, vdiv(vld(acc + d * W), lv));
    for (int e = 0; e < HD; ++e) o[e] = from_float<T>(tmp[e]);
}

static void process(State& st, const Tile& c, const Tile* nx, const T* q, const T* kc, const T* vc, T* out,
                    float scale, float* ws) {
    const int n = c.n;
    const int64_t* off = c.off;
    const T* kb = kc + (int64_t)c.g * HD;
    const T* vb = vc + (int64_t)c.g * HD;
    constexpr int RB = (REP / HBM) * HBM, RR = REP % HBM;

    if (c.first) {
        const T* qp = q + ((int64_t)c.t * H + (int64_t)c.g * REP) * HD;
        for (int h = 0; h < REP; ++h) {
            for (int d = 0; d < NV; ++d) {
                vst(st.qf + h * HDP + d * W, ldrow(qp + (int64_t)h * HD, d));
                vst(st.acc + h * HDP + d * W, vzero());
            }
            st.m[h] = -INFINITY;
            st.l[h] = 0.0f;
        }
    }

    for (int h = 0; h < RB; h += HBM)
        kphase<HBM>(st.qf + h * HDP, kb, off, n, st.S + h * TB, scale, vb, h == 0);
    if constexpr (RR > 0) kphase<RR>(st.qf + RB * HDP, kb, off, n, st.S + RB * TB, scale, vb, RB == 0);

    const int np = (n + 15) / 16 * 16;
    for (int h = 0; h < REP; ++h) {
        float* S = st.S + h * TB;
        for (int i = n; i < np; ++i) S[i] = -INFINITY;
        V mv = vld(S);
        for (int i = W; i < np; i += W) mv = vmax(mv, vld(S + i));
        const float mo = st.m[h];
        const float tm = vhmax(mv);
        const float mn = tm > mo ? tm : mo;
        const float mr = (mn == -INFINITY) ? 0.0f : mn;
        const V mrv = vset(mr);
        V sv = vzero();
        for (int i = 0; i < np; i += W) {
            const V p = vexp(vsub(vld(S + i), mrv));
            vst(S + i, p);
            sv = vadd(sv, p);
        }
        const float ts = vhsum(sv);
        if (c.first) {
            st.l[h] = ts;
        } else {
            const V cv = vexp(vset(mo - mr));
            alignas(64) float cb[W];
            vst(cb, cv);
            st.l[h] = st.l[h] * cb[0] + ts;
            if (mn != mo) {
                float* a = st.acc + h * HDP;
                for (int d = 0; d < NV; ++d) vst(a + d * W, vmul(vld(a + d * W), cv));
            }
        }
        st.m[h] = mn;
    }

    const T* nk = kb;
    const int64_t* noff = off;
    int nn = 0;
    if (nx) {
        nk = kc + (int64_t)nx->g * HD;
        noff = nx->off;
        nn = nx->n;
    }
    for (int h = 0; h < RB; h += HBM)
        vphase<HBM>(st.S + h * TB, vb, off, n, st.acc + h * HDP, nk, noff, h == 0 ? nn : 0);
    if constexpr (RR > 0)
        vphase<RR>(st.S + RB * TB, vb, off, n, st.acc + RB * HDP, nk, noff, RB == 0 ? nn : 0);
    for (int i = n; i < nn; ++i) pfrow(nk + noff[i]);

    if (c.last) {
        for (int h = 0; h < REP; ++h) {
            const int64_t head = (int64_t)c.g * REP + h;
            if (c.ns == 1) {
                store_row(out + ((int64_t)c.t * H + head) * HD, st.acc + h * HDP, st.l[h]);
            } else {
                float* w = ws + (((int64_t)c.t * MAXS + c.s) * H + head) * PS;
                w[0] = st.m[h];
                w[1] = st.l[h];
                for (int d = 0; d < NV; ++d) vst(w + 16 + d * W, vld(st.acc + h * HDP + d * W));
            }
        }
    }
}

static inline int seq_begin(int L) {
    if constexpr (sliding_window > 0)
        return L > sliding_window ? L - sliding_window : 0;
    else
        return 0;
}

static inline void fill_off(int64_t* off, const int* bt, int j, int n) {
    int b = j / BS, r = j % BS, i = 0;
    while (i < n) {
        const int64_t base = ((int64_t)bt[b] * BS + r) * RS;
        const int m = std::min(BS - r, n - i);
        for (int k = 0; k < m; ++k) off[i + k] = base + (int64_t)k * RS;
        i += m;
        ++b;
        r = 0;
    }
    for (; i & 3; ++i) off[i] = off[n - 1];
}

static void merge(const float* ws, T* out, int t, int h, int ns) {
    const float* w0 = ws + ((int64_t)t * MAXS * H + h) * PS;
    constexpr int64_t step = (int64_t)H * PS;
    for (int s = 0; s < ns; ++s) {
        const char* c = (const char*)(w0 + s * step);
        for (int b = 0; b < PS * 4; b += 64) __builtin_prefetch(c + b, 0, 3);
    }
    float M = -INFINITY;
    for (int s = 0; s < ns; ++s) {
        const float m = w0[s * step];
        M = m > M ? m : M;
    }
    const float mr = (M == -INFINITY) ? 0.0f : M;
    alignas(64) float acc[HDP];
    for (int d = 0; d < NV; ++d) vst(acc + d * W, vzero());
    float l = 0.0f;
    for (int s = 0; s < ns; ++s) {
        const float* w = w0 + s * step;
        const V e = vexp(vset(w[0] - mr));
        alignas(64) float eb[W];
        vst(eb, e);
        l += eb[0] * w[1];
        for (int d = 0; d < NV; ++d) vst(acc + d * W, vfma(e, vld(w + 16 + d * W), vld(acc + d * W)));
    }
    store_row(out + ((int64_t)t * H + h) * HD, acc, l);
}

}  // namespace pd

extern "C" void paged_decode(
    const T* __restrict__ q,
    const T* __restrict__ k_cache,
    const T* __restrict__ v_cache,
    const int* __restrict__ block_table,
    const int* __restrict__ seq_lens,
    T* __restrict__ out,
    float scale,
    int num_blocks,
    int max_blocks_per_seq,
    void* __restrict__ workspace) {
    using namespace pd;
    (void)num_blocks;
    float* ws = (float*)(((uintptr_t)workspace + 63) & ~(uintptr_t)63);

    int64_t tot = 0;
    int maxlen = 1;
    for (int t = 0; t < num_tokens; ++t) {
        const int L = seq_lens[t];
        const int len = L - seq_begin(L);
        tot += len;
        maxlen = std::max(maxlen, len);
    }

    // One split size for the call, a function of the lengths and of constants alone.
    const int minc = std::max(32, ((maxlen + MAXS - 1) / MAXS + 15) / 16 * 16);
    int csz = 0;
    {
        const int cand[11] = {32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024};
        int64_t best = 0;
        for (int i = 0; i < 11; ++i) {
            const int c = std::max(cand[i], minc);
            int64_t splits = 0;
            if constexpr (num_tokens <= 16) {
                for (int t = 0; t < num_tokens; ++t) {
                    const int L = seq_lens[t];
                    splits += (L - seq_begin(L) + c - 1) / c;
                }
            } else {
                splits = tot / c + num_tokens;
            }
            if (csz && cand[i] > 64 && splits < num_sms) break;
            const int64_t cost = ((splits * G + num_sms - 1) / num_sms) * (c + 8);
            if (!csz || cost <= best) {
                best = cost;
                csz = c;
            }
        }
    }
    const bool any_split = maxlen > csz;
    const int64_t total = tot * G;

#pragma omp parallel if (total * HD > 32768)
    {
        const int tid = omp_get_thread_num();
        const int nthr = omp_get_num_threads();
        const int64_t lo = total * tid / nthr, hi = total * (tid + 1) / nthr;

        State st;
        alignas(64) int64_t offs[2][TB + 8];
        int ob = 0;
        Tile pend;
        pend.t = -1; pend.g = 0; pend.s = 0; pend.ns = 0; pend.j0 = -1; pend.n = 0;
        pend.first = false; pend.last = false; pend.off = offs[0];
        bool have = false;

        int64_t w0 = 0;
        for (int t = 0; t < num_tokens && w0 < hi; ++t) {
            const int L = seq_lens[t];
            const int beg = seq_begin(L);
            const int len = L - beg;
            const int64_t wt = (int64_t)len * G;
            if (w0 + wt > lo) {
                const int* bt = block_table + (int64_t)t * max_blocks_per_seq;
                const int ns = (len + csz - 1) / csz;
                for (int s = 0; s < ns; ++s) {
                    const int a = s * csz, b = std::min(len, a + csz);
                    const int64_t pos = w0 + (int64_t)a * G;
                    if (pos >= hi) break;
                    if (pos + (int64_t)(b - a) * G <= lo) continue;
                    for (int g = 0; g < G; ++g) {
                        const int64_t p = pos + (int64_t)g * (b - a);
                        if (p < lo) continue;
                        if (p >= hi) break;
                        for (int j = a; j < b; j += TB) {
                            Tile nt;
                            nt.t = t; nt.g = g; nt.s = s; nt.ns = ns;
                            nt.j0 = beg + j;
                            nt.n = std::min(TB, b - j);
                            nt.first = (j == a);
                            nt.last = (j + TB >= b);
                            if (have && pend.t == t && pend.j0 == nt.j0 && pend.n == nt.n) {
                                nt.off = pend.off;
                            } else {
                                ob ^= 1;
                                fill_off(offs[ob], bt, nt.j0, nt.n);
                                nt.off = offs[ob];
                            }
                            if (have) {
                                process(st, pend, &nt, q, k_cache, v_cache, out, scale, ws);
                            } else {
                                const T* kb = k_cache + (int64_t)g * HD;
                                for (int i = 0; i < nt.n; ++i) pfrow(kb + nt.off[i]);
                            }
                            pend = nt;
                            have = true;
                        }
                    }
                }
            }
            w0 += wt;
        }
        if (have) process(st, pend, nullptr, q, k_cache, v_cache, out, scale, ws);

        if (any_split) {
#pragma omp barrier
            const int64_t items = (int64_t)num_tokens * H;
            const int64_t i0 = items * tid / nthr, i1 = items * (tid + 1) / nthr;
            for (int64_t i = i0; i < i1; ++i) {
                const int t = (int)(i / H), h = (int)(i % H);
                const int L = seq_lens[t];
                const int ns = (L - seq_begin(L) + csz - 1) / csz;
                if (ns > 1) merge(ws, out, t, h, ns);
            }
        }
    }
}
