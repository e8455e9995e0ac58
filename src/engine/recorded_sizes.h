// Which steps are recorded, on a device that replays.
#pragma once

#include <vector>

#include "model/batch.h"
#include "model/model.h"

namespace fathom {

// Their sizes, the smallest number of tokens first, of these the fewest drafts: of some numbers of
// rows, each with as many drafts in every row as are worth a record.
std::vector<BatchCapacity> RecordedSizes(const ModelOptions& options);

}  // namespace fathom
