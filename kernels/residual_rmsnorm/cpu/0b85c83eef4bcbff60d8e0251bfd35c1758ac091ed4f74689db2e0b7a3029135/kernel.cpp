// Contract: residual_rmsnorm v1. s = round_T(x + residual) (written back to residual), r = 1/sqrt(mean(s*s)+eps)
//           in float32 on the rounded s, out = round_T(round_T(s*r) * weight).
// Idea: decode rows run on the calling thread, no team is woken; pass 1 adds, rounds, stores the residual and
//       accumulates squares in independent vector accumulators, while weight and out lines are prefetched;
//       pass 2 rescales the rounded row from L1. Only calls with >= 192 KiB of rows open one parallel region.
// Bound: latency of about four cold streams of a few kilobytes at decode, memory bandwidth at prefill.

namespace rn {

static constexpr long H = hidden_size;
static constexpr bool kRes = has_residual != 0;

#if defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#define RN_HAVE_V8 1
struct V8 {
    static constexpr long W = 8;
    using F = __m256;
    static inline F zero() { return _mm256_setzero_ps(); }
    static inline F set1(float f) { return _mm256_set1_ps(f); }
    static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
    static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static inline float sum(F v) {
        __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        a = _mm_add_ps(a, _mm_movehl_ps(a, a));
        a = _mm_add_ss(a, _mm_shuffle_ps(a, a, 1));
        return _mm_cvtss_f32(a);
    }
    static inline F load(const T* p) {
        if constexpr (std::is_same_v<T, float>) {
            return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
        } else {
            const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
            if constexpr (std::is_same_v<T, bfloat16>)
                return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
            else
                return _mm256_cvtph_ps(h);
        }
    }
    // The rounded bf16 value in the upper half of each lane; the lower half holds rubbish.
    static inline __m256i round_bf16(F v) {
        const __m256i u = _mm256_castps_si256(v);
        const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        const __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), lsb);
        const __m256i q = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
        const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
        return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(q), nan));
    }
    static inline F round(F v) {
        if constexpr (std::is_same_v<T, float>) {
            return v;
        } else if constexpr (std::is_same_v<T, bfloat16>) {
            return _mm256_castsi256_ps(_mm256_and_si256(round_bf16(v), _mm256_set1_epi32((int)0xffff0000u)));
        } else {
            return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        }
    }
    // Rounds, stores, and returns the rounded value.
    static inline F store(T* p, F v) {
        if constexpr (std::is_same_v<T, float>) {
            _mm256_storeu_ps(reinterpret_cast<float*>(p), v);
            return v;
        } else if constexpr (std::is_same_v<T, bfloat16>) {
            const __m256i s = _mm256_srli_epi32(round_bf16(v), 16);
            const __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(p), h);
            return _mm256_castsi256_ps(_mm256_slli_epi32(s, 16));
        } else {
            const __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(p), h);
            return _mm256_cvtph_ps(h);
        }
    }
};
#endif

#if defined(RN_HAVE_V8) && defined(__AVX512F__)
#define RN_HAVE_V16 1
struct V16 {
    static constexpr long W = 16;
    using F = __m512;
    static inline F zero() { return _mm512_setzero_ps(); }
    static inline F set1(float f) { return _mm512_set1_ps(f); }
    static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
    static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static inline float sum(F v) { return _mm512_reduce_add_ps(v); }
    static inline F load(const T* p) {
        if constexpr (std::is_same_v<T, float>) {
            return _mm512_loadu_ps(reinterpret_cast<const float*>(p));
        } else {
            const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
            if constexpr (std::is_same_v<T, bfloat16>)
                return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
            else
                return _mm512_cvtph_ps(h);
        }
    }
    static inline __m512i round_bf16(F v) {
        const __m512i u = _mm512_castps_si512(v);
        const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        const __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), lsb);
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        return _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x00400000));
    }
    static inline F round(F v) {
        if constexpr (std::is_same_v<T, float>) {
            return v;
        } else if constexpr (std::is_same_v<T, bfloat16>) {
            return _mm512_castsi512_ps(_mm512_and_si512(round_bf16(v), _mm512_set1_epi32((int)0xffff0000u)));
        } else {
            return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        }
    }
    static inline F store(T* p, F v) {
        if constexpr (std::is_same_v<T, float>) {
            _mm512_storeu_ps(reinterpret_cast<float*>(p), v);
            return v;
        } else if constexpr (std::is_same_v<T, bfloat16>) {
            const __m512i s = _mm512_srli_epi32(round_bf16(v), 16);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(s));
            return _mm512_castsi512_ps(_mm512_slli_epi32(s, 16));
        } else {
            const __m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
            return _mm512_cvtph_ps(h);
        }
    }
};
#endif

#if defined(RN_HAVE_V8)

#if defined(RN_HAVE_V16)
using V = V16;
static constexpr long U = 4;
#else
using V = V8;
static constexpr long U = 8;
#endif
static constexpr long kBlock = V::W * U;
static constexpr long kMain = H / kBlock * kBlock;
static constexpr long kVecEnd = H / V::W * V::W;

template <class X>
static inline typename X::F first(const T* x, T* res, long i) {
    typename X::F s = X::load(x + i);
    if constexpr (kRes) s = X::store(res + i, X::add(s, X::load(res + i)));
    return s;
}

template <class X>
static inline void second(const T* s, const T* w, T* o, long i, float r) {
    const typename X::F n = X::round(X::mul(X::load(s + i), X::set1(r)));
    X::store(o + i, X::mul(n, X::load(w + i)));
}

static inline void row(const T* x, T* res, const T* w, T* o, float eps) {
    V::F acc[U];
    for (long u = 0; u < U; ++u) acc[u] = V::zero();
    for (long i = 0; i < kMain; i += kBlock) {
#pragma GCC unroll 8
        for (long u = 0; u < U; ++u) {
            const V::F s = first<V>(x, res, i + u * V::W);
            acc[u] = V::fma(s, s, acc[u]);
        }
#pragma GCC unroll 8
        for (long b = 0; b < kBlock; b += 64 / (long)sizeof(T)) {
            __builtin_prefetch(w + i + b, 0, 3);
            __builtin_prefetch(o + i + b, 1, 3);
        }
    }
    for (long i = kMain; i < kVecEnd; i += V::W) {
        const V::F s = first<V>(x, res, i);
        acc[0] = V::fma(s, s, acc[0]);
    }
    for (long step = U / 2; step > 0; step /= 2)
        for (long u = 0; u < step; ++u) acc[u] = V::add(acc[u], acc[u + step]);
    float sum = V::sum(acc[0]);
    if constexpr (kVecEnd < H) {
        const V8::F s = first<V8>(x, res, kVecEnd);
        sum += V8::sum(V8::mul(s, s));
    }
    const float r = 1.0f / std::sqrt(sum / (float)H + eps);

    const T* s = x;
    if constexpr (kRes) s = res;
    for (long i = 0; i < kMain; i += kBlock) {
#pragma GCC unroll 8
        for (long u = 0; u < U; ++u) second<V>(s, w, o, i + u * V::W, r);
    }
    for (long i = kMain; i < kVecEnd; i += V::W) second<V>(s, w, o, i, r);
    if constexpr (kVecEnd < H) second<V8>(s, w, o, kVecEnd, r);
}

#else

static inline void row(const T* x, T* res, const T* w, T* o, float eps) {
    float acc[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (long i = 0; i < H; i += 8) {
        for (long u = 0; u < 8; ++u) {
            float s = to_float(x[i + u]);
            if constexpr (kRes) {
                const T t = from_float<T>(s + to_float(res[i + u]));
                res[i + u] = t;
                s = to_float(t);
            }
            acc[u] += s * s;
        }
    }
    const float sum = ((acc[0] + acc[4]) + (acc[2] + acc[6])) + ((acc[1] + acc[5]) + (acc[3] + acc[7]));
    const float r = 1.0f / std::sqrt(sum / (float)H + eps);
    const T* s = x;
    if constexpr (kRes) s = res;
    for (long i = 0; i < H; ++i) {
        const float n = to_float(from_float<T>(to_float(s[i]) * r));
        o[i] = from_float<T>(n * to_float(w[i]));
    }
}

#endif

// Requests the head of the first row before any arithmetic, so that the cold misses overlap.
static inline void warm(const T* x, const T* res) {
    constexpr long line = 64 / (long)sizeof(T);
    constexpr long n = std::min<long>(H, 2048 / (long)sizeof(T));
    for (long i = 0; i < n; i += line) {
        __builtin_prefetch(x + i, 0, 3);
        if constexpr (kRes) __builtin_prefetch(res + i, 1, 3);
    }
}

static constexpr bool kTeam = num_tokens > 1 && (long)num_tokens * H * (long)sizeof(T) >= 192 * 1024;

}  // namespace rn

extern "C" void residual_rmsnorm_cpu(
    const T* __restrict__ x,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
    (void)workspace;
    if constexpr (rn::kTeam) {
#pragma omp parallel for schedule(static)
        for (long t = 0; t < (long)num_tokens; ++t) {
            T* res = nullptr;
            if constexpr (rn::kRes) res = residual + t * rn::H;
            rn::row(x + t * rn::H, res, weight, out + t * rn::H, eps);
        }
    } else {
        rn::warm(x, residual);
        for (long t = 0; t < (long)num_tokens; ++t) {
            T* res = nullptr;
            if constexpr (rn::kRes) res = residual + t * rn::H;
            rn::row(x + t * rn::H, res, weight, out + t * rn::H, eps);
        }
    }
}
