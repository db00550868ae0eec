// Contract: attention_prelude version 1 (QKV projection, head norms, rotary embedding, KV write).
// Idea: one token: a cluster of 8 blocks owns one head, a warp owns one rotation pair (two weight rows) and requests
//   ALL of both rows at once before the dependent wait: four steps into registers, the rest by bulk copies into shared
//   memory. Products run on tensor cores: 8 chunks of each row on M, the same 8 chunks of x on N, and the diagonal is
//   the dot product, so nothing is unpacked. Weights pass through L2 evict-first. One float per warp crosses the cluster by st.async. The first third of the heads,
//   whose blocks fit beside the previous kernel, also pulls half of the other heads' rows into L2, so that device memory
//   has work while the previous kernel meets, stores and leaves. Other shapes: a block owns a head for up to 8 tokens.
// Bound: device-memory bandwidth over w_qkv, plus the ramp and one one-way cluster exchange at the end.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace ap {

template <class A> struct tr;

template <> struct tr<__nv_bfloat16> {
    static __device__ __forceinline__ void mma(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                               unsigned b0, unsigned b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    static __device__ __forceinline__ float up(__nv_bfloat16 v) { return __bfloat162float(v); }
    static __device__ __forceinline__ __nv_bfloat16 down(float v) { return __float2bfloat16_rn(v); }
    static __device__ __forceinline__ void unpack(const uint4& v, float* f) {
        f[0] = __uint_as_float(v.x << 16); f[1] = __uint_as_float(v.x & 0xffff0000u);
        f[2] = __uint_as_float(v.y << 16); f[3] = __uint_as_float(v.y & 0xffff0000u);
        f[4] = __uint_as_float(v.z << 16); f[5] = __uint_as_float(v.z & 0xffff0000u);
        f[6] = __uint_as_float(v.w << 16); f[7] = __uint_as_float(v.w & 0xffff0000u);
    }
};

template <> struct tr<__half> {
    static __device__ __forceinline__ void mma(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                               unsigned b0, unsigned b1) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    static __device__ __forceinline__ float up(__half v) { return __half2float(v); }
    static __device__ __forceinline__ __half down(float v) { return __float2half_rn(v); }
    static __device__ __forceinline__ void two(unsigned u, float* f) {
        f[0] = __half2float(__ushort_as_half((unsigned short)(u & 0xffffu)));
        f[1] = __half2float(__ushort_as_half((unsigned short)(u >> 16)));
    }
    static __device__ __forceinline__ void unpack(const uint4& v, float* f) {
        two(v.x, f); two(v.y, f + 2); two(v.z, f + 4); two(v.w, f + 6);
    }
};

template <> struct tr<float> {
    // never called: float32 takes the multiply-add path
    static __device__ __forceinline__ void mma(float (&)[4], unsigned, unsigned, unsigned, unsigned, unsigned, unsigned) {}
    static __device__ __forceinline__ float up(float v) { return v; }
    static __device__ __forceinline__ float down(float v) { return v; }
    static __device__ __forceinline__ void unpack(const uint4& v, float* f) {
        f[0] = __uint_as_float(v.x); f[1] = __uint_as_float(v.y);
        f[2] = __uint_as_float(v.z); f[3] = __uint_as_float(v.w);
    }
};

constexpr int VEC = 16 / (int)sizeof(T);              // elements of a 16-byte piece
constexpr int NCH = hidden_size / VEC;                // pieces of a row
constexpr int NIT = (NCH + 31) / 32;                  // steps of a row: one piece a lane, 512 bytes a warp
constexpr bool FULL = (NCH % 32) == 0;
constexpr int HALF = rotary_dim / 2;
constexpr bool TENSOR = sizeof(T) == 2;
constexpr int QK_HEADS = num_heads + num_kv_heads;

// one-token entry
constexpr int RANKS = 8;
constexpr bool FAST = (num_tokens == 1) && (head_dim % 16 == 0);
constexpr int WARPS = (FAST && head_dim >= 16) ? head_dim / 16 : 1;
constexpr int THREADS = WARPS * 32;
constexpr int MINB = (THREADS < 1024) ? 1024 / THREADS : 1;
constexpr int PARTS = WARPS * RANKS;
constexpr bool STAGE = (hidden_size * (int)sizeof(T)) <= 40960;
constexpr int XBYTES = (FAST && STAGE) ? hidden_size * (int)sizeof(T) : 16;

// steps [0, RS) in registers, [RS, REST) in shared memory by bulk copy, [REST, NIT) rolling through the registers
constexpr int DYN = (head_dim * 384 < 98304) ? head_dim * 384 : 98304;   // as in the launch plan
constexpr int RS = (NIT < 4) ? NIT : 4;
constexpr int SCAP = DYN / (WARPS * 1024);
constexpr int SS = (NIT - RS < SCAP) ? NIT - RS : SCAP;
constexpr int REST = RS + SS;
constexpr int S0 = (SS + 1) / 2;
constexpr int S1 = SS - S0;
constexpr int ROWB = NCH * 16;
constexpr int END0 = ((RS + S0) * 512 < ROWB) ? (RS + S0) * 512 : ROWB;
constexpr int END1 = (REST * 512 < ROWB) ? REST * 512 : ROWB;
constexpr int BYTES0 = END0 - RS * 512;
constexpr int BYTES1 = END1 - (RS + S0) * 512;

// Blocks of the first EARLY heads find free slots beside the previous kernel. Each of their warps asks L2 for the first
// PF bytes of the same two rows of the heads EARLY and 2 * EARLY further on, whose blocks start when that kernel leaves.
constexpr int EARLY = (num_heads + 2 * num_kv_heads) / 3;
constexpr int PF = (NIT / 2) * 512;
constexpr bool AHEAD = FAST && EARLY > 0 && PF > 0;
constexpr long long AHEAD_STEP = (long long)EARLY * head_dim * hidden_size * (long long)sizeof(T);

// general entry
constexpr int TB = (num_tokens < 8) ? num_tokens : 8;
constexpr int GWARPS = 8;

__device__ __forceinline__ uint4 load_stream(const char* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
// the word of an evict-first policy over all bytes; a constant, so that no instruction has to make it
constexpr unsigned long long EVICT_FIRST = 0x12F0000000000000ULL;
// weights that are read once in the launch
__device__ __forceinline__ uint4 load_once(const char* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(EVICT_FIRST));
    return v;
}
__device__ __forceinline__ uint4 load_x(const char* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ float load_f32(const float* p) {
    float v;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
// a volatile load of one T, so that it stays where it is written: above the weight loop
__device__ __forceinline__ T load_t(const T* p) {
    T out;
    if constexpr (sizeof(T) == 2) {
        unsigned short v;
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
        *reinterpret_cast<unsigned short*>(&out) = v;
    } else {
        unsigned v;
        asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(p));
        *reinterpret_cast<unsigned*>(&out) = v;
    }
    return out;
}
__device__ __forceinline__ int load_i32(const int* p) {
    int v;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ float4 load_shared_f4(unsigned a) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(a) : "memory");
    return v;
}
__device__ __forceinline__ unsigned saddr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void dependent_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void dependent_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ void bar_init(unsigned bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void bar_expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// phase 0: every barrier here is used once a launch
__device__ __forceinline__ void bar_wait(unsigned bar) {
    unsigned done = 0;
    do {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done) : "r"(bar), "r"(0u) : "memory");
    } while (done == 0);
}
__device__ __forceinline__ void bulk_copy(unsigned dst, const char* src, unsigned bytes, unsigned bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(EVICT_FIRST) : "memory");
}

__device__ __forceinline__ void prefetch_l2(const char* src, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(src), "r"(bytes) : "memory");
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

// rows of pair p inside a head; the first rotary_dim / 2 pairs rotate
__device__ __forceinline__ void pair_rows(int p, int& a, int& b) {
    if (p < HALF) {
        if (rope_interleaved) { a = 2 * p; b = a + 1; }
        else { a = p; b = p + HALF; }
    } else {
        a = 2 * p;            // rotary_dim + 2 * (p - rotary_dim / 2)
        b = a + 1;
    }
}

__device__ __forceinline__ float inverse_root(float sum, float eps) {
    const float m = sum * (1.0f / (float)head_dim) + eps;
    if constexpr (sizeof(T) == 4) return 1.0f / sqrtf(m);
    else return rsqrtf(m);
}

__device__ __forceinline__ float normed(float y, float r, float gamma) {
    return tr<T>::up(tr<T>::down(y * r)) * gamma;
}

// Sums of a warp's two rows. On tensor cores lane (g, t) = (lane / 4, lane % 4) hands in its own pieces: A row g is chunk
// g of row a, A row g + 8 is chunk g of row b, B column g is chunk g of x. Only C[g][g] and C[g + 8][g] are used.
struct Sums {
    float d0[4], d1[4];
};

// one 16-byte piece of both rows against one piece of x; called by whole warps
__device__ __forceinline__ void mul_piece(const uint4& xv, const uint4& a, const uint4& b, Sums& s) {
    if constexpr (TENSOR) {
        tr<T>::mma(s.d0, a.x, b.x, a.y, b.y, xv.x, xv.y);
        tr<T>::mma(s.d1, a.z, b.z, a.w, b.w, xv.z, xv.w);
    } else {
        float xf[VEC], f[VEC], g[VEC];
        tr<T>::unpack(xv, xf);
        tr<T>::unpack(a, f);
        tr<T>::unpack(b, g);
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            s.d0[0] = fmaf(f[e], xf[e], s.d0[0]);
            s.d1[0] = fmaf(g[e], xf[e], s.d1[0]);
        }
    }
}

// both dot products in every lane, added in a fixed order
__device__ __forceinline__ void finish(const Sums& s, int lane, float& ya, float& yb) {
    if constexpr (TENSOR) {
        const bool odd = ((lane >> 2) & 1) != 0;
        const float sa = odd ? s.d0[1] + s.d1[1] : s.d0[0] + s.d1[0];
        const float sb = odd ? s.d0[3] + s.d1[3] : s.d0[2] + s.d1[2];
        const int g = lane & 7;
        const int src = g * 4 + (g >> 1);
        ya = __shfl_sync(0xffffffffu, sa, src);
        yb = __shfl_sync(0xffffffffu, sb, src);
#pragma unroll
        for (int o = 4; o > 0; o >>= 1) {
            ya += __shfl_xor_sync(0xffffffffu, ya, o);
            yb += __shfl_xor_sync(0xffffffffu, yb, o);
        }
    } else {
        ya = s.d0[0];
        yb = s.d1[0];
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
            ya += __shfl_xor_sync(0xffffffffu, ya, o);
            yb += __shfl_xor_sync(0xffffffffu, yb, o);
        }
    }
}

}  // namespace ap

extern "C" __global__ void __launch_bounds__(ap::THREADS, ap::MINB) prelude_one(
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
    using namespace ap;
    if constexpr (FAST) {
        extern __shared__ __align__(128) unsigned char ring[];
        __shared__ __align__(16) unsigned char xs[XBYTES];
        __shared__ __align__(16) float part[PARTS];
        __shared__ __align__(8) unsigned long long bars[WARPS * 2 + 1];

        const int lane = threadIdx.x & 31;
        const int warp = threadIdx.x >> 5;
        const int rank = blockIdx.x & (RANKS - 1);
        const int head = blockIdx.x / RANKS;
        const int p = rank * WARPS + warp;
        int ra, rb;
        pair_rows(p, ra, rb);

        const char* rowa = reinterpret_cast<const char*>(w_qkv + (size_t)(head * head_dim + ra) * hidden_size);
        const char* rowb = reinterpret_cast<const char*>(w_qkv + (size_t)(head * head_dim + rb) * hidden_size);
        const char* pa = rowa + lane * 16;
        const char* pb = rowb + lane * 16;

        uint4 wa[RS], wb[RS];
#pragma unroll
        for (int u = 0; u < RS; ++u) {
            if (FULL || u * 32 + lane < NCH) {
                wa[u] = load_once(pa + u * 512);
                wb[u] = load_once(pb + u * 512);
            } else {
                wa[u] = make_uint4(0u, 0u, 0u, 0u);
                wb[u] = make_uint4(0u, 0u, 0u, 0u);
            }
        }

        const bool meets = (has_qk_norm != 0) && (head < QK_HEADS);
        const unsigned bar0 = saddr(&bars[warp * 2]);
        const unsigned bar1 = bar0 + 8;
        const unsigned meet = saddr(&bars[WARPS * 2]);
        if (lane == 0) {
            if constexpr (SS > 0) {
                bar_init(bar0);
                bar_init(bar1);
            }
            if (warp == 0) bar_init(meet);
            bar_fence();
            if constexpr (SS > 0) {
                const unsigned dst = saddr(ring) + warp * (SS * 1024);
                bar_expect(bar0, 2 * BYTES0);
                bulk_copy(dst, rowa + RS * 512, BYTES0, bar0);
                bulk_copy(dst + SS * 512, rowb + RS * 512, BYTES0, bar0);
                if constexpr (S1 > 0) {
                    bar_expect(bar1, 2 * BYTES1);
                    bulk_copy(dst + S0 * 512, rowa + (RS + S0) * 512, BYTES1, bar1);
                    bulk_copy(dst + (SS + S0) * 512, rowb + (RS + S0) * 512, BYTES1, bar1);
                }
            }
            if (warp == 0) bar_expect(meet, PARTS * 4);
        }
        __syncwarp();
        if (meets) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");

        // every weight is requested: dependents may take free slots and request theirs behind these
        if constexpr (REST >= NIT) dependent_launch();

        // constants of the model: no predecessor writes them
        T ga = tr<T>::down(1.0f), gb = tr<T>::down(1.0f);
        if constexpr (has_qk_norm != 0) {
            if (head < QK_HEADS) {
                const T* g = head < num_heads ? q_norm : k_norm;
                ga = load_t(g + ra);
                gb = load_t(g + rb);
            }
        }
        T ba = tr<T>::down(0.0f), bb = tr<T>::down(0.0f);
        if constexpr (has_qkv_bias != 0) {
            ba = load_t(b_qkv + head * head_dim + ra);
            bb = load_t(b_qkv + head * head_dim + rb);
        }

        // behind this block's own requests: weights of blocks that have no slot yet
        if constexpr (AHEAD) {
            if (head < EARLY && lane == 0) {       // lane 0: pa and pb are the starts of the rows
                prefetch_l2(pa + AHEAD_STEP, PF);
                prefetch_l2(pb + AHEAD_STEP, PF);
                prefetch_l2(pa + 2 * AHEAD_STEP, PF);
                prefetch_l2(pb + 2 * AHEAD_STEP, PF);
            }
            __syncwarp();
        }

        dependent_wait();

        const char* px = reinterpret_cast<const char*>(x);
        if constexpr (STAGE) {
            const unsigned sx = saddr(xs);
            for (int c = threadIdx.x; c < NCH; c += THREADS)
                asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(sx + c * 16), "l"(px + c * 16) : "memory");
        }
        const int pos = load_i32(positions);
        const int slot = load_i32(slot_mapping);
        // every block of the cluster has started and initialised its barrier once this phase completes
        if (meets) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        if constexpr (STAGE) {
            asm volatile("cp.async.wait_all;" ::: "memory");
            __syncthreads();
        }
        const bool turns = (head < QK_HEADS) && (p < HALF);
        float cs = 1.0f, sn = 0.0f;
        if (turns) {
            const float* row = cos_sin + (size_t)pos * rotary_dim + p;
            cs = load_f32(row);
            sn = load_f32(row + HALF);
        }

        Sums acc;
#pragma unroll
        for (int e = 0; e < 4; ++e) { acc.d0[e] = 0.0f; acc.d1[e] = 0.0f; }
        const uint4 zero = make_uint4(0u, 0u, 0u, 0u);

        // steps that were requested into registers
#pragma unroll
        for (int u = 0; u < RS; ++u) {
            const int c = u * 32 + lane;
            uint4 xv = zero;
            if (FULL || c < NCH) {
                if constexpr (STAGE) xv = *reinterpret_cast<const uint4*>(xs + c * 16);
                else xv = load_x(px + (size_t)c * 16);
            }
            if constexpr (!FULL) __syncwarp();
            mul_piece(xv, wa[u], wb[u], acc);      // lanes past the row hold zeros
            if (REST + u < NIT) {
                if (FULL || (REST + u) * 32 + lane < NCH) {
                    wa[u] = load_once(pa + (size_t)(REST + u) * 512);
                    wb[u] = load_once(pb + (size_t)(REST + u) * 512);
                }
            }
        }

        // steps that were requested into shared memory
        if constexpr (SS > 0) {
            const unsigned char* sa = ring + warp * (SS * 1024) + lane * 16;
            const unsigned char* sb = sa + SS * 512;
            bar_wait(bar0);
            __syncwarp();
#pragma unroll
            for (int s = 0; s < SS; ++s) {
                if (S1 > 0 && s == S0) {
                    bar_wait(bar1);
                    __syncwarp();
                }
                const int c = (RS + s) * 32 + lane;
                uint4 xv = zero, va = zero, vb = zero;
                if (FULL || c < NCH) {
                    if constexpr (STAGE) xv = *reinterpret_cast<const uint4*>(xs + c * 16);
                    else xv = load_x(px + (size_t)c * 16);
                    va = *reinterpret_cast<const uint4*>(sa + s * 512);
                    vb = *reinterpret_cast<const uint4*>(sb + s * 512);
                }
                if constexpr (!FULL) __syncwarp();
                mul_piece(xv, va, vb, acc);
            }
        }

        // what neither held: a rolling window in the registers
        if constexpr (REST < NIT) {
#pragma unroll 1
            for (int o = REST; o < NIT; o += RS) {
#pragma unroll
                for (int u = 0; u < RS; ++u) {
                    const int i = o + u;
                    if (i < NIT) {
                        const int c = i * 32 + lane;
                        uint4 xv = zero, va = zero, vb = zero;
                        if (FULL || c < NCH) {
                            if constexpr (STAGE) xv = *reinterpret_cast<const uint4*>(xs + c * 16);
                            else xv = load_x(px + (size_t)c * 16);
                            va = wa[u];
                            vb = wb[u];
                        }
                        if constexpr (!FULL) __syncwarp();
                        mul_piece(xv, va, vb, acc);
                        if (i + RS < NIT) {
                            if (FULL || c + RS * 32 < NCH) {
                                wa[u] = load_once(pa + (size_t)(i + RS) * 512);
                                wb[u] = load_once(pb + (size_t)(i + RS) * 512);
                            }
                        }
                    }
                }
            }
            dependent_launch();
        }

        __syncwarp();
        float ya, yb;
        finish(acc, lane, ya, yb);
        if constexpr (has_qkv_bias != 0) {
            ya += tr<T>::up(ba);
            yb += tr<T>::up(bb);
        }

        if (head >= QK_HEADS) {
            if (lane == 0) {
                T* dst = v_cache + ((size_t)slot * num_kv_heads + (head - QK_HEADS)) * head_dim;
                dst[ra] = tr<T>::down(ya);
                dst[rb] = tr<T>::down(yb);
            }
            return;
        }

        if constexpr (has_qk_norm != 0) {
            const float ss = fmaf(ya, ya, yb * yb);
            const unsigned pbase = saddr(part);
            if (lane < RANKS) {
                unsigned rp, rm;
                asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(rp) : "r"(pbase + p * 4), "r"(lane));
                asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(rm) : "r"(meet), "r"(lane));
                asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                             :: "r"(rp), "r"(__float_as_uint(ss)), "r"(rm) : "memory");
            }
            __syncwarp();
            bar_wait(meet);
            // eight lanes cover all partials, four a load; every group of eight ends with the same sum
            float s = 0.0f;
#pragma unroll
            for (int j = 0; j < PARTS; j += 32) {
                const int q = j + (lane & 7) * 4;
                if (q < PARTS) {
                    const float4 v = load_shared_f4(pbase + q * 4);
                    s += (v.x + v.y) + (v.z + v.w);
                }
            }
            __syncwarp();
#pragma unroll
            for (int o = 4; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
            const float r = inverse_root(s, eps);
            ya = normed(ya, r, tr<T>::up(ga));
            yb = normed(yb, r, tr<T>::up(gb));
        }

        if (lane == 0) {
            float oa = ya, ob = yb;
            if (turns) {
                oa = ya * cs - yb * sn;
                ob = yb * cs + ya * sn;
            }
            T* dst = head < num_heads
                         ? q_out + (size_t)head * head_dim
                         : k_cache + ((size_t)slot * num_kv_heads + (head - num_heads)) * head_dim;
            dst[ra] = tr<T>::down(oa);
            dst[rb] = tr<T>::down(ob);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) prelude_any(
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
    using namespace ap;
    __shared__ float ys[TB][head_dim];

    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int head = blockIdx.x;
    const int t0 = blockIdx.y * TB;

    dependent_wait();

    const uint4* xp[TB];
#pragma unroll
    for (int t = 0; t < TB; ++t) {
        const int tt = (t0 + t < num_tokens) ? t0 + t : num_tokens - 1;
        xp[t] = reinterpret_cast<const uint4*>(x + (size_t)tt * hidden_size);
    }

    for (int r = warp; r < head_dim; r += GWARPS) {
        const char* pw = reinterpret_cast<const char*>(w_qkv + ((size_t)head * head_dim + r) * hidden_size);
        float acc[TB];
#pragma unroll
        for (int t = 0; t < TB; ++t) acc[t] = 0.0f;
#pragma unroll 2
        for (int c = lane; c < NCH; c += 32) {
            const uint4 wv = load_stream(pw + (size_t)c * 16);
            float wf[VEC];
            tr<T>::unpack(wv, wf);
#pragma unroll
            for (int t = 0; t < TB; ++t) {
                const uint4 xv = xp[t][c];
                float xf[VEC];
                tr<T>::unpack(xv, xf);
#pragma unroll
                for (int e = 0; e < VEC; ++e) acc[t] = fmaf(wf[e], xf[e], acc[t]);
            }
        }
        float bias = 0.0f;
        if constexpr (has_qkv_bias != 0) bias = tr<T>::up(b_qkv[head * head_dim + r]);
#pragma unroll
        for (int t = 0; t < TB; ++t) {
            const float s = warp_sum(acc[t]);
            if (lane == 0) ys[t][r] = (has_qkv_bias != 0) ? s + bias : s;
        }
    }
    dependent_launch();
    __syncthreads();

    for (int t = warp; t < TB; t += GWARPS) {
        const int tok = t0 + t;
        if (tok >= num_tokens) break;
        if (head >= QK_HEADS) {
            const size_t slot = (size_t)slot_mapping[tok];
            T* dst = v_cache + (slot * num_kv_heads + (head - QK_HEADS)) * head_dim;
            for (int i = lane; i < head_dim; i += 32) dst[i] = tr<T>::down(ys[t][i]);
            continue;
        }
        float r = 1.0f;
        const T* g = nullptr;
        if constexpr (has_qk_norm != 0) {
            float s = 0.0f;
            for (int i = lane; i < head_dim; i += 32) s = fmaf(ys[t][i], ys[t][i], s);
            s = warp_sum(s);
            r = inverse_root(s, eps);
            g = head < num_heads ? q_norm : k_norm;
        }
        T* dst;
        if (head < num_heads) {
            dst = q_out + ((size_t)tok * num_heads + head) * head_dim;
        } else {
            const size_t slot = (size_t)slot_mapping[tok];
            dst = k_cache + (slot * num_kv_heads + (head - num_heads)) * head_dim;
        }
        const float* row = cos_sin + (size_t)positions[tok] * rotary_dim;
        for (int p = lane; p < head_dim / 2; p += 32) {
            int a, b;
            pair_rows(p, a, b);
            float ya = ys[t][a], yb = ys[t][b];
            if constexpr (has_qk_norm != 0) {
                ya = normed(ya, r, tr<T>::up(g[a]));
                yb = normed(yb, r, tr<T>::up(g[b]));
            }
            float oa = ya, ob = yb;
            if (p < HALF) {
                const float cs = row[p], sn = row[p + HALF];
                oa = ya * cs - yb * sn;
                ob = yb * cs + ya * sn;
            }
            dst[a] = tr<T>::down(oa);
            dst[b] = tr<T>::down(ob);
        }
    }
}
