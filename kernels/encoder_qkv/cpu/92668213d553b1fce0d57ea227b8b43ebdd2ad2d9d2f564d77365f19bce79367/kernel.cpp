// Contract: encoder_qkv v1. h = LayerNorm(x) or x; qkv = round_T(h @ w_qkv^T + b_qkv), float32 accumulation.
// Idea: 16 tokens sit in the 16 lanes of a vector; the normalised rows are packed k-major once, every weight
//       (pair) is broadcast straight from its row, so no horizontal sums; with few rows each thread packs its own
//       panel (no barrier) while its first weights are already prefetched; weight rows are split over the threads.
// Bound: memory traffic of w_qkv at few rows, else one multiply-add per broadcast load.

#if defined(__AVX512F__) && defined(__AVX512BF16__)
#define QKV_HAVE_DP 1
#else
#define QKV_HAVE_DP 0
#endif

namespace eq {

constexpr int K = hidden_size;
constexpr int N = 3 * num_heads * head_dim;
constexpr int G = (num_tokens + 15) / 16;
constexpr int NB = N / 8;
constexpr bool IS_BF = std::is_same_v<T, bfloat16>;
constexpr bool IS_F32 = std::is_same_v<T, float>;
constexpr bool USE_DP = IS_BF && (QKV_HAVE_DP != 0);
constexpr size_t PANEL = (size_t)16 * K * (USE_DP ? 2 : 4);   // bytes of one group of 16 tokens
constexpr bool PRIVATE = (G == 1) && (K <= 4096);
constexpr size_t PD = 49152;                                  // prefetch distance in bytes

struct Pf {
    const char* p;
    const char* end;
    inline void some(int n) {
        for (int i = 0; i < n && p < end; ++i, p += 64) __builtin_prefetch(p, 0, 2);
    }
};

#if defined(__AVX512F__)

static inline __m512 load16(const T* p) {
    if constexpr (IS_F32) {
        return _mm512_loadu_ps(reinterpret_cast<const float*>(p));
    } else if constexpr (IS_BF) {
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
    } else {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
}
static inline __m512 load8(const T* p) {
    if constexpr (IS_F32) {
        return _mm512_maskz_loadu_ps((__mmask16)0x00FF, reinterpret_cast<const float*>(p));
    } else {
        __m256i v = _mm256_inserti128_si256(_mm256_setzero_si256(),
                                            _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), 0);
        if constexpr (IS_BF)
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
        else
            return _mm512_cvtph_ps(v);
    }
}
template <int NK>
static inline __m512 loadn(const T* p) {
    if constexpr (NK >= 16) return load16(p);
    else if constexpr (NK == 8) return load8(p);
    else return _mm512_setzero_ps();
}

static inline void row_stats(const T* row, float eps, float& mean_out, float& rstd_out) {
    __m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    int k = 0;
    for (; k + 64 <= K; k += 64) {
        s0 = _mm512_add_ps(s0, load16(row + k));
        s1 = _mm512_add_ps(s1, load16(row + k + 16));
        s2 = _mm512_add_ps(s2, load16(row + k + 32));
        s3 = _mm512_add_ps(s3, load16(row + k + 48));
    }
    for (; k + 16 <= K; k += 16) s0 = _mm512_add_ps(s0, load16(row + k));
    if (k < K) s1 = _mm512_add_ps(s1, load8(row + k));
    const float m0 = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3))) / (float)K;
    const __m512 m = _mm512_set1_ps(m0);
    __m512 d0 = _mm512_setzero_ps(), d1 = d0, q0 = d0, q1 = d0, q2 = d0, q3 = d0;
    k = 0;
    for (; k + 64 <= K; k += 64) {
        __m512 a = _mm512_sub_ps(load16(row + k), m);
        __m512 b = _mm512_sub_ps(load16(row + k + 16), m);
        __m512 c = _mm512_sub_ps(load16(row + k + 32), m);
        __m512 d = _mm512_sub_ps(load16(row + k + 48), m);
        d0 = _mm512_add_ps(d0, _mm512_add_ps(a, b));
        d1 = _mm512_add_ps(d1, _mm512_add_ps(c, d));
        q0 = _mm512_fmadd_ps(a, a, q0);
        q1 = _mm512_fmadd_ps(b, b, q1);
        q2 = _mm512_fmadd_ps(c, c, q2);
        q3 = _mm512_fmadd_ps(d, d, q3);
    }
    for (; k + 16 <= K; k += 16) {
        __m512 a = _mm512_sub_ps(load16(row + k), m);
        d0 = _mm512_add_ps(d0, a);
        q0 = _mm512_fmadd_ps(a, a, q0);
    }
    if (k < K) {
        __m512 a = _mm512_maskz_sub_ps((__mmask16)0x00FF, load8(row + k), m);
        d1 = _mm512_add_ps(d1, a);
        q1 = _mm512_fmadd_ps(a, a, q1);
    }
    // residual of the mean: a correction of the centre, tiny against the spread
    const float dm = _mm512_reduce_add_ps(_mm512_add_ps(d0, d1)) / (float)K;
    float var = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(q0, q1), _mm512_add_ps(q2, q3))) / (float)K - dm * dm;
    if (var < 0.0f) var = 0.0f;
    mean_out = m0 + dm;
    rstd_out = 1.0f / sqrtf(var + eps);
}

// r[i] lane j  ->  r[j] lane i
static inline __attribute__((always_inline)) void transpose16(__m512i* r) {
    __m512i a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        a[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        __m512i c0 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
        __m512i c1 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
        __m512i c2 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        __m512i c3 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        r[j] = _mm512_shuffle_i32x4(c0, c2, 0x88);
        r[8 + j] = _mm512_shuffle_i32x4(c0, c2, 0xdd);
        r[4 + j] = _mm512_shuffle_i32x4(c1, c3, 0x88);
        r[12 + j] = _mm512_shuffle_i32x4(c1, c3, 0xdd);
    }
}

// one piece of the panel: NK values of k (dp: up to 32, else up to 16) of 16 tokens
template <int NK>
static inline void pack_piece(const T* x, const T* gw, const T* gb, const float* mean, const float* rstd,
                              int nt, int k, char* panel) {
    __m512i r[16];
    if constexpr (USE_DP) {
#if QKV_HAVE_DP
        constexpr int N0 = NK >= 16 ? 16 : NK;
        constexpr int N1 = NK - N0;
        __m512 g0 = _mm512_setzero_ps(), g1 = g0, b0 = g0, b1 = g0;
        if (has_pre_norm) {
            g0 = loadn<N0>(gw + k);
            g1 = loadn<N1>(gw + k + 16);
            b0 = loadn<N0>(gb + k);
            b1 = loadn<N1>(gb + k + 16);
        }
#pragma GCC unroll 16
        for (int t = 0; t < 16; ++t) {
            if (t < nt) {
                const T* p = x + (size_t)t * K + k;
                __m512 y0 = loadn<N0>(p);
                __m512 y1 = loadn<N1>(p + 16);
                if (has_pre_norm) {
                    const __m512 m = _mm512_set1_ps(mean[t]), s = _mm512_set1_ps(rstd[t]);
                    y0 = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_sub_ps(y0, m), s), g0, b0);
                    y1 = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_sub_ps(y1, m), s), g1, b1);
                }
                r[t] = (__m512i)_mm512_cvtne2ps_pbh(y1, y0);
            } else {
                r[t] = _mm512_setzero_si512();
            }
        }
        transpose16(r);
        char* o = panel + (size_t)(k / 2) * 64;
#pragma GCC unroll 16
        for (int i = 0; i < NK / 2; ++i) _mm512_storeu_si512((void*)(o + i * 64), r[i]);
#endif
    } else {
        __m512 g0 = _mm512_setzero_ps(), b0 = g0;
        if (has_pre_norm) {
            g0 = loadn<NK>(gw + k);
            b0 = loadn<NK>(gb + k);
        }
#pragma GCC unroll 16
        for (int t = 0; t < 16; ++t) {
            if (t < nt) {
                __m512 y0 = loadn<NK>(x + (size_t)t * K + k);
                if (has_pre_norm) {
                    const __m512 m = _mm512_set1_ps(mean[t]), s = _mm512_set1_ps(rstd[t]);
                    y0 = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_sub_ps(y0, m), s), g0, b0);
                }
                r[t] = _mm512_castps_si512(y0);
            } else {
                r[t] = _mm512_setzero_si512();
            }
        }
        transpose16(r);
        char* o = panel + (size_t)k * 64;
#pragma GCC unroll 16
        for (int i = 0; i < NK; ++i) _mm512_storeu_si512((void*)(o + i * 64), r[i]);
    }
}

static inline void pack_group(const T* x, const T* gw, const T* gb, float eps, int g, char* panel, Pf& pf) {
    const int t0 = g * 16;
    const int nt = num_tokens - t0 < 16 ? num_tokens - t0 : 16;
    const T* xg = x + (size_t)t0 * K;
    float mean[16] = {0}, rstd[16] = {0};
    constexpr size_t row_bytes = (size_t)K * sizeof(T);
    if (has_pre_norm) {
        for (int t = 0; t < nt; ++t) {
            if (t + 3 < nt) {
                const char* q = reinterpret_cast<const char*>(xg + (size_t)(t + 3) * K);
                for (size_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(q + i, 0, 3);
            }
            if constexpr (PANEL <= 65536) {
                char* q = panel + (PANEL / 16) * t;
                for (size_t i = 0; i < PANEL / 16; i += 64) __builtin_prefetch(q + i, 1, 3);
            }
            row_stats(xg + (size_t)t * K, eps, mean[t], rstd[t]);
            pf.some(16);
        }
    }
    constexpr int STEP = USE_DP ? 32 : 16;
    int k = 0;
    for (; k + STEP <= K; k += STEP) {
        pack_piece<STEP>(xg, gw, gb, mean, rstd, nt, k, panel);
        pf.some(24);
    }
    constexpr int TAIL = K % STEP;
    if constexpr (TAIL != 0) pack_piece<TAIL>(xg, gw, gb, mean, rstd, nt, k, panel);
}

static inline __m256i narrow(__m512 v) {
    if constexpr (IS_BF) {
#if QKV_HAVE_DP
        return (__m256i)_mm512_cvtneps_pbh(v);
#else
        __m512i u = _mm512_castps_si512(v);
        __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        __m512i q = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), lsb), 16);
        __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        q = _mm512_mask_mov_epi32(q, nan, _mm512_set1_epi32(0x7fc0));
        return _mm512_cvtepi32_epi16(q);
#endif
    } else {
        return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
}

// 8 rows of weights by 16 tokens, bias added, transposed and stored
static inline __attribute__((always_inline)) void store_tile(const __m512* acc, const T* bias, T* qkv, int n0, int g) {
    const int t0 = g * 16;
    const int nt = num_tokens - t0 < 16 ? num_tokens - t0 : 16;
    if constexpr (IS_F32) {
        alignas(64) float buf[8][16];
        for (int r = 0; r < 8; ++r)
            _mm512_store_ps(buf[r], _mm512_add_ps(acc[r], _mm512_set1_ps(to_float(bias[n0 + r]))));
        for (int t = 0; t < nt; ++t) {
            T* o = qkv + (size_t)(t0 + t) * N + n0;
            for (int r = 0; r < 8; ++r) o[r] = from_float<T>(buf[r][t]);
        }
    } else {
        __m256i v[8], a[8], b[8], c[8];
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) v[r] = narrow(_mm512_add_ps(acc[r], _mm512_set1_ps(to_float(bias[n0 + r]))));
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            a[2 * i] = _mm256_unpacklo_epi16(v[2 * i], v[2 * i + 1]);
            a[2 * i + 1] = _mm256_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
        }
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            b[4 * h + 0] = _mm256_unpacklo_epi32(a[4 * h + 0], a[4 * h + 2]);
            b[4 * h + 1] = _mm256_unpackhi_epi32(a[4 * h + 0], a[4 * h + 2]);
            b[4 * h + 2] = _mm256_unpacklo_epi32(a[4 * h + 1], a[4 * h + 3]);
            b[4 * h + 3] = _mm256_unpackhi_epi32(a[4 * h + 1], a[4 * h + 3]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            c[2 * i] = _mm256_unpacklo_epi64(b[i], b[4 + i]);
            c[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[4 + i]);
        }
        T* o = qkv + (size_t)t0 * N + n0;
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j)
            if (j < nt)
                _mm_storeu_si128(reinterpret_cast<__m128i*>(o + (size_t)j * N), _mm256_castsi256_si128(c[j]));
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j)
            if (8 + j < nt)
                _mm_storeu_si128(reinterpret_cast<__m128i*>(o + (size_t)(8 + j) * N), _mm256_extracti128_si256(c[j], 1));
    }
}

#if QKV_HAVE_DP
static inline __m512bh bc32(const char* p) {
    int32_t v;
    std::memcpy(&v, p, 4);
    return (__m512bh)_mm512_set1_epi32(v);
}

template <int PAIRS>
static inline __attribute__((always_inline)) void dp_pairs(const char* w, const char* xp, __m512 (&acc)[8][2]) {
    constexpr size_t RS = (size_t)K * 2;
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i += 2) {
        const __m512bh x0 = (__m512bh)_mm512_loadu_si512((const void*)(xp + i * 64));
        const __m512bh x1 = (__m512bh)_mm512_loadu_si512((const void*)(xp + i * 64 + 64));
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) acc[r][0] = _mm512_dpbf16_ps(acc[r][0], x0, bc32(w + r * RS + i * 4));
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) acc[r][1] = _mm512_dpbf16_ps(acc[r][1], x1, bc32(w + r * RS + i * 4 + 4));
    }
}
#endif

static inline void tile(const T* wq, const T* bias, T* qkv, int nb, int g, const char* panel, const char* wend, bool pre) {
    const int n0 = nb * 8;
    __m512 out[8];
    const char* w = reinterpret_cast<const char*>(wq + (size_t)n0 * K);
    const char* pf = w + PD;
    const char* pend = pre ? wend : w;
    if constexpr (USE_DP) {
#if QKV_HAVE_DP
        __m512 acc[8][2];
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) acc[r][0] = acc[r][1] = _mm512_setzero_ps();
        const char* xp = panel;
        for (int s = 0; s < K / 32; ++s) {
            if (pf < pend) {
#pragma GCC unroll 8
                for (int i = 0; i < 8; ++i) __builtin_prefetch(pf + i * 64, 0, 2);
            }
            pf += 512;
            dp_pairs<16>(w, xp, acc);
            w += 64;
            xp += 1024;
        }
        for (int s = 0; s < (K % 32) / 8; ++s) {
            dp_pairs<4>(w, xp, acc);
            w += 16;
            xp += 256;
        }
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) out[r] = _mm512_add_ps(acc[r][0], acc[r][1]);
#endif
    } else {
        constexpr int KC = 256;
        alignas(64) float wbuf[IS_F32 ? 16 : 8 * KC];
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) out[r] = _mm512_setzero_ps();
        for (int k0 = 0; k0 < K; k0 += KC) {
            const int kc = K - k0 < KC ? K - k0 : KC;
            const float* wp;
            constexpr size_t WS = IS_F32 ? (size_t)K : (size_t)KC;
            const T* ws = wq + (size_t)n0 * K + k0;
            if constexpr (IS_F32) {
                wp = reinterpret_cast<const float*>(ws);
                const size_t bytes = (size_t)8 * kc * 4;
                for (size_t i = 0; i < bytes && pf < pend; i += 64, pf += 64) __builtin_prefetch(pf, 0, 2);
            } else {
                wp = wbuf;
                for (int r = 0; r < 8; ++r) {
                    const T* src = ws + (size_t)r * K;
                    float* dst = wbuf + r * KC;
                    int k = 0;
                    for (; k + 32 <= kc; k += 32) {
                        if (pf < pend) __builtin_prefetch(pf, 0, 2);
                        pf += 64;
                        _mm512_store_ps(dst + k, load16(src + k));
                        _mm512_store_ps(dst + k + 16, load16(src + k + 16));
                    }
                    for (; k + 16 <= kc; k += 16) _mm512_store_ps(dst + k, load16(src + k));
                    if (k < kc) _mm512_store_ps(dst + k, load8(src + k));
                }
            }
            const float* xp = reinterpret_cast<const float*>(panel) + (size_t)k0 * 16;
            __m512 a0[8], a1[8];
#pragma GCC unroll 8
            for (int r = 0; r < 8; ++r) a0[r] = a1[r] = _mm512_setzero_ps();
            for (int k = 0; k < kc; k += 4) {
#pragma GCC unroll 2
                for (int i = 0; i < 4; i += 2) {
                    const __m512 x0 = _mm512_loadu_ps(xp + i * 16);
                    const __m512 x1 = _mm512_loadu_ps(xp + i * 16 + 16);
#pragma GCC unroll 8
                    for (int r = 0; r < 8; ++r) a0[r] = _mm512_fmadd_ps(x0, _mm512_set1_ps(wp[r * WS + i]), a0[r]);
#pragma GCC unroll 8
                    for (int r = 0; r < 8; ++r) a1[r] = _mm512_fmadd_ps(x1, _mm512_set1_ps(wp[r * WS + i + 1]), a1[r]);
                }
                wp += 4;
                xp += 64;
            }
#pragma GCC unroll 8
            for (int r = 0; r < 8; ++r) out[r] = _mm512_add_ps(out[r], _mm512_add_ps(a0[r], a1[r]));
        }
    }
    store_tile(out, bias, qkv, n0, g);
}

#else  // no AVX-512: GCC vectors of 8 floats

typedef float v8f __attribute__((vector_size(32)));

static inline v8f loadv(const float* p) {
    v8f v;
    std::memcpy(&v, p, 32);
    return v;
}

static inline void widen(const T* src, float* dst, int n) {
    if constexpr (IS_BF) {
        const char* s = reinterpret_cast<const char*>(src);
        for (int i = 0; i < n; ++i) {
            uint16_t h;
            std::memcpy(&h, s + 2 * i, 2);
            uint32_t u = (uint32_t)h << 16;
            std::memcpy(dst + i, &u, 4);
        }
    } else {
        for (int i = 0; i < n; ++i) dst[i] = to_float(src[i]);
    }
}

static inline float hsum(v8f v) {
    return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

static inline void pack_group(const T* x, const T* gw, const T* gb, float eps, int g, char* panel, Pf& pf) {
    const int t0 = g * 16;
    const int nt = num_tokens - t0 < 16 ? num_tokens - t0 : 16;
    float* out = reinterpret_cast<float*>(panel);
    float mean[16] = {0}, rstd[16] = {0};
    if (has_pre_norm) {
        for (int t = 0; t < nt; ++t) {
            const T* row = x + (size_t)(t0 + t) * K;
            float b[8];
            v8f s = {0};
            for (int k = 0; k < K; k += 8) {
                widen(row + k, b, 8);
                s += loadv(b);
            }
            const float m0 = hsum(s) / (float)K;
            v8f d = {0}, q = {0};
            for (int k = 0; k < K; k += 8) {
                widen(row + k, b, 8);
                v8f a = loadv(b) - m0;
                d += a;
                q += a * a;
            }
            const float dm = hsum(d) / (float)K;
            float var = hsum(q) / (float)K - dm * dm;
            if (var < 0.0f) var = 0.0f;
            mean[t] = m0 + dm;
            rstd[t] = 1.0f / sqrtf(var + eps);
            pf.some(16);
        }
    }
    for (int k = 0; k < K; k += 8) {
        float gg[8], bb[8], y[8];
        if (has_pre_norm) {
            widen(gw + k, gg, 8);
            widen(gb + k, bb, 8);
        }
        for (int t = 0; t < 16; ++t) {
            if (t < nt) {
                widen(x + (size_t)(t0 + t) * K + k, y, 8);
                if (has_pre_norm)
                    for (int i = 0; i < 8; ++i) y[i] = (y[i] - mean[t]) * rstd[t] * gg[i] + bb[i];
                for (int i = 0; i < 8; ++i) out[(size_t)(k + i) * 16 + t] = y[i];
            } else {
                for (int i = 0; i < 8; ++i) out[(size_t)(k + i) * 16 + t] = 0.0f;
            }
        }
        pf.some(6);
    }
}

static inline void tile(const T* wq, const T* bias, T* qkv, int nb, int g, const char* panel, const char* wend, bool pre) {
    constexpr int KC = 256;
    const int t0 = g * 16;
    const int nt = num_tokens - t0 < 16 ? num_tokens - t0 : 16;
    alignas(64) float wbuf[4 * KC];
    alignas(64) float buf[8][16];
    for (int hrow = 0; hrow < 2; ++hrow) {
        const int n0 = nb * 8 + hrow * 4;
        const char* pf = reinterpret_cast<const char*>(wq + (size_t)n0 * K) + PD;
        const char* pend = pre ? wend : pf;
        v8f tot[4][2];
        for (int r = 0; r < 4; ++r) tot[r][0] = tot[r][1] = v8f{0};
        for (int k0 = 0; k0 < K; k0 += KC) {
            const int kc = K - k0 < KC ? K - k0 : KC;
            for (int r = 0; r < 4; ++r) {
                const size_t bytes = (size_t)kc * sizeof(T);
                for (size_t i = 0; i < bytes && pf < pend; i += 64, pf += 64) __builtin_prefetch(pf, 0, 2);
                widen(wq + (size_t)(n0 + r) * K + k0, wbuf + r * KC, kc);
            }
            const float* xp = reinterpret_cast<const float*>(panel) + (size_t)k0 * 16;
            v8f a[4][2];
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) a[r][0] = a[r][1] = v8f{0};
            for (int k = 0; k < kc; ++k) {
                const v8f x0 = loadv(xp), x1 = loadv(xp + 8);
                xp += 16;
#pragma GCC unroll 4
                for (int r = 0; r < 4; ++r) {
                    const float w = wbuf[r * KC + k];
                    a[r][0] += x0 * w;
                    a[r][1] += x1 * w;
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) {
                tot[r][0] += a[r][0];
                tot[r][1] += a[r][1];
            }
        }
        for (int r = 0; r < 4; ++r) {
            const float bv = to_float(bias[n0 + r]);
            for (int i = 0; i < 8; ++i) {
                buf[hrow * 4 + r][i] = tot[r][0][i] + bv;
                buf[hrow * 4 + r][8 + i] = tot[r][1][i] + bv;
            }
        }
    }
    for (int t = 0; t < nt; ++t) {
        T* o = qkv + (size_t)(t0 + t) * N + nb * 8;
        for (int r = 0; r < 8; ++r) o[r] = from_float<T>(buf[r][t]);
    }
}

#endif

}  // namespace eq

extern "C" void encoder_qkv_cpu(
    const T* __restrict__ x,
    const T* __restrict__ ln_weight,
    const T* __restrict__ ln_bias,
    const T* __restrict__ w_qkv,
    const T* __restrict__ b_qkv,
    T* __restrict__ qkv,
    float eps,
    void* __restrict__ workspace) {
    using namespace eq;
    char* base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~(uintptr_t)63);
#pragma omp parallel
    {
        const int team = omp_get_num_threads();
        const int nt = team < num_sms ? team : num_sms;
        const int tid = omp_get_thread_num();
        int lo = 0, hi = 0;
        if (tid < nt) {
            lo = (int)((long long)NB * tid / nt);
            hi = (int)((long long)NB * (tid + 1) / nt);
        }
        const char* wbeg = reinterpret_cast<const char*>(w_qkv + (size_t)lo * 8 * K);
        const char* wend = reinterpret_cast<const char*>(w_qkv + (size_t)hi * 8 * K);
        Pf pf;
        pf.p = wbeg;
        pf.end = (size_t)(wend - wbeg) < PD ? wend : wbeg + PD;
        if constexpr (PRIVATE) {
            if (lo < hi) {
                char* panel = base + (size_t)tid * PANEL;
                pf.some(16);
                pack_group(x, ln_weight, ln_bias, eps, 0, panel, pf);
                pf.some(1 << 20);
                for (int nb = lo; nb < hi; ++nb) tile(w_qkv, b_qkv, qkv, nb, 0, panel, wend, true);
            }
        } else {
            for (int g = tid; g < G; g += team) pack_group(x, ln_weight, ln_bias, eps, g, base + (size_t)g * PANEL, pf);
            pf.some(1 << 20);
#pragma omp barrier
            for (int nb = lo; nb < hi; ++nb)
                for (int g = 0; g < G; ++g) tile(w_qkv, b_qkv, qkv, nb, g, base + (size_t)g * PANEL, wend, g == 0);
        }
    }
}
