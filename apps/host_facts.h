// What the hosts of an engine compare before they begin.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backends.h"
#include "checkpoint/checkpoint.h"
#include "hosts/hosts.h"

namespace fathom {

// Of what is too long to compare in words.
std::string HashOf(std::string_view text);

// The build, the model (by its configuration, its tensors' places and the numbers of the small
// ones, which differ between models of one shape), the op table, and what all hosts must have alike
// of a backend's flags.
Result<HostFacts> FactsOf(const BackendSettings& settings, std::string_view ops,
                          const Checkpoint& checkpoint);

// Joins the hosts that `options` names, `others` being what else they must have alike; null if
// there is but one.
Result<std::unique_ptr<Hosts>> JoinHosts(const HostsOptions& options,
                                         const BackendSettings& settings, std::string_view ops,
                                         const Checkpoint& checkpoint, HostFacts others);

// From here on, until something else listens, a lost host ends this process with a word: what GPUs
// of hosts do together waits for it for ever.
void EndWithLostHost(Hosts& hosts);

}  // namespace fathom
