// Contract: lm_head_argmax version 1. logits = x @ w^T in float32, out_ids = lowest index of the largest, out_max = it.
// Idea: 1. one team, each thread walks one contiguous range of weight rows, four rows a pass, x split/widened once a pass;
//       2. 16-bit weights are widened in registers (bf16: one shift, one mask), and the next pass is prefetched linearly;
//       3. running maximum in the thread, one padded pair a token and thread, merged in index order by the caller.
// Bound: memory bandwidth of the weight stream (vocab_size * hidden_size * sizeof(T) bytes, read once).

namespace {

constexpr int kRows = 4;
constexpr int64_t kH = hidden_size;
constexpr int kSlotBytes = (num_tokens * 8 + 63) / 64 * 64;

struct Pair {
    float v;
    int i;
};

#define LMH_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__)

using V = __m512;
constexpr int kStep = 32;
constexpr int kTokMax = 4;

LMH_INLINE V vzero() { return _mm512_setzero_ps(); }
LMH_INLINE V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
LMH_INLINE V vadd(V a, V b) { return _mm512_add_ps(a, b); }
LMH_INLINE float vsum(V a) { return _mm512_reduce_add_ps(a); }

LMH_INLINE void widen(__m512i v, V& a, V& b) {
    if constexpr (std::is_same_v<T, bfloat16>) {
        a = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        b = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
    } else {
        a = _mm512_cvtph_ps(_mm512_castsi512_si256(v));
        b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1));
    }
}

LMH_INLINE void load_step(const T* p, V& a, V& b) {
    if constexpr (std::is_same_v<T, float>) {
        const float* q = reinterpret_cast<const float*>(p);
        a = _mm512_loadu_ps(q);
        b = _mm512_loadu_ps(q + 16);
    } else {
        widen(_mm512_loadu_si512(reinterpret_cast<const void*>(p)), a, b);
    }
}

constexpr int kTail = hidden_size % kStep;

LMH_INLINE void load_tail(const T* p, V& a, V& b) {
    if constexpr (std::is_same_v<T, float>) {
        const float* q = reinterpret_cast<const float*>(p);
        constexpr int na = kTail < 16 ? kTail : 16;
        constexpr int nb = kTail - na;
        a = _mm512_maskz_loadu_ps((__mmask16)((1u << na) - 1u), q);
        if constexpr (nb > 0) {
            b = _mm512_maskz_loadu_ps((__mmask16)((1u << nb) - 1u), q + 16);
        } else {
            b = _mm512_setzero_ps();
        }
    } else {
        widen(_mm512_maskz_loadu_epi16((__mmask32)((1u << kTail) - 1u), reinterpret_cast<const void*>(p)), a, b);
    }
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

using V = __m256;
constexpr int kStep = 16;
constexpr int kTokMax = 2;

LMH_INLINE V vzero() { return _mm256_setzero_ps(); }
LMH_INLINE V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
LMH_INLINE V vadd(V a, V b) { return _mm256_add_ps(a, b); }
LMH_INLINE float vsum(V a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}

LMH_INLINE void load_step(const T* p, V& a, V& b) {
    if constexpr (std::is_same_v<T, float>) {
        const float* q = reinterpret_cast<const float*>(p);
        a = _mm256_loadu_ps(q);
        b = _mm256_loadu_ps(q + 8);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        a = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        b = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
    } else {
        const __m128i* q = reinterpret_cast<const __m128i*>(p);
        a = _mm256_cvtph_ps(_mm_loadu_si128(q));
        b = _mm256_cvtph_ps(_mm_loadu_si128(q + 1));
    }
}

constexpr int kTail = hidden_size % kStep;  // 0 or 8

LMH_INLINE void load_tail(const T* p, V& a, V& b) {
    b = _mm256_setzero_ps();
    if constexpr (std::is_same_v<T, float>) {
        a = _mm256_loadu_ps(reinterpret_cast<const float*>(p));
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
    } else {
        a = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
}

#else

struct V {
    float f[4];
};
constexpr int kStep = 8;
constexpr int kTokMax = 1;
constexpr int kTail = 0;  // hidden_size % 8 == 0

LMH_INLINE V vzero() { return V{{0.f, 0.f, 0.f, 0.f}}; }
LMH_INLINE V vfma(V a, V b, V c) {
    for (int i = 0; i < 4; ++i) c.f[i] = a.f[i] * b.f[i] + c.f[i];
    return c;
}
LMH_INLINE V vadd(V a, V b) {
    for (int i = 0; i < 4; ++i) a.f[i] += b.f[i];
    return a;
}
LMH_INLINE float vsum(V a) { return (a.f[0] + a.f[2]) + (a.f[1] + a.f[3]); }
LMH_INLINE void load_step(const T* p, V& a, V& b) {
    for (int i = 0; i < 4; ++i) {
        a.f[i] = to_float(p[i]);
        b.f[i] = to_float(p[i + 4]);
    }
}
LMH_INLINE void load_tail(const T*, V& a, V& b) {
    a = vzero();
    b = vzero();
}

#endif

constexpr int kTok = num_tokens < kTokMax ? num_tokens : kTokMax;
constexpr int64_t kFull = kH / kStep * kStep;
constexpr int64_t kGroupBytes = kRows * kH * (int64_t)sizeof(T);
constexpr bool kNear = kGroupBytes <= 16384;  // the next pass fits L1 beside this one

// R rows against TT tokens. The order of the sum of a row does not depend on R.
template <int R, int TT, bool PF>
LMH_INLINE void tile(const T* __restrict__ w, const T* __restrict__ x, const char* nxt, float* __restrict__ out) {
    constexpr int A = TT == 1 ? 2 : 1;
    V acc[R][TT][A];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < TT; ++t) {
#pragma GCC unroll 2
            for (int a = 0; a < A; ++a) acc[r][t][a] = vzero();
        }
    }
    constexpr int kChunk = R * kStep * (int)sizeof(T);
    for (int64_t j = 0; j < kFull; j += kStep) {
        if constexpr (PF) {
#pragma GCC unroll 16
            for (int c = 0; c < kChunk; c += 64) {
                if constexpr (kNear) {
                    __builtin_prefetch(nxt + c, 0, 3);
                } else {
                    __builtin_prefetch(nxt + c, 0, 2);
                }
            }
            nxt += kChunk;
        }
        V xa[TT], xb[TT];
#pragma GCC unroll 8
        for (int t = 0; t < TT; ++t) load_step(x + t * kH + j, xa[t], xb[t]);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            V wa, wb;
            load_step(w + r * kH + j, wa, wb);
#pragma GCC unroll 8
            for (int t = 0; t < TT; ++t) {
                acc[r][t][0] = vfma(wa, xa[t], acc[r][t][0]);
                acc[r][t][A - 1] = vfma(wb, xb[t], acc[r][t][A - 1]);
            }
        }
    }
    if constexpr (kTail != 0) {
        V xa[TT], xb[TT];
#pragma GCC unroll 8
        for (int t = 0; t < TT; ++t) load_tail(x + t * kH + kFull, xa[t], xb[t]);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            V wa, wb;
            load_tail(w + r * kH + kFull, wa, wb);
#pragma GCC unroll 8
            for (int t = 0; t < TT; ++t) {
                acc[r][t][0] = vfma(wa, xa[t], acc[r][t][0]);
                acc[r][t][A - 1] = vfma(wb, xb[t], acc[r][t][A - 1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < TT; ++t) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            if constexpr (A == 2) {
                out[t * R + r] = vsum(vadd(acc[r][t][0], acc[r][t][1]));
            } else {
                out[t * R + r] = vsum(acc[r][t][0]);
            }
        }
    }
}

// Greater, or the first NaN, as the library orders them; equal values keep the earlier one.
LMH_INLINE bool better(float v, float best) { return !(v <= best) && best == best; }

template <int R, int TT, bool PF>
LMH_INLINE void tile_max(const T* w, const T* x, const char* nxt, int row, float* bv, int* bi) {
    float out[TT * R];
    tile<R, TT, PF>(w, x, nxt, out);
#pragma GCC unroll 8
    for (int t = 0; t < TT; ++t) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const float v = out[t * R + r];
            if (better(v, bv[t])) {
                bv[t] = v;
                bi[t] = row + r;
            }
        }
    }
}

// All tokens against R rows; only the first block of tokens prefetches.
template <int R, bool PF>
LMH_INLINE void rows(const T* w, const T* x, const char* nxt, int row, float* bv, int* bi) {
    tile_max<R, kTok, PF>(w, x, nxt, row, bv, bi);
    for (int t = kTok; t + kTok <= num_tokens; t += kTok) {
        tile_max<R, kTok, false>(w, x + t * kH, nxt, row, bv + t, bi + t);
    }
    constexpr int rest = num_tokens % kTok;
    if constexpr (rest != 0) {
        constexpr int t = num_tokens - rest;
        tile_max<R, rest, false>(w, x + t * kH, nxt, row, bv + t, bi + t);
    }
}

static __attribute__((noinline)) void walk(const T* __restrict__ x, const T* __restrict__ w, Pair* slot,
                                           int64_t g0, int64_t g1, int row_end) {
    float bv[num_tokens];
    int bi[num_tokens];
    const int first = (int)(g0 * kRows);
    const bool any = first < row_end;
    for (int t = 0; t < num_tokens; ++t) {
        bv[t] = -__builtin_inff();
        bi[t] = any ? first : -1;
    }
    for (int64_t g = g0; g < g1; ++g) {
        const T* wg = w + g * kRows * kH;
        const T* nx = g + 1 < g1 ? wg + kRows * kH : wg;
        rows<kRows, true>(wg, x, reinterpret_cast<const char*>(nx), (int)(g * kRows), bv, bi);
    }
    for (int row = (int)(g1 * kRows); row < row_end; ++row) {
        rows<1, false>(w + (int64_t)row * kH, x, nullptr, row, bv, bi);
    }
    for (int t = 0; t < num_tokens; ++t) {
        slot[t].v = bv[t];
        slot[t].i = bi[t];
    }
}

}  // namespace

extern "C" void lm_head_argmax(
    const T* __restrict__ x,
    const T* __restrict__ w,
    int* __restrict__ out_ids,
    float* __restrict__ out_max,
    void* __restrict__ workspace) {
    constexpr int64_t groups = vocab_size / kRows;
    constexpr bool wide = (int64_t)vocab_size * kH * num_tokens > 65536;
    char* const base = static_cast<char*>(workspace);
    int team = 1;

#pragma omp parallel if (wide)
    {
        int n = omp_get_num_threads();
        if (n > num_sms) n = num_sms;
        const int id = omp_get_thread_num();
        if (id == 0) team = n;
        if (id < n) {
            const int64_t g0 = groups * id / n;
            const int64_t g1 = groups * (id + 1) / n;
            const int row_end = id == n - 1 ? vocab_size : (int)(g1 * kRows);
            walk(x, w, reinterpret_cast<Pair*>(base + (int64_t)id * kSlotBytes), g0, g1, row_end);
        }
    }

    for (int t = 0; t < num_tokens; ++t) {
        float v = -__builtin_inff();
        int i = -1;
        for (int k = 0; k < team; ++k) {
            const Pair p = reinterpret_cast<const Pair*>(base + (int64_t)k * kSlotBytes)[t];
            if (p.i >= 0 && (i < 0 || better(p.v, v))) {
                v = p.v;
                i = p.i;
            }
        }
        out_ids[t] = i;
        out_max[t] = v;
    }
}
