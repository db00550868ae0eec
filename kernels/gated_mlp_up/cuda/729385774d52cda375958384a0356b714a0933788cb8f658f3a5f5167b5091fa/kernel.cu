// Contract: gated_mlp_up version 1. out = round_T(silu(x @ Wg^T) * (x @ Wu^T)), float32 sums, one pass over w_gate_up.
//
// Idea: a ring of per-thread asynchronous copies that is private to every LANE. A lane copies its own 16-byte pieces of
//   a gate row and an up row to shared memory and reads back only what it copied itself: no barrier, no elected thread,
//   refills of 2 KB a warp. x stays packed in registers. 96 KB and 256 threads a multiprocessor leave room for the
//   next launch, which fills its own ring (and asks L2 for 64 KB more) while this one drains.
// Bound: device memory bandwidth (99.6 MB at 1 x 2560 x 9728); issue slots are used to about a quarter.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace gmu {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kDepth = 6;                        // double steps in flight a warp
constexpr int kColumns = 512;                    // columns of a double step
constexpr int kRowPiece = 1024;                  // bytes of a row in a double step
constexpr int kSlotBytes = 2 * kRowPiece;        // gate piece and up piece
constexpr int kRingBytes = kDepth * kSlotBytes;  // of one warp; 8 warps: 98304
constexpr int kAhead = 4;                        // double steps asked for in L2 beyond the ring
constexpr bool kFast = num_tokens == 1 && sizeof(T) == 2 && hidden_size % kColumns == 0 &&
                       hidden_size / kColumns <= 8;
constexpr int kSteps = kFast ? hidden_size / kColumns : 1;

// ---- conversions -------------------------------------------------------------------------------------------------

template <class U>
struct Wide {  // float: never used for packed pairs
  static __device__ __forceinline__ float lo(unsigned v) { return __uint_as_float(v); }
  static __device__ __forceinline__ float hi(unsigned v) { return __uint_as_float(v); }
  static __device__ __forceinline__ U narrow(float v) { return v; }
};

template <>
struct Wide<__nv_bfloat16> {
  static __device__ __forceinline__ float lo(unsigned v) { return __uint_as_float(v << 16); }
  static __device__ __forceinline__ float hi(unsigned v) { return __uint_as_float(v & 0xffff0000u); }
  static __device__ __forceinline__ __nv_bfloat16 narrow(float v) { return __float2bfloat16_rn(v); }
};

template <>
struct Wide<__half> {
  static __device__ __forceinline__ float lo(unsigned v) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(v & 0xffffu)));
  }
  static __device__ __forceinline__ float hi(unsigned v) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(v >> 16)));
  }
  static __device__ __forceinline__ __half narrow(float v) { return __float2half_rn(v); }
};

// The quotient form: a very negative gate gives g / inf = 0, a very large one gives g.
__device__ __forceinline__ float activated(float g, float u) {
  return (g / (1.0f + expf(-g))) * u;
}

__device__ __forceinline__ float lane_sum(float v) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
  return v;
}

// ---- memory ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void dependent_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void dependent_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// What the previous kernel wrote: volatile, so that it stays behind the wait.
__device__ __forceinline__ uint4 load_written(const void* p) {
  uint4 r;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "l"(p)
               : "memory");
  return r;
}

__device__ __forceinline__ uint4 load_shared(unsigned p) {
  uint4 r;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(p)
               : "memory");
  return r;
}

__device__ __forceinline__ void copy16(unsigned dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ __forceinline__ void copy_wait_oldest() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kDepth - 1) : "memory");
}

__device__ __forceinline__ void ask_l2(const void* p, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

// One double step: this lane's two pieces of the gate row and two of the up row.
__device__ __forceinline__ void request(unsigned slot, const char* gate, const char* up) {
  copy16(slot, gate);
  copy16(slot + 512u, gate + 512);
  copy16(slot + 1024u, up);
  copy16(slot + 1536u, up + 512);
}

template <class U>
__device__ __forceinline__ void dot8(float& s, const uint4& w, const uint4& v) {
  s = fmaf(Wide<U>::lo(w.x), Wide<U>::lo(v.x), s);
  s = fmaf(Wide<U>::hi(w.x), Wide<U>::hi(v.x), s);
  s = fmaf(Wide<U>::lo(w.y), Wide<U>::lo(v.y), s);
  s = fmaf(Wide<U>::hi(w.y), Wide<U>::hi(v.y), s);
  s = fmaf(Wide<U>::lo(w.z), Wide<U>::lo(v.z), s);
  s = fmaf(Wide<U>::hi(w.z), Wide<U>::hi(v.z), s);
  s = fmaf(Wide<U>::lo(w.w), Wide<U>::lo(v.w), s);
  s = fmaf(Wide<U>::hi(w.w), Wide<U>::hi(v.w), s);
}

// ---- one row of x, 16-bit storage, rows of whole double steps -------------------------------------------------------

template <class U, int STEPS>
__device__ __forceinline__ void stream_one_row(const U* x, const U* w, U* out) {
  extern __shared__ __align__(128) unsigned char up_ring_bytes[];

  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;

  // Pair i of this warp is output first + i * stride: neighbouring blocks read neighbouring rows, and the last round
  // is spread over all multiprocessors.
  constexpr int stride = kWarps * num_sms;
  constexpr long long row_bytes = static_cast<long long>(hidden_size) * 2;
  constexpr long long pair_bytes = static_cast<long long>(stride) * row_bytes;
  constexpr int lag = (kDepth + STEPS) / STEPS;  // the last request is made in iteration n - lag

  const int first = warp * num_sms + static_cast<int>(blockIdx.x);
  const int n = first < intermediate_size ? (intermediate_size - first + stride - 1) / stride : 0;

  const char* gate = reinterpret_cast<const char*>(w) + static_cast<long long>(first) * row_bytes + lane * 16;
  const char* up = gate + static_cast<long long>(intermediate_size) * row_bytes;

  const unsigned ring = static_cast<unsigned>(__cvta_generic_to_shared(up_ring_bytes)) +
                        static_cast<unsigned>(warp * kRingBytes + lane * 16);
  const unsigned ring_end = ring + static_cast<unsigned>(kRingBytes);

  // Weights need no predecessor: fill the ring, then ask L2 for what the ring will ask for next.
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    const int q = k / STEPS;
    const int r = k % STEPS;
    if (q < n) {
      request(ring + static_cast<unsigned>(k * kSlotBytes), gate + q * pair_bytes + r * kRowPiece,
              up + q * pair_bytes + r * kRowPiece);
    }
    copy_commit();
  }
  {
    constexpr int q = kDepth / STEPS;
    constexpr int r = kDepth % STEPS;
    constexpr int count = (STEPS - r) < kAhead ? (STEPS - r) : kAhead;
    if (q < n && lane < 2) {
      const char* p = (lane == 0 ? gate : up) - lane * 16 + q * pair_bytes + r * kRowPiece;
      ask_l2(p, static_cast<unsigned>(count * kRowPiece));
    }
  }

  dependent_wait();

  uint4 xv[2 * STEPS];
  {
    const char* xp = reinterpret_cast<const char*>(x) + lane * 16;
#pragma unroll
    for (int c = 0; c < 2 * STEPS; ++c) xv[c] = load_written(xp + c * 512);
  }

  if (n < lag) dependent_start();

  unsigned slot = ring;
  float kept_g = 0.0f;
  float kept_u = 0.0f;

#pragma unroll 1
  for (int i = 0; i < n; ++i) {
    float g0 = 0.0f, g1 = 0.0f, u0 = 0.0f, u1 = 0.0f;
#pragma unroll
    for (int j = 0; j < STEPS; ++j) {
      copy_wait_oldest();
      const uint4 a0 = load_shared(slot);
      const uint4 a1 = load_shared(slot + 512u);
      const uint4 b0 = load_shared(slot + 1024u);
      const uint4 b1 = load_shared(slot + 1536u);
      dot8<U>(g0, a0, xv[2 * j]);
      dot8<U>(u0, b0, xv[2 * j]);
      dot8<U>(g1, a1, xv[2 * j + 1]);
      dot8<U>(u1, b1, xv[2 * j + 1]);

      // The slot was read by this lane alone, so this lane may fill it again.
      const int q = (j + kDepth) / STEPS;
      const int r = (j + kDepth) % STEPS;
      if (i + q < n) {
        request(slot, gate + q * pair_bytes + r * kRowPiece, up + q * pair_bytes + r * kRowPiece);
      }
      copy_commit();
      slot += static_cast<unsigned>(kSlotBytes);
      if (slot == ring_end) slot = ring;
    }
    gate += pair_bytes;
    up += pair_bytes;

    if (i == n - lag) dependent_start();

    const float g = lane_sum(g0 + g1);
    const float u = lane_sum(u0 + u1);
    const int place = i & 31;
    if (lane == place) {
      kept_g = g;
      kept_u = u;
    }
    // Lane k holds pair k of the last 32: one exponential and one division for all of them.
    if (place == 31 || i == n - 1) {
      if (lane <= place) {
        const int o = first + (i - place + lane) * stride;
        out[o] = Wide<U>::narrow(activated(kept_g, kept_u));
      }
    }
  }
}

// ---- everything else: one warp a pair of rows, up to eight tokens at a time -----------------------------------------

template <bool WEIGHT>
__device__ __forceinline__ uint4 fetch16(const void* p) {
  if constexpr (WEIGHT) {
    return __ldg(reinterpret_cast<const uint4*>(p));
  } else {
    return load_written(p);
  }
}

template <class U, bool WEIGHT>
__device__ __forceinline__ void load8(const U* p, float (&v)[8]) {
  if constexpr (sizeof(U) == 2) {
    const uint4 r = fetch16<WEIGHT>(p);
    v[0] = Wide<U>::lo(r.x);
    v[1] = Wide<U>::hi(r.x);
    v[2] = Wide<U>::lo(r.y);
    v[3] = Wide<U>::hi(r.y);
    v[4] = Wide<U>::lo(r.z);
    v[5] = Wide<U>::hi(r.z);
    v[6] = Wide<U>::lo(r.w);
    v[7] = Wide<U>::hi(r.w);
  } else {
    const uint4 r = fetch16<WEIGHT>(p);
    const uint4 s = fetch16<WEIGHT>(p + 4);
    v[0] = __uint_as_float(r.x);
    v[1] = __uint_as_float(r.y);
    v[2] = __uint_as_float(r.z);
    v[3] = __uint_as_float(r.w);
    v[4] = __uint_as_float(s.x);
    v[5] = __uint_as_float(s.y);
    v[6] = __uint_as_float(s.z);
    v[7] = __uint_as_float(s.w);
  }
}

template <class U>
__device__ __forceinline__ void plain_rows(const U* x, const U* w, U* out) {
  constexpr int tokens = num_tokens < 8 ? num_tokens : 8;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;

  dependent_wait();

#pragma unroll 1
  for (int row = warp * num_sms + static_cast<int>(blockIdx.x); row < intermediate_size; row += kWarps * num_sms) {
    const U* gate = w + static_cast<size_t>(row) * hidden_size;
    const U* up = w + (static_cast<size_t>(row) + intermediate_size) * hidden_size;

#pragma unroll 1
    for (int t0 = 0; t0 < num_tokens; t0 += tokens) {
      float g[tokens];
      float u[tokens];
#pragma unroll
      for (int t = 0; t < tokens; ++t) {
        g[t] = 0.0f;
        u[t] = 0.0f;
      }

#pragma unroll 1
      for (int c = lane * 8; c < hidden_size; c += 256) {
        float a[8];
        float b[8];
        load8<U, true>(gate + c, a);
        load8<U, true>(up + c, b);
#pragma unroll
        for (int t = 0; t < tokens; ++t) {
          if (num_tokens % tokens == 0 || t0 + t < num_tokens) {
            float v[8];
            load8<U, false>(x + static_cast<size_t>(t0 + t) * hidden_size + c, v);
#pragma unroll
            for (int e = 0; e < 8; ++e) {
              g[t] = fmaf(a[e], v[e], g[t]);
              u[t] = fmaf(b[e], v[e], u[t]);
            }
          }
        }
      }

      float kept_g = 0.0f;
      float kept_u = 0.0f;
#pragma unroll
      for (int t = 0; t < tokens; ++t) {
        const float sg = lane_sum(g[t]);
        const float su = lane_sum(u[t]);
        if (lane == t) {
          kept_g = sg;
          kept_u = su;
        }
      }
      if (lane < tokens && t0 + lane < num_tokens) {
        out[static_cast<size_t>(t0 + lane) * intermediate_size + row] = Wide<U>::narrow(activated(kept_g, kept_u));
      }
    }
  }

  dependent_start();
}

}  // namespace gmu

extern "C" __global__ void __launch_bounds__(256, 2)
gated_up_lane_ring(
    const T* __restrict__ x,
    const T* __restrict__ w_gate_up,
    T* __restrict__ out,
    void* __restrict__ workspace) {
  (void)workspace;
  if constexpr (gmu::kFast) {
    gmu::stream_one_row<T, gmu::kSteps>(x, w_gate_up, out);
  } else {
    gmu::plain_rows<T>(x, w_gate_up, out);
  }
}
