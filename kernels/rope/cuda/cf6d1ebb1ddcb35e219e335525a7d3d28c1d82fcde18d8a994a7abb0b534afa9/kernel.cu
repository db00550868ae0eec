// Contract: rope version 1. Rotates the first rotary_dim elements of every query and key head in place,
// float32 arithmetic from a float32 table, one rounding to T, both rotation styles; the rest is not touched.
// Idea: 1. one thread owns whole pairs (both elements in registers before either is stored), no shuffles, no shared memory;
//       2. decode: one flat index space over query and key units, 4 pairs a thread, small blocks; the position load goes
//          first, head loads fly beside it; prefill: a block a token, table unit held in registers over the heads;
//       3. both halves of programmatic launch, so that the launch itself hides behind the predecessor.
// Bound: decode by the latency of position -> table row -> store (two dependent misses); prefill by bandwidth.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

constexpr int HALF = rotary_dim / 2;
constexpr int H = num_heads + num_kv_heads;
constexpr int DECODE_BLOCK = 64;
constexpr int PREFILL_BLOCK = 256;

// a constant, not a function: a plain constexpr function counts as a host function under NVRTC
template <int MOST> struct Pairs {
    static constexpr int value = (MOST >= 8 && HALF % 8 == 0)   ? 8
                                 : (MOST >= 4 && HALF % 4 == 0) ? 4
                                 : (MOST >= 2 && HALF % 2 == 0) ? 2
                                                                : 1;
};

// ---- words of T -------------------------------------------------------------------------------------------------
template <typename U> struct Codec;

template <> struct Codec<float> {
    static __device__ __forceinline__ void unpack(unsigned w, float& lo, float& hi) {
        lo = __uint_as_float(w);
        hi = 0.0f;
    }
    static __device__ __forceinline__ unsigned pack(float lo, float) { return __float_as_uint(lo); }
};

template <> struct Codec<__nv_bfloat16> {
    static __device__ __forceinline__ void unpack(unsigned w, float& lo, float& hi) {
        lo = __uint_as_float(w << 16);
        hi = __uint_as_float(w & 0xffff0000u);
    }
    static __device__ __forceinline__ unsigned pack(float lo, float hi) {
        unsigned d;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
        return d;
    }
};

template <> struct Codec<__half> {
    static __device__ __forceinline__ void unpack(unsigned w, float& lo, float& hi) {
        asm("{\n\t.reg .f16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
            : "=f"(lo), "=f"(hi)
            : "r"(w));
    }
    static __device__ __forceinline__ unsigned pack(float lo, float hi) {
        unsigned d;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
        return d;
    }
};

constexpr int EPW = 4 / (int)sizeof(T);  // elements a word: 1 or 2

template <int N> struct Raw {
    static constexpr int BYTES = N * (int)sizeof(T);
    static constexpr int W = BYTES >= 4 ? BYTES / 4 : 1;
    unsigned w[W];

    __device__ __forceinline__ void load(const T* p) {
        if constexpr (BYTES % 16 == 0) {
#pragma unroll
            for (int i = 0; i < W / 4; ++i) {
                const uint4 x = reinterpret_cast<const uint4*>(p)[i];
                w[4 * i + 0] = x.x;
                w[4 * i + 1] = x.y;
                w[4 * i + 2] = x.z;
                w[4 * i + 3] = x.w;
            }
        } else if constexpr (BYTES == 8) {
            const uint2 x = *reinterpret_cast<const uint2*>(p);
            w[0] = x.x;
            w[1] = x.y;
        } else if constexpr (BYTES == 4) {
            w[0] = *reinterpret_cast<const unsigned*>(p);
        } else {
            w[0] = *reinterpret_cast<const unsigned short*>(p);
        }
    }

    __device__ __forceinline__ void store(T* p) const {
        if constexpr (BYTES % 16 == 0) {
#pragma unroll
            for (int i = 0; i < W / 4; ++i)
                reinterpret_cast<uint4*>(p)[i] = make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
        } else if constexpr (BYTES == 8) {
            *reinterpret_cast<uint2*>(p) = make_uint2(w[0], w[1]);
        } else if constexpr (BYTES == 4) {
            *reinterpret_cast<unsigned*>(p) = w[0];
        } else {
            *reinterpret_cast<unsigned short*>(p) = (unsigned short)(w[0] & 0xffffu);
        }
    }

    __device__ __forceinline__ void decode(float (&f)[N]) const {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            float lo, hi;
            Codec<T>::unpack(w[i], lo, hi);
            f[i * EPW] = lo;
            if constexpr (EPW == 2 && N > 1) f[i * EPW + 1] = hi;
        }
    }

    __device__ __forceinline__ void encode(const float (&f)[N]) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            float hi = 0.0f;
            if constexpr (EPW == 2 && N > 1) hi = f[i * EPW + 1];
            w[i] = Codec<T>::pack(f[i * EPW], hi);
        }
    }
};

// ---- P pairs of one head ----------------------------------------------------------------------------------------
template <int P> struct Table {
    float c[P], s[P];

    static __device__ __forceinline__ void read(const float* p, float (&f)[P]) {
        if constexpr (P % 4 == 0) {
#pragma unroll
            for (int i = 0; i < P / 4; ++i) {
                const float4 x = __ldg(reinterpret_cast<const float4*>(p) + i);
                f[4 * i + 0] = x.x;
                f[4 * i + 1] = x.y;
                f[4 * i + 2] = x.z;
                f[4 * i + 3] = x.w;
            }
        } else if constexpr (P == 2) {
            const float2 x = __ldg(reinterpret_cast<const float2*>(p));
            f[0] = x.x;
            f[1] = x.y;
        } else {
            f[0] = __ldg(p);
        }
    }

    __device__ __forceinline__ void load(const float* row, int u) {
        read(row + u * P, c);
        read(row + HALF + u * P, s);
    }
};

__device__ __forceinline__ void rotate_pair(float a, float b, float c, float s, float& x, float& y) {
    x = fmaf(a, c, -(b * s));
    y = fmaf(b, c, a * s);
}

template <int P, bool INTERLEAVED> struct Unit;

template <int P> struct Unit<P, false> {
    Raw<P> a, b;
    __device__ __forceinline__ void load(const T* head, int u) {
        a.load(head + u * P);
        b.load(head + HALF + u * P);
    }
    __device__ __forceinline__ void store(T* head, int u) const {
        a.store(head + u * P);
        b.store(head + HALF + u * P);
    }
    __device__ __forceinline__ void rotate(const Table<P>& t) {
        float fa[P], fb[P], x[P], y[P];
        a.decode(fa);
        b.decode(fb);
#pragma unroll
        for (int j = 0; j < P; ++j) rotate_pair(fa[j], fb[j], t.c[j], t.s[j], x[j], y[j]);
        a.encode(x);
        b.encode(y);
    }
};

template <int P> struct Unit<P, true> {
    Raw<2 * P> ab;
    __device__ __forceinline__ void load(const T* head, int u) { ab.load(head + u * (2 * P)); }
    __device__ __forceinline__ void store(T* head, int u) const { ab.store(head + u * (2 * P)); }
    __device__ __forceinline__ void rotate(const Table<P>& t) {
        float f[2 * P], x[2 * P];
        ab.decode(f);
#pragma unroll
        for (int j = 0; j < P; ++j) rotate_pair(f[2 * j], f[2 * j + 1], t.c[j], t.s[j], x[2 * j], x[2 * j + 1]);
        ab.encode(x);
    }
};

__device__ __forceinline__ T* head_pointer(T* q, T* k, int t, int h) {
    return h < num_heads ? q + ((size_t)t * num_heads + h) * head_dim
                         : k + ((size_t)t * num_kv_heads + (h - num_heads)) * head_dim;
}

// volatile and behind the wait: an invariant load might be hoisted over it
__device__ __forceinline__ int load_position(const int* p) {
    int v;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void grid_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void grid_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace

extern "C" __global__ void __launch_bounds__(64) rope_decode(
    T* __restrict__ q,
    T* __restrict__ k,
    const float* __restrict__ cos_sin,
    const int* __restrict__ positions,
    int max_positions,
    void* __restrict__ workspace)
{
    constexpr int P = Pairs<4>::value;
    constexpr int U = HALF / P;
    constexpr int UNITS = H * U;
    constexpr bool ROT = rope_interleaved != 0;

    grid_trigger();  // a handful of warps: the successor takes nothing away; its own wait orders memory

    const int t = num_tokens == 1 ? 0 : (int)blockIdx.y;
    int i = (int)blockIdx.x * DECODE_BLOCK + (int)threadIdx.x;

    grid_wait();
    const int p = load_position(positions + t);

    if constexpr (P == 4) {
        // the grid covers every unit exactly once
        if constexpr (UNITS % DECODE_BLOCK != 0) {
            if (i >= UNITS) return;
        }
        const int h = i / U;
        const int u = i - h * U;
        T* head = head_pointer(q, k, t, h);
        Unit<P, ROT> unit;
        unit.load(head, u);
        Table<P> table;
        table.load(cos_sin + (size_t)p * rotary_dim, u);
        unit.rotate(table);
        unit.store(head, u);
    } else {
        const int stride = (int)gridDim.x * DECODE_BLOCK;
        for (; i < UNITS; i += stride) {
            const int h = i / U;
            const int u = i - h * U;
            T* head = head_pointer(q, k, t, h);
            Unit<P, ROT> unit;
            unit.load(head, u);
            Table<P> table;
            table.load(cos_sin + (size_t)p * rotary_dim, u);
            unit.rotate(table);
            unit.store(head, u);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) rope_prefill(
    T* __restrict__ q,
    T* __restrict__ k,
    const float* __restrict__ cos_sin,
    const int* __restrict__ positions,
    int max_positions,
    void* __restrict__ workspace)
{
    constexpr bool ROT = rope_interleaved != 0;
    constexpr int MOST = 16 / (int)sizeof(T) / (ROT ? 2 : 1);  // 16 bytes an access
    constexpr int P = Pairs<MOST>::value;
    constexpr int U = HALF / P;  // at most 256
    constexpr int FIT = PREFILL_BLOCK / U;
    constexpr int G = FIT < H ? FIT : H;  // heads side by side
    constexpr int ROUNDS = (H + G - 1) / G;
    constexpr int B = ROUNDS < 4 ? ROUNDS : 4;  // heads in flight a thread

    const int t = (int)blockIdx.x;
    const int g = (int)threadIdx.x / U;
    const int u = (int)threadIdx.x - g * U;

    grid_wait();
    const int p = load_position(positions + t);
    grid_trigger();
    if (g >= G) return;

    Table<P> table;
    bool have_table = false;
    for (int h0 = g; h0 < H; h0 += G * B) {
        Unit<P, ROT> unit[B];
#pragma unroll
        for (int j = 0; j < B; ++j) {
            const int h = h0 + j * G;
            if (h < H) unit[j].load(head_pointer(q, k, t, h), u);
        }
        if (!have_table) {
            table.load(cos_sin + (size_t)p * rotary_dim, u);
            have_table = true;
        }
#pragma unroll
        for (int j = 0; j < B; ++j) {
            const int h = h0 + j * G;
            if (h < H) {
                unit[j].rotate(table);
                unit[j].store(head_pointer(q, k, t, h), u);
            }
        }
    }
}
