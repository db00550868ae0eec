// Contract: encoder_mlp v1. out = x + (gelu(LN(x) @ w_up^T + b_up) @ w_down^T + b_down).
// Idea: 16 tokens are the 16 lanes of a vector (activations kept transposed, [k][16], float32);
//   a block of up to 24 weight rows x 128 k is packed to float in L1 and broadcast into 24 accumulators,
//   while the next block is prefetched to L2 from inside the FMA loop. One parallel region, barriers between stages.
// Bound: bandwidth of the weights with many threads, load ports / FMA with few threads.

namespace emlp {

constexpr int KB = 128;
constexpr int LDW = KB + 16;
constexpr int MAXTILES = 8;
constexpr int ALLTILES = (num_tokens + 15) / 16;
constexpr int CTILES = ALLTILES < MAXTILES ? ALLTILES : MAXTILES;

#if defined(__AVX512F__)
constexpr int UMAX = 6;
struct V { __m512 v; };
static inline V vzero() { return V{_mm512_setzero_ps()}; }
static inline V vld(const float* p) { return V{_mm512_loadu_ps(p)}; }
static inline void vst(float* p, V a) { _mm512_storeu_ps(p, a.v); }
static inline V vfma(float w, V h, V c) { return V{_mm512_fmadd_ps(_mm512_set1_ps(w), h.v, c.v)}; }
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int UMAX = 1;
struct V { __m256 a, b; };
static inline V vzero() { return V{_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline V vld(const float* p) { return V{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void vst(float* p, V x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
static inline V vfma(float w, V h, V c) {
    const __m256 b = _mm256_set1_ps(w);
    return V{_mm256_fmadd_ps(b, h.a, c.a), _mm256_fmadd_ps(b, h.b, c.b)};
}
#else
constexpr int UMAX = 1;
struct V { float f[16]; };
static inline V vzero() { V r; for (int i = 0; i < 16; ++i) r.f[i] = 0.f; return r; }
static inline V vld(const float* p) { V r; for (int i = 0; i < 16; ++i) r.f[i] = p[i]; return r; }
static inline void vst(float* p, V a) { for (int i = 0; i < 16; ++i) p[i] = a.f[i]; }
static inline V vfma(float w, V h, V c) { for (int i = 0; i < 16; ++i) c.f[i] += w * h.f[i]; return c; }
#endif

constexpr int RMAX = UMAX * 4;

static inline void pf(const void* p) { __builtin_prefetch(p, 0, 2); }

// ---- GELU -----------------------------------------------------------------------------------
static inline float gelu_scalar(float x) {
    if constexpr (gelu_tanh != 0) {
        const float u = 1.5957691216057308f * (x + 0.044715f * x * x * x);   // 2 * sqrt(2/pi) * (...)
        float y = -u;
        y = y > 88.f ? 88.f : y;
        y = y < -87.f ? -87.f : y;
        const float n = (y * 1.44269504088896341f + 12582912.f) - 12582912.f;
        float r = y - n * 0.693359375f;
        r = r - n * -2.12194440e-4f;
        float p = 1.9875691500e-4f;
        p = p * r + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        p = p * r * r + r + 1.0f;
        const int32_t bits = ((int32_t)n + 127) << 23;
        float s;
        std::memcpy(&s, &bits, 4);
        return x / (1.0f + p * s);
    } else {
        const float z = x * 0.70710678118654752f;
        float c = z > 4.f ? 4.f : z;
        c = c < -4.f ? -4.f : c;
        const float q = c * c;
        float a = -2.72614225801306e-10f;
        a = a * q + 2.77068142495902e-08f;
        a = a * q + -2.10102402082508e-06f;
        a = a * q + -5.69250639462346e-05f;
        a = a * q + -7.34990630326855e-04f;
        a = a * q + -2.95459980854025e-03f;
        a = a * q + -1.60960333262415e-02f;
        float b = -1.45660718464996e-05f;
        b = b * q + -2.13374055278905e-04f;
        b = b * q + -1.68282697438203e-03f;
        b = b * q + -7.37332916720468e-03f;
        b = b * q + -1.42647390514189e-02f;
        float e = c * a / b;
        e = z >= 4.f ? 1.f : e;
        e = z <= -4.f ? -1.f : e;
        return 0.5f * x * (1.0f + e);
    }
}

static inline void gelu_store(const float* c, float bias, float* dst) {
#if defined(__AVX512F__)
    if constexpr (gelu_tanh == 0) {
        const __m512 x = _mm512_add_ps(_mm512_loadu_ps(c), _mm512_set1_ps(bias));
        const __m512 z = _mm512_mul_ps(x, _mm512_set1_ps(0.70710678118654752f));
        const __m512 four = _mm512_set1_ps(4.f), mfour = _mm512_set1_ps(-4.f);
        const __m512 zc = _mm512_min_ps(four, _mm512_max_ps(mfour, z));
        const __m512 q = _mm512_mul_ps(zc, zc);
        __m512 a = _mm512_set1_ps(-2.72614225801306e-10f);
        a = _mm512_fmadd_ps(a, q, _mm512_set1_ps(2.77068142495902e-08f));
        a = _mm512_fmadd_ps(a, q, _mm512_set1_ps(-2.10102402082508e-06f));
        a = _mm512_fmadd_ps(a, q, _mm512_set1_ps(-5.69250639462346e-05f));
        a = _mm512_fmadd_ps(a, q, _mm512_set1_ps(-7.34990630326855e-04f));
        a = _mm512_fmadd_ps(a, q, _mm512_set1_ps(-2.95459980854025e-03f));
        a = _mm512_fmadd_ps(a, q, _mm512_set1_ps(-1.60960333262415e-02f));
        __m512 b = _mm512_set1_ps(-1.45660718464996e-05f);
        b = _mm512_fmadd_ps(b, q, _mm512_set1_ps(-2.13374055278905e-04f));
        b = _mm512_fmadd_ps(b, q, _mm512_set1_ps(-1.68282697438203e-03f));
        b = _mm512_fmadd_ps(b, q, _mm512_set1_ps(-7.37332916720468e-03f));
        b = _mm512_fmadd_ps(b, q, _mm512_set1_ps(-1.42647390514189e-02f));
        const __m512 one = _mm512_set1_ps(1.f);
        __m512 e = _mm512_div_ps(_mm512_mul_ps(zc, a), b);
        e = _mm512_mask_mov_ps(e, _mm512_cmp_ps_mask(z, four, _CMP_GE_OQ), one);
        e = _mm512_mask_mov_ps(e, _mm512_cmp_ps_mask(z, mfour, _CMP_LE_OQ), _mm512_set1_ps(-1.f));
        const __m512 hx = _mm512_mul_ps(x, _mm512_set1_ps(0.5f));
        _mm512_storeu_ps(dst, _mm512_mul_ps(hx, _mm512_add_ps(one, e)));
        return;
    }
#endif
#pragma omp simd
    for (int l = 0; l < 16; ++l) dst[l] = gelu_scalar(c[l] + bias);
}

// ---- pack a block of weight rows to float ---------------------------------------------------
template <int R, int K>
static inline void pack(const T* w, float* wp, int kn) {
    for (int r = 0; r < R; ++r) {
        const T* s = w + (size_t)r * K;
        float* d = wp + r * LDW;
        int k = 0;
#if defined(__AVX512F__)
        if constexpr (std::is_same_v<T, float>) {
            for (; k + 16 <= kn; k += 16)
                _mm512_storeu_ps(d + k, _mm512_loadu_ps(reinterpret_cast<const float*>(s + k)));
        } else if constexpr (std::is_same_v<T, bfloat16>) {
            for (; k + 16 <= kn; k += 16) {
                const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + k));
                _mm512_storeu_ps(d + k, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16)));
            }
        } else {
            for (; k + 16 <= kn; k += 16) {
                const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + k));
                _mm512_storeu_ps(d + k, _mm512_cvtph_ps(v));
            }
        }
#endif
        for (; k < kn; ++k) d[k] = to_float(s[k]);
    }
}

// ---- R rows x 16 tokens over kn columns -----------------------------------------------------
template <int R, int K, bool PF>
static inline void micro(const float* wp, const float* hp, float* c, int kn, bool first, const T* nx) {
    V acc[R];
    if (first) {
#pragma GCC unroll 24
        for (int r = 0; r < R; ++r) acc[r] = vzero();
    } else {
#pragma GCC unroll 24
        for (int r = 0; r < R; ++r) acc[r] = vld(c + r * 16);
    }
    for (int k = 0; k < kn; k += 8) {
        const T* q = nx;
        if constexpr (PF) q = nx + k + ((k & 8) ? (size_t)(R / 2) * K : (size_t)0);
#pragma GCC unroll 8
        for (int kk = 0; kk < 8; ++kk) {
            const V h = vld(hp + kk * 16);
#pragma GCC unroll 24
            for (int r = 0; r < R; ++r) acc[r] = vfma(wp[r * LDW + kk], h, acc[r]);
            if constexpr (PF) {
#pragma GCC unroll 2
                for (int i = kk; i < R / 2; i += 8) pf(q + (size_t)i * K);
            }
        }
        wp += 8;
        hp += 128;
    }
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r) vst(c + r * 16, acc[r]);
}

template <int R, int K>
static __attribute__((noinline)) void run_block(const T* w, const T* next, const float* act, int ntile,
                                                float* wp, float* c) {
    for (int k0 = 0; k0 < K; k0 += KB) {
        const int kn = K - k0 < KB ? K - k0 : KB;
        pack<R, K>(w + k0, wp, kn);
        const T* nx = k0 + KB < K ? w + k0 + KB : next;
        if (nx != nullptr)
            micro<R, K, true>(wp, act + (size_t)k0 * 16, c, kn, k0 == 0, nx);
        else
            micro<R, K, false>(wp, act + (size_t)k0 * 16, c, kn, k0 == 0, nullptr);
        for (int t = 1; t < ntile; ++t)
            micro<R, K, false>(wp, act + ((size_t)t * K + k0) * 16, c + t * RMAX * 16, kn, k0 == 0, nullptr);
    }
}

template <int K>
static inline void dispatch(int u, const T* w, const T* next, const float* act, int ntile, float* wp, float* c) {
#if defined(__AVX512F__)
    switch (u) {
        case 6: run_block<24, K>(w, next, act, ntile, wp, c); break;
        case 5: run_block<20, K>(w, next, act, ntile, wp, c); break;
        case 4: run_block<16, K>(w, next, act, ntile, wp, c); break;
        case 3: run_block<12, K>(w, next, act, ntile, wp, c); break;
        case 2: run_block<8, K>(w, next, act, ntile, wp, c); break;
        default: run_block<4, K>(w, next, act, ntile, wp, c); break;
    }
#else
    (void)u;
    run_block<4, K>(w, next, act, ntile, wp, c);
#endif
}

static inline void range4(int n, int t, int nt, int& u0, int& u1) {
    const int64_t u = n / 4;
    u0 = (int)(u * t / nt);
    u1 = (int)(u * (t + 1) / nt);
}

template <int K>
static inline void prefetch_first(const T* w, int rows) {
    const int kn = K < KB ? K : KB;
    const int step = 64 / (int)sizeof(T);
    for (int r = 0; r < rows; ++r)
        for (int k = 0; k < kn; k += step) pf(w + (size_t)r * K + k);
}

// rows of the first block of a thread's range
static inline int first_rows(int u0, int u1) {
    const int u = u1 - u0;
    if (u <= 0) return 0;
    const int nb = (u + UMAX - 1) / UMAX;
    return 4 * (u / nb);
}

static void body(const T* x, const T* ln_weight, const T* ln_bias, const T* w_up, const T* b_up, const T* w_down,
                 const T* b_down, T* out, float eps, float* ws, int tid, int nt) {
    constexpr int H = hidden_size;
    constexpr int I = intermediate_size;
    float* hT = ws;
    float* aT = hT + (size_t)CTILES * 16 * H;
    float* mean = aT + (size_t)CTILES * 16 * I;
    float* rstd = mean + CTILES * 16;

    alignas(64) float wp[RMAX * LDW];
    alignas(64) float c[CTILES * RMAX * 16];

    int uu0, uu1, du0, du1;
    range4(I, tid, nt, uu0, uu1);
    range4(H, tid, nt, du0, du1);
    const int s0 = (int)((int64_t)(H / 8) * tid / nt) * 8;
    const int s1 = (int)((int64_t)(H / 8) * (tid + 1) / nt) * 8;

    for (int tile0 = 0; tile0 < ALLTILES; tile0 += CTILES) {
        const int ntile = ALLTILES - tile0 < CTILES ? ALLTILES - tile0 : CTILES;
        const int tok0 = tile0 * 16;
        const int ntok = num_tokens - tok0 < ntile * 16 ? num_tokens - tok0 : ntile * 16;

        prefetch_first<H>(w_up + (size_t)uu0 * 4 * H, first_rows(uu0, uu1));

        if constexpr (has_pre_norm != 0) {
            for (int t = tid; t < ntok; t += nt) {
                const T* xr = x + (size_t)(tok0 + t) * H;
                float s = 0.f;
#pragma omp simd reduction(+ : s)
                for (int k = 0; k < H; ++k) s += to_float(xr[k]);
                const float m = s / (float)H;
                float v = 0.f;
#pragma omp simd reduction(+ : v)
                for (int k = 0; k < H; ++k) {
                    const float d = to_float(xr[k]) - m;
                    v += d * d;
                }
                mean[t] = m;
                rstd[t] = 1.0f / std::sqrt(v / (float)H + eps);
            }
#pragma omp barrier
        }

        for (int t = 0; t < ntile; ++t) {
            const int nl = ntok - t * 16 < 16 ? ntok - t * 16 : 16;
            const T* xt = x + (size_t)(tok0 + t * 16) * H;
            float* ht = hT + (size_t)t * H * 16;
#if defined(__AVX512F__)
            if constexpr (std::is_same_v<T, float>) {
                const __mmask16 mk = (__mmask16)((1u << nl) - 1u);
                const __m512i idx = _mm512_mullo_epi32(
                    _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(H));
                __m512 mv = _mm512_setzero_ps(), rv = _mm512_setzero_ps();
                if constexpr (has_pre_norm != 0) {
                    mv = _mm512_maskz_loadu_ps(mk, mean + t * 16);
                    rv = _mm512_maskz_loadu_ps(mk, rstd + t * 16);
                }
                for (int k = s0; k < s1; ++k) {
                    __m512 v = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mk, idx,
                                                        reinterpret_cast<const float*>(xt + k), 4);
                    if constexpr (has_pre_norm != 0) {
                        v = _mm512_mul_ps(_mm512_sub_ps(v, mv), rv);
                        v = _mm512_fmadd_ps(v, _mm512_set1_ps(to_float(ln_weight[k])),
                                            _mm512_set1_ps(to_float(ln_bias[k])));
                    }
                    _mm512_storeu_ps(ht + (size_t)k * 16, v);
                }
                continue;
            }
#endif
            for (int k = s0; k < s1; ++k) {
                float g = 1.f, b = 0.f;
                if constexpr (has_pre_norm != 0) {
                    g = to_float(ln_weight[k]);
                    b = to_float(ln_bias[k]);
                }
                for (int l = 0; l < 16; ++l) {
                    float v = 0.f;
                    if (l < nl) {
                        v = to_float(xt[(size_t)l * H + k]);
                        if constexpr (has_pre_norm != 0) v = (v - mean[t * 16 + l]) * rstd[t * 16 + l] * g + b;
                    }
                    ht[(size_t)k * 16 + l] = v;
                }
            }
        }
#pragma omp barrier

        // up projection + bias + GELU
        {
            const int u = uu1 - uu0;
            const int nb = (u + UMAX - 1) / UMAX;
            for (int b = 0; b < nb; ++b) {
                const int a0 = uu0 + (int)((int64_t)u * b / nb);
                const int a1 = uu0 + (int)((int64_t)u * (b + 1) / nb);
                const int n0 = a0 * 4, R = (a1 - a0) * 4;
                const T* next = b + 1 < nb ? w_up + (size_t)a1 * 4 * H : nullptr;
                dispatch<H>(a1 - a0, w_up + (size_t)n0 * H, next, hT, ntile, wp, c);
                if (b + 1 == nb) prefetch_first<I>(w_down + (size_t)du0 * 4 * I, first_rows(du0, du1));
                for (int t = 0; t < ntile; ++t)
                    for (int r = 0; r < R; ++r)
                        gelu_store(c + (t * RMAX + r) * 16, to_float(b_up[n0 + r]),
                                   aT + ((size_t)t * I + n0 + r) * 16);
            }
        }
#pragma omp barrier

        // down projection + bias + residual
        {
            const int u = du1 - du0;
            const int nb = (u + UMAX - 1) / UMAX;
            for (int b = 0; b < nb; ++b) {
                const int a0 = du0 + (int)((int64_t)u * b / nb);
                const int a1 = du0 + (int)((int64_t)u * (b + 1) / nb);
                const int n0 = a0 * 4, R = (a1 - a0) * 4;
                const T* next = b + 1 < nb ? w_down + (size_t)a1 * 4 * I : nullptr;
                dispatch<I>(a1 - a0, w_down + (size_t)n0 * I, next, aT, ntile, wp, c);
                for (int t = 0; t < ntile; ++t) {
                    const int nl = ntok - t * 16 < 16 ? ntok - t * 16 : 16;
                    for (int l = 0; l < nl; ++l) {
                        const size_t o = (size_t)(tok0 + t * 16 + l) * H + n0;
                        for (int r = 0; r < R; ++r) {
                            const float y = c[(t * RMAX + r) * 16 + l] + to_float(b_down[n0 + r]);
                            const float yr = to_float(from_float<T>(y));
                            out[o + r] = from_float<T>(yr + to_float(x[o + r]));
                        }
                    }
                }
            }
        }
    }
}

}  // namespace emlp

extern "C" void encoder_mlp_lanes(
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
    float* ws = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~(uintptr_t)63);
    constexpr bool big = (int64_t)hidden_size * intermediate_size * (num_tokens < 16 ? 16 : num_tokens) > 400000;
#pragma omp parallel if (big)
    {
        emlp::body(x, ln_weight, ln_bias, w_up, b_up, w_down, b_down, out, eps, ws, omp_get_thread_num(),
                   omp_get_num_threads());
    }
}
