// Contract: gated_mlp_up version 1.  out = round_T(silu(x @ Wg^T) * (x @ Wu^T)), Wg = first intermediate_size rows of
// w_gate_up, Wu = the rest; float32 sums, one rounding at the store; T is bfloat16, float16 or float32.
// Idea: (1) one token: one warp owns output j and requests gate row j and up row j whole (or eight steps deep) into
//           registers with 16-byte evict-first loads before the dependent wait, then x, then multiplies once.  The
//           first num_sms blocks, behind their own requests, also pull three later blocks each into L2: not the next
//           ones, but every third block from the second wave on, so hits and misses mix and memory never idles.
//       (2) more tokens, 16 bit: 8 gate rows and 8 up rows are the 16 rows of one mma tile, fragments come straight
//           from global memory by a permuted k, eight warps split k inside the block and meet in a fixed order.
//       (3) more tokens, float32: the walk of (1) with up to eight tokens a pass.
// Bound: device-memory bandwidth over the weights, plus ramp-up and drain.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace gmu {

typedef unsigned int u32;
typedef unsigned long long u64;

template <class A, class B> struct same_type { static constexpr bool value = false; };
template <class A> struct same_type<A, A> { static constexpr bool value = true; };

constexpr bool kBf16 = same_type<T, __nv_bfloat16>::value;
constexpr int kElt = (int)sizeof(T);
constexpr int kN = num_tokens;
constexpr int kH = hidden_size;
constexpr int kI = intermediate_size;

// Walk of whole rows: one step is 32 lanes times 16 bytes.
constexpr int kVec = 16 / kElt;
constexpr int kChunks = kH / kVec;             // exact: hidden_size % 8 == 0
constexpr int kFull = kChunks / 32;            // steps in which every lane has a piece
constexpr int kSteps = (kChunks + 31) / 32;
constexpr int kGemvDepth = kSteps <= 10 ? kSteps : 8;
constexpr int kGemvWarps = 4;

// What the first num_sms blocks of the one-token kernel pull into L2 for later blocks.
constexpr int kRowLen = kH * kElt;                                  // bytes of a weight row, a multiple of 16
constexpr int kGemvBlocks = (kI + kGemvWarps - 1) / kGemvWarps;
constexpr int kPullFrom = 3 * num_sms;                              // first block of the second wave
constexpr int kLater = kGemvBlocks > kPullFrom ? kGemvBlocks - kPullFrom : 0;
constexpr long long kPullUnit = (long long)num_sms * (2 * kGemvWarps) * (long long)kRowLen;
constexpr int kPullFits = (int)(16500000LL / kPullUnit);            // what idle memory brings in under four us
constexpr int kPullHalf = kLater / (2 * num_sms);
constexpr int kPullMin = kPullFits < kPullHalf ? kPullFits : kPullHalf;
constexpr int kPull = kPullMin < 8 ? kPullMin : 8;                  // blocks that each early block pulls
constexpr int kPullSpan = kLater / ((kPull > 0 ? kPull : 1) * num_sms);
constexpr int kPullStride = kPullSpan < 1 ? 1 : (kPullSpan < 3 ? kPullSpan : 3);

// Rows kernel (more than one token).
constexpr int kTile = 64;                      // tokens a block, as in the launch plan
constexpr int kWarps = 8;
constexpr int kTN = kN >= kTile ? kTile : (kN + 7) / 8 * 8;
constexpr int kNT = kTN / 8;
constexpr int kTiles = (kN + kTile - 1) / kTile;
constexpr int kMmaSteps = (kH + 63) / 64;
constexpr int kPerWarp = (kMmaSteps + kWarps - 1) / kWarps;
constexpr int kMmaWant = kNT <= 4 ? 4 : 2;
constexpr int kMmaDepth = kPerWarp < kMmaWant ? kPerWarp : kMmaWant;
constexpr int kMmaRounds = (kPerWarp + kMmaDepth - 1) / kMmaDepth;

template <class A> struct Cvt;
template <> struct Cvt<float> {
  static __device__ __forceinline__ float from(float v) { return v; }
};
template <> struct Cvt<__half> {
  static __device__ __forceinline__ __half from(float v) { return __float2half_rn(v); }
};
template <> struct Cvt<__nv_bfloat16> {
  static __device__ __forceinline__ __nv_bfloat16 from(float v) { return __float2bfloat16_rn(v); }
};

__device__ __forceinline__ void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void pdl_trigger() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ u64 evict_first_policy() {
  u64 p;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  return p;
}

// Weights: never written while the kernel may run, read past L1.
template <bool ONCE>
__device__ __forceinline__ uint4 ld_w(const char* p, u64 pol) {
  uint4 v;
  if constexpr (ONCE) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(pol));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
  }
  return v;
}

template <bool ONCE>
__device__ __forceinline__ uint4 ld_w_if(const char* p, u64 pol, bool ok) {
  uint4 v;
  const int c = ok ? 1 : 0;
  if constexpr (ONCE) {
    asm volatile(
        "{\n\t.reg .pred pq;\n\t"
        "setp.ne.s32 pq, %6, 0;\n\t"
        "mov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\tmov.u32 %2, 0;\n\tmov.u32 %3, 0;\n\t"
        "@pq ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;\n\t}"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p), "l"(pol), "r"(c));
  } else {
    asm volatile(
        "{\n\t.reg .pred pq;\n\t"
        "setp.ne.s32 pq, %5, 0;\n\t"
        "mov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\tmov.u32 %2, 0;\n\tmov.u32 %3, 0;\n\t"
        "@pq ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n\t}"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p), "r"(c));
  }
  return v;
}

// Activations: written by the predecessor, so plain coherent loads, after the wait.
__device__ __forceinline__ uint4 ld_x(const char* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ uint4 ld_x_if(const char* p, bool ok) {
  uint4 v;
  const int c = ok ? 1 : 0;
  asm volatile(
      "{\n\t.reg .pred pq;\n\t"
      "setp.ne.s32 pq, %5, 0;\n\t"
      "mov.u32 %0, 0;\n\tmov.u32 %1, 0;\n\tmov.u32 %2, 0;\n\tmov.u32 %3, 0;\n\t"
      "@pq ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\n\t}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p), "r"(c));
  return v;
}

// "full" is a constant after unrolling.
template <bool ONCE>
__device__ __forceinline__ uint4 step_w(const char* p, u64 pol, bool full, bool ok) {
  if (full) return ld_w<ONCE>(p, pol);
  return ld_w_if<ONCE>(p, pol, ok);
}

__device__ __forceinline__ uint4 step_x(const char* p, bool full, bool ok) {
  if (full) return ld_x(p);
  return ld_x_if(p, ok);
}

__device__ __forceinline__ void two_floats(u32 v, float& a, float& b) {
  if constexpr (kBf16) {
    a = __uint_as_float(v << 16);
    b = __uint_as_float(v & 0xffff0000u);
  } else {
    asm("{\n\t.reg .f16 lo, hi;\n\t"
        "mov.b32 {lo, hi}, %2;\n\t"
        "cvt.f32.f16 %0, lo;\n\t"
        "cvt.f32.f16 %1, hi;\n\t}"
        : "=f"(a), "=f"(b)
        : "r"(v));
  }
}

template <int V>
__device__ __forceinline__ void unpack(const uint4& v, float (&f)[V]) {
  if constexpr (V == 4) {
    f[0] = __uint_as_float(v.x);
    f[1] = __uint_as_float(v.y);
    f[2] = __uint_as_float(v.z);
    f[3] = __uint_as_float(v.w);
  } else {
    two_floats(v.x, f[0], f[1]);
    two_floats(v.y, f[2], f[3]);
    two_floats(v.z, f[4], f[5]);
    two_floats(v.w, f[6], f[7]);
  }
}

__device__ __forceinline__ void fma_chunk(const uint4& g, const uint4& u, const uint4& xv,
                                          float (&cg)[2], float (&cu)[2]) {
  float wg[kVec], wu[kVec], xf[kVec];
  unpack<kVec>(xv, xf);
  unpack<kVec>(g, wg);
  unpack<kVec>(u, wu);
#pragma unroll
  for (int e = 0; e < kVec; ++e) {
    cg[e & 1] = fmaf(wg[e], xf[e], cg[e & 1]);
    cu[e & 1] = fmaf(wu[e], xf[e], cu[e & 1]);
  }
}

// silu(g) * u.  The exponential never overflows; a very negative gate gives a zero, plus infinity passes,
// minus infinity gives NaN exactly as g / (1 + exp(-g)) does.
__device__ __forceinline__ float silu_mul(float g, float u) {
  const float e = expf(-fabsf(g));
  const float n = g < 0.0f ? g * e : g;
  return (n / (1.0f + e)) * u;
}

// Early blocks only: this warp's share (one gate row and one up row) of every block that this block pulls into L2.
// Nearest targets first.  Weights need no ordering with the predecessor.
__device__ __forceinline__ void pull_later_rows(const T* w, int warp, int lane) {
  if constexpr (kPull > 0) {
    const int b = (int)blockIdx.x;
    if (b < num_sms) {
      if (lane == 0) {
#pragma unroll
        for (int p = 0; p < kPull; ++p) {
          const int j = (kPullFrom + (p * num_sms + b) * kPullStride) * kGemvWarps + warp;
          if (j < kI) {
            const char* g = reinterpret_cast<const char*>(w) + (size_t)j * (size_t)kRowLen;
            const char* u = g + (size_t)kI * (size_t)kRowLen;
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(g), "r"((u32)kRowLen) : "memory");
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(u), "r"((u32)kRowLen) : "memory");
          }
        }
      }
      __syncwarp();
    }
  }
}

// One warp walks one gate row and one up row against NT token rows; every lane ends with the sums.
template <int NT, int D, bool ONCE, bool PULL>
__device__ __forceinline__ void walk(const T* gate, const T* upr, const T* xrow, int lane,
                                     float (&sg)[NT], float (&su)[NT], const T* w, int warp) {
  constexpr int kIters = kFull >= 2 * D ? kFull / D - 1 : 0;
  constexpr int kS0 = kIters * D;
  constexpr int kXD = NT == 1 ? D : 1;
  constexpr int kRowBytes = kH * kElt;

  const u64 pol = evict_first_policy();
  const char* gp = reinterpret_cast<const char*>(gate) + lane * 16;
  const char* up = reinterpret_cast<const char*>(upr) + lane * 16;
  const char* xp = reinterpret_cast<const char*>(xrow) + lane * 16;

  uint4 rg[D], ru[D], rx[kXD];
  float cg[NT][2], cu[NT][2];

#pragma unroll
  for (int i = 0; i < D; ++i) {
    const bool full = i < kFull;
    const bool ok = i * 32 + lane < kChunks;
    rg[i] = step_w<ONCE>(gp + i * 512, pol, full, ok);
    ru[i] = step_w<ONCE>(up + i * 512, pol, full, ok);
  }

  if constexpr (PULL) {
    pull_later_rows(w, warp, lane);
  }

  pdl_wait();

  if constexpr (NT == 1) {
#pragma unroll
    for (int i = 0; i < kXD; ++i) {
      rx[i] = step_x(xp + i * 512, i < kFull, i * 32 + lane < kChunks);
    }
  }

#pragma unroll
  for (int t = 0; t < NT; ++t) {
    cg[t][0] = 0.0f;
    cg[t][1] = 0.0f;
    cu[t][0] = 0.0f;
    cu[t][1] = 0.0f;
  }

  if constexpr (kIters > 0) {
#pragma unroll 1
    for (int it = 0; it < kIters; ++it) {
#pragma unroll
      for (int i = 0; i < D; ++i) {
        if constexpr (NT == 1) {
          fma_chunk(rg[i], ru[i], rx[i], cg[0], cu[0]);
        } else {
#pragma unroll
          for (int t = 0; t < NT; ++t) {
            const uint4 xv = ld_x(xp + t * kRowBytes + i * 512);
            fma_chunk(rg[i], ru[i], xv, cg[t], cu[t]);
          }
        }
        rg[i] = ld_w<ONCE>(gp + (i + D) * 512, pol);
        ru[i] = ld_w<ONCE>(up + (i + D) * 512, pol);
        if constexpr (NT == 1) {
          rx[i] = ld_x(xp + (i + D) * 512);
        }
      }
      gp += D * 512;
      up += D * 512;
      xp += D * 512;
    }
  }

  pdl_trigger();

#pragma unroll
  for (int s = kS0; s < kSteps; ++s) {
    const int r = s - kS0;
    const int i = r % D;
    if constexpr (NT == 1) {
      fma_chunk(rg[i], ru[i], rx[i], cg[0], cu[0]);
    } else {
#pragma unroll
      for (int t = 0; t < NT; ++t) {
        const uint4 xv = step_x(xp + t * kRowBytes + r * 512, s < kFull, s * 32 + lane < kChunks);
        fma_chunk(rg[i], ru[i], xv, cg[t], cu[t]);
      }
    }
    if (s + D < kSteps) {
      const bool full = s + D < kFull;
      const bool ok = (s + D) * 32 + lane < kChunks;
      rg[i] = step_w<ONCE>(gp + (r + D) * 512, pol, full, ok);
      ru[i] = step_w<ONCE>(up + (r + D) * 512, pol, full, ok);
      if constexpr (NT == 1) {
        rx[i] = step_x(xp + (r + D) * 512, full, ok);
      }
    }
  }

#pragma unroll
  for (int t = 0; t < NT; ++t) {
    float a = cg[t][0] + cg[t][1];
    float b = cu[t][0] + cu[t][1];
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
      a += __shfl_xor_sync(0xffffffffu, a, m);
      b += __shfl_xor_sync(0xffffffffu, b, m);
    }
    sg[t] = a;
    su[t] = b;
  }
}

__device__ __forceinline__ void mma16816(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if constexpr (kBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// 16-bit types, more than one token.  Rows 0..7 of the mma tile are gate rows, rows 8..15 the paired up rows, so a
// lane's accumulators 0,1 are gates and 2,3 the ups of the same outputs.  A lane reads 8 neighbouring k of its row and
// of its token; elements 0..3 feed one mma and 4..7 the next, the same permutation of k on both sides.
template <bool ONCE>
__device__ __forceinline__ void rows_mma(const T* x, const T* w, T* out) {
  __shared__ float red[kWarps * kNT * 128];
  constexpr int D = kMmaDepth;
  constexpr int kRow = kH * 2;                 // bytes of a row

  const int tid = (int)threadIdx.x;
  const int warp = tid >> 5;
  const int lane = tid & 31;
  const int gid = lane >> 2;
  const int q = lane & 3;
  const int j0 = (int)blockIdx.y * 8;
  const int n0 = (int)blockIdx.x * kTile;

  const u64 pol = evict_first_policy();
  const char* gp = reinterpret_cast<const char*>(w) + (size_t)(j0 + gid) * (size_t)kRow + q * 16;
  const char* up = gp + (size_t)kI * (size_t)kRow;
  const char* xb = reinterpret_cast<const char*>(x) + (size_t)(n0 + gid) * (size_t)kRow + q * 16;

  uint4 rg[D][2], ru[D][2];
#pragma unroll
  for (int i = 0; i < D; ++i) {
    const int step = warp + i * kWarps;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int k = step * 64 + h * 32 + q * 8;
      rg[i][h] = ld_w_if<ONCE>(gp + (step * 128 + h * 64), pol, k < kH);
      ru[i][h] = ld_w_if<ONCE>(up + (step * 128 + h * 64), pol, k < kH);
    }
  }

  float acc[kNT][4];
#pragma unroll
  for (int t = 0; t < kNT; ++t) {
    acc[t][0] = 0.0f;
    acc[t][1] = 0.0f;
    acc[t][2] = 0.0f;
    acc[t][3] = 0.0f;
  }

  pdl_wait();

#pragma unroll 1
  for (int r = 0; r < kMmaRounds; ++r) {
#pragma unroll
    for (int i = 0; i < D; ++i) {
      const int step = warp + (r * D + i) * kWarps;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int k = step * 64 + h * 32 + q * 8;
        const int off = step * 128 + h * 64;
        uint4 xv[kNT];
#pragma unroll
        for (int t = 0; t < kNT; ++t) {
          xv[t] = ld_x_if(xb + (size_t)t * (size_t)(8 * kRow) + off, k < kH && n0 + t * 8 + gid < kN);
        }
        const uint4 g = rg[i][h];
        const uint4 u = ru[i][h];
#pragma unroll
        for (int t = 0; t < kNT; ++t) {
          mma16816(acc[t], g.x, u.x, g.y, u.y, xv[t].x, xv[t].y);
        }
#pragma unroll
        for (int t = 0; t < kNT; ++t) {
          mma16816(acc[t], g.z, u.z, g.w, u.w, xv[t].z, xv[t].w);
        }
        const bool more = k + D * kWarps * 64 < kH;
        rg[i][h] = ld_w_if<ONCE>(gp + (off + D * kWarps * 128), pol, more);
        ru[i][h] = ld_w_if<ONCE>(up + (off + D * kWarps * 128), pol, more);
      }
    }
  }

  pdl_trigger();

#pragma unroll
  for (int t = 0; t < kNT; ++t) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      red[((warp * kNT + t) * 4 + c) * 32 + lane] = acc[t][c];
    }
  }
  __syncthreads();

  for (int o = tid; o < kNT * 64; o += kWarps * 32) {
    const int j = o & 7;
    const int n = o >> 3;
    const int idx = ((n >> 3) * 4 + (n & 1)) * 32 + j * 4 + ((n & 7) >> 1);
    float g = 0.0f;
    float u = 0.0f;
#pragma unroll
    for (int v = 0; v < kWarps; ++v) {
      g += red[v * (kNT * 128) + idx];
      u += red[v * (kNT * 128) + idx + 64];
    }
    if (n0 + n < kN) {
      out[(size_t)(n0 + n) * (size_t)kI + (size_t)(j0 + j)] = Cvt<T>::from(silu_mul(g, u));
    }
  }
}

// float32, more than one token: one warp an output, up to eight tokens a pass.
template <int NT, int D, bool ONCE>
__device__ __forceinline__ void rows_simt(const T* x, const T* w, T* out) {
  const int warp = (int)threadIdx.x >> 5;
  const int lane = (int)threadIdx.x & 31;
  const int j = (int)blockIdx.y * 8 + warp;
  const int first = (int)blockIdx.x * kTile;
  const int last = first + kTile < kN ? first + kTile : kN;
  const T* gate = w + (size_t)j * (size_t)kH;
  const T* upr = w + ((size_t)j + (size_t)kI) * (size_t)kH;

#pragma unroll 1
  for (int t = first; t < last; t += NT) {
    const int t0 = t < kN - NT ? t : kN - NT;  // the last pass moves back instead of reading past the end
    float sg[NT], su[NT];
    walk<NT, D, ONCE, false>(gate, upr, x + (size_t)t0 * (size_t)kH, lane, sg, su, w, warp);
    float g = 0.0f;
    float u = 0.0f;
#pragma unroll
    for (int v = 0; v < NT; ++v) {
      if (lane == v) {
        g = sg[v];
        u = su[v];
      }
    }
    if (lane < NT && t0 + lane >= t) {
      out[(size_t)(t0 + lane) * (size_t)kI + (size_t)j] = Cvt<T>::from(silu_mul(g, u));
    }
  }
}

}  // namespace gmu

extern "C" __global__ void __launch_bounds__(128, 3) gated_mlp_up_gemv(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
  (void)workspace;
  const int warp = (int)threadIdx.x >> 5;
  const int lane = (int)threadIdx.x & 31;
  const int j = (int)blockIdx.x * gmu::kGemvWarps + warp;
  if (j >= gmu::kI) return;
  const T* gate = w_gate_up + (size_t)j * (size_t)gmu::kH;
  const T* upr = w_gate_up + ((size_t)j + (size_t)gmu::kI) * (size_t)gmu::kH;
  float sg[1], su[1];
  gmu::walk<1, gmu::kGemvDepth, true, true>(gate, upr, x, lane, sg, su, w_gate_up, warp);
  const float r = gmu::silu_mul(sg[0], su[0]);
  if (lane == 0) out[j] = gmu::Cvt<T>::from(r);
}

extern "C" __global__ void __launch_bounds__(256, 2) gated_mlp_up_rows(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
  (void)workspace;
  if constexpr (sizeof(T) == 2) {
    gmu::rows_mma<(gmu::kTiles <= 2)>(x, w_gate_up, out);
  } else {
    gmu::rows_simt<(gmu::kN < 8 ? gmu::kN : 8), (gmu::kSteps < 4 ? gmu::kSteps : 4), (gmu::kN <= 8)>(
        x, w_gate_up, out);
  }
}
