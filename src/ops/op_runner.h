// Runs ops with a shared work space, or measures how large it must be.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>

#include "base/activity.h"
#include "ops/ops.h"
#include "tensor/device.h"

namespace fathom {

// "rms_norm", of the type RmsNormArgs.
std::string OpName(const std::type_info& args);

// Code that calls ops through a runner is run once with `measuring` on (only capacities count),
// then Allocate()d for good.
class OpRunner {
 public:
  OpRunner(const Ops& ops, Device& device) : ops_(ops), device_(device) {}

  const Ops& ops() const { return ops_; }
  Device& device() { return device_; }

  template <class Args>
  void operator()(const Op<Args>& op, const Args& args) {
    if (memory_ == nullptr) {
      needed_ = std::max(needed_, op.Workspace(device_.stream(), args));
      return;
    }
    CHECK(op.Workspace(device_.stream(), args) <= memory_->size(), "work space was not measured");
    OpContext context{device_.stream(), {memory_->data(), memory_->size()}};
    current_activity.describe = Describe<Args>;
    current_activity.arguments = &args;
    op(context, args);
    current_activity.arguments = nullptr;
  }

  // Ends measuring.
  void Allocate() { memory_ = device_.Allocate(std::max<size_t>(needed_, 64)); }
  size_t workspace_bytes() const { return needed_; }

 private:
  // "linear of BF16 [8, 2048]": an op's first argument is a tensor, or a struct that begins with
  // one.
  template <class Args>
  static std::string Describe(const void* args) {
    static_assert(std::is_standard_layout_v<Args> && std::is_constructible_v<Args> &&
                  requires { Args{TensorView()}; });
    const auto* first = static_cast<const TensorView*>(args);
    return OpName(typeid(Args)) + (args == nullptr ? "" : " of " + first->ToString());
  }

  const Ops& ops_;
  Device& device_;
  size_t needed_ = 0;
  std::unique_ptr<DeviceMemory> memory_;  // null while measuring
};

}  // namespace fathom
