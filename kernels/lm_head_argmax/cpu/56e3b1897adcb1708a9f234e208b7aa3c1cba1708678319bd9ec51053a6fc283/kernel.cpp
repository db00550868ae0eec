// Contract: lm_head_argmax version 1. logits = x @ w^T in float32, out_ids = lowest index of the largest, out_max = it.
// Idea: one OpenMP region; every thread streams one contiguous slab of vocabulary rows, a few rows at a time, widening
// to float32 in registers with software prefetch of the next rows; running maxima stay on the stack and one partial a
// thread goes to the workspace, combined in thread order by the caller.
// Bound: memory bandwidth of the single read of w.

namespace lmh {

static constexpr int64_t H = hidden_size;
static constexpr int64_t V = vocab_size;
static constexpr int NT = num_tokens;

static inline bool better(float v, int i, float bv, int bi) {
    if (v != v) return bv == bv || i < bi;
    if (bv != bv) return false;
    return v > bv || (v == bv && i < bi);
}

#if defined(__AVX512F__) && defined(__AVX512BW__)

static inline void load_full(const T* p, __m512& a, __m512& b) {
    const void* q = static_cast<const void*>(p);
    if constexpr (std::is_same_v<T, float>) {
        a = _mm512_loadu_ps(q);
        b = _mm512_loadu_ps(static_cast<const char*>(q) + 64);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        const __m512i r = _mm512_loadu_si512(q);
        a = _mm512_castsi512_ps(_mm512_slli_epi32(r, 16));
        b = _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    } else {
        const __m512i r = _mm512_loadu_si512(q);
        a = _mm512_cvtph_ps(_mm512_castsi512_si256(r));
        b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(r, 1));
    }
}

template <int REM>
static inline void load_part(const T* p, __m512& a, __m512& b) {
    const void* q = static_cast<const void*>(p);
    constexpr uint32_t m = static_cast<uint32_t>((uint64_t(1) << REM) - 1);
    if constexpr (std::is_same_v<T, float>) {
        a = _mm512_maskz_loadu_ps(static_cast<__mmask16>(m & 0xffffu), q);
        if constexpr ((m >> 16) != 0)
            b = _mm512_maskz_loadu_ps(static_cast<__mmask16>(m >> 16), static_cast<const char*>(q) + 64);
        else
            b = _mm512_setzero_ps();
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        const __m512i r = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(m), q);
        a = _mm512_castsi512_ps(_mm512_slli_epi32(r, 16));
        b = _mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    } else {
        const __m512i r = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(m), q);
        a = _mm512_cvtph_ps(_mm512_castsi512_si256(r));
        b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(r, 1));
    }
}

// R rows of w times TB rows of x; pf is the distance in elements to prefetch at (0: nothing new).
template <int R, int TB>
static inline void dots(const T* xp, const T* wp, int64_t pf, float (&out)[R][TB]) {
    __m512 s0[R][TB], s1[R][TB];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TB; ++t) {
            s0[r][t] = _mm512_setzero_ps();
            s1[r][t] = _mm512_setzero_ps();
        }
    constexpr int64_t full = H / 32 * 32;
    for (int64_t k = 0; k < full; k += 32) {
        __m512 xa[TB], xb[TB];
#pragma GCC unroll 8
        for (int t = 0; t < TB; ++t) load_full(xp + t * H + k, xa[t], xb[t]);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const T* q = wp + r * H + k;
            if (pf) {
                _mm_prefetch(reinterpret_cast<const char*>(q + pf), _MM_HINT_T0);
                if constexpr (sizeof(T) == 4)
                    _mm_prefetch(reinterpret_cast<const char*>(q + pf + 16), _MM_HINT_T0);
            }
            __m512 wa, wb;
            load_full(q, wa, wb);
#pragma GCC unroll 8
            for (int t = 0; t < TB; ++t) {
                s0[r][t] = _mm512_fmadd_ps(wa, xa[t], s0[r][t]);
                s1[r][t] = _mm512_fmadd_ps(wb, xb[t], s1[r][t]);
            }
        }
    }
    constexpr int rem = static_cast<int>(H % 32);
    if constexpr (rem != 0) {
        __m512 xa[TB], xb[TB];
        for (int t = 0; t < TB; ++t) load_part<rem>(xp + t * H + full, xa[t], xb[t]);
        for (int r = 0; r < R; ++r) {
            __m512 wa, wb;
            load_part<rem>(wp + r * H + full, wa, wb);
            for (int t = 0; t < TB; ++t) {
                s0[r][t] = _mm512_fmadd_ps(wa, xa[t], s0[r][t]);
                s1[r][t] = _mm512_fmadd_ps(wb, xb[t], s1[r][t]);
            }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TB; ++t) out[r][t] = _mm512_reduce_add_ps(_mm512_add_ps(s0[r][t], s1[r][t]));
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

static inline __m256 load8(const T* p) {
    const void* q = static_cast<const void*>(p);
    if constexpr (std::is_same_v<T, float>) {
        return _mm256_loadu_ps(static_cast<const float*>(q));
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        const __m128i r = _mm_loadu_si128(static_cast<const __m128i*>(q));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(r), 16));
    } else {
        return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(q)));
    }
}

template <int R, int TB>
static inline void dots(const T* xp, const T* wp, int64_t pf, float (&out)[R][TB]) {
    __m256 s[R][TB];
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TB; ++t) s[r][t] = _mm256_setzero_ps();
    for (int64_t k = 0; k < H; k += 8) {
        __m256 xa[TB];
#pragma GCC unroll 8
        for (int t = 0; t < TB; ++t) xa[t] = load8(xp + t * H + k);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const T* q = wp + r * H + k;
            if (pf && (k % 32) == 0) _mm_prefetch(reinterpret_cast<const char*>(q + pf), _MM_HINT_T0);
            const __m256 wa = load8(q);
#pragma GCC unroll 8
            for (int t = 0; t < TB; ++t) s[r][t] = _mm256_fmadd_ps(wa, xa[t], s[r][t]);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TB; ++t) {
            __m128 v = _mm_add_ps(_mm256_castps256_ps128(s[r][t]), _mm256_extractf128_ps(s[r][t], 1));
            v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            v = _mm_add_ss(v, _mm_shuffle_ps(v, v, 1));
            out[r][t] = _mm_cvtss_f32(v);
        }
}

#else

template <int R, int TB>
static inline void dots(const T* xp, const T* wp, int64_t, float (&out)[R][TB]) {
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TB; ++t) {
            float s[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            for (int64_t k = 0; k < H; k += 8)
                for (int j = 0; j < 8; ++j) s[j] += to_float(wp[r * H + k + j]) * to_float(xp[t * H + k + j]);
            out[r][t] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        }
}

#endif

template <int R, int TB>
static inline void block(const T* x, const T* w, int64_t row, int t0, int64_t pf, float* bv, int* bi) {
    float o[R][TB];
    dots<R, TB>(x + static_cast<int64_t>(t0) * H, w + row * H, pf, o);
    for (int r = 0; r < R; ++r)
        for (int t = 0; t < TB; ++t) {
            const int id = static_cast<int>(row + r);
            if (better(o[r][t], id, bv[t0 + t], bi[t0 + t])) {
                bv[t0 + t] = o[r][t];
                bi[t0 + t] = id;
            }
        }
}

template <int TB>
static inline void rows4(const T* x, const T* w, int64_t row, int n, int t0, int64_t pf, float* bv, int* bi) {
    constexpr int R = TB <= 2 ? 4 : 2;
    int r = 0;
    for (; r + R <= n; r += R) block<R, TB>(x, w, row + r, t0, pf, bv, bi);
    for (; r < n; ++r) block<1, TB>(x, w, row + r, t0, 0, bv, bi);
}

static inline void slab(const T* x, const T* w, int64_t lo, int64_t hi, float* bv, int* bi) {
    for (int t = 0; t < NT; ++t) {
        bv[t] = -__builtin_inff();
        bi[t] = 2147483647;
    }
    constexpr bool whole = 4 * H * static_cast<int64_t>(sizeof(T)) <= 16384;
    constexpr int64_t dist = whole ? 4 * H : static_cast<int64_t>(1024 / sizeof(T));
    for (int64_t row = lo; row < hi; row += 4) {
        const int n = static_cast<int>(std::min<int64_t>(4, hi - row));
        int64_t pf = row + 8 <= hi ? dist : 0;
        int t = 0;
        for (; t + 4 <= NT; t += 4) {
            rows4<4>(x, w, row, n, t, pf, bv, bi);
            pf = 0;
        }
        if constexpr ((NT & 2) != 0) {
            rows4<2>(x, w, row, n, t, pf, bv, bi);
            pf = 0;
            t += 2;
        }
        if constexpr ((NT & 1) != 0) rows4<1>(x, w, row, n, t, pf, bv, bi);
    }
}

}  // namespace lmh

extern "C" void lm_head_argmax(
    const T* __restrict__ x,
    const T* __restrict__ w,
    int* __restrict__ out_ids,
    float* __restrict__ out_max,
    void* __restrict__ workspace) {
    using namespace lmh;
    float* pv = static_cast<float*>(workspace);
    int* pi = reinterpret_cast<int*>(pv + static_cast<int64_t>(num_sms) * NT);
    int team = 1;
#pragma omp parallel if (V * H * NT > 65536)
    {
        const int tid = omp_get_thread_num();
        const int nt = std::min(omp_get_num_threads(), static_cast<int>(num_sms));
        if (tid == 0) team = nt;
        if (tid < nt) {
            float bv[NT];
            int bi[NT];
            const int64_t blocks = (V + 3) / 4;
            const int64_t lo = blocks * tid / nt * 4;
            const int64_t hi = std::min<int64_t>(V, blocks * (tid + 1) / nt * 4);
            slab(x, w, lo, hi, bv, bi);
            for (int t = 0; t < NT; ++t) {
                pv[static_cast<int64_t>(tid) * NT + t] = bv[t];
                pi[static_cast<int64_t>(tid) * NT + t] = bi[t];
            }
        }
    }
    for (int t = 0; t < NT; ++t) {
        float v = pv[t];
        int id = pi[t];
        for (int p = 1; p < team; ++p) {
            const float cv = pv[static_cast<int64_t>(p) * NT + t];
            const int ci = pi[static_cast<int64_t>(p) * NT + t];
            if (better(cv, ci, v, id)) {
                v = cv;
                id = ci;
            }
        }
        out_ids[t] = id;
        out_max[t] = v;
    }
}
