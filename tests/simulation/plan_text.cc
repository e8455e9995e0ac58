#include "simulation/plan_text.h"

#include <fmt/format.h>

namespace fathom::simulation {
namespace {

std::string ToString(const SlotOpening& opening) {
  return fmt::format("  slot {} opens for request {}: {} + {} tokens, from {} to {} at most\n",
                     Raw(opening.slot), Raw(opening.request), opening.params->prompt.size(),
                     opening.generated.size(), opening.length, opening.final_length);
}

std::string ToString(const StepRow& row) {
  std::string text = fmt::format("  slot {} request {} ", Raw(row.slot), Raw(row.request));
  if (row.is_decode()) {
    text += fmt::format("decode + {} drafts", row.drafts);
  } else {
    text +=
        fmt::format("{} {} + {}", row.form == AttentionForm::kExpanded ? "expanded" : "absorbed",
                    row.begin, row.tokens.size());
  }
  if (!row.new_pages.empty()) text += fmt::format(", pages[{}..]", row.first_new_page);
  for (PageId page : row.new_pages) text += fmt::format(" {}", Raw(page));
  if (row.samples && !row.is_decode()) text += ", samples";
  if (row.prompt_logprobs) text += ", scores";
  return text + "\n";
}

}  // namespace

std::string ToString(const StepPlan& plan) {
  std::string text = fmt::format("step {}\n", plan.step);
  for (const SlotOpening& opening : plan.openings) text += ToString(opening);
  for (const StepRow& row : plan.rows) text += ToString(row);
  return text;
}

std::string ToString(const StepResult& result) {
  std::string text = fmt::format("step {} brought", result.step);
  for (const RowResult& row : result.rows) {
    text += " [";
    if (!row.status.ok()) text += row.status.message();
    for (const GeneratedToken& token : row.tokens) text += fmt::format(" {}", Raw(token.id));
    text += " ]";
  }
  return text + "\n";
}

}  // namespace fathom::simulation
