// Contract o_proj_residual_rmsnorm v1: y = round(attn @ w_o^T); s = round(y + residual) -> residual;
//   out = round(round(s * rsqrt(mean(s*s) + eps)) * weight). Sums in float32, T is bf16, fp16 or fp32.
// Idea: one block a multiprocessor holds its 24 rows of w_o on chip (a third drained into registers, the rest in
//   shared memory), all requested by bulk copies before the dependent wait; dot products run on matrix instructions
//   whose A tile is 8 rows x 2 halves of the contraction, so no shuffles are needed; blocks exchange sums of squares
//   by self-flagged words in mailboxes and each block normalises its own rows.
// Bound: the read bandwidth of device memory (18.9 MB), then the exchange of one word between all blocks.
// Every other shape or type takes a plain path: warp a row, grid meeting, block a token for the norm.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace opr {

constexpr int NT = 384;                 // threads a block (the plan says the same)
constexpr int NW = 12;                  // warps a block

// ---- constants of the fast path (num_tokens 1, hidden 3072, in 3072, 16-bit T) ----
constexpr int FR = 24;                  // rows a block
constexpr int FNB = 128;                // working blocks
constexpr int FKB = 6144;               // bytes of a weight row
constexpr int FHB = 3072;               // bytes of half a row
constexpr int FRS = FHB + 64;           // row stride in shared memory: 64 modulo 128, no bank conflicts
constexpr int FSLOT = 8 * FRS;          // one chunk: 8 rows x half a row
constexpr int FCHUNK = 8 * FHB;         // bytes that arrive for a chunk
static_assert(FR * FNB == 3072, "rows");
static_assert(4 * FSLOT == 100352, "shared bytes of the plan");
static_assert(NW * 256 == FHB, "each warp owns 256 bytes of each half row");

constexpr bool FAST = (num_tokens == 1) && (hidden_size == 3072) && (in_features == 3072) &&
                      (sizeof(T) == 2) && (num_sms >= FNB);

// ---- types ----
template <class U> struct Tag {};
template <class A, class B> struct Same { static constexpr bool v = false; };
template <class A> struct Same<A, A> { static constexpr bool v = true; };

__device__ __forceinline__ float to_f(float v) { return v; }
__device__ __forceinline__ float to_f(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float to_f(__half v) { return __half2float(v); }

__device__ __forceinline__ float from_f(float v, Tag<float>) { return v; }
__device__ __forceinline__ __nv_bfloat16 from_f(float v, Tag<__nv_bfloat16>) { return __float2bfloat16_rn(v); }
__device__ __forceinline__ __half from_f(float v, Tag<__half>) { return __float2half_rn(v); }

__device__ __forceinline__ float rt(float v) { return to_f(from_f(v, Tag<T>{})); }

__device__ __forceinline__ float2 unpk(uint32_t u, Tag<__nv_bfloat16>) {
  return make_float2(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u));
}
__device__ __forceinline__ float2 unpk(uint32_t u, Tag<__half>) {
  return make_float2(__half2float(__ushort_as_half((unsigned short)(u & 0xffffu))),
                     __half2float(__ushort_as_half((unsigned short)(u >> 16))));
}
__device__ __forceinline__ float2 unpk(uint32_t u, Tag<float>) {   // never executed
  return make_float2(__uint_as_float(u), __uint_as_float(u));
}

// ---- memory ----
__device__ __forceinline__ float ld_elem(const __nv_bfloat16* p) {
  unsigned short u;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(u) : "l"(p) : "memory");
  return __uint_as_float(((uint32_t)u) << 16);
}
__device__ __forceinline__ float ld_elem(const __half* p) {
  unsigned short u;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(u) : "l"(p) : "memory");
  return __half2float(__ushort_as_half(u));
}
__device__ __forceinline__ float ld_elem(const float* p) {
  float f;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(f) : "l"(p) : "memory");
  return f;
}
__device__ __forceinline__ uint4 ld_cg16(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint4 ld_ca16(const void* p) {
  uint4 v;
  asm volatile("ld.global.ca.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint4 lds16(uint32_t a) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
  return v;
}

__device__ __forceinline__ void expand8(const uint4 a, const uint4 b, float (&f)[8]) {
  if constexpr (sizeof(T) == 2) {
    const float2 p0 = unpk(a.x, Tag<T>{});
    const float2 p1 = unpk(a.y, Tag<T>{});
    const float2 p2 = unpk(a.z, Tag<T>{});
    const float2 p3 = unpk(a.w, Tag<T>{});
    f[0] = p0.x; f[1] = p0.y; f[2] = p1.x; f[3] = p1.y;
    f[4] = p2.x; f[5] = p2.y; f[6] = p3.x; f[7] = p3.y;
  } else {
    f[0] = __uint_as_float(a.x); f[1] = __uint_as_float(a.y);
    f[2] = __uint_as_float(a.z); f[3] = __uint_as_float(a.w);
    f[4] = __uint_as_float(b.x); f[5] = __uint_as_float(b.y);
    f[6] = __uint_as_float(b.z); f[7] = __uint_as_float(b.w);
  }
}
// weights: never written, so the read-only path is right
__device__ __forceinline__ void load8_w(const T* p, float (&f)[8]) {
  const uint4* q = reinterpret_cast<const uint4*>(p);
  const uint4 a = __ldg(q);
  uint4 b = a;
  if constexpr (sizeof(T) == 4) b = __ldg(q + 1);
  expand8(a, b, f);
}
// activations: cached, after the dependent wait
__device__ __forceinline__ void load8_x(const T* p, float (&f)[8]) {
  const uint4* q = reinterpret_cast<const uint4*>(p);
  const uint4 a = ld_ca16(q);
  uint4 b = a;
  if constexpr (sizeof(T) == 4) b = ld_ca16(q + 1);
  expand8(a, b, f);
}
// written by other blocks of this launch: from L2
__device__ __forceinline__ void load8_l2(const T* p, float (&f)[8]) {
  const uint4* q = reinterpret_cast<const uint4*>(p);
  const uint4 a = ld_cg16(q);
  uint4 b = a;
  if constexpr (sizeof(T) == 4) b = ld_cg16(q + 1);
  expand8(a, b, f);
}

__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void pdl_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ uint32_t smem_u32(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_wait0(uint32_t bar) {      // first phase of the barrier
  uint32_t ok;
  do {
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(ok) : "r"(bar), "r"(0u) : "memory");
  } while (ok == 0u);
}
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void fence_mbar_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void bulk_copy(uint32_t dst, const void* src, uint32_t bytes, uint32_t bar) {
  const unsigned long long evict_first = 0x12F0000000000000ull;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
               :: "r"(dst), "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(bar), "l"(evict_first) : "memory");
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

template <bool BF>
__device__ __forceinline__ void mma16816(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
  if constexpr (BF) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// lo: 16 bytes of row g in the first half of the contraction, hi: the same row in the second half.
// Even columns of B hold x of the first half, odd ones of the second: c[0] and c[3] are the two wanted sums.
__device__ __forceinline__ void step2(float (&ca)[4], float (&cb)[4], const uint4 lo, const uint4 hi, const uint4 x) {
  constexpr bool BF = Same<T, __nv_bfloat16>::v;
  mma16816<BF>(ca, lo.x, hi.x, lo.y, hi.y, x.x, x.y);
  mma16816<BF>(cb, lo.z, hi.z, lo.w, hi.w, x.z, x.w);
}

// ------------------------------------------------------------------------------------------------------------
// Fast path
// ------------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void fast_path(const T* attn, const T* w_o, T* residual, const T* weight, T* out,
                                          float eps, uint32_t* mail) {
  extern __shared__ __align__(128) unsigned char dyn_smem[];
  __shared__ __align__(8) unsigned long long bars[8];   // 0..5: chunk has arrived, 6..7: slot 0, 1 drained
  __shared__ float part[NW * FR];

  const int tid = (int)threadIdx.x;
  const int lane = tid & 31;
  const int warp = tid >> 5;
  const int blk = (int)blockIdx.x;

  if (blk >= FNB) {          // nothing to do here, but the multiprocessor stays free of a second working block
    pdl_trigger();
    pdl_wait();
    return;
  }

  const uint32_t sm = smem_u32(dyn_smem);
  const uint32_t bar = smem_u32(bars);
  const int row0 = blk * FR;
  const unsigned char* wb = reinterpret_cast<const unsigned char*>(w_o) + (size_t)row0 * (size_t)FKB;
  const int li = lane < FR ? lane : FR - 1;
  float gam = 0.0f;

  // chunk c: rows 8*(c/2) .. +7, half c%2. Chunks 0..3 go to slots 0..3, chunks 4, 5 to slots 0, 1 once drained.
  if (warp == 0) {
    if (lane == 0) {
#pragma unroll
      for (int c = 0; c < 6; ++c) mbar_init(bar + 8u * c, 1u);
      mbar_init(bar + 48u, (uint32_t)NW);
      mbar_init(bar + 56u, (uint32_t)NW);
      fence_mbar_init();
      fence_async();
    }
    __syncwarp();
    if (lane < 6) mbar_expect(bar + 8u * (uint32_t)lane, (uint32_t)FCHUNK);
    __syncwarp();
    const int c = lane >> 3;
    const int r = lane & 7;
    bulk_copy(sm + (uint32_t)(c * FSLOT + r * FRS),
              wb + (size_t)((c >> 1) * 8 + r) * FKB + (size_t)((c & 1) * FHB),
              (uint32_t)FHB, bar + 8u * (uint32_t)c);
    gam = ld_elem(weight + row0 + li);
  }
  __syncthreads();           // barriers are visible to all warps

  const int g = lane >> 2;
  const int t = lane & 3;
  const uint32_t lofs = sm + (uint32_t)(g * FRS + warp * 256 + t * 16);

  // drain the first eight rows into registers, unconverted, and request the last eight rows in their place
  uint4 d0[4], d1[4];
  mbar_wait0(bar + 0u);
#pragma unroll
  for (int s = 0; s < 4; ++s) d0[s] = lds16(lofs + 64u * s);
  __syncwarp();
  if (lane == 0) mbar_arrive(bar + 48u);
  if (warp == 0 && lane < 8) {
    mbar_wait0(bar + 48u);
    fence_async();
    bulk_copy(sm + (uint32_t)(lane * FRS), wb + (size_t)(16 + lane) * FKB, (uint32_t)FHB, bar + 32u);
  }
  __syncwarp();
  mbar_wait0(bar + 8u);
#pragma unroll
  for (int s = 0; s < 4; ++s) d1[s] = lds16(lofs + (uint32_t)FSLOT + 64u * s);
  __syncwarp();
  if (lane == 0) mbar_arrive(bar + 56u);
  if (warp == 0 && lane < 8) {
    mbar_wait0(bar + 56u);
    fence_async();
    bulk_copy(sm + (uint32_t)(FSLOT + lane * FRS), wb + (size_t)(16 + lane) * FKB + (size_t)FHB,
              (uint32_t)FHB, bar + 40u);
  }
  __syncwarp();

  pdl_trigger();             // every weight byte of this block is requested
  pdl_wait();                // attn, residual, out and the mailboxes are ours from here on

  uint4 xv[4];
  {
    const unsigned char* xb = reinterpret_cast<const unsigned char*>(attn) + (g & 1) * FHB + warp * 256 + t * 16;
#pragma unroll
    for (int s = 0; s < 4; ++s) xv[s] = ld_cg16(xb + 64 * s);
  }
  float res = 0.0f;
  if (warp == 0) res = ld_elem(residual + row0 + li);

  mbar_wait0(bar + 16u);
  mbar_wait0(bar + 24u);
  const uint4 plo = lds16(lofs + 2u * (uint32_t)FSLOT);
  const uint4 phi = lds16(lofs + 3u * (uint32_t)FSLOT);

  float sum0, sum1, sum2;
  {
    float ca[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float cb[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int s = 0; s < 4; ++s) step2(ca, cb, d0[s], d1[s], xv[s]);
    sum0 = (ca[0] + cb[0]) + (ca[3] + cb[3]);
  }
  {
    float ca[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float cb[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    step2(ca, cb, plo, phi, xv[0]);
#pragma unroll
    for (int s = 1; s < 4; ++s) {
      const uint4 lo = lds16(lofs + 2u * (uint32_t)FSLOT + 64u * s);
      const uint4 hi = lds16(lofs + 3u * (uint32_t)FSLOT + 64u * s);
      step2(ca, cb, lo, hi, xv[s]);
    }
    sum1 = (ca[0] + cb[0]) + (ca[3] + cb[3]);
  }
  mbar_wait0(bar + 32u);
  mbar_wait0(bar + 40u);
  {
    float ca[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    float cb[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint4 lo = lds16(lofs + 64u * s);
      const uint4 hi = lds16(lofs + (uint32_t)FSLOT + 64u * s);
      step2(ca, cb, lo, hi, xv[s]);
    }
    sum2 = (ca[0] + cb[0]) + (ca[3] + cb[3]);
  }
  {
    const float v = (t == 0) ? sum0 : ((t == 1) ? sum1 : sum2);
    if (t < 3) part[warp * FR + 8 * t + g] = v;
  }
  __syncthreads();
  if (warp != 0) return;

  // one warp finishes the block's 24 rows
  float p[NW];
#pragma unroll
  for (int w = 0; w < NW; ++w) p[w] = part[w * FR + li];
  const float dot = (((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))) +
                    ((p[8] + p[9]) + (p[10] + p[11]));
  const float s = rt(rt(dot) + res);
  const float sq = warp_sum(lane < FR ? s * s : 0.0f);

  // the sum of squares has no sign: the sign bit says that the word is there
  const uint32_t word = __float_as_uint(sq) | 0x80000000u;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int dst = (blk + lane + 32 * i) & (FNB - 1);
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(mail + dst * FNB + blk), "r"(word) : "memory");
  }
  if (lane < FR) residual[row0 + lane] = from_f(s, Tag<T>{});

  uint32_t* mine = mail + blk * FNB + lane * 4;
  uint32_t m0, m1, m2, m3;
  do {
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m0), "=r"(m1), "=r"(m2), "=r"(m3) : "l"(mine) : "memory");
  } while (m0 == 0u || m1 == 0u || m2 == 0u || m3 == 0u);
  __syncwarp();
  const float f0 = __uint_as_float(m0 & 0x7fffffffu);
  const float f1 = __uint_as_float(m1 & 0x7fffffffu);
  const float f2 = __uint_as_float(m2 & 0x7fffffffu);
  const float f3 = __uint_as_float(m3 & 0x7fffffffu);
  const float total = warp_sum((f0 + f1) + (f2 + f3));
  const float rr = 1.0f / sqrtf(total / 3072.0f + eps);
  if (lane < FR) out[row0 + lane] = from_f(rt(s * rr) * gam, Tag<T>{});
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "l"(mine), "r"(0u), "r"(0u), "r"(0u), "r"(0u) : "memory");
}

// ------------------------------------------------------------------------------------------------------------
// Plain path: every other shape and type. Any grid whose blocks are all resident.
// ------------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void plain_path(const T* attn, const T* w_o, T* residual, const T* weight, T* out,
                                           float eps, uint32_t* count) {
  __shared__ float red[NW];
  constexpr int TT = num_tokens < 8 ? num_tokens : 8;
  constexpr int TILES = (num_tokens + TT - 1) / TT;

  const int tid = (int)threadIdx.x;
  const int lane = tid & 31;
  const int warp = tid >> 5;
  const int blk = (int)blockIdx.x;
  const int grid = (int)gridDim.x;

  pdl_wait();

  for (int row = warp * grid + blk; row < hidden_size; row += grid * NW) {
    const T* wr = w_o + (size_t)row * (size_t)in_features;
    for (int tile = 0; tile < TILES; ++tile) {
      const int t0 = tile * TT;
      float acc[TT];
#pragma unroll
      for (int j = 0; j < TT; ++j) acc[j] = 0.0f;
#pragma unroll 2
      for (int k = lane * 8; k < in_features; k += 256) {
        float wf[8];
        load8_w(wr + k, wf);
#pragma unroll
        for (int j = 0; j < TT; ++j) {
          if ((num_tokens % TT == 0) || (t0 + j < num_tokens)) {
            float xf[8];
            load8_x(attn + (size_t)(t0 + j) * (size_t)in_features + k, xf);
            float a = wf[0] * xf[0];
            float b = wf[4] * xf[4];
            a = fmaf(wf[1], xf[1], a);
            b = fmaf(wf[5], xf[5], b);
            a = fmaf(wf[2], xf[2], a);
            b = fmaf(wf[6], xf[6], b);
            a = fmaf(wf[3], xf[3], a);
            b = fmaf(wf[7], xf[7], b);
            acc[j] += a + b;
          }
        }
      }
      float mine = 0.0f;
#pragma unroll
      for (int j = 0; j < TT; ++j) {
        const float v = warp_sum(acc[j]);
        if (lane == j) mine = v;
      }
      if (lane < TT && t0 + lane < num_tokens) {
        const size_t idx = (size_t)(t0 + lane) * (size_t)hidden_size + (size_t)row;
        const float y = rt(mine);
        const float s = y + ld_elem(residual + idx);
        residual[idx] = from_f(s, Tag<T>{});
      }
    }
  }

  pdl_trigger();

  // all blocks meet: every row of the residual is complete afterwards
  __syncthreads();
  if (tid == 0) {
    __threadfence();
    atomicAdd(count, 1u);
    uint32_t seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(count) : "memory");
    } while (seen < (uint32_t)grid);
    __threadfence();
    const uint32_t left = atomicAdd(count + 1, 1u);
    if (left == (uint32_t)grid - 1u) {      // everybody has seen the full count: leave zeros
      atomicExch(count, 0u);
      atomicExch(count + 1, 0u);
    }
  }
  __syncthreads();

  for (int tok = blk; tok < num_tokens; tok += grid) {
    const T* rrow = residual + (size_t)tok * (size_t)hidden_size;
    T* orow = out + (size_t)tok * (size_t)hidden_size;
    float ss = 0.0f;
    for (int i = tid * 8; i < hidden_size; i += NT * 8) {
      float f[8];
      load8_l2(rrow + i, f);
      float a = f[0] * f[0];
#pragma unroll
      for (int e = 1; e < 8; ++e) a = fmaf(f[e], f[e], a);
      ss += a;
    }
    ss = warp_sum(ss);
    if (lane == 0) red[warp] = ss;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < NW; ++w) total += red[w];
    const float rr = 1.0f / sqrtf(total / (float)hidden_size + eps);
    for (int i = tid * 8; i < hidden_size; i += NT * 8) {
      float f[8], gm[8];
      load8_l2(rrow + i, f);
      load8_w(weight + i, gm);
#pragma unroll
      for (int e = 0; e < 8; ++e) orow[i + e] = from_f(rt(f[e] * rr) * gm[e], Tag<T>{});
    }
    __syncthreads();
  }
}

}  // namespace opr

extern "C" __global__ void __launch_bounds__(384, 2) o_proj_residual_rmsnorm_fused(
    const T* __restrict__ attn,
    const T* __restrict__ w_o,
    T* __restrict__ residual,
    const T* __restrict__ weight,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
  if constexpr (opr::FAST) {
    opr::fast_path(attn, w_o, residual, weight, out, eps, reinterpret_cast<uint32_t*>(workspace));
  } else {
    opr::plain_path(attn, w_o, residual, weight, out, eps, reinterpret_cast<uint32_t*>(workspace));
  }
}
