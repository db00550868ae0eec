// Contract: encoder_mlp, cpu.
// Idea: the plain MLP.
// Wrong: adds the normalised row where there is a norm.

constexpr int TILE = num_tokens < 4 ? 1 : 4;
constexpr int BLOCK = 64;
constexpr int CHUNK = num_tokens < 256 ? num_tokens : 256;

// Dot products of one weight row with ROWS input rows. Short sums keep the rounding errors of float32 small.
template <int ROWS, class X>
static inline void row_dots(const T* w, const X* x, int n, float* sums) {
  for (int r = 0; r < ROWS; ++r) sums[r] = 0.0f;
  for (int start = 0; start < n; start += 512) {
    const int stop = std::min(n, start + 512);
    float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
    if constexpr (ROWS == 4) {
#pragma omp simd reduction(+ : a, b, c, d)
      for (int k = start; k < stop; ++k) {
        const float weight = to_float(w[k]);
        a += weight * to_float(x[k]);
        b += weight * to_float(x[n + k]);
        c += weight * to_float(x[2 * n + k]);
        d += weight * to_float(x[3 * n + k]);
      }
      sums[0] += a, sums[1] += b, sums[2] += c, sums[3] += d;
    } else {
#pragma omp simd reduction(+ : a)
      for (int k = start; k < stop; ++k) a += to_float(w[k]) * to_float(x[k]);
      sums[0] += a;
    }
  }
}

static float mean_of(const float* row, float shift) {
  float sum = 0.0f;
  for (int start = 0; start < hidden_size; start += 512) {
    const int stop = std::min(hidden_size, start + 512);
    float part = 0.0f;
#pragma omp simd reduction(+ : part)
    for (int i = start; i < stop; ++i) part += row[i] - shift;
    sum += part;
  }
  return sum / hidden_size;
}

// A second pass corrects the rounding error of the mean: without it a constant row would show a spread of its own.
static void layer_norm(float* row, const T* ln_weight, const T* ln_bias, float eps) {
  const float rough = mean_of(row, 0.0f);
  const float mean = rough + mean_of(row, rough);
  float squares = 0.0f;
  for (int start = 0; start < hidden_size; start += 512) {
    const int stop = std::min(hidden_size, start + 512);
    float part = 0.0f;
#pragma omp simd reduction(+ : part)
    for (int i = start; i < stop; ++i) part += (row[i] - mean) * (row[i] - mean);
    squares += part;
  }
  const float r = float(1.0 / std::sqrt(double(squares) / hidden_size + eps));
  for (int i = 0; i < hidden_size; ++i) row[i] = (row[i] - mean) * r * to_float(ln_weight[i]) + to_float(ln_bias[i]);
}

// Rows first .. first + TILE - 1 in float32, normalised where the contract says so; zeros past the last row.
static void load_rows(const T* x, const T* ln_weight, const T* ln_bias, int first, float eps, float* rows) {
  for (int r = 0; r < TILE; ++r) {
    float* row = rows + std::size_t(r) * hidden_size;
    if (first + r >= num_tokens) {
      std::fill(row, row + hidden_size, 0.0f);
      continue;
    }
    for (int i = 0; i < hidden_size; ++i) row[i] = to_float(x[std::size_t(first + r) * hidden_size + i]);
    if constexpr (has_pre_norm) layer_norm(row, ln_weight, ln_bias, eps);
  }
}

static float gelu(float a) {
  if constexpr (gelu_tanh) return 0.5f * a * (1.0f + std::tanh(0.7978845608028654f * (a + 0.044715f * a * a * a)));
  return 0.5f * a * std::erfc(-0.7071067811865476f * a);  // erfc keeps its digits where 1 + erf loses them
}

extern "C" void encoder_mlp(
    const T* __restrict__ x,
    const T* __restrict__ ln_weight,
    const T* __restrict__ ln_bias,
    const T* __restrict__ w_up,
    const T* __restrict__ b_up,
    const T* __restrict__ w_down,
    const T* __restrict__ b_down,
    T* __restrict__ out,
    float eps,
    void* __restrict__ workspace) {
  float* activated = static_cast<float*>(workspace);  // [CHUNK rounded up to TILE][intermediate_size]
  for (int chunk = 0; chunk < num_tokens; chunk += CHUNK) {
    const int end = std::min(num_tokens, chunk + CHUNK);
#pragma omp parallel for collapse(2)
    for (int block = 0; block < intermediate_size; block += BLOCK) {
      for (int first = chunk; first < end; first += TILE) {
        float rows[TILE * hidden_size];
        load_rows(x, ln_weight, ln_bias, first, eps, rows);
        for (int o = block; o < std::min(intermediate_size, block + BLOCK); ++o) {
          float sums[TILE];
          row_dots<TILE>(w_up + std::size_t(o) * hidden_size, rows, hidden_size, sums);
          for (int r = 0; r < TILE; ++r)
            activated[std::size_t(first - chunk + r) * intermediate_size + o] = gelu(sums[r] + to_float(b_up[o]));
        }
      }
    }
#pragma omp parallel for collapse(2)
    for (int block = 0; block < hidden_size; block += BLOCK) {
      for (int first = chunk; first < end; first += TILE) {
        const float* rows = activated + std::size_t(first - chunk) * intermediate_size;
        for (int o = block; o < std::min(hidden_size, block + BLOCK); ++o) {
          float sums[TILE];
          row_dots<TILE>(w_down + std::size_t(o) * intermediate_size, rows, intermediate_size, sums);
          for (int r = 0; r < TILE && first + r < end; ++r) {
            const std::size_t at = std::size_t(first + r) * hidden_size + o;
            const float projected = to_float(from_float<T>(sums[r] + to_float(b_down[o])));  // binding round
            float own[hidden_size];
            for (int i = 0; i < hidden_size; ++i) own[i] = to_float(x[std::size_t(first + r) * hidden_size + i]);
            if constexpr (has_pre_norm) layer_norm(own, ln_weight, ln_bias, eps);
            out[at] = from_float<T>(projected + own[o]);
          }
        }
      }
    }
  }
}
