// Contract: gated_mlp_down v1.  y = round_T(x @ w_down^T); residual = round_T(residual + y), in place.
// Idea: 1. one parallel region; threads claim small contiguous chunks of rows, so one that wakes late costs nothing;
//       2. four weight rows a pass share each widened activation vector; even/odd bf16 split, float32 FMA only;
//       3. the whole next group is prefetched linearly into L2 (the next chunk is claimed early enough for that).
// Bound: streaming w_down from memory once (num_tokens == 1).

#define MD_INLINE static inline __attribute__((always_inline))

namespace md {

constexpr int K = intermediate_size;
constexpr int H = hidden_size;
constexpr bool IS_F32 = std::is_same_v<T, float>;
constexpr bool IS_BF16 = std::is_same_v<T, bfloat16>;

#if defined(__AVX512F__)

typedef __m512 V;
constexpr int VW = 16;
constexpr int STEP = 2 * VW;
constexpr int REM = K % STEP;
constexpr int TILE_R = 4;

MD_INLINE V vzero() { return _mm512_setzero_ps(); }
MD_INLINE V vadd(V a, V b) { return _mm512_add_ps(a, b); }
MD_INLINE V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }

MD_INLINE void split16(__m512i v, V& a, V& b) {
    if constexpr (IS_BF16) {
        a = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        b = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
    } else {
        a = _mm512_cvtph_ps(_mm512_castsi512_si256(v));
        b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1));
    }
}

MD_INLINE void load2(const T* p, V& a, V& b) {
    if constexpr (IS_F32) {
        const float* q = reinterpret_cast<const float*>(p);
        a = _mm512_loadu_ps(q);
        b = _mm512_loadu_ps(q + 16);
    } else {
        split16(_mm512_loadu_si512(reinterpret_cast<const void*>(p)), a, b);
    }
}

MD_INLINE void load2_tail(const T* p, V& a, V& b) {
    if constexpr (IS_F32) {
        const float* q = reinterpret_cast<const float*>(p);
        constexpr unsigned m = (1u << REM) - 1u;
        a = _mm512_maskz_loadu_ps((__mmask16)(m & 0xffffu), q);
        if constexpr (REM > 16) {
            b = _mm512_maskz_loadu_ps((__mmask16)(m >> 16), q + 16);
        } else {
            b = _mm512_setzero_ps();
        }
    } else {
        constexpr unsigned m = (1u << (REM / 2)) - 1u;
        split16(_mm512_maskz_loadu_epi32((__mmask16)m, reinterpret_cast<const void*>(p)), a, b);
    }
}

MD_INLINE __m128 fold128(V v) {
    const __m256 lo = _mm512_castps512_ps256(v);
    const __m256 hi = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    const __m256 s = _mm256_add_ps(lo, hi);
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}
#define MD_SIMD 1

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

typedef __m256 V;
constexpr int VW = 8;
constexpr int STEP = 2 * VW;
constexpr int REM = K % STEP;  // 0 or 8
constexpr int TILE_R = 2;

MD_INLINE V vzero() { return _mm256_setzero_ps(); }
MD_INLINE V vadd(V a, V b) { return _mm256_add_ps(a, b); }
MD_INLINE V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }

MD_INLINE void split16(__m256i v, V& a, V& b) {
    if constexpr (IS_BF16) {
        a = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        b = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
    } else {
        a = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
        b = _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1));
    }
}

MD_INLINE void load2(const T* p, V& a, V& b) {
    if constexpr (IS_F32) {
        const float* q = reinterpret_cast<const float*>(p);
        a = _mm256_loadu_ps(q);
        b = _mm256_loadu_ps(q + 8);
    } else {
        split16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), a, b);
    }
}

MD_INLINE void load2_tail(const T* p, V& a, V& b) {
    if constexpr (IS_F32) {
        a = _mm256_loadu_ps(reinterpret_cast<const float*>(p));
        b = _mm256_setzero_ps();
    } else {
        const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        split16(_mm256_inserti128_si256(_mm256_setzero_si256(), h, 0), a, b);
    }
}

MD_INLINE __m128 fold128(V v) {
    return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}
#define MD_SIMD 1

#else

typedef float V;
constexpr int VW = 1;
constexpr int STEP = 2;
constexpr int REM = 0;
constexpr int TILE_R = 4;

MD_INLINE V vzero() { return 0.0f; }
MD_INLINE V vadd(V a, V b) { return a + b; }
MD_INLINE V vfma(V a, V b, V c) { return a * b + c; }
MD_INLINE void load2(const T* p, V& a, V& b) {
    a = to_float(p[0]);
    b = to_float(p[1]);
}
MD_INLINE void load2_tail(const T*, V& a, V& b) {
    a = 0.0f;
    b = 0.0f;
}
MD_INLINE float hsum(V v) { return v; }
MD_INLINE void fold4(const V* v, float* out) {
    for (int r = 0; r < 4; ++r) out[r] = v[r];
}
#define MD_SIMD 0

#endif

#if MD_SIMD
MD_INLINE float hsum(V v) {
    __m128 s = fold128(v);
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_shuffle_ps(s, s, 1));
    return _mm_cvtss_f32(s);
}
MD_INLINE void fold4(const V* v, float* out) {
    __m128 a = fold128(v[0]);
    __m128 b = fold128(v[1]);
    __m128 c = fold128(v[2]);
    __m128 d = fold128(v[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d)));
}
#endif

constexpr int LINE = 64 / (int)sizeof(T);            // elements in a cache line
constexpr int BLK = STEP > LINE ? STEP : LINE;       // elements an iteration of the single-token loop
constexpr int KB = K / BLK * BLK;
constexpr int KS = K / STEP * STEP;
constexpr int DIST = 12 * LINE;                      // prefetch distance along each of four rows
constexpr bool PF = K >= 2 * DIST + BLK;
constexpr bool FAR = 4LL * K * (long long)sizeof(T) <= 65536;  // a whole group ahead fits L2
constexpr int K1 = FAR ? KB : PF ? (K - DIST) / BLK * BLK : KB; // from here on the prefetch looks at the next group
constexpr int CHUNK = IS_F32 ? 1024 : 4096;          // accumulators are emptied after so many elements

MD_INLINE void finish(T* r, float s) {
    const T y = from_float<T>(s);
    *r = from_float<T>(to_float(*r) + to_float(y));
}

// Accumulates elements [kb, ke) of four rows; ke - kb is a multiple of BLK.
MD_INLINE void run4(const T* __restrict__ x, const T* w, int kb, int ke, long long off,
                    const T* pf, V* a, V* b) {
    for (int k = kb; k < ke; k += BLK) {
        if constexpr (FAR) {
            // 4 * BLK elements of the next group, in address order.
#pragma GCC unroll 16
            for (int l = 0; l < 4 * BLK; l += LINE) {
                __builtin_prefetch(pf + 4LL * k + l, 0, 2);
            }
        } else if constexpr (PF) {
#pragma GCC unroll 8
            for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
                for (int l = 0; l < BLK; l += LINE) {
                    __builtin_prefetch(w + (long long)r * K + k + l + off, 0, 3);
                }
            }
        }
#pragma GCC unroll 16
        for (int u = 0; u < BLK; u += STEP) {
            V xa, xb;
            load2(x + k + u, xa, xb);
#pragma GCC unroll 8
            for (int r = 0; r < 4; ++r) {
                V wa, wb;
                load2(w + (long long)r * K + k + u, wa, wb);
                a[r] = vfma(wa, xa, a[r]);
                b[r] = vfma(wb, xb, b[r]);
            }
        }
    }
}

// One token, four rows; nx is the group that this thread computes next, or null.
MD_INLINE void gemv4(const T* __restrict__ x, const T* w, const T* nx, float* out) {
    V a[4], b[4];
#pragma GCC unroll 8
    for (int r = 0; r < 4; ++r) {
        a[r] = vzero();
        b[r] = vzero();
    }
    const T* pf = nx ? nx : w;
    const long long next = nx ? (long long)(nx - w) - K + DIST : 0;

    if constexpr (KB <= CHUNK) {
        run4(x, w, 0, K1, DIST, pf, a, b);
        if constexpr (K1 < KB) run4(x, w, K1, KB, next, pf, a, b);
    } else {
        V ta[4], tb[4];
#pragma GCC unroll 8
        for (int r = 0; r < 4; ++r) {
            ta[r] = vzero();
            tb[r] = vzero();
        }
        for (int c = 0; c < KB; c += CHUNK) {
            const int e = c + CHUNK < KB ? c + CHUNK : KB;
            const int m = K1 < c ? c : (K1 > e ? e : K1);
            run4(x, w, c, m, DIST, pf, a, b);
            if constexpr (K1 < KB) run4(x, w, m, e, next, pf, a, b);
#pragma GCC unroll 8
            for (int r = 0; r < 4; ++r) {
                ta[r] = vadd(ta[r], a[r]);
                tb[r] = vadd(tb[r], b[r]);
                a[r] = vzero();
                b[r] = vzero();
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < 4; ++r) {
            a[r] = ta[r];
            b[r] = tb[r];
        }
    }
    for (int k = KB; k < KS; k += STEP) {
        V xa, xb;
        load2(x + k, xa, xb);
#pragma GCC unroll 8
        for (int r = 0; r < 4; ++r) {
            V wa, wb;
            load2(w + (long long)r * K + k, wa, wb);
            a[r] = vfma(wa, xa, a[r]);
            b[r] = vfma(wb, xb, b[r]);
        }
    }
    if constexpr (REM != 0) {
        V xa, xb;
        load2_tail(x + KS, xa, xb);
#pragma GCC unroll 8
        for (int r = 0; r < 4; ++r) {
            V wa, wb;
            load2_tail(w + (long long)r * K + KS, wa, wb);
            a[r] = vfma(wa, xa, a[r]);
            b[r] = vfma(wb, xb, b[r]);
        }
    }
    V s[4];
#pragma GCC unroll 8
    for (int r = 0; r < 4; ++r) s[r] = vadd(a[r], b[r]);
    fold4(s, out);
}

// R rows by TB tokens, several tokens share each widened weight vector.
template <int R, int TB>
static inline void tile(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ res) {
    V tot[R][TB];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < TB; ++t) tot[r][t] = vzero();
    }
    for (int c = 0; c < KS; c += CHUNK) {
        const int e = c + CHUNK < KS ? c + CHUNK : KS;
        V acc[R][TB];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
            for (int t = 0; t < TB; ++t) acc[r][t] = vzero();
        }
        for (int k = c; k < e; k += STEP) {
            V wa[R], wb[R];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) load2(w + (long long)r * K + k, wa[r], wb[r]);
#pragma GCC unroll 8
            for (int t = 0; t < TB; ++t) {
                V xa, xb;
                load2(x + (long long)t * K + k, xa, xb);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) acc[r][t] = vfma(wa[r], xa, acc[r][t]);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) acc[r][t] = vfma(wb[r], xb, acc[r][t]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
            for (int t = 0; t < TB; ++t) tot[r][t] = vadd(tot[r][t], acc[r][t]);
        }
    }
    if constexpr (REM != 0) {
        V wa[R], wb[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) load2_tail(w + (long long)r * K + KS, wa[r], wb[r]);
#pragma GCC unroll 8
        for (int t = 0; t < TB; ++t) {
            V xa, xb;
            load2_tail(x + (long long)t * K + KS, xa, xb);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                tot[r][t] = vfma(wa[r], xa, tot[r][t]);
                tot[r][t] = vfma(wb[r], xb, tot[r][t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < TB; ++t) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) finish(res + (long long)t * H + r, hsum(tot[r][t]));
    }
}

constexpr long long GROUPS = H / 4;
constexpr long long GROUP_BYTES = 4LL * K * (long long)sizeof(T);
constexpr long long at_least_one(long long v) { return v < 1 ? 1 : v; }
constexpr long long smaller(long long a, long long b) { return a < b ? a : b; }
// Groups a claim: about 48 KiB of weights, and at least four claims a thread where there are so many groups.
constexpr long long CG = at_least_one(smaller(49152 / GROUP_BYTES, GROUPS / (4LL * at_least_one(num_sms))));
constexpr int CHUNKS = (int)((GROUPS + CG - 1) / CG);

}  // namespace md

extern "C" void mlp_down(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace) {
    using namespace md;
    constexpr bool parallel_pays = (long long)H * K * num_tokens >= 65536;
    int* const claim = reinterpret_cast<int*>(workspace);  // [0] next chunk, [16] threads that are done
    (void)claim;

#pragma omp parallel if (parallel_pays)
    {
        const long long nt = omp_get_num_threads();

        if constexpr (num_tokens == 1) {
            // Which thread computes a row varies; the order of the row's sum does not.
            int c = __atomic_fetch_add(claim, 1, __ATOMIC_RELAXED);
            if (c < CHUNKS) {
                // Start the page walks of the first group together.
                const T* w = w_down + c * CG * 4 * K;
                constexpr long long span = smaller(4LL * K, 65536 / (long long)sizeof(T));
                for (long long o = 0; o < span; o += 4096 / (long long)sizeof(T)) __builtin_prefetch(w + o, 0, 2);
            }
            while (c < CHUNKS) {
                const long long g0 = c * CG;
                const long long g1 = smaller(g0 + CG, GROUPS);
                for (long long g = g0; g < g1; ++g) {
                    const T* nx = nullptr;
                    if (g + 1 < g1) {
                        nx = w_down + (g + 1) * 4 * K;
                    } else {
                        c = __atomic_fetch_add(claim, 1, __ATOMIC_RELAXED);
                        if (c < CHUNKS) nx = w_down + c * CG * 4 * K;
                    }
                    T* res = residual + g * 4;
                    __builtin_prefetch(res, 1, 3);
                    float s[4];
                    gemv4(x, w_down + g * 4 * K, nx, s);
                    for (int r = 0; r < 4; ++r) finish(res + r, s[r]);
                }
            }
            // The last thread leaves the workspace zero; by then every thread has made its last claim.
            if (__atomic_add_fetch(claim + 16, 1, __ATOMIC_ACQ_REL) == (int)nt) {
                __atomic_store_n(claim, 0, __ATOMIC_RELAXED);
                __atomic_store_n(claim + 16, 0, __ATOMIC_RELAXED);
            }
        } else {
            constexpr int full = num_tokens / 4 * 4;
            constexpr int left = num_tokens - full;
            const long long id = omp_get_thread_num();
            const long long g0 = GROUPS * id / nt;
            const long long g1 = GROUPS * (id + 1) / nt;
            for (long long g = g0; g < g1; ++g) {
                for (int rr = 0; rr < 4; rr += TILE_R) {
                    const long long row = g * 4 + rr;
                    const T* w = w_down + row * K;
                    for (int t = 0; t < full; t += 4) {
                        tile<TILE_R, 4>(x + (long long)t * K, w, residual + (long long)t * H + row);
                    }
                    if constexpr (left > 0) {
                        tile<TILE_R, (left > 0 ? left : 1)>(x + (long long)full * K, w,
                                                            residual + (long long)full * H + row);
                    }
                }
            }
        }
    }
}
