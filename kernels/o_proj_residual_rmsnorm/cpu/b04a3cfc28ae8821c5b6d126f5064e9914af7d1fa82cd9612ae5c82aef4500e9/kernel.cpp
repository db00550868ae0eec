// Contract: o_proj_residual_rmsnorm version 1 (projection, residual add, RMSNorm), x86_64.
// Idea: 1. threads own contiguous slices of w_o rows, four rows at a time, float32 FMA accumulators;
//       2. the rounded sum goes straight into residual, then one barrier of the one team;
//       3. each token's threads redo the same fixed-order sum of squares and write a slice of out.
// Bound by: streaming w_o from memory once, plus one team start and one barrier.

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define OP_SIMD 1
static constexpr int VW = 16;
typedef __m512 vf;
static inline vf v_zero() { return _mm512_setzero_ps(); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
template <typename X>
static inline vf v_load(const X* p) {
    if constexpr (std::is_same_v<X, float>) {
        return _mm512_loadu_ps(p);
    } else {
        const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        if constexpr (std::is_same_v<X, bfloat16>)
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        else
            return _mm512_cvtph_ps(h);
    }
}
// the tail is always exactly 8 elements
template <typename X>
static inline vf v_load_tail(const X* p) {
    if constexpr (std::is_same_v<X, float>) {
        return _mm512_maskz_loadu_ps(static_cast<__mmask16>(0xff), p);
    } else {
        const __m256i h = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(0xff), p);
        if constexpr (std::is_same_v<X, bfloat16>)
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        else
            return _mm512_cvtph_ps(h);
    }
}
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define OP_SIMD 1
static constexpr int VW = 8;
typedef __m256 vf;
static inline vf v_zero() { return _mm256_setzero_ps(); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline float v_sum(vf a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    x = _mm_add_ss(x, _mm_shuffle_ps(x, x, 1));
    return _mm_cvtss_f32(x);
}
template <typename X>
static inline vf v_load(const X* p) {
    if constexpr (std::is_same_v<X, float>) {
        return _mm256_loadu_ps(p);
    } else {
        const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        if constexpr (std::is_same_v<X, bfloat16>)
            return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
        else
            return _mm256_cvtph_ps(h);
    }
}
template <typename X>
static inline vf v_load_tail(const X* p) { return v_load(p); }
#else
static constexpr int VW = 8;
struct vf { float x[8]; };
static inline vf v_zero() { vf r; for (int i = 0; i < 8; ++i) r.x[i] = 0.0f; return r; }
static inline vf v_add(vf a, vf b) { for (int i = 0; i < 8; ++i) a.x[i] += b.x[i]; return a; }
static inline vf v_fma(vf a, vf b, vf c) { for (int i = 0; i < 8; ++i) c.x[i] += a.x[i] * b.x[i]; return c; }
static inline float v_sum(vf a) {
    return ((a.x[0] + a.x[4]) + (a.x[2] + a.x[6])) + ((a.x[1] + a.x[5]) + (a.x[3] + a.x[7]));
}
template <typename X>
static inline vf v_load(const X* p) { vf r; for (int i = 0; i < 8; ++i) r.x[i] = to_float(p[i]); return r; }
template <typename X>
static inline vf v_load_tail(const X* p) { return v_load(p); }
#endif

// R rows of w against NT tokens; rounds, adds the residual, rounds, stores.
template <int R, int NT>
static inline void op_block(const T* __restrict__ a, const T* __restrict__ w,
                            const T* __restrict__ next, T* __restrict__ res) {
    constexpr int U = NT == 1 ? 2 : 1;
    constexpr int K = in_features;
    vf acc[R][NT][U];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < NT; ++t)
#pragma GCC unroll 8
            for (int u = 0; u < U; ++u) acc[r][t][u] = v_zero();

    int k = 0;
    for (; k + U * VW <= K; k += U * VW) {
        vf av[NT][U];
#pragma GCC unroll 8
        for (int t = 0; t < NT; ++t)
#pragma GCC unroll 8
            for (int u = 0; u < U; ++u) av[t][u] = v_load(a + (size_t)t * K + k + u * VW);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            __builtin_prefetch(next + (size_t)r * K + k, 0, 3);
#pragma GCC unroll 8
            for (int u = 0; u < U; ++u) {
                const vf wv = v_load(w + (size_t)r * K + k + u * VW);
#pragma GCC unroll 8
                for (int t = 0; t < NT; ++t) acc[r][t][u] = v_fma(wv, av[t][u], acc[r][t][u]);
            }
        }
    }
    for (; k + VW <= K; k += VW) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const vf wv = v_load(w + (size_t)r * K + k);
#pragma GCC unroll 8
            for (int t = 0; t < NT; ++t)
                acc[r][t][0] = v_fma(wv, v_load(a + (size_t)t * K + k), acc[r][t][0]);
        }
    }
    if (k < K) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const vf wv = v_load_tail(w + (size_t)r * K + k);
#pragma GCC unroll 8
            for (int t = 0; t < NT; ++t)
                acc[r][t][0] = v_fma(wv, v_load_tail(a + (size_t)t * K + k), acc[r][t][0]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < NT; ++t) {
            vf s = acc[r][t][0];
            if constexpr (U == 2) s = v_add(s, acc[r][t][1]);
            const float y = to_float(from_float<T>(v_sum(s)));
            T* p = res + (size_t)t * hidden_size + r;
            *p = from_float<T>(y + to_float(*p));
        }
}

template <int R>
static inline void op_rows(const T* __restrict__ attn, const T* __restrict__ w_o,
                           T* __restrict__ residual, int row, int row_end) {
    const T* w = w_o + (size_t)row * in_features;
    const T* next = row + 2 * R <= row_end ? w + (size_t)R * in_features : w;
    int t = 0;
    for (; t + 4 <= num_tokens; t += 4)
        op_block<R, 4>(attn + (size_t)t * in_features, w, next, residual + (size_t)t * hidden_size + row);
    for (; t < num_tokens; ++t)
        op_block<R, 1>(attn + (size_t)t * in_features, w, next, residual + (size_t)t * hidden_size + row);
}

static inline float op_scale(const T* __restrict__ s, float eps) {
    vf q0 = v_zero(), q1 = v_zero();
    int i = 0;
    for (; i + 2 * VW <= hidden_size; i += 2 * VW) {
        const vf x0 = v_load(s + i), x1 = v_load(s + i + VW);
        q0 = v_fma(x0, x0, q0);
        q1 = v_fma(x1, x1, q1);
    }
    for (; i + VW <= hidden_size; i += VW) {
        const vf x0 = v_load(s + i);
        q0 = v_fma(x0, x0, q0);
    }
    if (i < hidden_size) {
        const vf x0 = v_load_tail(s + i);
        q1 = v_fma(x0, x0, q1);
    }
    const float sum = v_sum(v_add(q0, q1));
    return 1.0f / std::sqrt(sum / (float)hidden_size + eps);
}

static inline void op_norm(const T* __restrict__ s, const T* __restrict__ weight, T* __restrict__ out,
                           float r, int begin, int end) {
    for (int i = begin; i < end; ++i) {
        const float n = to_float(from_float<T>(to_float(s[i]) * r));
        out[i] = from_float<T>(n * to_float(weight[i]));
    }
}

extern "C" void o_proj_norm(
    const T* __restrict__ attn,
    const T* __restrict__ w_o,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
    (void)workspace;
#pragma omp parallel
    {
        const int nt = omp_get_num_threads();
        const int tid = omp_get_thread_num();
        int row = (int)((int64_t)hidden_size * tid / nt);
        const int row_end = (int)((int64_t)hidden_size * (tid + 1) / nt);
        for (; row + 4 <= row_end; row += 4) op_rows<4>(attn, w_o, residual, row, row_end);
        for (; row < row_end; ++row) op_rows<1>(attn, w_o, residual, row, row_end);

#pragma omp barrier

        if (num_tokens >= nt) {
            for (int t = tid; t < num_tokens; t += nt) {
                const T* s = residual + (size_t)t * hidden_size;
                op_norm(s, weight, out + (size_t)t * hidden_size, op_scale(s, eps), 0, hidden_size);
            }
        } else {
            const int g = nt / num_tokens;
            const int t = tid / g;
            const int part = tid % g;
            if (t < num_tokens) {
                const T* s = residual + (size_t)t * hidden_size;
                const int b = (int)((int64_t)hidden_size * part / g);
                const int e = (int)((int64_t)hidden_size * (part + 1) / g);
                if (b < e) op_norm(s, weight, out + (size_t)t * hidden_size, op_scale(s, eps), b, e);
            }
        }
    }
}
