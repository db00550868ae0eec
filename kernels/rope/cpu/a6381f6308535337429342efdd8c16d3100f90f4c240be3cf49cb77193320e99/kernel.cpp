// Contract: rope v1. Rotates the first rotary_dim elements of every q and k head in place, half-split or interleaved,
//           with a float32 cos/sin table row chosen by positions[t]; float32 arithmetic, one rounding to T.
// Idea: one thread owns both elements of a pair and loads both before it stores; at decode the calling thread first asks
//       for the table row and all heads so that cold misses overlap; bfloat16 rotates as even and odd lanes with the
//       table row held over all heads of a token; from 192 KiB of heads one parallel region over (token, head) runs.
// Bound: latency of cold lines at decode (position -> table row is dependent), memory bandwidth at prefill.

namespace rp {

static constexpr long HALF = rotary_dim / 2;
static constexpr long HEADS = (long)num_heads + num_kv_heads;

#if defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#define RP_HAVE_V8 1
struct V8 {
    static constexpr long W = 8;
    using F = __m256;
    static inline F loadf(const float* p) { return _mm256_loadu_ps(p); }
    static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static inline F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
    static inline F fmaddsub(F a, F b, F c) { return _mm256_fmaddsub_ps(a, b, c); }
    static inline F swap(F v) { return _mm256_permute_ps(v, 0xB1); }
    // Four floats, each twice.
    static inline F twice(const float* p) {
        return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                                        _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
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
    static inline void store(T* p, F v) {
        if constexpr (std::is_same_v<T, float>) {
            _mm256_storeu_ps(reinterpret_cast<float*>(p), v);
        } else if constexpr (std::is_same_v<T, bfloat16>) {
            const __m256i u = _mm256_castps_si256(v);
            const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
            const __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), lsb);
            const __m256i q = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
            const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
            const __m256i b = _mm256_castps_si256(
                _mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(q), nan));
            const __m256i s = _mm256_srli_epi32(b, 16);
            _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                             _mm_packus_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1)));
        } else {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                             _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        }
    }
    using I = __m256i;
    // Elements 0, 2, .. and 1, 3, .. of 16 floats.
    static inline F evens(const float* p) {
        const F x = _mm256_shuffle_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), 0x88);
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xD8));
    }
    static inline F odds(const float* p) {
        const F x = _mm256_shuffle_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8), 0xDD);
        return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xD8));
    }
    static inline I raw(const T* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    static inline F low(I v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
    static inline F high(I v) {
        return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
    }
    // The bfloat16 result stands in the upper half of every lane.
    static inline I round16(F v) {
        const __m256i u = _mm256_castps_si256(v);
        const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        const __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), lsb);
        const __m256i n = _mm256_or_si256(u, _mm256_set1_epi32(0x00400000));
        const __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
        return _mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(r), _mm256_castsi256_ps(n), nan));
    }
    static inline void join(T* p, F e, F o) {
        const I lo = _mm256_srli_epi32(round16(e), 16);
        const I hi = _mm256_and_si256(round16(o), _mm256_set1_epi32((int)0xffff0000u));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_or_si256(lo, hi));
    }
};
#endif

#if defined(RP_HAVE_V8) && defined(__AVX512F__)
#define RP_HAVE_V16 1
struct V16 {
    static constexpr long W = 16;
    using F = __m512;
    static inline F loadf(const float* p) { return _mm512_loadu_ps(p); }
    static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static inline F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
    static inline F fmaddsub(F a, F b, F c) { return _mm512_fmaddsub_ps(a, b, c); }
    static inline F swap(F v) { return _mm512_permute_ps(v, 0xB1); }
    // Eight floats, each twice.
    static inline F twice(const float* p) {
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
                                     _mm512_castps256_ps512(_mm256_loadu_ps(p)));
    }
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
    static inline void store(T* p, F v) {
        if constexpr (std::is_same_v<T, float>) {
            _mm512_storeu_ps(reinterpret_cast<float*>(p), v);
        } else if constexpr (std::is_same_v<T, bfloat16>) {
            const __m512i u = _mm512_castps_si512(v);
            const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
            const __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), lsb);
            const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
            const __m512i b = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x00400000));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16)));
        } else {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                                _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
        }
    }
    using I = __m512i;
    // Elements 0, 2, .. and 1, 3, .. of 32 floats.
    static inline F evens(const float* p) {
        return _mm512_permutex2var_ps(
            _mm512_loadu_ps(p), _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
            _mm512_loadu_ps(p + 16));
    }
    static inline F odds(const float* p) {
        return _mm512_permutex2var_ps(
            _mm512_loadu_ps(p), _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31),
            _mm512_loadu_ps(p + 16));
    }
    static inline I raw(const T* p) { return _mm512_loadu_si512(reinterpret_cast<const void*>(p)); }
    static inline F low(I v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
    static inline F high(I v) {
        return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
    }
    // The bfloat16 result stands in the upper half of every lane.
    static inline I round16(F v) {
        const __m512i u = _mm512_castps_si512(v);
        const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
        const __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), lsb);
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        return _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x00400000));
    }
    static inline void join(T* p, F e, F o) {
        const I lo = _mm512_srli_epi32(round16(e), 16);
        // (odd & mask) | even
        const I both = _mm512_ternarylogic_epi32(round16(o), _mm512_set1_epi32((int)0xffff0000u), lo, 0xEA);
        _mm512_storeu_si512(reinterpret_cast<void*>(p), both);
    }
};
#endif

// Half-split, X::W pairs from pair i.
template <class X>
static inline void split(T* __restrict__ h, const float* __restrict__ cs, long i) {
    const typename X::F a = X::load(h + i);
    const typename X::F b = X::load(h + HALF + i);
    const typename X::F c = X::loadf(cs + i);
    const typename X::F s = X::loadf(cs + HALF + i);
    const typename X::F x = X::fms(a, c, X::mul(b, s));
    const typename X::F y = X::fma(b, c, X::mul(a, s));
    X::store(h + i, x);
    X::store(h + HALF + i, y);
}

// Interleaved, X::W / 2 pairs from pair i.
template <class X>
static inline void inter(T* __restrict__ h, const float* __restrict__ cs, long i) {
    const typename X::F v = X::load(h + 2 * i);
    const typename X::F c = X::twice(cs + i);
    const typename X::F s = X::twice(cs + HALF + i);
    X::store(h + 2 * i, X::fmaddsub(v, c, X::mul(X::swap(v), s)));
}

static inline void head(T* __restrict__ h, const float* __restrict__ cs) {
    long i = 0;
    if constexpr (rope_interleaved != 0) {
#if defined(RP_HAVE_V16)
#pragma GCC unroll 4
        for (; i + 8 <= HALF; i += 8) inter<V16>(h, cs, i);
#endif
#if defined(RP_HAVE_V8)
        for (; i + 4 <= HALF; i += 4) inter<V8>(h, cs, i);
#endif
        for (; i < HALF; ++i) {
            const float a = to_float(h[2 * i]), b = to_float(h[2 * i + 1]);
            const float c = cs[i], s = cs[HALF + i];
            h[2 * i] = from_float<T>(a * c - b * s);
            h[2 * i + 1] = from_float<T>(b * c + a * s);
        }
    } else {
#if defined(RP_HAVE_V16)
#pragma GCC unroll 4
        for (; i + 16 <= HALF; i += 16) split<V16>(h, cs, i);
#endif
#if defined(RP_HAVE_V8)
        for (; i + 8 <= HALF; i += 8) split<V8>(h, cs, i);
#endif
        for (; i < HALF; ++i) {
            const float a = to_float(h[i]), b = to_float(h[HALF + i]);
            const float c = cs[i], s = cs[HALF + i];
            h[i] = from_float<T>(a * c - b * s);
            h[HALF + i] = from_float<T>(b * c + a * s);
        }
    }
}

#if defined(RP_HAVE_V8)
// bfloat16, half-split: heads first .. first + n - 1 from p, the table row kept in even and odd lanes.
template <class X>
static inline void lanes(T* __restrict__ p, const float* __restrict__ cs, long n) {
    constexpr long S = 2 * X::W;
    constexpr long NB = HALF / S > 0 ? HALF / S : 1;
    typename X::F ce[NB], co[NB], se[NB], so[NB];
#pragma GCC unroll 16
    for (long j = 0; j < NB; ++j) {
        ce[j] = X::evens(cs + j * S);
        co[j] = X::odds(cs + j * S);
        se[j] = X::evens(cs + HALF + j * S);
        so[j] = X::odds(cs + HALF + j * S);
    }
    for (long h = 0; h < n; ++h, p += head_dim) {
#pragma GCC unroll 16
        for (long j = 0; j < NB; ++j) {
            const typename X::I a = X::raw(p + j * S);
            const typename X::I b = X::raw(p + HALF + j * S);
            const typename X::F ae = X::low(a), ao = X::high(a), be = X::low(b), bo = X::high(b);
            const typename X::F xe = X::fms(ae, ce[j], X::mul(be, se[j]));
            const typename X::F xo = X::fms(ao, co[j], X::mul(bo, so[j]));
            const typename X::F ye = X::fma(be, ce[j], X::mul(ae, se[j]));
            const typename X::F yo = X::fma(bo, co[j], X::mul(ao, so[j]));
            X::join(p + j * S, xe, xo);
            X::join(p + HALF + j * S, ye, yo);
        }
    }
}
#endif

// n neighbouring heads of one token.
static inline void heads(T* __restrict__ p, const float* __restrict__ cs, long n) {
#if defined(RP_HAVE_V16)
    if constexpr (std::is_same_v<T, bfloat16> && rope_interleaved == 0 && HALF % 32 == 0) {
        lanes<V16>(p, cs, n);
        return;
    }
#endif
#if defined(RP_HAVE_V8)
    if constexpr (std::is_same_v<T, bfloat16> && rope_interleaved == 0 && HALF % 16 == 0) {
        lanes<V8>(p, cs, n);
        return;
    }
#endif
    for (long h = 0; h < n; ++h) head(p + h * head_dim, cs);
}

static constexpr long kBytes = (long)num_tokens * HEADS * head_dim * (long)sizeof(T);
static constexpr bool kTeam = kBytes >= 192 * 1024;

static inline void warm(T* p, long elements) {
    constexpr long line = 64 / (long)sizeof(T);
    const long n = std::min<long>(elements, 8192 / (long)sizeof(T));
    for (long i = 0; i < n; i += line) __builtin_prefetch(p + i, 1, 3);
}

}  // namespace rp

extern "C" void rope_cpu(
    T* __restrict__ q,
    T* __restrict__ k,
    const float* __restrict__ cos_sin,
    const int* __restrict__ positions,
    int max_positions,
    void* __restrict__ workspace) {
    (void)max_positions;
    (void)workspace;
    if constexpr (rp::kTeam) {
        constexpr long units = (long)num_tokens * rp::HEADS;
#pragma omp parallel
        {
            const long nt = omp_get_num_threads(), me = omp_get_thread_num();
            long u = units * me / nt;
            const long end = units * (me + 1) / nt;
            while (u < end) {
                const long t = u / rp::HEADS;
                const long h = u % rp::HEADS;
                const float* cs = cos_sin + (long)positions[t] * rotary_dim;
                long n;
                if (h < num_heads) {
                    n = std::min<long>(end - u, num_heads - h);
                    rp::heads(q + (t * num_heads + h) * head_dim, cs, n);
                } else {
                    n = std::min<long>(end - u, rp::HEADS - h);
                    rp::heads(k + (t * num_kv_heads + (h - num_heads)) * head_dim, cs, n);
                }
                u += n;
            }
        }
    } else {
        {
            const float* cs = cos_sin + (long)positions[0] * rotary_dim;
            for (long i = 0; i < rotary_dim; i += 16) __builtin_prefetch(cs + i, 0, 3);
            rp::warm(q, (long)num_heads * head_dim);
            rp::warm(k, (long)num_kv_heads * head_dim);
        }
        for (long t = 0; t < (long)num_tokens; ++t) {
            const float* cs = cos_sin + (long)positions[t] * rotary_dim;
            if (t + 1 < (long)num_tokens) {
                const float* next = cos_sin + (long)positions[t + 1] * rotary_dim;
                for (long i = 0; i < rotary_dim; i += 16) __builtin_prefetch(next + i, 0, 3);
            }
            rp::heads(q + t * num_heads * head_dim, cs, num_heads);
            rp::heads(k + t * num_kv_heads * head_dim, cs, num_kv_heads);
        }
    }
}
