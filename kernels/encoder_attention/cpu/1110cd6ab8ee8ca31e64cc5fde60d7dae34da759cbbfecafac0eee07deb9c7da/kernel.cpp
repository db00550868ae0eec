// Contract: encoder_attention version 1. out[b,i,h] = round_T(softmax_j(scale * q_i . k_j) @ v_j), j < seq_lens[b];
// rows i >= seq_lens[b] are zeros; padding is never read.
// Idea: one task is one (sequence, head, block of query rows); keys are transposed and values widened once a task
//   into float32 panels on the stack, then both products run as register-blocked outer products (8 rows x 32 columns).
//   Softmax is vectorised and kept normalised from key tile to key tile; up to one tile it is the exact softmax.
// Bound: float32 FMA throughput of the cores, then the packing from cold memory.

#if defined(__AVX512F__)
static constexpr int W = 16;
static constexpr int MR = 8;
#else
static constexpr int W = 8;
static constexpr int MR = 4;
#endif
typedef float vf __attribute__((vector_size(W * 4), aligned(W * 4), may_alias));
static constexpr int PW = 2 * W;
static constexpr int KB = head_dim <= 128 ? 128 : 64;
static constexpr int HDP = (head_dim + 31) / 32 * 32;
static constexpr int64_t part = (int64_t)num_heads * head_dim;
static constexpr int64_t token = 3 * part;

static constexpr int pick_rows() {
    const int64_t bh = (int64_t)batch_size * num_heads;
    const int64_t workers = num_sms > 0 ? num_sms : 1;
    int best = MR;
    int64_t best_cost = -1;
    for (int q = 128; q >= MR; q -= MR) {
        const int64_t n = (seq_len + q - 1) / q;
        const int64_t rows = q < seq_len ? q : (seq_len + MR - 1) / MR * MR;
        const int64_t cost = ((bh * n + workers - 1) / workers) * (rows + 8);
        if (best_cost < 0 || cost < best_cost) { best_cost = cost; best = q; }
    }
    return best;
}
static constexpr int QB = pick_rows();

#if defined(__AVX512F__)
// n is 16 or 8 elements.
template <class U>
static inline __m512 load16(const U* p, int n) {
    if constexpr (std::is_same_v<U, float>) {
        return _mm512_maskz_loadu_ps(n >= 16 ? (__mmask16)0xffff : (__mmask16)0x00ff, p);
    } else {
        __m256i x;
        if (n >= 16) x = _mm256_loadu_si256((const __m256i*)(const void*)p);
        else x = _mm256_inserti128_si256(_mm256_setzero_si256(), _mm_loadu_si128((const __m128i*)(const void*)p), 0);
        if constexpr (std::is_same_v<U, bfloat16>)
            return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
        else
            return _mm512_cvtph_ps(x);
    }
}

template <class U>
static inline void store16(U* p, __m512 v, int n) {
    if constexpr (std::is_same_v<U, float>) {
        _mm512_mask_storeu_ps(p, n >= 16 ? (__mmask16)0xffff : (__mmask16)0x00ff, v);
    } else {
        __m256i y;
        if constexpr (std::is_same_v<U, bfloat16>) {
            const __m512i u = _mm512_castps_si512(v);
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
            __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            r = _mm512_srli_epi32(r, 16);
            const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
            r = _mm512_mask_mov_epi32(r, nan, _mm512_set1_epi32(0x7fc0));
            y = _mm512_cvtepi32_epi16(r);
        } else {
            y = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        }
        if (n >= 16) _mm256_storeu_si256((__m256i*)(void*)p, y);
        else _mm_storeu_si128((__m128i*)(void*)p, _mm256_castsi256_si128(y));
    }
}

static inline __m512 exp16(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-110.0f), x);   // a NaN in x stays
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), f);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(y, _mm512_mul_ps(f, f), _mm512_add_ps(f, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(y, n);
}

static inline void transpose16(__m512* r) {
    __m512 a[16], b[16];
    #pragma GCC unroll 16
    for (int i = 0; i < 8; ++i) {
        a[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    #pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
        const __m512d a0 = _mm512_castps_pd(a[4 * i]), a1 = _mm512_castps_pd(a[4 * i + 1]);
        const __m512d a2 = _mm512_castps_pd(a[4 * i + 2]), a3 = _mm512_castps_pd(a[4 * i + 3]);
        b[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a0, a2));
        b[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a0, a2));
        b[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(a1, a3));
        b[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(a1, a3));
    }
    #pragma GCC unroll 16
    for (int c = 0; c < 4; ++c) {
        const __m512 x = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88);
        const __m512 y = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xdd);
        const __m512 z = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        const __m512 w = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xdd);
        r[c] = _mm512_shuffle_f32x4(x, z, 0x88);
        r[8 + c] = _mm512_shuffle_f32x4(x, z, 0xdd);
        r[4 + c] = _mm512_shuffle_f32x4(y, w, 0x88);
        r[12 + c] = _mm512_shuffle_f32x4(y, w, 0xdd);
    }
}
#else
static inline float exp1(float x) {
    const float t = x * 1.44269504f + 12582912.0f;
    const float n = t - 12582912.0f;
    uint32_t tb;
    std::memcpy(&tb, &t, 4);
    float f = x - n * 0.693359375f;
    f = f + n * 2.12194440e-4f;
    float y = 1.9875691500e-4f;
    y = y * f + 1.3981999507e-3f;
    y = y * f + 8.3334519073e-3f;
    y = y * f + 4.1665795894e-2f;
    y = y * f + 1.6666665459e-1f;
    y = y * f + 5.0000001201e-1f;
    y = y * (f * f) + (f + 1.0f);
    const uint32_t sb = (tb << 23) + 0x3f800000u;
    float s;
    std::memcpy(&s, &sb, 4);
    const float r = y * s;
    return x < -87.0f ? 0.0f : r;
}
#endif

template <class U>
static inline void widen_row(const U* p, float* dst) {   // head_dim elements, zeros to HDP
#if defined(__AVX512F__)
    for (int d = 0; d < HDP; d += 16) {
        const int n = head_dim - d;
        _mm512_store_ps(dst + d, n > 0 ? load16<U>(p + d, n) : _mm512_setzero_ps());
    }
#else
    for (int d = 0; d < head_dim; ++d) dst[d] = to_float(p[d]);
    for (int d = head_dim; d < HDP; ++d) dst[d] = 0.0f;
#endif
}

// Keys to panels [key / PW][d][key % PW]; values to panels [d / PW][key][d % PW].
template <class U>
static inline void pack_tile(const U* k, const U* v, int kn, float* kt, float* vt) {
#if defined(__AVX512F__)
    const int kpad = (kn + PW - 1) / PW * PW;
    for (int j = 0; j < kpad; j += 16) {
        for (int r = 0; r < 16; ++r) {
            if (j + r < kn) {
                const char* pv = (const char*)(v + (int64_t)(j + r) * token);
                for (int o = 0; o < (int)(head_dim * sizeof(U)); o += 64) _mm_prefetch(pv + o, _MM_HINT_T0);
            }
            if (j + 16 + r < kn) {
                const char* pk = (const char*)(k + (int64_t)(j + 16 + r) * token);
                for (int o = 0; o < (int)(head_dim * sizeof(U)); o += 64) _mm_prefetch(pk + o, _MM_HINT_T0);
            }
        }
        float* dst = kt + (int64_t)(j / PW) * HDP * PW + j % PW;
        for (int d = 0; d < head_dim; d += 16) {
            __m512 r[16];
            const int n = head_dim - d;
            #pragma GCC unroll 16
            for (int i = 0; i < 16; ++i)
                r[i] = j + i < kn ? load16<U>(k + (int64_t)(j + i) * token + d, n) : _mm512_setzero_ps();
            transpose16(r);
            #pragma GCC unroll 16
            for (int i = 0; i < 16; ++i) _mm512_store_ps(dst + (int64_t)(d + i) * PW, r[i]);
        }
    }
    for (int j = 0; j < kn; ++j) {
        const U* p = v + (int64_t)j * token;
        for (int d = 0; d < HDP; d += 16) {
            const int n = head_dim - d;
            _mm512_store_ps(vt + (int64_t)(d / PW) * KB * PW + j * PW + d % PW,
                            n > 0 ? load16<U>(p + d, n) : _mm512_setzero_ps());
        }
    }
#else
    const int kpad = (kn + PW - 1) / PW * PW;
    for (int j = 0; j < kpad; ++j) {
        float* dst = kt + (int64_t)(j / PW) * HDP * PW + j % PW;
        if (j < kn) {
            const U* p = k + (int64_t)j * token;
            for (int d = 0; d < head_dim; ++d) dst[d * PW] = to_float(p[d]);
        } else {
            for (int d = 0; d < head_dim; ++d) dst[d * PW] = 0.0f;
        }
    }
    for (int j = 0; j < kn; ++j) {
        const U* p = v + (int64_t)j * token;
        for (int d = 0; d < HDP; ++d)
            vt[(int64_t)(d / PW) * KB * PW + j * PW + d % PW] = d < head_dim ? to_float(p[d]) : 0.0f;
    }
#endif
}

// c[r][0..PW) += sum over t < n of a[r * lda + t] * b[t * PW ..]
template <bool Init>
static inline __attribute__((always_inline)) void outer(const float* a, int lda, const float* b, int n,
                                                        float* c, int ldc) {
    vf s0[MR], s1[MR];
    #pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
        if (Init) { s0[r] = vf{}; s1[r] = vf{}; }
        else { s0[r] = *(const vf*)(c + r * ldc); s1[r] = *(const vf*)(c + r * ldc + W); }
    }
    for (int t = 0; t < n; ++t) {
        const vf b0 = *(const vf*)(b + t * PW);
        const vf b1 = *(const vf*)(b + t * PW + W);
        #pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) {
            const float x = a[r * lda + t];
            s0[r] += x * b0;
            s1[r] += x * b1;
        }
    }
    #pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
        *(vf*)(c + r * ldc) = s0[r];
        *(vf*)(c + r * ldc + W) = s1[r];
    }
}

// Scores to normalised weights; returns the factor for what was accumulated before.
static inline float soften(float* p, int kn, int kpad, float scale, float& m, float& l) {
    for (int j = kn; j < kpad; ++j) p[j] = 0.0f;
    float mx = m, sum = 0.0f;
#if defined(__AVX512F__)
    const __m512 vs = _mm512_set1_ps(scale);
    const __m512 ninf = _mm512_set1_ps(-INFINITY);
    __m512 vm = _mm512_set1_ps(m);
    for (int j = 0; j < kpad; j += 16) {
        const int left = kn - j;
        const __mmask16 k = left >= 16 ? (__mmask16)0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : (__mmask16)0;
        const __m512 x = _mm512_mask_mul_ps(ninf, k, _mm512_load_ps(p + j), vs);
        _mm512_store_ps(p + j, x);
        vm = _mm512_max_ps(x, vm);
    }
    mx = _mm512_reduce_max_ps(vm);
    const float sub = mx == -INFINITY ? 0.0f : mx;
    const __m512 vsub = _mm512_set1_ps(sub);
    __m512 vsum = _mm512_setzero_ps();
    for (int j = 0; j < kpad; j += 16) {
        const int left = kn - j;
        const __mmask16 k = left >= 16 ? (__mmask16)0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : (__mmask16)0;
        const __m512 e = _mm512_maskz_mov_ps(k, exp16(_mm512_sub_ps(_mm512_load_ps(p + j), vsub)));
        _mm512_store_ps(p + j, e);
        vsum = _mm512_add_ps(vsum, e);
    }
    sum = _mm512_reduce_add_ps(vsum);
#else
    for (int j = 0; j < kn; ++j) {
        p[j] *= scale;
        mx = p[j] > mx ? p[j] : mx;
    }
    const float sub = mx == -INFINITY ? 0.0f : mx;
    for (int j = 0; j < kn; ++j) p[j] = exp1(p[j] - sub);
    for (int j = 0; j < kn; ++j) sum += p[j];
#endif
    const float before = l == 0.0f ? 0.0f : l * std::exp(m - sub);
    const float now = before + sum;
    const float inv = now == 0.0f ? 0.0f : 1.0f / now;
    for (int j = 0; j < kpad; ++j) p[j] *= inv;
    m = mx;
    l = now;
    return before * inv;
}

template <class U>
static void attend(const U* base, U* o, int i0, int i1, int len, float scale) {
    // Query rows i0..i1 (all below len) of one head.
    alignas(64) float kt[(KB / PW) * HDP * PW];
    alignas(64) float vt[(HDP / PW) * KB * PW];
    alignas(64) float acc[QB * HDP];
    alignas(64) float qf[MR * HDP];
    alignas(64) float p[MR * KB];
    float m[QB], l[QB];

    for (int r = 0; r < QB; ++r) { m[r] = -INFINITY; l[r] = 0.0f; }

    for (int j0 = 0; j0 < len; j0 += KB) {
        const int kn = len - j0 < KB ? len - j0 : KB;
        const int kpad = (kn + PW - 1) / PW * PW;
        pack_tile<U>(base + part + (int64_t)j0 * token, base + 2 * part + (int64_t)j0 * token, kn, kt, vt);

        for (int i = i0; i < i1; i += MR) {
            const int rows = i1 - i < MR ? i1 - i : MR;
            const int at = i - i0;
            float* a = acc + (int64_t)at * HDP;
            for (int r = 0; r < MR; ++r) {
                if (r < rows) widen_row<U>(base + (int64_t)(i + r) * token, qf + r * HDP);
                else for (int d = 0; d < HDP; ++d) qf[r * HDP + d] = 0.0f;
            }
            for (int j = 0; j < kpad; j += PW)
                outer<true>(qf, HDP, kt + (int64_t)(j / PW) * HDP * PW, head_dim, p + j, KB);
            for (int r = 0; r < MR; ++r) {
                const float f = soften(p + r * KB, kn, kpad, scale, m[at + r], l[at + r]);
                if (j0 > 0) for (int d = 0; d < HDP; ++d) a[r * HDP + d] *= f;
            }
            if (j0 == 0) {
                for (int d = 0; d < HDP; d += PW)
                    outer<true>(p, KB, vt + (int64_t)(d / PW) * KB * PW, kn, a + d, HDP);
            } else {
                for (int d = 0; d < HDP; d += PW)
                    outer<false>(p, KB, vt + (int64_t)(d / PW) * KB * PW, kn, a + d, HDP);
            }
            if (j0 + KB >= len) {
                for (int r = 0; r < rows; ++r) {
                    float* s = a + r * HDP;
                    U* dst = o + (int64_t)(i + r) * part;
                    if (l[at + r] == 0.0f) for (int d = 0; d < HDP; ++d) s[d] = NAN;
#if defined(__AVX512F__)
                    for (int d = 0; d < head_dim; d += 16) store16<U>(dst + d, _mm512_load_ps(s + d), head_dim - d);
#else
                    for (int d = 0; d < head_dim; ++d) dst[d] = from_float<U>(s[d]);
#endif
                }
            }
        }
    }
}

extern "C" void encoder_attention_blocks(
    const T* __restrict__ qkv,
    const int* __restrict__ seq_lens,
    T* __restrict__ out,
    float scale,
    void* __restrict__ workspace)
{
    (void)workspace;
    constexpr int64_t blocks = (seq_len + QB - 1) / QB;
    constexpr int64_t tasks = (int64_t)batch_size * num_heads * blocks;

    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t t = 0; t < tasks; ++t) {
        const int64_t blk = t % blocks;
        const int64_t h = (t / blocks) % num_heads;
        const int64_t b = t / (blocks * num_heads);
        const int len = seq_lens[b];
        const int i0 = (int)(blk * QB);
        const int end = i0 + QB < seq_len ? i0 + QB : seq_len;
        const int i1 = end < len ? end : len;
        T* o = out + b * seq_len * part + h * head_dim;
        if (i0 < i1) attend<T>(qkv + b * seq_len * token + h * head_dim, o, i0, i1, len, scale);
        for (int i = i0 > i1 ? i0 : i1; i < end; ++i)
            std::memset((void*)(o + (int64_t)i * part), 0, head_dim * sizeof(T));
    }
}
