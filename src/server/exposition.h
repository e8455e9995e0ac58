// What /metrics says of a registry.
#pragma once

#include <prometheus/registry.h>

#include <string>

namespace fathom {

// Bounds of histograms' buckets that are whole have a ".0" (le="1.0"), as in Prometheus' Python
// client and so in vLLM's metrics, whose boards ask for them by this text.
std::string Exposition(const prometheus::Registry& registry);

}  // namespace fathom
