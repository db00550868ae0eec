// Contract: kv_append v1. Copies row t of k and v, bit for bit, to row slot_mapping[t] of k_cache and v_cache.
// Idea: block and offset form one row index, so a row's address is the slot (64-bit) times the row length;
//       source lines are requested before the slot is needed and destination lines as soon as it is known, then
//       whole rows are copied with full vectors on the calling thread; one region only from 192 KiB of rows.
// Bound: cold misses of one core at decode (slot -> destination is dependent), memory bandwidth at prefill.

namespace kv {

static constexpr long ROW = (long)num_kv_heads * head_dim;       // elements
static constexpr long BYTES = ROW * (long)sizeof(T);             // a multiple of 16
static constexpr long WARM = BYTES < 4096 ? BYTES : 4096;        // bytes asked for ahead
static constexpr bool kTeam = num_tokens > 1 && 2 * BYTES * num_tokens >= 192 * 1024;

static inline void warm_read(const T* p) {
    const char* c = reinterpret_cast<const char*>(p);
    for (long i = 0; i < WARM; i += 64) __builtin_prefetch(c + i, 0, 3);
}

static inline void warm_write(const T* p) {
    const char* c = reinterpret_cast<const char*>(p);
    for (long i = 0; i < WARM; i += 64) __builtin_prefetch(c + i, 1, 3);
}

static inline void copy_row(T* __restrict__ dst, const T* __restrict__ src) {
    char* __restrict__ d = reinterpret_cast<char*>(dst);
    const char* __restrict__ s = reinterpret_cast<const char*>(src);
    long i = 0;
#if defined(__AVX512F__)
    for (; i + 256 <= BYTES; i += 256) {
        const __m512i a = _mm512_loadu_si512(s + i);
        const __m512i b = _mm512_loadu_si512(s + i + 64);
        const __m512i c = _mm512_loadu_si512(s + i + 128);
        const __m512i e = _mm512_loadu_si512(s + i + 192);
        _mm512_storeu_si512(d + i, a);
        _mm512_storeu_si512(d + i + 64, b);
        _mm512_storeu_si512(d + i + 128, c);
        _mm512_storeu_si512(d + i + 192, e);
    }
    for (; i + 64 <= BYTES; i += 64) _mm512_storeu_si512(d + i, _mm512_loadu_si512(s + i));
#elif defined(__AVX__)
    for (; i + 128 <= BYTES; i += 128) {
        const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + i));
        const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + i + 32));
        const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + i + 64));
        const __m256i e = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + i + 96));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(d + i), a);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(d + i + 32), b);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(d + i + 64), c);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(d + i + 96), e);
    }
#endif
    for (; i + 16 <= BYTES; i += 16) std::memcpy(d + i, s + i, 16);
}

}  // namespace kv

extern "C" void kv_append_cpu(
    const T* __restrict__ k,
    const T* __restrict__ v,
    T* __restrict__ k_cache,
    T* __restrict__ v_cache,
    const int* __restrict__ slot_mapping,
    int num_blocks,
    void* __restrict__ workspace) {
    (void)num_blocks;
    (void)workspace;
    if constexpr (kv::kTeam) {
#pragma omp parallel for schedule(static)
        for (long t = 0; t < (long)num_tokens; ++t) {
            const long slot = slot_mapping[t];
            kv::copy_row(k_cache + slot * kv::ROW, k + t * kv::ROW);
            kv::copy_row(v_cache + slot * kv::ROW, v + t * kv::ROW);
        }
    } else {
        long slot = slot_mapping[0];
        kv::warm_read(k);
        kv::warm_read(v);
        kv::warm_write(k_cache + slot * kv::ROW);
        kv::warm_write(v_cache + slot * kv::ROW);
        for (long t = 0; t < (long)num_tokens; ++t) {
            long next = slot;
            if (t + 1 < (long)num_tokens) {
                next = slot_mapping[t + 1];
                kv::warm_write(k_cache + next * kv::ROW);
                kv::warm_write(v_cache + next * kv::ROW);
            }
            kv::copy_row(k_cache + slot * kv::ROW, k + t * kv::ROW);
            kv::copy_row(v_cache + slot * kv::ROW, v + t * kv::ROW);
            slot = next;
        }
    }
}
