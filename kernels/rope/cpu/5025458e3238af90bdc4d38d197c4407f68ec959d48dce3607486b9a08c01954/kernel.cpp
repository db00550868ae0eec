// Contract: rope version 1 (rotary position embedding, in place on q and k).
// Idea: small steps run on the calling thread, with q and k prefetched before the
// dependent position -> table row loads; large steps use one parallel region over
// (token, head). Pairs are rotated in float32, 16 at a time, and rounded once.
// Bound by: cold memory latency at decode, memory bandwidth at prefill.

namespace {

constexpr int HALF = rotary_dim / 2;
constexpr int ALL_HEADS = num_heads + num_kv_heads;

#if defined(__AVX512F__)
static inline __m512i bf16_round_bits(__m512 v) {
    // float32 -> bfloat16 in the low 16 bits of every lane, nearest even, NaN kept
    const __m512i x = _mm512_castps_si512(v);
    const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(x, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(x, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff)));
    r = _mm512_srli_epi32(r, 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7fc0));
}

static inline __m512 load16(const T* p) {
    if constexpr (std::is_same_v<T, float>) {
        return _mm512_loadu_ps(reinterpret_cast<const float*>(p));
    } else {
        const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        if constexpr (std::is_same_v<T, bfloat16>) {
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
        } else {
            return _mm512_cvtph_ps(h);
        }
    }
}

static inline void store16(T* p, __m512 v) {
    if constexpr (std::is_same_v<T, float>) {
        _mm512_storeu_ps(reinterpret_cast<float*>(p), v);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bf16_round_bits(v)));
    } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                            _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}
#endif

static inline void rotate_head(T* __restrict__ x, const float* __restrict__ cs) {
    const float* __restrict__ c = cs;
    const float* __restrict__ s = cs + HALF;
    int i = 0;
    if constexpr (rope_interleaved == 0) {
#if defined(__AVX512F__)
        for (; i + 16 <= HALF; i += 16) {
            const __m512 vc = _mm512_loadu_ps(c + i);
            const __m512 vs = _mm512_loadu_ps(s + i);
            const __m512 a = load16(x + i);
            const __m512 b = load16(x + HALF + i);
            store16(x + i, _mm512_fmsub_ps(a, vc, _mm512_mul_ps(b, vs)));
            store16(x + HALF + i, _mm512_fmadd_ps(b, vc, _mm512_mul_ps(a, vs)));
        }
#endif
        for (; i < HALF; ++i) {
            const float a = to_float(x[i]);
            const float b = to_float(x[HALF + i]);
            x[i] = from_float<T>(a * c[i] - b * s[i]);
            x[HALF + i] = from_float<T>(b * c[i] + a * s[i]);
        }
    } else {
#if defined(__AVX512F__)
        if constexpr (std::is_same_v<T, bfloat16>) {
            for (; i + 16 <= HALF; i += 16) {
                const __m512 vc = _mm512_loadu_ps(c + i);
                const __m512 vs = _mm512_loadu_ps(s + i);
                const __m512i w = _mm512_loadu_si512(reinterpret_cast<const void*>(x + 2 * i));
                const __m512 a = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
                const __m512 b = _mm512_castsi512_ps(
                    _mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
                const __m512i ra = bf16_round_bits(_mm512_fmsub_ps(a, vc, _mm512_mul_ps(b, vs)));
                const __m512i rb = bf16_round_bits(_mm512_fmadd_ps(b, vc, _mm512_mul_ps(a, vs)));
                _mm512_storeu_si512(reinterpret_cast<void*>(x + 2 * i),
                                    _mm512_or_si512(ra, _mm512_slli_epi32(rb, 16)));
            }
        }
#endif
        for (; i < HALF; ++i) {
            const float a = to_float(x[2 * i]);
            const float b = to_float(x[2 * i + 1]);
            x[2 * i] = from_float<T>(a * c[i] - b * s[i]);
            x[2 * i + 1] = from_float<T>(b * c[i] + a * s[i]);
        }
    }
}

}  // namespace

extern "C" void rope_entry(
    T* __restrict__ q,
    T* __restrict__ k,
    const float* __restrict__ cos_sin,
    const int* __restrict__ positions,
    int max_positions,
    void* __restrict__ workspace) {
    (void)max_positions;
    (void)workspace;
    constexpr long long work = 1LL * num_tokens * ALL_HEADS * rotary_dim;
    if constexpr (work <= 65536) {
        if constexpr (num_tokens == 1) {
            constexpr long long qb = 1LL * num_heads * head_dim * (long long)sizeof(T);
            constexpr long long kb = 1LL * num_kv_heads * head_dim * (long long)sizeof(T);
            const float* row = cos_sin + (size_t)positions[0] * rotary_dim;
            const char* qc = reinterpret_cast<const char*>(q);
            const char* kc = reinterpret_cast<const char*>(k);
            for (long long o = 0; o < qb; o += 64) __builtin_prefetch(qc + o, 1, 3);
            for (long long o = 0; o < kb; o += 64) __builtin_prefetch(kc + o, 1, 3);
            for (int h = 0; h < num_heads; ++h) rotate_head(q + (size_t)h * head_dim, row);
            for (int h = 0; h < num_kv_heads; ++h) rotate_head(k + (size_t)h * head_dim, row);
        } else {
            for (int t = 0; t < num_tokens; ++t) {
                const float* row = cos_sin + (size_t)positions[t] * rotary_dim;
                T* qt = q + (size_t)t * num_heads * head_dim;
                T* kt = k + (size_t)t * num_kv_heads * head_dim;
                for (int h = 0; h < num_heads; ++h) rotate_head(qt + (size_t)h * head_dim, row);
                for (int h = 0; h < num_kv_heads; ++h) rotate_head(kt + (size_t)h * head_dim, row);
            }
        }
    } else {
#pragma omp parallel for collapse(2) schedule(static)
        for (int t = 0; t < num_tokens; ++t) {
            for (int h = 0; h < ALL_HEADS; ++h) {
                const float* row = cos_sin + (size_t)positions[t] * rotary_dim;
                T* x = h < num_heads
                           ? q + ((size_t)t * num_heads + h) * head_dim
                           : k + ((size_t)t * num_kv_heads + (h - num_heads)) * head_dim;
                rotate_head(x, row);
            }
        }
    }
}
