// Contract: encoder_qkv v1: optional LayerNorm, then qkv = round_T(h @ w_qkv^T + b_qkv), float32 sums.
// Idea: 1. LayerNorm rows once into the workspace, with centred two-pass statistics.
//       2. Pack h as [k pair][16 tokens], so that 16 tokens are the lanes and no horizontal sum is needed.
//       3. Stream 8 weight rows a block, each k pair broadcast from memory into vdpbf16ps; prefetch the next block.
// Bound: reading the weights from memory at few rows, the dot product instructions at many.

typedef float v16f __attribute__((vector_size(64)));

static constexpr size_t KH = hidden_size;
static constexpr size_t MT = num_tokens;
static constexpr size_t NR = (size_t)3 * num_heads * head_dim;
static constexpr size_t NTB = (MT + 15) / 16;
static constexpr size_t NB = NR / 8;

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512F__)
#define QKV_FAST_BF16 1
#else
#define QKV_FAST_BF16 0
#endif

template <class U>
static inline void ln_row_plain(const U* __restrict__ x, const U* __restrict__ g, const U* __restrict__ b,
                                float* __restrict__ h, float eps) {
    float s = 0.f;
#pragma omp simd reduction(+ : s)
    for (size_t k = 0; k < KH; ++k) { float v = to_float(x[k]); h[k] = v; s += v; }
    const float mean = s / (float)KH;
    float ds = 0.f;
#pragma omp simd reduction(+ : ds)
    for (size_t k = 0; k < KH; ++k) { float v = h[k] - mean; h[k] = v; ds += v; }
    const float dm = ds / (float)KH;
    float q = 0.f;
#pragma omp simd reduction(+ : q)
    for (size_t k = 0; k < KH; ++k) { float v = h[k] - dm; h[k] = v; q += v * v; }
    const float r = 1.0f / std::sqrt(q / (float)KH + eps);
    for (size_t k = 0; k < KH; ++k) h[k] = h[k] * r * to_float(g[k]) + to_float(b[k]);
}

#if QKV_FAST_BF16
static inline __m512 ld_bf(const void* p, __mmask16 m) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p)), 16));
}
static inline __mmask16 kmask(size_t k) {
    return (KH - k) >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (KH - k)) - 1u);
}
static inline void ln_row_bf16(const uint16_t* __restrict__ x, const uint16_t* __restrict__ g,
                               const uint16_t* __restrict__ b, uint16_t* __restrict__ h, float eps) {
    __m512 s = _mm512_setzero_ps();
    for (size_t k = 0; k < KH; k += 16) s = _mm512_add_ps(s, ld_bf(x + k, kmask(k)));
    const float mean = _mm512_reduce_add_ps(s) / (float)KH;
    const __m512 vm = _mm512_set1_ps(mean);
    __m512 d = _mm512_setzero_ps();
    for (size_t k = 0; k < KH; k += 16) {
        const __mmask16 m = kmask(k);
        d = _mm512_add_ps(d, _mm512_maskz_sub_ps(m, ld_bf(x + k, m), vm));
    }
    const __m512 vd = _mm512_set1_ps(_mm512_reduce_add_ps(d) / (float)KH);
    __m512 q = _mm512_setzero_ps();
    for (size_t k = 0; k < KH; k += 16) {
        const __mmask16 m = kmask(k);
        const __m512 v = _mm512_maskz_sub_ps(m, _mm512_sub_ps(ld_bf(x + k, m), vm), vd);
        q = _mm512_fmadd_ps(v, v, q);
    }
    const __m512 vr = _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(q) / (float)KH + eps));
    for (size_t k = 0; k < KH; k += 16) {
        const __mmask16 m = kmask(k);
        __m512 v = _mm512_sub_ps(_mm512_sub_ps(ld_bf(x + k, m), vm), vd);
        v = _mm512_fmadd_ps(_mm512_mul_ps(v, vr), ld_bf(g + k, m), ld_bf(b + k, m));
        _mm256_mask_storeu_epi16(h + k, m, (__m256i)_mm512_cvtneps_pbh(v));
    }
}

// 16 tokens x 16 k pairs -> [k pair][token]
static inline void pack_chunk(const uint16_t* __restrict__ h, size_t tok0, size_t p0, uint32_t* __restrict__ dst) {
    constexpr size_t K2 = KH / 2;
    const size_t n = std::min<size_t>(16, K2 - p0);
    const __mmask16 m = n == 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1u);
    __m512i r[16], t[16], o[16];
    for (int i = 0; i < 16; ++i)
        r[i] = (tok0 + i < MT) ? _mm512_maskz_loadu_epi32(m, h + (tok0 + i) * KH + 2 * p0) : _mm512_setzero_si512();
    for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int g = 0; g < 4; ++g) {
        r[4 * g + 0] = _mm512_unpacklo_epi64(t[4 * g], t[4 * g + 2]);
        r[4 * g + 1] = _mm512_unpackhi_epi64(t[4 * g], t[4 * g + 2]);
        r[4 * g + 2] = _mm512_unpacklo_epi64(t[4 * g + 1], t[4 * g + 3]);
        r[4 * g + 3] = _mm512_unpackhi_epi64(t[4 * g + 1], t[4 * g + 3]);
    }
    for (int c = 0; c < 4; ++c) {
        const __m512i a = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
        const __m512i a2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
        const __m512i b2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        o[c] = _mm512_shuffle_i32x4(a, a2, 0x88);
        o[8 + c] = _mm512_shuffle_i32x4(a, a2, 0xdd);
        o[4 + c] = _mm512_shuffle_i32x4(b, b2, 0x88);
        o[12 + c] = _mm512_shuffle_i32x4(b, b2, 0xdd);
    }
    for (size_t i = 0; i < 16; ++i)
        if (i < n) _mm512_store_si512((void*)(dst + (p0 + i) * 16), o[i]);
}

static inline void block_bf16(const uint16_t* __restrict__ w, const uint16_t* __restrict__ wnext,
                              const uint32_t* __restrict__ hp, const uint16_t* __restrict__ bias,
                              uint16_t* __restrict__ out, size_t tok0) {
    constexpr size_t K2 = KH / 2;
    __m512 a[8], c[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) { a[r] = _mm512_setzero_ps(); c[r] = _mm512_setzero_ps(); }
    for (size_t p0 = 0; p0 < K2; p0 += 16) {
        if (wnext) {
#pragma GCC unroll 8
            for (int r = 0; r < 8; ++r) _mm_prefetch((const char*)(wnext + r * KH + 2 * p0), _MM_HINT_T0);
        }
        const size_t pe = std::min(p0 + 16, K2);
        for (size_t p = p0; p < pe; p += 2) {
            const __m512i h0 = _mm512_load_si512((const void*)(hp + p * 16));
            const __m512i h1 = _mm512_load_si512((const void*)(hp + p * 16 + 16));
#pragma GCC unroll 8
            for (int r = 0; r < 8; ++r) {
                int32_t w0, w1;
                std::memcpy(&w0, w + r * KH + 2 * p, 4);
                std::memcpy(&w1, w + r * KH + 2 * p + 2, 4);
                a[r] = _mm512_dpbf16_ps(a[r], (__m512bh)h0, (__m512bh)_mm512_set1_epi32(w0));
                c[r] = _mm512_dpbf16_ps(c[r], (__m512bh)h1, (__m512bh)_mm512_set1_epi32(w1));
            }
        }
    }
    __m256i v[8], s[8], u[8], o[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
        const __m512 bb = _mm512_castsi512_ps(_mm512_set1_epi32((int)((uint32_t)bias[r] << 16)));
        v[r] = (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(_mm512_add_ps(a[r], c[r]), bb));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        s[2 * i] = _mm256_unpacklo_epi16(v[2 * i], v[2 * i + 1]);
        s[2 * i + 1] = _mm256_unpackhi_epi16(v[2 * i], v[2 * i + 1]);
    }
    u[0] = _mm256_unpacklo_epi32(s[0], s[2]); u[1] = _mm256_unpackhi_epi32(s[0], s[2]);
    u[2] = _mm256_unpacklo_epi32(s[4], s[6]); u[3] = _mm256_unpackhi_epi32(s[4], s[6]);
    u[4] = _mm256_unpacklo_epi32(s[1], s[3]); u[5] = _mm256_unpackhi_epi32(s[1], s[3]);
    u[6] = _mm256_unpacklo_epi32(s[5], s[7]); u[7] = _mm256_unpackhi_epi32(s[5], s[7]);
    o[0] = _mm256_unpacklo_epi64(u[0], u[2]); o[1] = _mm256_unpackhi_epi64(u[0], u[2]);
    o[2] = _mm256_unpacklo_epi64(u[1], u[3]); o[3] = _mm256_unpackhi_epi64(u[1], u[3]);
    o[4] = _mm256_unpacklo_epi64(u[4], u[6]); o[5] = _mm256_unpackhi_epi64(u[4], u[6]);
    o[6] = _mm256_unpacklo_epi64(u[5], u[7]); o[7] = _mm256_unpackhi_epi64(u[5], u[7]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        if (tok0 + i < MT)
            _mm_storeu_si128((__m128i*)(out + (tok0 + i) * NR), _mm256_castsi256_si128(o[i]));
        if (tok0 + 8 + i < MT)
            _mm_storeu_si128((__m128i*)(out + (tok0 + 8 + i) * NR), _mm256_extracti128_si256(o[i], 1));
    }
}
#endif

static inline void block_plain(const T* __restrict__ w, const float* __restrict__ hp, const T* __restrict__ bias,
                               T* __restrict__ out, size_t tok0) {
    constexpr size_t KC = 256;
    alignas(64) float wb[8][KC];
    v16f tot[8];
    for (int r = 0; r < 8; ++r) tot[r] = v16f{};
    for (size_t k0 = 0; k0 < KH; k0 += KC) {
        const size_t n = std::min(KC, KH - k0);
        for (int r = 0; r < 8; ++r)
            for (size_t k = 0; k < n; ++k) wb[r][k] = to_float(w[r * KH + k0 + k]);
        v16f a[8], c[8];
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) { a[r] = v16f{}; c[r] = v16f{}; }
        for (size_t k = 0; k < n; k += 2) {
            const v16f h0 = *(const v16f*)(hp + (k0 + k) * 16);
            const v16f h1 = *(const v16f*)(hp + (k0 + k + 1) * 16);
#pragma GCC unroll 8
            for (int r = 0; r < 8; ++r) {
                a[r] += h0 * wb[r][k];
                c[r] += h1 * wb[r][k + 1];
            }
        }
        for (int r = 0; r < 8; ++r) tot[r] += a[r] + c[r];
    }
    for (size_t i = 0; i < 16 && tok0 + i < MT; ++i)
        for (int r = 0; r < 8; ++r) out[(tok0 + i) * NR + r] = from_float<T>(tot[r][i] + to_float(bias[r]));
}

extern "C" void encoder_qkv_cpu(
    const T* __restrict__ x,
    const T* __restrict__ ln_weight,
    const T* __restrict__ ln_bias,
    const T* __restrict__ w_qkv,
    const T* __restrict__ b_qkv,
    T* __restrict__ qkv,
    float eps,
    void* __restrict__ workspace) {
    char* const ws = (char*)(((uintptr_t)workspace + 63) & ~(uintptr_t)63);
    constexpr size_t HB = (MT * KH * 4 + 63) / 64 * 64;
    char* const packs = ws + HB;

#pragma omp parallel
    {
        const size_t tid = (size_t)omp_get_thread_num();
        const size_t nt = (size_t)omp_get_num_threads();
        const size_t b0 = NB * tid / nt, b1 = NB * (tid + 1) / nt;
        const bool priv = NTB == 1 && nt <= (size_t)num_sms;

        if (b0 < b1) {
            const char* p = (const char*)(w_qkv + b0 * 8 * KH);
            const size_t n = std::min<size_t>(8 * KH * sizeof(T), 16384);
            for (size_t i = 0; i < n; i += 64) _mm_prefetch(p + i, _MM_HINT_T0);
        }

        bool done = false;
#if QKV_FAST_BF16
        if constexpr (std::is_same_v<T, bfloat16>) {
            done = true;
            const uint16_t* hs = (const uint16_t*)x;
            if (has_pre_norm) {
                uint16_t* hw = (uint16_t*)ws;
                for (size_t t = tid; t < MT; t += nt)
                    ln_row_bf16((const uint16_t*)x + t * KH, (const uint16_t*)ln_weight, (const uint16_t*)ln_bias,
                                hw + t * KH, eps);
                hs = hw;
#pragma omp barrier
            }
            constexpr size_t K2 = KH / 2;
            constexpr size_t NC = (K2 + 15) / 16;
            uint32_t* hp = (uint32_t*)packs;
            if (priv) {
                hp += tid * K2 * 16;
                if (b0 < b1)
                    for (size_t c = 0; c < NC; ++c) pack_chunk(hs, 0, c * 16, hp);
            } else {
                for (size_t i = tid; i < NTB * NC; i += nt) {
                    const size_t tb = i / NC, c = i % NC;
                    pack_chunk(hs, tb * 16, c * 16, hp + tb * K2 * 16);
                }
#pragma omp barrier
            }
            const uint16_t* w = (const uint16_t*)w_qkv;
            for (size_t b = b0; b < b1; ++b)
                for (size_t tb = 0; tb < NTB; ++tb)
                    block_bf16(w + b * 8 * KH, (tb + 1 == NTB && b + 1 < b1) ? w + (b + 1) * 8 * KH : nullptr,
                               hp + tb * K2 * 16, (const uint16_t*)b_qkv + b * 8, (uint16_t*)qkv + b * 8, tb * 16);
        }
#endif
        if (!done) {
            float* hw = (float*)ws;
            for (size_t t = tid; t < MT; t += nt) {
                if (has_pre_norm) {
                    ln_row_plain<T>(x + t * KH, ln_weight, ln_bias, hw + t * KH, eps);
                } else {
                    for (size_t k = 0; k < KH; ++k) hw[t * KH + k] = to_float(x[t * KH + k]);
                }
            }
#pragma omp barrier
            float* hp = (float*)packs;
            constexpr size_t NC = (KH + 15) / 16;
            for (size_t i = tid; i < NTB * NC; i += nt) {
                const size_t tb = i / NC, c = i % NC;
                const size_t ke = std::min(KH, c * 16 + 16);
                for (size_t k = c * 16; k < ke; ++k)
                    for (size_t j = 0; j < 16; ++j) {
                        const size_t t = tb * 16 + j;
                        hp[tb * KH * 16 + k * 16 + j] = t < MT ? hw[t * KH + k] : 0.f;
                    }
            }
#pragma omp barrier
            for (size_t b = b0; b < b1; ++b)
                for (size_t tb = 0; tb < NTB; ++tb)
                    block_plain(w_qkv + b * 8 * KH, hp + tb * KH * 16, b_qkv + b * 8, qkv + b * 8, tb * 16);
        }
    }
}
