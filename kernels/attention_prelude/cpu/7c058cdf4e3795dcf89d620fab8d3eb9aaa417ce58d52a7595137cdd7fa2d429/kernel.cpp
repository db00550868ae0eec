// Contract: attention_prelude version 1 (QKV projection, head norms, rotary embedding, KV write), x86_64.
// Idea: 1. one parallel region; every thread streams one contiguous range of weight rows, four rows a pass;
//       2. 16-bit operands are widened in registers (bf16 by shift and mask, even/odd on both operands), FMA in float32;
//       3. the thread that completes a head (its own, or the last of those that share it, by a row counter) finishes it:
//          bias, norm, rotation, one rounding, store. No barrier between projection and epilogue.
// Bound by: the bandwidth of the weight stream from memory, plus the fork and join of the team.

namespace {

constexpr int kHeads = num_heads + 2 * num_kv_heads;
constexpr int kRows = 4;                                   // weight rows a pass; head_dim % 8 == 0, so never across heads
constexpr size_t kHeadElems = (size_t)num_tokens * head_dim;
constexpr bool kSmallHead = kHeadElems <= 8192;            // a head of all tokens fits a small stack buffer
constexpr size_t kGroupBytes = (size_t)kRows * hidden_size * sizeof(T);
constexpr bool kPrefetchGroup = kGroupBytes <= 16384;      // prefetch the next group of rows, else some lines ahead
constexpr bool kUseTeam = (size_t)kHeads * head_dim * hidden_size * sizeof(T) > 65536;

#if defined(__AVX512F__)
typedef __m512 vec;
constexpr int kPair = 32;
constexpr int kTokMax = 4;
inline vec vzero() { return _mm512_setzero_ps(); }
inline vec vfma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
inline vec vadd(vec a, vec b) { return _mm512_add_ps(a, b); }
inline __m128 vfold(vec a) {
    __m256 lo = _mm512_castps512_ps256(a);
    __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
    __m256 s = _mm256_add_ps(lo, hi);
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
template <class U>
inline void load_pair(const U* p, vec& a, vec& b) {
    if constexpr (std::is_same_v<U, float>) {
        a = _mm512_loadu_ps((const float*)p);
        b = _mm512_loadu_ps((const float*)p + 16);
    } else if constexpr (std::is_same_v<U, bfloat16>) {
        __m512i q = _mm512_loadu_si512((const void*)p);
        a = _mm512_castsi512_ps(_mm512_slli_epi32(q, 16));
        b = _mm512_castsi512_ps(_mm512_and_si512(q, _mm512_set1_epi32((int)0xffff0000u)));
    } else {
        a = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
        b = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(p + 16)));
    }
}
template <class U>
inline vec load_tail(const U* p) {                         // eight elements, upper lanes zero
    __m256 r;
    if constexpr (std::is_same_v<U, float>) {
        r = _mm256_loadu_ps((const float*)p);
    } else if constexpr (std::is_same_v<U, bfloat16>) {
        __m128i q = _mm_loadu_si128((const __m128i*)p);
        r = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(q), 16));
    } else {
        r = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
    }
    return _mm512_insertf32x4(
        _mm512_insertf32x4(_mm512_setzero_ps(), _mm256_castps256_ps128(r), 0), _mm256_extractf128_ps(r, 1), 1);
}
#define PRELUDE_SIMD 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
typedef __m256 vec;
constexpr int kPair = 16;
constexpr int kTokMax = 2;
inline vec vzero() { return _mm256_setzero_ps(); }
inline vec vfma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
inline vec vadd(vec a, vec b) { return _mm256_add_ps(a, b); }
inline __m128 vfold(vec s) {
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
template <class U>
inline void load_pair(const U* p, vec& a, vec& b) {
    if constexpr (std::is_same_v<U, float>) {
        a = _mm256_loadu_ps((const float*)p);
        b = _mm256_loadu_ps((const float*)p + 8);
    } else if constexpr (std::is_same_v<U, bfloat16>) {
        __m256i q = _mm256_loadu_si256((const __m256i*)p);
        a = _mm256_castsi256_ps(_mm256_slli_epi32(q, 16));
        b = _mm256_castsi256_ps(_mm256_and_si256(q, _mm256_set1_epi32((int)0xffff0000u)));
    } else {
        a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
        b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)));
    }
}
template <class U>
inline vec load_tail(const U* p) {
    if constexpr (std::is_same_v<U, float>) {
        return _mm256_loadu_ps((const float*)p);
    } else if constexpr (std::is_same_v<U, bfloat16>) {
        __m128i q = _mm_loadu_si128((const __m128i*)p);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(q), 16));
    } else {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
    }
}
#define PRELUDE_SIMD 1
#else
typedef float vec;
constexpr int kPair = 2;                                   // hidden_size % 8 == 0: the tail is never reached
constexpr int kTokMax = 2;
inline vec vzero() { return 0.0f; }
inline vec vfma(vec a, vec b, vec c) { return a * b + c; }
inline vec vadd(vec a, vec b) { return a + b; }
template <class U>
inline void load_pair(const U* p, vec& a, vec& b) {
    a = to_float(p[0]);
    b = to_float(p[1]);
}
template <class U>
inline vec load_tail(const U* p) { return to_float(p[0]); }
#define PRELUDE_SIMD 0
#endif

// kRows weight rows times TB tokens; dst[t * head_dim + r].
template <int TB, bool PF>
inline __attribute__((always_inline)) void tile(const T* __restrict__ w, const T* __restrict__ xr,
                                                float* __restrict__ dst, size_t pf) {
    constexpr int NA = TB == 1 ? 2 : 1;
    vec acc[kRows][TB][NA];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < TB; ++t)
#pragma GCC unroll 8
            for (int n = 0; n < NA; ++n) acc[r][t][n] = vzero();
    constexpr int kMain = hidden_size / kPair * kPair;
#pragma GCC unroll 2
    for (int k = 0; k < kMain; k += kPair) {
        vec xa[TB], xb[TB];
#pragma GCC unroll 8
        for (int t = 0; t < TB; ++t) load_pair(xr + (size_t)t * hidden_size + k, xa[t], xb[t]);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const T* p = w + (size_t)r * hidden_size + k;
            if constexpr (PF) {
#pragma GCC unroll 4
                for (size_t o = 0; o < kPair * sizeof(T); o += 64)
                    __builtin_prefetch((const void*)((uintptr_t)p + pf + o), 0, 3);
            }
            vec a, b;
            load_pair(p, a, b);
#pragma GCC unroll 8
            for (int t = 0; t < TB; ++t) {
                acc[r][t][0] = vfma(a, xa[t], acc[r][t][0]);
                acc[r][t][NA - 1] = vfma(b, xb[t], acc[r][t][NA - 1]);
            }
        }
    }
    if constexpr (kMain < hidden_size) {
        for (int k = kMain; k < hidden_size; k += 8) {
            vec xa[TB];
#pragma GCC unroll 8
            for (int t = 0; t < TB; ++t) xa[t] = load_tail(xr + (size_t)t * hidden_size + k);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                vec a = load_tail(w + (size_t)r * hidden_size + k);
#pragma GCC unroll 8
                for (int t = 0; t < TB; ++t) acc[r][t][0] = vfma(a, xa[t], acc[r][t][0]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < TB; ++t) {
        vec s[kRows];
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            if constexpr (NA == 2) s[r] = vadd(acc[r][t][0], acc[r][t][NA - 1]);
            else s[r] = acc[r][t][0];
        }
#if PRELUDE_SIMD
        __m128 u = _mm_hadd_ps(vfold(s[0]), vfold(s[1]));
        __m128 v = _mm_hadd_ps(vfold(s[2]), vfold(s[3]));
        _mm_storeu_ps(dst + (size_t)t * head_dim, _mm_hadd_ps(u, v));
#else
        for (int r = 0; r < kRows; ++r) dst[(size_t)t * head_dim + r] = s[r];
#endif
    }
}

// All tokens of one group of rows.
inline __attribute__((always_inline)) void group(const T* __restrict__ w, const T* __restrict__ x,
                                                 float* __restrict__ dst, size_t pf) {
    constexpr int kFull = num_tokens / kTokMax;
    constexpr int kRem = num_tokens % kTokMax;
    if constexpr (kFull > 0) {
        tile<kTokMax, true>(w, x, dst, pf);
        for (int b = 1; b < kFull; ++b)
            tile<kTokMax, false>(w, x + (size_t)b * kTokMax * hidden_size, dst + (size_t)b * kTokMax * head_dim, 0);
    }
    if constexpr (kRem > 0)
        tile<kRem, kFull == 0>(w, x + (size_t)kFull * kTokMax * hidden_size,
                               dst + (size_t)kFull * kTokMax * head_dim, pf);
}

inline uint32_t bf16_round_bits(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    uint32_t r = u + 0x7fffu + ((u >> 16) & 1u);
    uint32_t n = u | 0x400000u;
    return ((u & 0x7fffffffu) > 0x7f800000u ? n : r) & 0xffff0000u;
}

template <class U>
inline float round_to(float f) {
    if constexpr (std::is_same_v<U, float>) {
        return f;
    } else if constexpr (std::is_same_v<U, bfloat16>) {
        uint32_t u = bf16_round_bits(f);
        float g;
        std::memcpy(&g, &u, 4);
        return g;
    } else {
        return to_float(from_float<U>(f));
    }
}

template <class U>
inline void put(U* p, float f) {
    if constexpr (std::is_same_v<U, float>) {
        *p = f;
    } else if constexpr (std::is_same_v<U, bfloat16>) {
        p->bits = (uint16_t)(bf16_round_bits(f) >> 16);
    } else {
        *p = from_float<U>(f);
    }
}

// Epilogue of one head for all tokens; h is [num_tokens][head_dim] float32.
__attribute__((noinline)) void finish_head(int head, float* __restrict__ h, const T* __restrict__ b_qkv,
                                           const T* __restrict__ q_norm, const T* __restrict__ k_norm,
                                           const float* __restrict__ cos_sin, const int* __restrict__ positions,
                                           const int* __restrict__ slot_mapping, T* __restrict__ q_out,
                                           T* __restrict__ k_cache, T* __restrict__ v_cache, float eps) {
    constexpr int kHalf = rotary_dim / 2;
    for (int t = 0; t < num_tokens; ++t) {
        float* __restrict__ v = h + (size_t)t * head_dim;
        if constexpr (has_qkv_bias != 0) {
            const T* b = b_qkv + (size_t)head * head_dim;
            for (int i = 0; i < head_dim; ++i) v[i] += to_float(b[i]);
        }
        if (head >= num_heads + num_kv_heads) {
            const int kv = head - num_heads - num_kv_heads;
            T* __restrict__ o = v_cache + ((size_t)slot_mapping[t] * num_kv_heads + kv) * head_dim;
            for (int i = 0; i < head_dim; ++i) put<T>(o + i, v[i]);
            continue;
        }
        const bool is_q = head < num_heads;
        if constexpr (has_qk_norm != 0) {
            const T* __restrict__ g = is_q ? q_norm : k_norm;
            float p[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            for (int i = 0; i < head_dim; i += 8)
                for (int j = 0; j < 8; ++j) p[j] += v[i + j] * v[i + j];
            const float ss = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
            const float rs = 1.0f / std::sqrt(ss / (float)head_dim + eps);
            for (int i = 0; i < head_dim; ++i) v[i] = round_to<T>(v[i] * rs) * to_float(g[i]);
        }
        const float* __restrict__ c = cos_sin + (size_t)positions[t] * rotary_dim;
        const float* __restrict__ s = c + kHalf;
        T* __restrict__ o = is_q
            ? q_out + ((size_t)t * num_heads + head) * head_dim
            : k_cache + ((size_t)slot_mapping[t] * num_kv_heads + (head - num_heads)) * head_dim;
        if constexpr (rope_interleaved != 0) {
            for (int i = 0; i < kHalf; ++i) {
                const float a = v[2 * i], b = v[2 * i + 1];
                put<T>(o + 2 * i, a * c[i] - b * s[i]);
                put<T>(o + 2 * i + 1, b * c[i] + a * s[i]);
            }
        } else {
            for (int i = 0; i < kHalf; ++i) {
                const float a = v[i], b = v[i + kHalf];
                put<T>(o + i, a * c[i] - b * s[i]);
            }
            for (int i = 0; i < kHalf; ++i) {
                const float a = v[i], b = v[i + kHalf];
                put<T>(o + kHalf + i, b * c[i] + a * s[i]);
            }
        }
        for (int i = rotary_dim; i < head_dim; ++i) put<T>(o + i, v[i]);
    }
}

inline void prefetch_bytes(const void* p, size_t n) {
    for (size_t o = 0; o < n; o += 64) __builtin_prefetch((const void*)((uintptr_t)p + o), 0, 3);
}

}  // namespace

extern "C" void attention_prelude_cpu(
    const T* __restrict__ x,
    const T* __restrict__ w_qkv,
    const T* __restrict__ b_qkv,
    const T* __restrict__ q_norm,
    const T* __restrict__ k_norm,
    const float* __restrict__ cos_sin,
    const int* __restrict__ positions,
    const int* __restrict__ slot_mapping,
    T* __restrict__ q_out,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    float eps,
    int num_blocks,
    int max_positions,
    void* __restrict__ workspace) {
    (void)num_blocks;
    (void)max_positions;
    // Workspace: one counter of finished rows a head, 64 bytes apart, then [head][token][head_dim] float32 for heads
    // that are shared by threads. Everything that is written is zeroed again by the thread that finishes the head.
    char* const counters = (char*)workspace;
    float* const shared_rows = (float*)(counters + (size_t)kHeads * 64);

#pragma omp parallel if (kUseTeam)
    {
        const long long nth = omp_get_num_threads();
        const long long tid = omp_get_thread_num();
        const long long groups = (long long)kHeads * head_dim / kRows;
        long long row = groups * tid / nth * kRows;
        const long long end = groups * (tid + 1) / nth * kRows;
        alignas(64) float local[kSmallHead ? kHeadElems : 16];

        if (row < end) {
            if constexpr (num_tokens <= 4) {
                __builtin_prefetch(slot_mapping, 0, 3);
                if constexpr (has_qk_norm != 0) {
                    if (row < (long long)num_heads * head_dim) prefetch_bytes(q_norm, head_dim * sizeof(T));
                    else if (row < (long long)(num_heads + num_kv_heads) * head_dim)
                        prefetch_bytes(k_norm, head_dim * sizeof(T));
                }
                if (row < (long long)(num_heads + num_kv_heads) * head_dim)
                    for (int t = 0; t < num_tokens; ++t)
                        prefetch_bytes(cos_sin + (size_t)positions[t] * rotary_dim, rotary_dim * sizeof(float));
            }
        }

        while (row < end) {
            const int head = (int)(row / head_dim);
            const int r0 = (int)(row - (long long)head * head_dim);
            const int r1 = (int)std::min<long long>(head_dim, end - (long long)head * head_dim);
            const bool whole = r0 == 0 && r1 == head_dim;
            const bool in_local = kSmallHead && whole;
            float* const h = in_local ? local : shared_rows + (size_t)head * kHeadElems;
            for (int r = r0; r < r1; r += kRows) {
                const long long abs_row = (long long)head * head_dim + r;
                size_t pf = 1024;
                if constexpr (kPrefetchGroup) pf = abs_row + kRows < end ? kGroupBytes : 0;
                group(w_qkv + (size_t)abs_row * hidden_size, x, h + r, pf);
            }
            bool mine = whole;
            int* const counter = (int*)(counters + (size_t)head * 64);
            if (!whole) {
                const int n = r1 - r0;
                mine = __atomic_fetch_add(counter, n, __ATOMIC_ACQ_REL) + n == head_dim;
            }
            if (mine) {
                finish_head(head, h, b_qkv, q_norm, k_norm, cos_sin, positions, slot_mapping, q_out, k_cache, v_cache,
                            eps);
                if (!in_local) std::memset(h, 0, kHeadElems * sizeof(float));
                if (!whole) __atomic_store_n(counter, 0, __ATOMIC_RELAXED);
            }
            row += r1 - r0;
        }
    }
}
