// The files of gpu_types/, in the binary.
#pragma once

namespace fathom {

extern const char kH200Figures[];

}  // namespace fathom
