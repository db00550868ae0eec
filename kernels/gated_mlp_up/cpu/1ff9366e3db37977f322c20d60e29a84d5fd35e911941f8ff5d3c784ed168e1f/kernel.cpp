// Contract: gated_mlp_up version 1. out = round_T(silu(x @ Wg^T) * (x @ Wu^T)), sums in float32.
// Idea: each thread owns one contiguous range of outputs and walks two gate rows and two up rows a pass
// against one widened load of x; while a pass runs, the next pass's rows are prefetched in flat address order,
// so memory sees two sequential streams a thread. SiLU runs on eight outputs at once, each output stored once.
// Bound by: memory bandwidth (weights are read once) at few tokens.

namespace gmu {

constexpr size_t H = (size_t)hidden_size;
constexpr size_t I = (size_t)intermediate_size;
constexpr bool small_work = (size_t)2 * H * I * (size_t)num_tokens < (size_t)65536;

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

constexpr bool is_bf = std::is_same_v<T, bfloat16>;
constexpr bool is_f32 = std::is_same_v<T, float>;

#if defined(__AVX512F__)
typedef __m512 V;
constexpr int C = 32;      // elements a chunk: two vectors of float32
constexpr int NTB = 4;     // tokens a block
static inline V vzero() { return _mm512_setzero_ps(); }
static inline V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V vadd(V a, V b) { return _mm512_add_ps(a, b); }

static inline void split16(__m512i v, V& a, V& b) {
    if constexpr (is_bf) {
        a = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        b = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
    } else {
        a = _mm512_cvtph_ps(_mm512_castsi512_si256(v));
        b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1));
    }
}
static inline void load2(const T* p, V& a, V& b) {
    if constexpr (is_f32) {
        a = _mm512_loadu_ps((const void*)p);
        b = _mm512_loadu_ps((const void*)(p + 16));
    } else {
        split16(_mm512_loadu_si512((const void*)p), a, b);
    }
}
constexpr int TAIL = (int)(H % (size_t)C);
static inline void load2_tail(const T* p, V& a, V& b) {
    if constexpr (is_f32) {
        constexpr int lo = TAIL < 16 ? TAIL : 16;
        constexpr int hi = TAIL - lo;
        a = _mm512_maskz_loadu_ps((__mmask16)((1u << lo) - 1u), (const void*)p);
        if constexpr (hi > 0)
            b = _mm512_maskz_loadu_ps((__mmask16)((1u << hi) - 1u), (const void*)(p + 16));
        else
            b = _mm512_setzero_ps();
    } else {
        constexpr unsigned m = (1u << (TAIL / 2)) - 1u;
        split16(_mm512_maskz_loadu_epi32((__mmask16)m, (const void*)p), a, b);
    }
}
// Four sums, one a lane of the result, in a fixed tree.
static inline __m128 reduce4(V a, V b, V c, V d) {
    V t0 = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    V t1 = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d p0 = _mm512_castps_pd(t0), p1 = _mm512_castps_pd(t1);
    V s = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(p0, p1)),
                        _mm512_castpd_ps(_mm512_unpackhi_pd(p0, p1)));
    __m256 lo = _mm512_castps512_ps256(s);
    __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(s), 1));
    __m256 q = _mm256_add_ps(lo, hi);
    return _mm_add_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1));
}
#else
typedef __m256 V;
constexpr int C = 16;
constexpr int NTB = 2;
static inline V vzero() { return _mm256_setzero_ps(); }
static inline V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
static inline V vadd(V a, V b) { return _mm256_add_ps(a, b); }

static inline void split16(__m256i v, V& a, V& b) {
    if constexpr (is_bf) {
        a = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        b = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
    } else {
        a = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
        b = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
    }
}
static inline void load2(const T* p, V& a, V& b) {
    if constexpr (is_f32) {
        a = _mm256_loadu_ps((const float*)p);
        b = _mm256_loadu_ps((const float*)(p + 8));
    } else {
        split16(_mm256_loadu_si256((const __m256i*)p), a, b);
    }
}
constexpr int TAIL = (int)(H % (size_t)C);   // 0 or 8
static inline void load2_tail(const T* p, V& a, V& b) {
    if constexpr (is_f32) {
        a = _mm256_loadu_ps((const float*)p);
        b = _mm256_setzero_ps();
    } else {
        __m128i v = _mm_loadu_si128((const __m128i*)p);
        split16(_mm256_inserti128_si256(_mm256_setzero_si256(), v, 0), a, b);
    }
}
static inline __m128 reduce4(V a, V b, V c, V d) {
    V t0 = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    V t1 = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    __m256d p0 = _mm256_castps_pd(t0), p1 = _mm256_castps_pd(t1);
    V s = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(p0, p1)),
                        _mm256_castpd_ps(_mm256_unpackhi_pd(p0, p1)));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
#endif

constexpr size_t NC = H / (size_t)C;
constexpr size_t CB = (size_t)C * sizeof(T);      // bytes a chunk of one row
constexpr int PL = (int)(2 * CB / 64);            // lines to prefetch a chunk and stream

// Two gate rows (g, g + H) and two up rows (u, u + H) against NT tokens.
// buf: [token][16], gates in 0..7, ups in 8..15; dst points at this pass's first gate slot.
template <int NT, bool PF>
static inline __attribute__((always_inline)) void pass(const T* x, const T* g, const T* u,
                                                       const T* gn, const T* un, float* dst) {
    constexpr int A = NT == 1 ? 2 : 1;
    const T* g1 = g + H;
    const T* u1 = u + H;
    V acc[NT][4][A];
#pragma GCC unroll 8
    for (int t = 0; t < NT; ++t) {
#pragma GCC unroll 8
        for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 2
            for (int k = 0; k < A; ++k) acc[t][r][k] = vzero();
        }
    }
    const char* pg = (const char*)gn;
    const char* pu = (const char*)un;
    for (size_t c = 0; c < NC; ++c) {
        const size_t o = c * (size_t)C;
        if constexpr (PF) {
#pragma GCC unroll 8
            for (int l = 0; l < PL; ++l) {
                _mm_prefetch(pg + c * 2 * CB + (size_t)l * 64, _MM_HINT_T0);
                _mm_prefetch(pu + c * 2 * CB + (size_t)l * 64, _MM_HINT_T0);
            }
        }
        V w0[4], w1[4];
        load2(g + o, w0[0], w1[0]);
        load2(g1 + o, w0[1], w1[1]);
        load2(u + o, w0[2], w1[2]);
        load2(u1 + o, w0[3], w1[3]);
#pragma GCC unroll 8
        for (int t = 0; t < NT; ++t) {
            V a, b;
            load2(x + (size_t)t * H + o, a, b);
#pragma GCC unroll 8
            for (int r = 0; r < 4; ++r) {
                acc[t][r][0] = vfma(w0[r], a, acc[t][r][0]);
                acc[t][r][A - 1] = vfma(w1[r], b, acc[t][r][A - 1]);
            }
        }
    }
    if constexpr (TAIL != 0) {
        constexpr size_t o = NC * (size_t)C;
        V w0[4], w1[4];
        load2_tail(g + o, w0[0], w1[0]);
        load2_tail(g1 + o, w0[1], w1[1]);
        load2_tail(u + o, w0[2], w1[2]);
        load2_tail(u1 + o, w0[3], w1[3]);
#pragma GCC unroll 8
        for (int t = 0; t < NT; ++t) {
            V a, b;
            load2_tail(x + (size_t)t * H + o, a, b);
#pragma GCC unroll 8
            for (int r = 0; r < 4; ++r) {
                acc[t][r][0] = vfma(w0[r], a, acc[t][r][0]);
                acc[t][r][A - 1] = vfma(w1[r], b, acc[t][r][A - 1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < NT; ++t) {
        V s[4];
#pragma GCC unroll 8
        for (int r = 0; r < 4; ++r) {
            if constexpr (A == 2) s[r] = vadd(acc[t][r][0], acc[t][r][A - 1]);
            else s[r] = acc[t][r][0];
        }
        __m128 q = reduce4(s[0], s[1], s[2], s[3]);
        _mm_storel_pi((__m64*)(dst + t * 16), q);
        _mm_storeh_pi((__m64*)(dst + t * 16 + 8), q);
    }
}

// silu(g) * u on eight values.
static inline __m256 silu_mul(__m256 g, __m256 u) {
    __m256 t = _mm256_sub_ps(_mm256_setzero_ps(), g);
    // A NaN stays: min and max return the second operand when one is NaN.
    t = _mm256_max_ps(_mm256_set1_ps(-104.0f), t);
    t = _mm256_min_ps(_mm256_set1_ps(104.0f), t);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(t, _mm256_set1_ps(1.44269504088896341f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), t);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    __m256i ni = _mm256_cvtps_epi32(n);
    __m256i n1 = _mm256_srai_epi32(ni, 1);
    __m256i n2 = _mm256_sub_epi32(ni, n1);
    const __m256i bias = _mm256_set1_epi32(127);
    __m256 s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n1, bias), 23));
    __m256 s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n2, bias), 23));
    __m256 e = _mm256_mul_ps(_mm256_mul_ps(p, s1), s2);   // overflows to infinity as it should
    __m256 s = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
    return _mm256_mul_ps(s, u);
}

static inline void store8(T* p, __m256 v) {
    if constexpr (is_f32) {
        _mm256_storeu_ps((float*)p, v);
    } else if constexpr (is_bf) {
        __m256i b = _mm256_castps_si256(v);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
        __m256i q = _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        q = _mm256_srli_epi32(q, 16);
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        q = _mm256_blendv_epi8(q, _mm256_set1_epi32(0x7fc0), nan);
        __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
        _mm_storeu_si128((__m128i*)p, h);
    } else {
        __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i*)p, h);
    }
}

static void range(const T* x, const T* w, T* out, size_t lo, size_t hi) {
    constexpr int FB = num_tokens < NTB ? num_tokens : NTB;     // first block, with prefetch
    constexpr int REM = num_tokens > NTB ? num_tokens % NTB : 0;
    alignas(64) float buf[(size_t)num_tokens * 16];
    for (size_t i = 0; i < (size_t)num_tokens * 16; ++i) buf[i] = 0.0f;
    size_t j0 = lo;
    while (j0 < hi) {
        size_t j1 = (j0 / 8 + 1) * 8;
        if (j1 > hi) j1 = hi;
        for (size_t j = j0; j < j1; j += 2) {
            const T* g = w + j * H;
            const T* u = w + (j + I) * H;
            const bool more = j + 2 < hi;
            const T* gn = more ? g + 2 * H : g;
            const T* un = more ? u + 2 * H : u;
            float* dst = buf + (j - j0);
            pass<FB, true>(x, g, u, gn, un, dst);
            if constexpr (num_tokens > NTB) {
                int t = NTB;
                for (; t + NTB <= num_tokens; t += NTB)
                    pass<NTB, false>(x + (size_t)t * H, g, u, g, u, dst + (size_t)t * 16);
                if constexpr (REM != 0)
                    pass<(REM != 0 ? REM : 1), false>(x + (size_t)t * H, g, u, g, u, dst + (size_t)t * 16);
            }
        }
        const size_t n = j1 - j0;
        for (int t = 0; t < num_tokens; ++t) {
            const float* b = buf + (size_t)t * 16;
            __m256 v = silu_mul(_mm256_load_ps(b), _mm256_load_ps(b + 8));
            T* o = out + (size_t)t * I + j0;
            if (n == 8) {
                store8(o, v);
            } else {
                alignas(32) T tmp[8];
                store8(tmp, v);
                for (size_t i = 0; i < n; ++i) o[i] = tmp[i];
            }
        }
        j0 = j1;
    }
}

#else  // plain loops

static inline float dot(const T* a, const T* b) {
    float acc[8];
    for (int l = 0; l < 8; ++l) acc[l] = 0.0f;
    for (size_t k = 0; k < H; k += 8)
        for (int l = 0; l < 8; ++l) acc[l] += to_float(a[k + l]) * to_float(b[k + l]);
    return ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7]));
}

static void range(const T* x, const T* w, T* out, size_t lo, size_t hi) {
    for (size_t j = lo; j < hi; ++j) {
        for (int t = 0; t < num_tokens; ++t) {
            float g = dot(x + (size_t)t * H, w + j * H);
            float u = dot(x + (size_t)t * H, w + (j + I) * H);
            float s = g / (1.0f + std::exp(-g));
            out[(size_t)t * I + j] = from_float<T>(s * u);
        }
    }
}

#endif

}  // namespace gmu

extern "C" void gated_mlp_up_cpu(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
    (void)workspace;
    if constexpr (gmu::small_work) {
        gmu::range(x, w_gate_up, out, 0, gmu::I);
    } else {
#pragma omp parallel
        {
            const size_t nt = (size_t)omp_get_num_threads();
            const size_t id = (size_t)omp_get_thread_num();
            const size_t pairs = gmu::I / 2;
            const size_t lo = pairs * id / nt * 2;
            const size_t hi = pairs * (id + 1) / nt * 2;
            if (lo < hi) gmu::range(x, w_gate_up, out, lo, hi);
        }
    }
}
