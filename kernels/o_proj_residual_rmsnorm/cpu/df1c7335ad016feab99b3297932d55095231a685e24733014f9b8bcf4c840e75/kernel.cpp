// Contract: o_proj_residual_rmsnorm v1. y = round(attn @ w_o^T), residual = round(y + residual),
//   out = round(round(residual * rsqrt(mean(residual^2) + eps)) * weight).
// Idea: 1. every thread streams one contiguous range of weight rows, four rows a pass, widening 16-bit operands in
//          registers (bf16: even/odd split by one shift and one mask, the same split for weights and activations).
//       2. small steps: the calling thread norms the row after the one join; larger steps: one barrier inside the
//          region, then tokens (or slices of them) are normed by all threads.
//       3. sums run in an order that depends on the dims only, never on timing or on the number of threads.
// Bound by: memory bandwidth of the weight stream, plus one fork and one join of the team.

namespace opk {

typedef decltype(sizeof(0)) usize;

constexpr bool IS_BF16 = std::is_same_v<T, bfloat16>;
constexpr bool IS_F16 = std::is_same_v<T, float16>;

#if defined(__AVX512F__)

typedef __m512 V;
constexpr int W = 16;

static inline V v_zero() { return _mm512_setzero_ps(); }
static inline V v_set1(float f) { return _mm512_set1_ps(f); }
static inline V v_add(V a, V b) { return _mm512_add_ps(a, b); }
static inline V v_mul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V v_fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline float v_sum(V a) { return _mm512_reduce_add_ps(a); }

static inline void v_split(__m512i x, V& a, V& b) {
    if constexpr (IS_BF16) {
        a = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        b = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)));
    } else {
        a = _mm512_cvtph_ps(_mm512_castsi512_si256(x));
        b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1));
    }
}

static inline void v_load2(const T* p, V& a, V& b) {
    if constexpr (IS_BF16 || IS_F16) {
        v_split(_mm512_loadu_si512((const void*)p), a, b);
    } else {
        a = _mm512_loadu_ps((const void*)p);
        b = _mm512_loadu_ps((const void*)(p + 16));
    }
}

// n elements, n a multiple of 8 and below 32
static inline void v_load2_tail(const T* p, int n, V& a, V& b) {
    if constexpr (IS_BF16 || IS_F16) {
        const __mmask16 m = (__mmask16)((1u << (n / 2)) - 1u);
        v_split(_mm512_maskz_loadu_epi32(m, (const void*)p), a, b);
    } else {
        const unsigned m = (1u << n) - 1u;
        a = _mm512_maskz_loadu_ps((__mmask16)(m & 0xffffu), (const void*)p);
        if (n > 16) b = _mm512_maskz_loadu_ps((__mmask16)(m >> 16), (const void*)(p + 16));
        else b = _mm512_setzero_ps();
    }
}

static inline V v_load(const T* p) {
    if constexpr (IS_BF16) {
        const __m256i x = _mm256_loadu_si256((const __m256i*)(const void*)p);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    } else if constexpr (IS_F16) {
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(const void*)p));
    } else {
        return _mm512_loadu_ps((const void*)p);
    }
}

// bits of the value rounded to bfloat16, in the high half of each lane
static inline __m512i v_bf16_bits(V v) {
    const __m512i x = _mm512_castps_si512(v);
    const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    __m512i y = _mm512_add_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(0x7fff)), lsb);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    y = _mm512_mask_or_epi32(y, nan, x, _mm512_set1_epi32(0x00400000));
    return _mm512_and_si512(y, _mm512_set1_epi32((int)0xffff0000u));
}

static inline V v_round(V v) {
    if constexpr (IS_BF16) {
        return _mm512_castsi512_ps(v_bf16_bits(v));
    } else if constexpr (IS_F16) {
        return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    } else {
        return v;
    }
}

static inline void v_store(T* p, V v) {
    if constexpr (IS_BF16) {
        const __m256i x = _mm512_cvtepi32_epi16(_mm512_srli_epi32(v_bf16_bits(v), 16));
        _mm256_storeu_si256((__m256i*)(void*)p, x);
    } else if constexpr (IS_F16) {
        const __m256i x = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_storeu_si256((__m256i*)(void*)p, x);
    } else {
        _mm512_storeu_ps((void*)p, v);
    }
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

typedef __m256 V;
constexpr int W = 8;

static inline V v_zero() { return _mm256_setzero_ps(); }
static inline V v_set1(float f) { return _mm256_set1_ps(f); }
static inline V v_add(V a, V b) { return _mm256_add_ps(a, b); }
static inline V v_mul(V a, V b) { return _mm256_mul_ps(a, b); }
static inline V v_fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
static inline float v_sum(V a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    x = _mm_add_ss(x, _mm_shuffle_ps(x, x, 1));
    return _mm_cvtss_f32(x);
}

static inline void v_split(__m256i x, V& a, V& b) {
    if constexpr (IS_BF16) {
        a = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
        b = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000u)));
    } else {
        a = _mm256_cvtph_ps(_mm256_castsi256_si128(x));
        b = _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1));
    }
}

static inline void v_load2(const T* p, V& a, V& b) {
    if constexpr (IS_BF16 || IS_F16) {
        v_split(_mm256_loadu_si256((const __m256i*)(const void*)p), a, b);
    } else {
        a = _mm256_loadu_ps((const float*)(const void*)p);
        b = _mm256_loadu_ps((const float*)(const void*)(p + 8));
    }
}

// the tail is always 8 elements here
static inline void v_load2_tail(const T* p, int, V& a, V& b) {
    if constexpr (IS_BF16 || IS_F16) {
        const __m128i x = _mm_loadu_si128((const __m128i*)(const void*)p);
        v_split(_mm256_inserti128_si256(_mm256_setzero_si256(), x, 0), a, b);
    } else {
        a = _mm256_loadu_ps((const float*)(const void*)p);
        b = _mm256_setzero_ps();
    }
}

static inline V v_load(const T* p) {
    if constexpr (IS_BF16) {
        const __m128i x = _mm_loadu_si128((const __m128i*)(const void*)p);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
    } else if constexpr (IS_F16) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(const void*)p));
    } else {
        return _mm256_loadu_ps((const float*)(const void*)p);
    }
}

static inline __m256i v_bf16_bits(V v) {
    const __m256i x = _mm256_castps_si256(v);
    const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    const __m256i y = _mm256_add_epi32(_mm256_add_epi32(x, _mm256_set1_epi32(0x7fff)), lsb);
    const __m256i q = _mm256_or_si256(x, _mm256_set1_epi32(0x00400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_and_si256(_mm256_blendv_epi8(y, q, nan), _mm256_set1_epi32((int)0xffff0000u));
}

static inline V v_round(V v) {
    if constexpr (IS_BF16) {
        return _mm256_castsi256_ps(v_bf16_bits(v));
    } else if constexpr (IS_F16) {
        return _mm256_cvtph_ps(_mm256_cvtps_ph(v, 0));
    } else {
        return v;
    }
}

static inline void v_store(T* p, V v) {
    if constexpr (IS_BF16) {
        const __m256i x = _mm256_srli_epi32(v_bf16_bits(v), 16);
        const __m128i y = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        _mm_storeu_si128((__m128i*)(void*)p, y);
    } else if constexpr (IS_F16) {
        _mm_storeu_si128((__m128i*)(void*)p, _mm256_cvtps_ph(v, 0));
    } else {
        _mm256_storeu_ps((float*)(void*)p, v);
    }
}

#else

struct V { float f; };
constexpr int W = 1;

static inline V v_zero() { return V{0.0f}; }
static inline V v_set1(float f) { return V{f}; }
static inline V v_add(V a, V b) { return V{a.f + b.f}; }
static inline V v_mul(V a, V b) { return V{a.f * b.f}; }
static inline V v_fma(V a, V b, V c) { return V{a.f * b.f + c.f}; }
static inline float v_sum(V a) { return a.f; }
static inline void v_load2(const T* p, V& a, V& b) { a.f = to_float(p[0]); b.f = to_float(p[1]); }
static inline void v_load2_tail(const T*, int, V& a, V& b) { a.f = 0.0f; b.f = 0.0f; }
static inline V v_load(const T* p) { return V{to_float(p[0])}; }
static inline V v_round(V v) { return V{to_float(from_float<T>(v.f))}; }
static inline void v_store(T* p, V v) { p[0] = from_float<T>(v.f); }

#endif

constexpr int H = hidden_size;
constexpr int K = in_features;
constexpr int C = 2 * W;                                   // elements a step
constexpr int KT = K % C;                                  // elements of the last, partial step
constexpr int KM = K - KT;
constexpr int TT = num_tokens < 4 ? num_tokens : 4;        // tokens a tile
constexpr int TR = num_tokens % TT;                        // tokens of the last, partial tile
constexpr int R = (num_tokens == 1 || W == 16) ? 4 : 2;    // weight rows a pass
constexpr int LINE = 64 / (int)sizeof(T);                  // elements of a cache line
constexpr int AHEAD = 10 * LINE;                           // prefetch distance in elements
constexpr bool TEAM = (long long)num_tokens * H * K > 65536;
constexpr bool NORM_ON_CALLER = !TEAM || (long long)num_tokens * H <= 4096;

// y[m * R + r] = dot(a row m, w row r). limit: elements from w to the end of this thread's range.
template <int MT, bool PF>
static inline __attribute__((always_inline)) void tile(const T* __restrict__ a, const T* __restrict__ w, usize limit,
                                                       float* __restrict__ y) {
    constexpr int NA = MT == 1 ? 2 : 1;
    V acc[MT][R][NA];
#pragma GCC unroll 8
    for (int m = 0; m < MT; ++m)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int i = 0; i < NA; ++i) acc[m][r][i] = v_zero();

    for (int k = 0; k < KM; k += C) {
        if constexpr (PF) {
            if (C >= LINE || (k & (LINE - 1)) == 0) {
                // past the end of a row the stream goes on in the same row of the next pass
                usize po = (usize)k + AHEAD;
                if (po >= (usize)K) po += (usize)(R - 1) * K;
                if (po + (usize)(R - 1) * K < limit) {
#pragma GCC unroll 8
                    for (int r = 0; r < R; ++r) {
                        const T* p = w + (usize)r * K + po;
                        __builtin_prefetch((const void*)p, 0, 3);
                        if constexpr (C > LINE) __builtin_prefetch((const void*)(p + LINE), 0, 3);
                    }
                }
            }
        }
        V w0[R], w1[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) v_load2(w + (usize)r * K + k, w0[r], w1[r]);
#pragma GCC unroll 8
        for (int m = 0; m < MT; ++m) {
            V a0, a1;
            v_load2(a + (usize)m * K + k, a0, a1);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                acc[m][r][0] = v_fma(w0[r], a0, acc[m][r][0]);
                acc[m][r][NA - 1] = v_fma(w1[r], a1, acc[m][r][NA - 1]);
            }
        }
    }
    if constexpr (KT != 0) {
        V w0[R], w1[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) v_load2_tail(w + (usize)r * K + KM, KT, w0[r], w1[r]);
#pragma GCC unroll 8
        for (int m = 0; m < MT; ++m) {
            V a0, a1;
            v_load2_tail(a + (usize)m * K + KM, KT, a0, a1);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                acc[m][r][0] = v_fma(w0[r], a0, acc[m][r][0]);
                acc[m][r][NA - 1] = v_fma(w1[r], a1, acc[m][r][NA - 1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < MT; ++m)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            V s = acc[m][r][0];
            if constexpr (NA == 2) s = v_add(s, acc[m][r][1]);
            y[m * R + r] = v_sum(s);
        }
}

template <int MT>
static inline void finish(const float* y, T* residual, int token, int row) {
    for (int m = 0; m < MT; ++m) {
        T* p = residual + (usize)(token + m) * H + row;
        for (int r = 0; r < R; ++r) {
            const float v = to_float(from_float<T>(y[m * R + r]));
            p[r] = from_float<T>(v + to_float(p[r]));
        }
    }
}

// projection and residual of rows [row0, row1), both multiples of R
static inline void project(const T* __restrict__ attn, const T* __restrict__ w_o, T* __restrict__ residual, int row0,
                           int row1) {
    if (row0 >= row1) return;
    {
        const T* w = w_o + (usize)row0 * K;
        for (int k = 0; k < AHEAD && k < K; k += LINE)
            for (int r = 0; r < R; ++r) __builtin_prefetch((const void*)(w + (usize)r * K + k), 0, 3);
    }
    if constexpr (num_tokens <= 8) {
        for (int m = 0; m < num_tokens; ++m)
            for (int h = row0; h < row1; h += LINE)
                __builtin_prefetch((const void*)(residual + (usize)m * H + h), 1, 3);
    }
    for (int row = row0; row < row1; row += R) {
        const T* w = w_o + (usize)row * K;
        const usize limit = (usize)(row1 - row) * K;
        float y[TT * R];
        tile<TT, true>(attn, w, limit, y);
        finish<TT>(y, residual, 0, row);
        if constexpr (num_tokens > TT) {
            int t = TT;
            for (; t + TT <= num_tokens; t += TT) {
                tile<TT, false>(attn + (usize)t * K, w, limit, y);
                finish<TT>(y, residual, t, row);
            }
            if constexpr (TR != 0) {
                tile<(TR > 0 ? TR : 1), false>(attn + (usize)t * K, w, limit, y);
                finish<(TR > 0 ? TR : 1)>(y, residual, t, row);
            }
        }
    }
}

static inline float inverse_rms(const T* s, float eps) {
    V q0 = v_zero(), q1 = v_zero(), q2 = v_zero(), q3 = v_zero();
    int h = 0;
    for (; h + 4 * W <= H; h += 4 * W) {
        const V x0 = v_load(s + h), x1 = v_load(s + h + W), x2 = v_load(s + h + 2 * W), x3 = v_load(s + h + 3 * W);
        q0 = v_fma(x0, x0, q0);
        q1 = v_fma(x1, x1, q1);
        q2 = v_fma(x2, x2, q2);
        q3 = v_fma(x3, x3, q3);
    }
    for (; h + W <= H; h += W) {
        const V x = v_load(s + h);
        q0 = v_fma(x, x, q0);
    }
    float rest = 0.0f;
    for (; h < H; ++h) {
        const float x = to_float(s[h]);
        rest += x * x;
    }
    const float sum = v_sum(v_add(v_add(q0, q1), v_add(q2, q3))) + rest;
    return 1.0f / std::sqrt(sum / (float)H + eps);
}

static inline void scale(const T* s, const T* weight, T* out, int h0, int h1, float r) {
    const V rv = v_set1(r);
    int h = h0;
    for (; h + W <= h1; h += W) {
        const V n = v_round(v_mul(v_load(s + h), rv));
        v_store(out + h, v_mul(n, v_load(weight + h)));
    }
    for (; h < h1; ++h) {
        const float n = to_float(from_float<T>(to_float(s[h]) * r));
        out[h] = from_float<T>(n * to_float(weight[h]));
    }
}

}  // namespace opk

extern "C" void o_proj_residual_rmsnorm_cpu(
    const T* __restrict__ attn,
    const T* __restrict__ w_o,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
    using namespace opk;
    (void)workspace;

    if constexpr (!TEAM) {
        project(attn, w_o, residual, 0, H);
    } else {
#pragma omp parallel
        {
            const int nt = omp_get_num_threads();
            const int tid = omp_get_thread_num();
            const long long groups = H / R;
            const int row0 = (int)(groups * tid / nt) * R;
            const int row1 = (int)(groups * (tid + 1) / nt) * R;
            project(attn, w_o, residual, row0, row1);

            if constexpr (NORM_ON_CALLER) {
                // while the others finish, bring what the norm needs to the calling thread
                if (tid == 0) {
                    for (int h = 0; h < H; h += LINE) __builtin_prefetch((const void*)(weight + h), 0, 3);
                    for (int h = 0; h < num_tokens * H; h += LINE) __builtin_prefetch((const void*)(out + h), 1, 3);
                }
            } else {
#pragma omp barrier
                if (num_tokens >= nt) {
                    const int t0 = (int)((long long)num_tokens * tid / nt);
                    const int t1 = (int)((long long)num_tokens * (tid + 1) / nt);
                    for (int t = t0; t < t1; ++t) {
                        const T* s = residual + (usize)t * H;
                        scale(s, weight, out + (usize)t * H, 0, H, inverse_rms(s, eps));
                    }
                } else {
                    const int parts = nt / num_tokens;
                    const int t = tid / parts;
                    const int part = tid % parts;
                    const long long units = (H + 31) / 32;
                    const int h0 = (int)(units * part / parts) * 32;
                    int h1 = (int)(units * (part + 1) / parts) * 32;
                    if (h1 > H) h1 = H;
                    if (t < num_tokens && h0 < h1) {
                        const T* s = residual + (usize)t * H;
                        scale(s, weight, out + (usize)t * H, h0, h1, inverse_rms(s, eps));
                    }
                }
            }
        }
    }

    if constexpr (NORM_ON_CALLER) {
        for (int t = 0; t < num_tokens; ++t) {
            const T* s = residual + (usize)t * H;
            scale(s, weight, out + (usize)t * H, 0, H, inverse_rms(s, eps));
        }
    }
}
