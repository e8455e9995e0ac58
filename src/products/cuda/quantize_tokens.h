// Activations to E4M3 with a scale per token and 128 channels, as hopper/fp8_gemm.h reads them: the
// same bits as QuantizeRun (quant/e4m3.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fathom {

// Where the codes go.
struct QuantizedOut {
  uint8_t* codes = nullptr;  // E4M3 [tokens, channels]; aligned to 16 bytes
  float* scales = nullptr;   // F32 [ceil(channels / 128), scale_pitch]
  int64_t scale_pitch = 0;
  bool scale_ue8m0 = false;
};

struct QuantizeTokensParams {
  const void* x = nullptr;  // [capacity, channels] BF16, tokens `stride` apart; 16-byte aligned
  bool x_f32 = false;       // x is F32 instead; only without places
  int64_t stride = 0;       // a multiple of 8
  int64_t capacity = 0;
  int64_t channels = 0;           // a multiple of 16
  const int32_t* live = nullptr;  // [1]: tokens, on the device
  // Token t goes to tokens places[t * copies + 0 .. copies) of the output; null: to token t.
  const int32_t* places = nullptr;
  int32_t copies = 1;
  QuantizedOut out;
};
void LaunchQuantizeTokens(const QuantizeTokensParams& params, cudaStream_t stream);

}  // namespace fathom
