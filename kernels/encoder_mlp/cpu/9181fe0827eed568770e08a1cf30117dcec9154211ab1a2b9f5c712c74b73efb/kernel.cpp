// Contract: encoder_mlp version 1 (optional LayerNorm, up projection, GELU, down projection, residual add).
// Idea: 1) activations lie in tiles of 16 tokens, one vector register per k (float32) or per pair of k (bfloat16);
//       2) 8 weight rows a block, each weight (pair) broadcast from memory into a multiply-add, next block prefetched;
//       3) one parallel region: LayerNorm by slices of k, barrier, up + vector GELU, barrier, down + residual.
// Bound by: multiply-add throughput at 16 tokens on few cores, then by the weights' bandwidth.
namespace emlp {

constexpr int TB = 16;   // tokens in a tile
constexpr int RB = 8;    // weight rows in a block; both widths are multiples of 8
constexpr int KC = 64;   // length of a partial sum on the float32 path
constexpr int64_t H = hidden_size;
constexpr int64_t I = intermediate_size;
constexpr int64_t NT = num_tokens;
constexpr int64_t TILES = (NT + TB - 1) / TB;

#if defined(__AVX512F__) && defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__)
constexpr bool DP = std::is_same_v<T, bfloat16>;
#else
constexpr bool DP = false;
#endif

static inline float gelu(float v) {
    if (gelu_tanh) {
        const float u = 0.7978845608028654f * (v + 0.044715f * v * v * v);
        return v / (1.0f + std::exp(-2.0f * u));
    }
    return 0.5f * v * std::erfc(-0.7071067811865476f * v);
}

#if defined(__AVX512F__)
static inline __m512 vexp(__m512 x) {
    const __m512 xc = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-200.0f)), _mm512_set1_ps(200.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(xc, _mm512_set1_ps(1.44269504088896f)), 0x08);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), xc);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720.0f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);   // saturates to 0 and infinity
}

static inline __m512 vgelu(__m512 v) {
    const __m512 one = _mm512_set1_ps(1.0f);
    if (gelu_tanh) {
        const __m512 v2 = _mm512_mul_ps(v, v);
        const __m512 v3 = _mm512_mul_ps(_mm512_mul_ps(v2, v), _mm512_set1_ps(0.044715f));
        const __m512 u2 = _mm512_mul_ps(_mm512_add_ps(v, v3), _mm512_set1_ps(-2.0f * 0.7978845608028654f));
        return _mm512_div_ps(v, _mm512_add_ps(one, vexp(u2)));
    }
    // erfc(z) = t * exp(-z*z + P(t)), t = 1 / (1 + z/2), relative error 1.2e-7
    const __m512 z = _mm512_mul_ps(_mm512_abs_ps(v), _mm512_set1_ps(0.7071067811865476f));
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.5f), one));
    __m512 p = _mm512_set1_ps(0.17087277f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.82215223f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.48851587f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.13520398f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.27886807f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.18628806f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.09678418f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.37409196f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.00002368f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.26551223f));
    const __m512 e = _mm512_mul_ps(t, vexp(_mm512_fnmadd_ps(z, z, p)));
    const __m512 half = _mm512_mul_ps(e, _mm512_set1_ps(0.5f));
    const __mmask16 pos = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_mul_ps(v, _mm512_mask_sub_ps(half, pos, one, half));
}
#endif

// 16 values of (sum + bias), activated
static inline void gelu16(const float* src, float b, float* dst) {
#if defined(__AVX512F__)
    if constexpr (!std::is_same_v<T, float>) {
        _mm512_storeu_ps(dst, vgelu(_mm512_add_ps(_mm512_loadu_ps(src), _mm512_set1_ps(b))));
        return;
    }
#endif
    for (int t = 0; t < TB; ++t) dst[t] = gelu(src[t] + b);
}

static inline void widen8(const T* s, float* d) {
#if defined(__AVX2__)
    if constexpr (std::is_same_v<T, bfloat16>) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s));
        _mm256_storeu_ps(d, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16)));
        return;
    }
#if defined(__F16C__)
    if constexpr (std::is_same_v<T, float16>) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s));
        _mm256_storeu_ps(d, _mm256_cvtph_ps(v));
        return;
    }
#endif
#endif
    for (int j = 0; j < 8; ++j) d[j] = to_float(s[j]);
}

// acc[r][t] = sum over k of w[r][k] * in[k][t]; pf: RB * K weights to bring near meanwhile
template <int64_t K>
static inline void product(const T* __restrict__ w, const float* __restrict__ in, const char* pf,
                           float* __restrict__ acc) {
#if defined(__AVX512F__) && defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__)
    if constexpr (DP) {
        const char* wb = reinterpret_cast<const char*>(w);
        __m512 c[RB];
        #pragma GCC unroll 8
        for (int r = 0; r < RB; ++r) c[r] = _mm512_setzero_ps();
        for (int64_t kp = 0; kp < K / 2; kp += 4) {
            _mm_prefetch(pf + kp * 32, _MM_HINT_T1);
            _mm_prefetch(pf + kp * 32 + 64, _MM_HINT_T1);
            #pragma GCC unroll 4
            for (int u = 0; u < 4; ++u) {
                const __m512i a = _mm512_loadu_si512(in + (kp + u) * TB);
                #pragma GCC unroll 8
                for (int r = 0; r < RB; ++r) {
                    int wi;
                    std::memcpy(&wi, wb + r * K * 2 + (kp + u) * 4, 4);
                    c[r] = _mm512_dpbf16_ps(c[r], (__m512bh)a, (__m512bh)_mm512_set1_epi32(wi));
                }
            }
        }
        #pragma GCC unroll 8
        for (int r = 0; r < RB; ++r) _mm512_storeu_ps(acc + r * TB, c[r]);
        return;
    }
#endif
    for (int i = 0; i < RB * TB; ++i) acc[i] = 0.0f;
    for (int64_t k0 = 0; k0 < K; k0 += KC) {
        const int len = static_cast<int>(std::min<int64_t>(KC, K - k0));
        alignas(64) float wf[RB][KC];
        for (int r = 0; r < RB; ++r)
            for (int j = 0; j < len; j += 8) widen8(w + r * K + k0 + j, &wf[r][j]);
        const char* p = pf + k0 * RB * static_cast<int64_t>(sizeof(T));
        for (int64_t o = 0; o < static_cast<int64_t>(len) * RB * static_cast<int64_t>(sizeof(T)); o += 64)
            __builtin_prefetch(p + o, 0, 2);
        const float* row = in + k0 * TB;
#if defined(__AVX512F__)
        __m512 c[RB];
        #pragma GCC unroll 8
        for (int r = 0; r < RB; ++r) c[r] = _mm512_setzero_ps();
        for (int k = 0; k < len; ++k) {
            const __m512 a = _mm512_loadu_ps(row + k * TB);
            #pragma GCC unroll 8
            for (int r = 0; r < RB; ++r) c[r] = _mm512_fmadd_ps(a, _mm512_set1_ps(wf[r][k]), c[r]);
        }
        #pragma GCC unroll 8
        for (int r = 0; r < RB; ++r)
            _mm512_storeu_ps(acc + r * TB, _mm512_add_ps(_mm512_loadu_ps(acc + r * TB), c[r]));
#elif defined(__AVX2__) && defined(__FMA__)
        for (int rh = 0; rh < RB; rh += 4) {
            __m256 c[4], d[4];
            #pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) { c[r] = _mm256_setzero_ps(); d[r] = _mm256_setzero_ps(); }
            for (int k = 0; k < len; ++k) {
                const __m256 a0 = _mm256_loadu_ps(row + k * TB);
                const __m256 a1 = _mm256_loadu_ps(row + k * TB + 8);
                #pragma GCC unroll 4
                for (int r = 0; r < 4; ++r) {
                    const __m256 wv = _mm256_set1_ps(wf[rh + r][k]);
                    c[r] = _mm256_fmadd_ps(a0, wv, c[r]);
                    d[r] = _mm256_fmadd_ps(a1, wv, d[r]);
                }
            }
            #pragma GCC unroll 4
            for (int r = 0; r < 4; ++r) {
                float* q = acc + (rh + r) * TB;
                _mm256_storeu_ps(q, _mm256_add_ps(_mm256_loadu_ps(q), c[r]));
                _mm256_storeu_ps(q + 8, _mm256_add_ps(_mm256_loadu_ps(q + 8), d[r]));
            }
        }
#else
        for (int r = 0; r < RB; ++r) {
            float part[TB];
            for (int t = 0; t < TB; ++t) part[t] = 0.0f;
            for (int k = 0; k < len; ++k) {
                const float wv = wf[r][k];
                #pragma omp simd
                for (int t = 0; t < TB; ++t) part[t] += wv * row[k * TB + t];
            }
            for (int t = 0; t < TB; ++t) acc[r * TB + t] += part[t];
        }
#endif
    }
}

// store one activation of tile base `buf`
static inline void put(float* buf, int64_t k, int64_t t, float v) {
    if constexpr (DP) {
        T* p = reinterpret_cast<T*>(buf);
        p[(k >> 1) * 32 + t * 2 + (k & 1)] = from_float<T>(v);
    } else {
        buf[k * TB + t] = v;
    }
}

// LayerNorm (or a copy) of a tile, columns k0..k1
static inline void norm_tile(const T* x, const T* g, const T* be, float eps, float* buf, int64_t tile,
                             int64_t k0, int64_t k1) {
    for (int64_t t = 0; t < TB; ++t) {
        const int64_t m = tile * TB + t;
        if (m >= NT) {
            for (int64_t k = k0; k < k1; ++k) put(buf, k, t, 0.0f);
            continue;
        }
        const T* src = x + m * H;
        if (has_pre_norm) {
            float s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            float f[8];
            for (int64_t k = 0; k < H; k += 8) {
                widen8(src + k, f);
                #pragma omp simd
                for (int j = 0; j < 8; ++j) s[j] += f[j];
            }
            const float mean = (((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))) /
                               static_cast<float>(H);
            float q[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            for (int64_t k = 0; k < H; k += 8) {
                widen8(src + k, f);
                #pragma omp simd
                for (int j = 0; j < 8; ++j) {
                    const float d = f[j] - mean;
                    q[j] += d * d;
                }
            }
            const float sq = ((q[0] + q[4]) + (q[2] + q[6])) + ((q[1] + q[5]) + (q[3] + q[7]));
            const float inv = 1.0f / std::sqrt(sq / static_cast<float>(H) + eps);
            for (int64_t k = k0; k < k1; ++k)
                put(buf, k, t, (to_float(src[k]) - mean) * inv * to_float(g[k]) + to_float(be[k]));
        } else {
            for (int64_t k = k0; k < k1; ++k) put(buf, k, t, to_float(src[k]));
        }
    }
}

static inline void warm(const T* p, int64_t n) {
    const char* c = reinterpret_cast<const char*>(p);
    const int64_t bytes = std::min<int64_t>(n * static_cast<int64_t>(sizeof(T)), 65536);
    for (int64_t o = 0; o < bytes; o += 64) __builtin_prefetch(c + o, 0, 2);
}

}  // namespace emlp

extern "C" void encoder_mlp_entry(
    const T* __restrict__ x,
    const T* __restrict__ ln_weight,
    const T* __restrict__ ln_bias,
    const T* __restrict__ w_up,
    const T* __restrict__ b_up,
    const T* __restrict__ w_down,
    const T* __restrict__ b_down,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
    using namespace emlp;
    constexpr int64_t HS = DP ? H / 2 * TB : H * TB;   // floats in a tile of h
    constexpr int64_t IS = DP ? I / 2 * TB : I * TB;   // floats in a tile of a
    float* h = static_cast<float*>(workspace);
    float* a = h + TILES * HS;

    #pragma omp parallel
    {
        const int64_t nth = omp_get_num_threads();
        const int64_t tid = omp_get_thread_num();
        const int64_t u0 = (I / RB) * tid / nth, u1 = (I / RB) * (tid + 1) / nth;
        const int64_t d0 = (H / RB) * tid / nth, d1 = (H / RB) * (tid + 1) / nth;

        if (u0 < u1) warm(w_up + u0 * RB * H, RB * H);
        if (TILES >= nth) {
            for (int64_t tile = tid; tile < TILES; tile += nth)
                norm_tile(x, ln_weight, ln_bias, eps, h + tile * HS, tile, 0, H);
        } else if (d0 < d1) {
            // few tiles: every thread takes the statistics and writes its own columns (no shared lines)
            for (int64_t tile = 0; tile < TILES; ++tile)
                norm_tile(x, ln_weight, ln_bias, eps, h + tile * HS, tile, d0 * RB, d1 * RB);
        }
        #pragma omp barrier

        // Up projection, bias, GELU.
        for (int64_t nb = u0; nb < u1; ++nb) {
            const int64_t n = nb * RB;
            const char* pf = reinterpret_cast<const char*>(w_up + (nb + 1 < u1 ? n + RB : n) * H);
            for (int64_t tile = 0; tile < TILES; ++tile) {
                alignas(64) float acc[RB * TB];
                product<H>(w_up + n * H, h + tile * HS, pf, acc);
                float* at = a + tile * IS;
#if defined(__AVX512F__) && defined(__AVX512BF16__) && defined(__AVX512VL__) && defined(__AVX512BW__)
                if constexpr (DP) {
                    for (int r = 0; r < RB; r += 2) {
                        const __m512 v0 = vgelu(_mm512_add_ps(_mm512_load_ps(acc + r * TB),
                                                              _mm512_set1_ps(to_float(b_up[n + r]))));
                        const __m512 v1 = vgelu(_mm512_add_ps(_mm512_load_ps(acc + (r + 1) * TB),
                                                              _mm512_set1_ps(to_float(b_up[n + r + 1]))));
                        const __m512i lo = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(v0));
                        const __m512i hi = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(v1));
                        _mm512_storeu_si512(at + (n + r) / 2 * TB,
                                            _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
                    }
                    continue;
                }
#endif
                for (int r = 0; r < RB; ++r)
                    gelu16(acc + r * TB, to_float(b_up[n + r]), at + (n + r) * TB);
            }
        }
        if (d0 < d1) warm(w_down + d0 * RB * I, RB * I);
        #pragma omp barrier

        // Down projection, bias, rounding, residual.
        for (int64_t nb = d0; nb < d1; ++nb) {
            const int64_t n = nb * RB;
            const char* pf = reinterpret_cast<const char*>(w_down + (nb + 1 < d1 ? n + RB : n) * I);
            float bias[RB];
            widen8(b_down + n, bias);
            for (int64_t tile = 0; tile < TILES; ++tile) {
                alignas(64) float acc[RB * TB];
                product<I>(w_down + n * I, a + tile * IS, pf, acc);
                const int64_t live = std::min<int64_t>(TB, NT - tile * TB);
                for (int64_t t = 0; t < live; ++t) {
                    const int64_t at = (tile * TB + t) * H + n;
                    float res[RB];
                    widen8(x + at, res);
                    for (int r = 0; r < RB; ++r) {
                        const float y = to_float(from_float<T>(acc[r * TB + t] + bias[r]));
                        out[at + r] = from_float<T>(y + res[r]);
                    }
                }
            }
        }
    }
}
