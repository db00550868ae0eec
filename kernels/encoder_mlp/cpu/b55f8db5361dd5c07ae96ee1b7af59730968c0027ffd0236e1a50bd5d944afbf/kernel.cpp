// Contract: encoder_mlp version 1 (optional LayerNorm, up projection + GELU, down projection + residual).
// Idea: tokens live in the vector lanes (16 a block), activations are packed once as [k][16 tokens], and each weight
//   is broadcast straight from its row, so there is no weight packing and no horizontal sum; threads own contiguous
//   weight rows and prefetch the next row tile (and the first down tile before the barrier) in linear order.
// Bound by: reading the weights from memory once; on few cores by one bf16 dot (or two FMAs) a cycle.

#define ALWAYS static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define VLANES 16
#else
#define VLANES 8
#endif

#if defined(__AVX512F__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define HAVE_DP 1
#else
#define HAVE_DP 0
#endif

typedef float v8f __attribute__((vector_size(32)));
typedef float vf __attribute__((vector_size(VLANES * 4)));
typedef int32_t vi __attribute__((vector_size(VLANES * 4)));
typedef uint32_t vu __attribute__((vector_size(VLANES * 4)));

namespace {

constexpr bool is_f32 = std::is_same_v<T, float>;
constexpr bool is_bf = std::is_same_v<T, bfloat16>;
constexpr bool is_hf = std::is_same_v<T, float16>;
constexpr bool DP = is_bf && (HAVE_DP != 0);
constexpr int VB = 16 / VLANES;                 // vectors in a block of 16 tokens
constexpr int NB = (num_tokens + 15) / 16;      // token blocks
constexpr int H = hidden_size;
constexpr int I = intermediate_size;
constexpr int64_t PH = DP ? H / 2 : H;          // 64-byte lines of a packed block
constexpr int64_t PI = DP ? I / 2 : I;
constexpr int KB = 128;
#if defined(__AVX512F__)
constexpr int RTOP = 12;
constexpr int TBMAX = NB > 1 ? 2 : 1;
#else
constexpr int RTOP = 6;
constexpr int TBMAX = 1;
#endif

constexpr int rmax_of(int64_t k) {
    return (DP && (k * 2) % 4096 == 0) ? 8 : RTOP;
}

ALWAYS vf ldv(const float* p) { vf v; std::memcpy(&v, p, sizeof(v)); return v; }
ALWAYS void stv(float* p, vf v) { std::memcpy(p, &v, sizeof(v)); }

ALWAYS v8f load8f(const T* p) {
    if constexpr (is_f32) {
        v8f v;
        std::memcpy(&v, p, sizeof(v));
        return v;
    }
#if defined(__AVX2__)
    else if constexpr (is_bf) {
        return (v8f)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(const void*)p)), 16);
    }
#endif
#if defined(__F16C__)
    else if constexpr (is_hf) {
        return (v8f)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(const void*)p));
    }
#endif
    else {
        v8f v = {};
        for (int i = 0; i < 8; ++i) v[i] = to_float(p[i]);
        return v;
    }
}

ALWAYS void prefetch_line(const char* p) { __builtin_prefetch(p, 0, 2); }

ALWAYS void prefetch_range(const char* p, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) prefetch_line(p + i);
}

// exp(-z), 0 <= z <= 80
ALWAYS vf exp_neg(vf z) {
    vf f = z * -1.44269504088896f;
    vf r = f + 12582912.0f;
    vi n = (vi)r - 0x4B400000;
    vf d = f - (r - 12582912.0f);
    vf p = d * 0.00015403530f + 0.00133335581f;
    p = p * d + 0.00961812911f;
    p = p * d + 0.05550410866f;
    p = p * d + 0.24022650696f;
    p = p * d + 0.69314718056f;
    p = p * d + 1.0f;
    vi s = (n + 127) << 23;
    return p * (vf)s;
}

ALWAYS vf gelu(vf x) {
    if constexpr (is_f32) {
        vf y = x;
        for (int i = 0; i < VLANES; ++i) {
            float v = x[i];
            float g;
            if constexpr (gelu_tanh != 0) {
                float u = 0.7978845608028654f * (v + 0.044715f * v * v * v);
                g = 0.5f * v * (1.0f + std::tanh(u));
            } else {
                g = v * (0.5f * (1.0f + std::erf(v * 0.70710678118654752f)));
            }
            y[i] = g;
        }
        return y;
    } else {
        const vf zero = {};
        if constexpr (gelu_tanh != 0) {
            vf y = (x + x * x * x * 0.044715f) * 1.5957691216057308f;
            vf ay = (vf)((vi)y & 0x7fffffff);
            vf lim = zero + 80.0f;
            vf zc = ay < lim ? ay : lim;
            vf e = exp_neg(zc);
            e = ay < lim ? e : zero;
            vf inv = 1.0f / (e + 1.0f);
            vf s = y < zero ? e * inv : inv;
            return x * s;
        } else {
            vf ax = (vf)((vi)x & 0x7fffffff);
            vf t = 1.0f / (ax * 0.23164189f + 1.0f);
            vf zz = x * x * 0.5f;
            vf lim = zero + 80.0f;
            vf zc = zz < lim ? zz : lim;
            vf e = exp_neg(zc);
            e = zz < lim ? e : zero;
            vf p = t * 1.061405429f + -1.453152027f;
            p = p * t + 1.421413741f;
            p = p * t + -0.284496736f;
            p = p * t + 0.254829592f;
            p = p * t;
            vf q = p * e * 0.5f;
            vf phi = x < zero ? q : 1.0f - q;
            return x * phi;
        }
    }
}

// Round to T, stay in float lanes.
ALWAYS vf round_lanes(vf v) {
    if constexpr (is_f32) {
        return v;
    } else if constexpr (is_bf) {
        vu u = (vu)v;
        vu r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
        vu q = (u | 0x00400000u) & 0xffff0000u;
        return v == v ? (vf)r : (vf)q;
    } else {
        vf y = v;
        for (int i = 0; i < VLANES; ++i) y[i] = to_float(from_float<T>(v[i]));
        return y;
    }
}

#if HAVE_DP
template <int R, int TB, int K>
ALWAYS void dp_step(__m512 (&acc)[R][TB], const float* h, int64_t hs, const char* w) {
    __m512 hv[TB];
#pragma GCC unroll 2
    for (int j = 0; j < TB; ++j) hv[j] = _mm512_loadu_ps(h + j * hs);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        float s;
        std::memcpy(&s, w + (int64_t)r * K * 2, 4);
        const __m512 b = _mm512_set1_ps(s);
#pragma GCC unroll 2
        for (int j = 0; j < TB; ++j)
            acc[r][j] = _mm512_dpbf16_ps(acc[r][j], (__m512bh)hv[j], (__m512bh)b);
    }
}

template <int R, int TB, int K>
__attribute__((noinline)) void tile_dp(const float* h, int64_t hs, const T* wt, float* res, const char* pf) {
    __m512 acc[R][TB];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int j = 0; j < TB; ++j) acc[r][j] = _mm512_setzero_ps();
    }
    const char* w = (const char*)(const void*)wt;
    constexpr int K2 = K / 2;
    constexpr int FULL = K2 / 16 * 16;
    for (int k = 0; k < FULL; k += 16) {
        if (pf) {
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) prefetch_line(pf + r * 64);
            pf += R * 64;
        }
        for (int q = 0; q < 4; ++q) {
            dp_step<R, TB, K>(acc, h, hs, w);
            dp_step<R, TB, K>(acc, h + 16, hs, w + 4);
            dp_step<R, TB, K>(acc, h + 32, hs, w + 8);
            dp_step<R, TB, K>(acc, h + 48, hs, w + 12);
            h += 64;
            w += 16;
        }
    }
    for (int k = FULL; k < K2; ++k) {
        dp_step<R, TB, K>(acc, h, hs, w);
        h += 16;
        w += 4;
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
        for (int j = 0; j < TB; ++j) _mm512_storeu_ps(res + (r * TB + j) * 16, acc[r][j]);
    }
}
#endif

template <int R, int TB, int K>
__attribute__((noinline)) void tile_f(const float* h, int64_t hs, const T* w, float* res, const char* pf) {
    constexpr int NV = TB * VB;
    alignas(64) float wb[R * KB];
    for (int k0 = 0; k0 < K; k0 += KB) {
        const int n = K - k0 < KB ? K - k0 : KB;
        for (int r = 0; r < R; ++r) {
            const T* src = w + (int64_t)r * K + k0;
            float* dst = wb + r * KB;
            for (int i = 0; i < n; i += 8) {
                v8f v = load8f(src + i);
                std::memcpy(dst + i, &v, sizeof(v));
            }
        }
        if (pf) {
            const int64_t bytes = (int64_t)R * n * (int64_t)sizeof(T);
            prefetch_range(pf, bytes);
            pf += bytes;
        }
        vf acc[R][NV];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) acc[r][j] = vf{};
        }
        const float* hk = h + (int64_t)k0 * 16;
#pragma GCC unroll 2
        for (int k = 0; k < n; ++k) {
            vf hv[NV];
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) hv[j] = ldv(hk + (j / VB) * hs + (j % VB) * VLANES);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const float s = wb[r * KB + k];
#pragma GCC unroll 4
                for (int j = 0; j < NV; ++j) acc[r][j] += hv[j] * s;
            }
            hk += 16;
        }
        if (k0 == 0) {
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
                for (int j = 0; j < NV; ++j) stv(res + r * TB * 16 + j * VLANES, acc[r][j]);
            }
        } else {
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
                for (int j = 0; j < NV; ++j) {
                    float* p = res + r * TB * 16 + j * VLANES;
                    stv(p, ldv(p) + acc[r][j]);
                }
            }
        }
    }
}

template <int R, int TB, int K>
ALWAYS void tile(const float* h, int64_t hs, const T* w, float* res, const char* pf) {
#if HAVE_DP
    if constexpr (DP)
        tile_dp<R, TB, K>(h, hs, w, res, pf);
    else
        tile_f<R, TB, K>(h, hs, w, res, pf);
#else
    tile_f<R, TB, K>(h, hs, w, res, pf);
#endif
}

template <int TB, int K>
ALWAYS void run_tile(int R, const float* h, int64_t hs, const T* w, float* res, const char* pf) {
    switch (R) {
        case 2: tile<2, TB, K>(h, hs, w, res, pf); break;
        case 4: tile<4, TB, K>(h, hs, w, res, pf); break;
        case 6: tile<6, TB, K>(h, hs, w, res, pf); break;
#if defined(__AVX512F__)
        case 8: tile<8, TB, K>(h, hs, w, res, pf); break;
        case 10: tile<10, TB, K>(h, hs, w, res, pf); break;
        case 12: tile<12, TB, K>(h, hs, w, res, pf); break;
#endif
        default: break;
    }
}

// Bias and GELU, stored as the packed panel of the second product.
template <int TB>
ALWAYS void epi_up(int R, const float* res, const T* b_up, int64_t n0, int b, float* ap) {
    for (int tb = 0; tb < TB; ++tb) {
        for (int r = 0; r < R; r += 2) {
            const float b0 = to_float(b_up[n0 + r]);
            const float b1 = to_float(b_up[n0 + r + 1]);
            for (int v = 0; v < VB; ++v) {
                vf g0 = gelu(ldv(res + (r * TB + tb) * 16 + v * VLANES) + b0);
                vf g1 = gelu(ldv(res + ((r + 1) * TB + tb) * 16 + v * VLANES) + b1);
                if constexpr (DP) {
                    vu lo = (vu)round_lanes(g0) >> 16;
                    vu hi = (vu)round_lanes(g1);
                    float* dst = ap + ((int64_t)(b + tb) * PI + (n0 + r) / 2) * 16;
                    stv(dst, (vf)(lo | hi));
                } else {
                    float* dst = ap + ((int64_t)(b + tb) * PI + n0 + r) * 16 + v * VLANES;
                    stv(dst, g0);
                    stv(dst + 16, g1);
                }
            }
        }
    }
}

// Bias, rounding, residual, rounding, transposed store.
template <int TB>
ALWAYS void epi_down(int R, float* res, const T* b_down, int64_t n0, int b, const T* x, T* out) {
    for (int r = 0; r < R; ++r) {
        const float bb = to_float(b_down[n0 + r]);
        for (int j = 0; j < TB * VB; ++j) {
            float* p = res + r * TB * 16 + j * VLANES;
            stv(p, round_lanes(ldv(p) + bb));
        }
    }
    for (int tb = 0; tb < TB; ++tb) {
        const int64_t m0 = (int64_t)(b + tb) * 16;
        const int cnt = (int64_t)num_tokens - m0 < 16 ? (int)((int64_t)num_tokens - m0) : 16;
        for (int m = 0; m < cnt; ++m) {
            const int64_t o = (m0 + m) * H + n0;
            const float* col = res + tb * 16 + m;
#if HAVE_DP
            if constexpr (DP) {
                const __mmask16 mask = (__mmask16)((1u << R) - 1u);
                const __m512i idx = _mm512_mullo_epi32(
                    _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                    _mm512_set1_epi32(TB * 16));
                const __m512 y = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, idx, (const void*)col, 4);
                const __m256i xb = _mm256_maskz_loadu_epi16(mask, (const void*)(x + o));
                const __m512 xf = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(xb), 16));
                const vf z = round_lanes((vf)_mm512_add_ps(y, xf));
                const __m256i ob = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)z, 16));
                _mm256_mask_storeu_epi16((void*)(out + o), mask, ob);
            } else
#endif
            {
                for (int r = 0; r < R; ++r)
                    out[o + r] = from_float<T>(col[r * TB * 16] + to_float(x[o + r]));
            }
        }
    }
}

ALWAYS float hsum8(v8f v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

ALWAYS void row_stats(const T* row, float eps, float& mean, float& rstd) {
    v8f s0 = {}, s1 = {}, s2 = {}, s3 = {};
    constexpr int F = H / 32 * 32;
    for (int k = 0; k < F; k += 32) {
        s0 += load8f(row + k);
        s1 += load8f(row + k + 8);
        s2 += load8f(row + k + 16);
        s3 += load8f(row + k + 24);
    }
    for (int k = F; k < H; k += 8) s0 += load8f(row + k);
    const float mu = hsum8((s0 + s1) + (s2 + s3)) / (float)H;
    s0 = v8f{}; s1 = v8f{}; s2 = v8f{}; s3 = v8f{};
    for (int k = 0; k < F; k += 32) {
        const v8f d0 = load8f(row + k) - mu;
        const v8f d1 = load8f(row + k + 8) - mu;
        const v8f d2 = load8f(row + k + 16) - mu;
        const v8f d3 = load8f(row + k + 24) - mu;
        s0 += d0 * d0;
        s1 += d1 * d1;
        s2 += d2 * d2;
        s3 += d3 * d3;
    }
    for (int k = F; k < H; k += 8) {
        const v8f d = load8f(row + k) - mu;
        s0 += d * d;
    }
    const float var = hsum8((s0 + s1) + (s2 + s3)) / (float)H;
    mean = mu;
    rstd = 1.0f / std::sqrt(var + eps);
}

// Normalise (or copy) one block of 16 tokens, chunks [c0, c1) of 8 columns, into the packed panel.
__attribute__((noinline)) void pack_rows(const T* x, const T* g, const T* be, float eps, int b, int c0, int c1,
                                         float* hp) {
    if (c0 >= c1) return;
    const int64_t m0 = (int64_t)b * 16;
    const int cnt = (int64_t)num_tokens - m0 < 16 ? (int)((int64_t)num_tokens - m0) : 16;
    float mean[16], rstd[16];
    if constexpr (has_pre_norm != 0) {
        for (int t = 0; t < cnt; ++t) row_stats(x + (m0 + t) * H, eps, mean[t], rstd[t]);
    }
    alignas(64) float tmp[16 * 8];
    std::memset(tmp, 0, sizeof(tmp));
    for (int c = c0; c < c1; ++c) {
        const int k = c * 8;
#if HAVE_DP
        if constexpr (DP) {
            // tmp is used as 16 rows of 4 dwords
            for (int t = 0; t < cnt; ++t) {
                const T* src = x + (m0 + t) * H + k;
                __m128i bits;
                if constexpr (has_pre_norm != 0) {
                    const v8f v = (load8f(src) - mean[t]) * rstd[t] * load8f(g + k) + load8f(be + k);
                    bits = (__m128i)_mm256_cvtneps_pbh((__m256)v);
                } else {
                    bits = _mm_loadu_si128((const __m128i*)(const void*)src);
                }
                _mm_store_si128((__m128i*)(void*)(tmp + t * 4), bits);
            }
            const __m512i idx = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
            float* dst = hp + ((int64_t)b * PH + k / 2) * 16;
            for (int j = 0; j < 4; ++j) {
                const __m512i q = _mm512_i32gather_epi32(idx, (const void*)(tmp + j), 4);
                _mm512_storeu_si512((void*)(dst + j * 16), q);
            }
        } else
#endif
        {
            for (int t = 0; t < cnt; ++t) {
                const T* src = x + (m0 + t) * H + k;
                v8f v = load8f(src);
                if constexpr (has_pre_norm != 0) {
                    v = (v - mean[t]) * rstd[t] * load8f(g + k) + load8f(be + k);
                }
                std::memcpy(tmp + t * 8, &v, sizeof(v));
            }
            float* dst = hp + ((int64_t)b * PH + k) * 16;
            for (int j = 0; j < 8; ++j)
                for (int t = 0; t < 16; ++t) dst[j * 16 + t] = tmp[t * 8 + j];
        }
    }
}

struct Range {
    int64_t u0, u1;   // units of two rows
    int64_t nt;       // tiles
};

ALWAYS Range split(int64_t rows, int tid, int nth, int rmax) {
    Range q;
    const int64_t u = rows / 2;
    q.u0 = u * tid / nth;
    q.u1 = u * (tid + 1) / nth;
    const int64_t h = rmax / 2;
    q.nt = (q.u1 - q.u0 + h - 1) / h;
    return q;
}

ALWAYS int64_t tile_start(const Range& q, int64_t i) {
    return 2 * (q.u0 + (q.u1 - q.u0) * i / q.nt);
}

}  // namespace

extern "C" void encoder_mlp_cpu(
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
    float* const hp = (float*)(((uintptr_t)workspace + 63) & ~(uintptr_t)63);
    float* const ap = hp + (int64_t)NB * PH * 16;

#pragma omp parallel
    {
        const int tid = omp_get_thread_num();
        const int nth = omp_get_num_threads();
        const Range up = split(I, tid, nth, rmax_of(H));
        const Range dn = split(H, tid, nth, rmax_of(I));
        alignas(64) float res[12 * 32];

        // The first tile of the up weights travels while the rows are normalised.
        if (up.nt > 0) {
            const int64_t r0 = tile_start(up, 0), r1 = tile_start(up, 1);
            prefetch_range((const char*)(const void*)(w_up + r0 * H), (r1 - r0) * H * (int64_t)sizeof(T));
        }

        {
            const int S = (nth + NB - 1) / NB;
            const int64_t items = (int64_t)NB * S;
            constexpr int64_t C = H / 8;
            for (int64_t it = tid; it < items; it += nth) {
                const int b = (int)(it / S);
                const int64_t s = it % S;
                pack_rows(x, ln_weight, ln_bias, eps, b, (int)(C * s / S), (int)(C * (s + 1) / S), hp);
            }
        }
#pragma omp barrier

        for (int64_t i = 0; i < up.nt; ++i) {
            const int64_t n0 = tile_start(up, i), n1 = tile_start(up, i + 1);
            const int R = (int)(n1 - n0);
            const T* w = w_up + n0 * H;
            const char* pf = nullptr;
            if (i + 1 < up.nt) pf = (const char*)(const void*)(w_up + n1 * H);
            int b = 0;
            if constexpr (TBMAX == 2) {
                for (; b + 2 <= NB; b += 2) {
                    run_tile<TBMAX, H>(R, hp + (int64_t)b * PH * 16, PH * 16, w, res, pf);
                    pf = nullptr;
                    epi_up<TBMAX>(R, res, b_up, n0, b, ap);
                }
            }
            for (; b < NB; ++b) {
                run_tile<1, H>(R, hp + (int64_t)b * PH * 16, PH * 16, w, res, pf);
                pf = nullptr;
                epi_up<1>(R, res, b_up, n0, b, ap);
            }
        }

        // The first tile of the down weights travels while the team waits.
        if (dn.nt > 0) {
            const int64_t r0 = tile_start(dn, 0), r1 = tile_start(dn, 1);
            int64_t bytes = (r1 - r0) * I * (int64_t)sizeof(T);
            if (bytes > 131072) bytes = 131072;
            prefetch_range((const char*)(const void*)(w_down + r0 * I), bytes);
        }
#pragma omp barrier

        for (int64_t i = 0; i < dn.nt; ++i) {
            const int64_t n0 = tile_start(dn, i), n1 = tile_start(dn, i + 1);
            const int R = (int)(n1 - n0);
            const T* w = w_down + n0 * I;
            const char* pf = nullptr;
            if (i + 1 < dn.nt) pf = (const char*)(const void*)(w_down + n1 * I);
            int b = 0;
            if constexpr (TBMAX == 2) {
                for (; b + 2 <= NB; b += 2) {
                    run_tile<TBMAX, I>(R, ap + (int64_t)b * PI * 16, PI * 16, w, res, pf);
                    pf = nullptr;
                    epi_down<TBMAX>(R, res, b_down, n0, b, x, out);
                }
            }
            for (; b < NB; ++b) {
                run_tile<1, I>(R, ap + (int64_t)b * PI * 16, PI * 16, w, res, pf);
                pf = nullptr;
                epi_down<1>(R, res, b_down, n0, b, x, out);
            }
        }
    }
}
