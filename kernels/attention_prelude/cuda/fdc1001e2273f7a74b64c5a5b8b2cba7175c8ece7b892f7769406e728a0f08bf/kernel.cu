// Contract: attention_prelude version 1 (QKV projection, head norms, rotary embedding, KV write).
// Idea: one token: a cluster of 8 blocks owns one head; every warp owns one rotation pair (two weight rows), streams
//   both rows with a rolling window of 16-byte loads that starts before the dependent wait, and only one float per
//   warp (its sum of squares) crosses the cluster. Other shapes: a block owns a head for up to 8 tokens.
// Bound: device-memory bandwidth over w_qkv, plus the ramp and one cluster barrier at the end.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cooperative_groups.h>

namespace ap {

template <class A> struct tr;

template <> struct tr<__nv_bfloat16> {
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
    static __device__ __forceinline__ float up(float v) { return v; }
    static __device__ __forceinline__ float down(float v) { return v; }
    static __device__ __forceinline__ void unpack(const uint4& v, float* f) {
        f[0] = __uint_as_float(v.x); f[1] = __uint_as_float(v.y);
        f[2] = __uint_as_float(v.z); f[3] = __uint_as_float(v.w);
    }
};

constexpr int VEC = 16 / (int)sizeof(T);              // elements of a 16-byte piece
constexpr int NCH = hidden_size / VEC;                // pieces of a row
constexpr int NIT = (NCH + 31) / 32;                  // pieces of a row a lane
constexpr bool FULL = (NCH % 32) == 0;
constexpr int HALF = rotary_dim / 2;
constexpr int QK_HEADS = num_heads + num_kv_heads;

// one-token entry
constexpr int RANKS = 8;
constexpr bool FAST = (num_tokens == 1) && (head_dim % 16 == 0);
constexpr int WARPS = (FAST && head_dim >= 16) ? head_dim / 16 : 1;
constexpr int THREADS = WARPS * 32;
constexpr int MINB = (THREADS < 1024) ? 1024 / THREADS : 1;
constexpr int PARTS = WARPS * RANKS;
constexpr int DEPTH = (NIT < 4) ? NIT : 4;
constexpr int OUTER = (NIT + DEPTH - 1) / DEPTH;
constexpr int OUTER_UNROLL = (NIT <= 24) ? OUTER : 1;
constexpr bool STAGE = (hidden_size * (int)sizeof(T)) <= 40960;
constexpr int XBYTES = (FAST && STAGE) ? hidden_size * (int)sizeof(T) : 16;

// general entry
constexpr int TB = (num_tokens < 8) ? num_tokens : 8;
constexpr int GWARPS = 8;

__device__ __forceinline__ uint4 load_stream(const char* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
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
__device__ __forceinline__ void dependent_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void dependent_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

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
        __shared__ __align__(16) unsigned char xs[XBYTES];
        __shared__ float part[PARTS];

        const int lane = threadIdx.x & 31;
        const int warp = threadIdx.x >> 5;
        const int rank = blockIdx.x & (RANKS - 1);
        const int head = blockIdx.x / RANKS;
        const int p = rank * WARPS + warp;
        int ra, rb;
        pair_rows(p, ra, rb);

        const char* pa = reinterpret_cast<const char*>(w_qkv + (size_t)(head * head_dim + ra) * hidden_size) + lane * 16;
        const char* pb = reinterpret_cast<const char*>(w_qkv + (size_t)(head * head_dim + rb) * hidden_size) + lane * 16;

        uint4 wa[DEPTH], wb[DEPTH];
#pragma unroll
        for (int u = 0; u < DEPTH; ++u) {
            if (FULL || u * 32 + lane < NCH) {
                wa[u] = load_stream(pa + u * 512);
                wb[u] = load_stream(pb + u * 512);
            } else {
                wa[u] = make_uint4(0u, 0u, 0u, 0u);
                wb[u] = make_uint4(0u, 0u, 0u, 0u);
            }
        }

        const bool meets = (has_qk_norm != 0) && (head < QK_HEADS);
        if (meets) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");

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

        dependent_wait();

        if constexpr (STAGE) {
            const char* px = reinterpret_cast<const char*>(x);
            const unsigned sx = (unsigned)__cvta_generic_to_shared(xs);
            for (int c = threadIdx.x; c < NCH; c += THREADS)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(sx + c * 16), "l"(px + c * 16) : "memory");
        }
        const int pos = load_i32(positions);
        const int slot = load_i32(slot_mapping);
        if constexpr (NIT <= DEPTH) dependent_launch();
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

        float acc0 = 0.0f, acc1 = 0.0f;
#pragma unroll OUTER_UNROLL
        for (int o = 0; o < OUTER; ++o) {
#pragma unroll
            for (int u = 0; u < DEPTH; ++u) {
                const int i = o * DEPTH + u;
                if (i < NIT) {
                    const int c = i * 32 + lane;
                    if (FULL || c < NCH) {
                        uint4 xv;
                        if constexpr (STAGE) xv = *reinterpret_cast<const uint4*>(xs + (size_t)c * 16);
                        else xv = *(reinterpret_cast<const uint4*>(x) + c);
                        float xf[VEC], f[VEC], g[VEC];
                        tr<T>::unpack(xv, xf);
                        tr<T>::unpack(wa[u], f);
                        tr<T>::unpack(wb[u], g);
#pragma unroll
                        for (int e = 0; e < VEC; ++e) {
                            acc0 = fmaf(f[e], xf[e], acc0);
                            acc1 = fmaf(g[e], xf[e], acc1);
                        }
                    }
                    if (i + DEPTH < NIT) {
                        if (FULL || c + DEPTH * 32 < NCH) {
                            wa[u] = load_stream(pa + (size_t)(i + DEPTH) * 512);
                            wb[u] = load_stream(pb + (size_t)(i + DEPTH) * 512);
                        }
                        if (i + DEPTH == NIT - 1) dependent_launch();
                    }
                }
            }
        }

        float ya = acc0, yb = acc1;
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
            ya += __shfl_xor_sync(0xffffffffu, ya, o);
            yb += __shfl_xor_sync(0xffffffffu, yb, o);
        }
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
            // every block of the cluster has started once this phase completes
            asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
            const float ss = fmaf(ya, ya, yb * yb);
            if (lane < RANKS) {
                cooperative_groups::cluster_group cl = cooperative_groups::this_cluster();
                float* remote = cl.map_shared_rank(&part[p], lane);
                *remote = ss;
            }
            __syncwarp();
            asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
            asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
            float s = 0.0f;
#pragma unroll
            for (int j = 0; j < PARTS; j += 32)
                if (j + lane < PARTS) s += part[j + lane];
            s = warp_sum(s);
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
