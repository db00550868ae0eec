// Contract: gated_mlp_down v1. residual = round_T(residual + round_T(x @ w_down^T)), in place.
// Idea: weights on M (160 rows a cluster), tokens on N (up to 64), the contraction split over the 8 blocks
//   of a cluster; a cp.async ring of 128-byte row pieces (swizzled) feeds ldmatrix + mma.sync with float32 sums;
//   float32 partials meet in distributed shared memory and are added in rank order, each rank owning 1/8 of the tile.
// Bound: one pass over the weights from device memory; at 64 tokens shared-memory reads come second.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define GMD_BM 160
#define GMD_SPLIT 8
#define GMD_THREADS 320
#define GMD_SMEM 114688

constexpr int gmd_nt = num_tokens >= 64 ? 64 : ((num_tokens + 7) / 8) * 8;
constexpr int gmd_ntl = gmd_nt / 8;
constexpr int gmd_stage_bytes = (GMD_BM + gmd_nt) * 128;
constexpr int gmd_fit = GMD_SMEM / gmd_stage_bytes;
constexpr int gmd_stages = gmd_fit > 6 ? 6 : gmd_fit;
constexpr int gmd_pre = gmd_stages - 1;
constexpr int gmd_rs = GMD_BM + 4;                      // row stride of the float32 tile, conflict free
constexpr long long gmd_kbytes = (long long)intermediate_size * (long long)sizeof(T);
constexpr int gmd_chunks = (int)((gmd_kbytes + 127) / 128);
constexpr bool gmd_kfull = (gmd_kbytes % 128) == 0;
constexpr bool gmd_mfull = (hidden_size % GMD_BM) == 0;
constexpr bool gmd_nfull = (num_tokens % gmd_nt) == 0;
constexpr int gmd_xj = (gmd_nt + 39) / 40;
static_assert(gmd_nt * gmd_rs * 4 <= GMD_SMEM, "reduction tile");
static_assert(gmd_stages >= 3, "stages");

template <typename U> struct gmd_is_bf { static constexpr bool value = false; };
template <> struct gmd_is_bf<__nv_bfloat16> { static constexpr bool value = true; };

__device__ __forceinline__ float gmd_to_f(float v) { return v; }
__device__ __forceinline__ float gmd_to_f(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float gmd_to_f(__half v) { return __half2float(v); }
__device__ __forceinline__ void gmd_from_f(float& d, float v) { d = v; }
__device__ __forceinline__ void gmd_from_f(__nv_bfloat16& d, float v) { d = __float2bfloat16_rn(v); }
__device__ __forceinline__ void gmd_from_f(__half& d, float v) { d = __float2half_rn(v); }

struct alignas(4 * sizeof(T)) gmd_vec4 { T v[4]; };

__device__ __forceinline__ void gmd_cp16(unsigned dst, const void* src)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" :: "r"(dst), "l"(src) : "memory");
}
__device__ __forceinline__ void gmd_cp16z(unsigned dst, const void* src, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(dst), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void gmd_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> __device__ __forceinline__ void gmd_wait_group()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
__device__ __forceinline__ void gmd_ldsm4(unsigned* r, unsigned addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
__device__ __forceinline__ void gmd_ldsm2(unsigned* r, unsigned addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(addr) : "memory");
}
__device__ __forceinline__ void gmd_mma(float* c, const unsigned* a, const unsigned* b)
{
    if constexpr (gmd_is_bf<T>::value) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

extern "C" __global__ void __launch_bounds__(GMD_THREADS, 2) gmd_down_kernel(
    const T* __restrict__ x,
    const T* __restrict__ w_down,
    T* __restrict__ residual,
    void* __restrict__ workspace)
{
    extern __shared__ __align__(128) unsigned char gmd_smem[];
    const int tid = (int)threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int wm = warp >> 1;          // 32 weight rows
    const int wk = warp & 1;           // half of the 128-byte chunk
    const int tile = (int)blockIdx.x / GMD_SPLIT;
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int m0 = tile * GMD_BM;
    const int t0 = (int)blockIdx.y * gmd_nt;
    const int c0 = ((int)rank * gmd_chunks) / GMD_SPLIT;
    const int c1 = (((int)rank + 1) * gmd_chunks) / GMD_SPLIT;
    const int n = c1 - c0;
    const unsigned sbase = (unsigned)__cvta_generic_to_shared(gmd_smem);

    // loader coordinates
    const int lp = tid & 7;
    const int lr = tid >> 3;           // 0..39
    const unsigned ldst = (unsigned)(lr * 128 + ((lp ^ (lr & 7)) << 4));
    const unsigned char* wbytes = reinterpret_cast<const unsigned char*>(w_down);
    const unsigned char* xbytes = reinterpret_cast<const unsigned char*>(x);

    auto load_w = [&](int chunk, int slot) {
        const unsigned dst = sbase + (unsigned)(slot * gmd_stage_bytes) + ldst;
        const long long off = (long long)chunk * 128 + lp * 16;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int row = m0 + lr + 40 * j;
            if constexpr (gmd_kfull && gmd_mfull) {
                gmd_cp16(dst + (unsigned)(j * 40 * 128), wbytes + (long long)row * gmd_kbytes + off);
            } else {
                const bool ok = (row < hidden_size) && (off < gmd_kbytes);
                const unsigned char* src = ok ? wbytes + (long long)row * gmd_kbytes + off : wbytes;
                gmd_cp16z(dst + (unsigned)(j * 40 * 128), src, ok ? 16 : 0);
            }
        }
    };
    auto load_x = [&](int chunk, int slot) {
        const unsigned dst = sbase + (unsigned)(slot * gmd_stage_bytes + GMD_BM * 128) + ldst;
        const long long off = (long long)chunk * 128 + lp * 16;
#pragma unroll
        for (int j = 0; j < gmd_xj; ++j) {
            const int r = lr + 40 * j;
            if (r < gmd_nt) {
                const int row = t0 + r;
                if constexpr (gmd_kfull && gmd_nfull) {
                    gmd_cp16(dst + (unsigned)(j * 40 * 128), xbytes + (long long)row * gmd_kbytes + off);
                } else {
                    const bool ok = (row < num_tokens) && (off < gmd_kbytes);
                    const unsigned char* src = ok ? xbytes + (long long)row * gmd_kbytes + off : xbytes;
                    gmd_cp16z(dst + (unsigned)(j * 40 * 128), src, ok ? 16 : 0);
                }
            }
        }
    };

    // weights of the first stages need no predecessor
#pragma unroll
    for (int s = 0; s < gmd_pre; ++s) {
        if (s < n) load_w(c0 + s, s);
        gmd_commit();
    }

    asm volatile("griddepcontrol.wait;" ::: "memory");

    // activations of the first stages go through registers, so that the groups above stay one per stage
    {
        uint4 xv[gmd_pre * gmd_xj];
#pragma unroll
        for (int s = 0; s < gmd_pre; ++s) {
#pragma unroll
            for (int j = 0; j < gmd_xj; ++j) {
                const int r = lr + 40 * j;
                const int row = t0 + r;
                const long long off = (long long)(c0 + s) * 128 + lp * 16;
                uint4 v = make_uint4(0u, 0u, 0u, 0u);
                if (s < n && r < gmd_nt && row < num_tokens && off < gmd_kbytes) {
                    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                                 : "l"(xbytes + (long long)row * gmd_kbytes + off) : "memory");
                }
                xv[s * gmd_xj + j] = v;
            }
        }
#pragma unroll
        for (int s = 0; s < gmd_pre; ++s) {
#pragma unroll
            for (int j = 0; j < gmd_xj; ++j) {
                const int r = lr + 40 * j;
                if (r < gmd_nt) {
                    const uint4 v = xv[s * gmd_xj + j];
                    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};"
                                 :: "r"(sbase + (unsigned)(s * gmd_stage_bytes + GMD_BM * 128 + j * 40 * 128) + ldst),
                                    "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
                }
            }
        }
    }

    // 16-bit: acc[(mt * ntl + nt) * 4 + c]; float32: acc[token], lane = row
    float acc[gmd_nt];
#pragma unroll
    for (int i = 0; i < gmd_nt; ++i) acc[i] = 0.0f;

    int slot = 0;
    int pslot = gmd_pre;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        gmd_wait_group<gmd_pre - 1>();
        __syncthreads();
        if (i + gmd_pre < n) {
            load_w(c0 + i + gmd_pre, pslot);
            load_x(c0 + i + gmd_pre, pslot);
        }
        gmd_commit();

        if constexpr (sizeof(T) == 2) {
            const unsigned ws = sbase + (unsigned)(slot * gmd_stage_bytes);
            const unsigned xs = ws + GMD_BM * 128;
            const int arow = wm * 32 + (lane & 15);
            const int b4row = ((lane >> 4) << 3) + (lane & 7);
            const int b2row = lane & 7;
#pragma unroll
            for (int ks = 0; ks < 2; ++ks) {
                const int kp = wk * 4 + ks * 2;
                unsigned a[2][4];
                const unsigned aoff = (unsigned)(((kp + (lane >> 4)) ^ (lane & 7)) << 4);
                gmd_ldsm4(a[0], ws + (unsigned)(arow * 128) + aoff);
                gmd_ldsm4(a[1], ws + (unsigned)((arow + 16) * 128) + aoff);
                const unsigned boff = (unsigned)(((kp + ((lane >> 3) & 1)) ^ (lane & 7)) << 4);
#pragma unroll
                for (int p = 0; p < gmd_ntl / 2; ++p) {
                    unsigned b[4];
                    gmd_ldsm4(b, xs + (unsigned)((p * 16 + b4row) * 128) + boff);
                    gmd_mma(&acc[(0 * gmd_ntl + 2 * p) * 4], a[0], b);
                    gmd_mma(&acc[(1 * gmd_ntl + 2 * p) * 4], a[1], b);
                    gmd_mma(&acc[(0 * gmd_ntl + 2 * p + 1) * 4], a[0], b + 2);
                    gmd_mma(&acc[(1 * gmd_ntl + 2 * p + 1) * 4], a[1], b + 2);
                }
                if constexpr ((gmd_ntl & 1) != 0) {
                    unsigned b[2];
                    gmd_ldsm2(b, xs + (unsigned)(((gmd_ntl - 1) * 8 + b2row) * 128) + boff);
                    gmd_mma(&acc[(0 * gmd_ntl + gmd_ntl - 1) * 4], a[0], b);
                    gmd_mma(&acc[(1 * gmd_ntl + gmd_ntl - 1) * 4], a[1], b);
                }
            }
        } else {
            const unsigned char* ws = gmd_smem + slot * gmd_stage_bytes;
            const unsigned char* xs = ws + GMD_BM * 128;
            const int row = wm * 32 + lane;
            float4 w[4];
#pragma unroll
            for (int p = 0; p < 4; ++p)
                w[p] = *reinterpret_cast<const float4*>(ws + row * 128 + (((wk * 4 + p) ^ (row & 7)) << 4));
#pragma unroll
            for (int t = 0; t < gmd_nt; ++t) {
                float s = 0.0f;
#pragma unroll
                for (int p = 0; p < 4; ++p) {
                    const float4 v = *reinterpret_cast<const float4*>(xs + t * 128 + (((wk * 4 + p) ^ (t & 7)) << 4));
                    s = fmaf(w[p].x, v.x, s);
                    s = fmaf(w[p].y, v.y, s);
                    s = fmaf(w[p].z, v.z, s);
                    s = fmaf(w[p].w, v.w, s);
                }
                acc[t] += s;
            }
        }
        slot = (slot + 1 == gmd_stages) ? 0 : slot + 1;
        pslot = (pslot + 1 == gmd_stages) ? 0 : pslot + 1;
    }

    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

    // the one output group of four rows this thread owns
    constexpr int items = gmd_nt * (GMD_BM / 4) / GMD_SPLIT;   // <= 320
    static_assert(items <= GMD_THREADS, "one item a thread");
    const int idx = (int)rank * items + tid;
    const int ot = idx / (GMD_BM / 4);
    const int og = (idx % (GMD_BM / 4)) * 4;
    const bool own = (tid < items) && (t0 + ot < num_tokens) && (m0 + og < hidden_size);
    gmd_vec4* rptr = reinterpret_cast<gmd_vec4*>(residual + ((long long)(t0 + ot) * hidden_size + (m0 + og)));
    gmd_vec4 res;
    if (own) res = *rptr;

    gmd_wait_group<0>();
    __syncthreads();

    float* red = reinterpret_cast<float*>(gmd_smem);
#pragma unroll
    for (int half = 1; half >= 0; --half) {
        if (wk == half) {
            if constexpr (sizeof(T) == 2) {
                const int g = lane >> 2;
                const int q = (lane & 3) * 2;
#pragma unroll
                for (int mt = 0; mt < 2; ++mt) {
#pragma unroll
                    for (int nt = 0; nt < gmd_ntl; ++nt) {
#pragma unroll
                        for (int c = 0; c < 4; ++c) {
                            const int r = wm * 32 + mt * 16 + g + ((c >> 1) << 3);
                            const int t = nt * 8 + q + (c & 1);
                            float v = acc[(mt * gmd_ntl + nt) * 4 + c];
                            if (half == 0) v += red[t * gmd_rs + r];
                            red[t * gmd_rs + r] = v;
                        }
                    }
                }
            } else {
                const int r = wm * 32 + lane;
#pragma unroll
                for (int t = 0; t < gmd_nt; ++t) {
                    float v = acc[t];
                    if (half == 0) v += red[t * gmd_rs + r];
                    red[t * gmd_rs + r] = v;
                }
            }
        }
        if (half == 1) __syncthreads();
    }

    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");

    if (own) {
        const unsigned laddr = sbase + (unsigned)((ot * gmd_rs + og) * 4);
        float4 p[GMD_SPLIT];
#pragma unroll
        for (int r = 0; r < GMD_SPLIT; ++r) {
            unsigned raddr;
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(raddr) : "r"(laddr), "r"(r));
            asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                         : "=f"(p[r].x), "=f"(p[r].y), "=f"(p[r].z), "=f"(p[r].w) : "r"(raddr) : "memory");
        }
        float s[4] = {p[0].x, p[0].y, p[0].z, p[0].w};
#pragma unroll
        for (int r = 1; r < GMD_SPLIT; ++r) {
            s[0] += p[r].x;
            s[1] += p[r].y;
            s[2] += p[r].z;
            s[3] += p[r].w;
        }
        gmd_vec4 out;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            T y;
            gmd_from_f(y, s[k]);
            gmd_from_f(out.v[k], gmd_to_f(res.v[k]) + gmd_to_f(y));
        }
        *rptr = out;
    }

    // no block leaves while another still reads its shared memory
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
