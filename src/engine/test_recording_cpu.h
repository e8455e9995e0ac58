// A CPU that says of itself that it records, so that steps are padded and replayed as on a GPU.
#pragma once

#include "cpu/cpu_device.h"

namespace fathom {

class RecordingCpu final : public CpuDevice {
 public:
  using CpuDevice::CpuDevice;
  bool records() const override { return true; }
};

}  // namespace fathom
