#include "sequence_runner.h"

#include <memory>
#include <numeric>

namespace fathom {
namespace {
int64_t PagesFor(const Model& model) {
  return (model.options().max_model_len + kPageTokens - 1) / kPageTokens;
}
}  // namespace

SequenceRunner::SequenceRunner(Model& model, Device& device)
    : model_(model),
      device_(device),
      pool_(model.kv_format(), model.config().total_layers(), PagesFor(model), device),
      slots_({.slots = 1, .vocab = model.config().vocab_size, .max_pages = PagesFor(model)},
             device),
      inputs_({.rows = 1, .tokens = model.options().max_tokens}, device),
      sampler_({.logit_rows = model.options().max_logit_rows,
                .pass_rows = model.options().max_logit_rows,
                .vocab = model.config().vocab_size,
                .hidden = model.config().hidden_size},
               model.runner().ops(), device) {}

void SequenceRunner::Restart() {
  length_ = 0;
  slots_.Open({.slot = SlotId{0}, .params = std::make_shared<const RequestParams>()});
  // Pages in falling order, so that a mix-up of page and position shows.
  std::vector<PageId> pages(static_cast<size_t>(pool_.pages()));
  for (size_t i = 0; i < pages.size(); ++i) {
    pages[i] = PageId{static_cast<int32_t>(pages.size() - 1 - i)};
  }
  slots_.SetPages(SlotId{0}, 0, pages);
}

Batch SequenceRunner::BuildRow(std::span<const TokenId> tokens, int64_t position) {
  const auto count = static_cast<int64_t>(tokens.size());
  const BatchRow row{.slot = SlotId{0},
                     .form = count > model_.options().absorbed_row_limit ? AttentionForm::kExpanded
                                                                         : AttentionForm::kAbsorbed,
                     .begin = static_cast<int32_t>(position),
                     .tokens = tokens};
  const Batch batch = inputs_.Stage({&row, 1}, slots_.state());
  inputs_.Prepare(model_.runner(), batch, slots_.state());
  return batch;
}

TensorView SequenceRunner::Forward(std::span<const TokenId> tokens) {
  const Batch batch = BuildRow(tokens, length_);
  length_ += static_cast<int64_t>(tokens.size());
  return model_.Forward(batch, pool_);
}

TensorView SequenceRunner::ForwardMtp(std::span<const TokenId> next, const TensorView& hidden) {
  return model_.ForwardMtp(0, BuildRow(next, length_ - static_cast<int64_t>(next.size())), hidden,
                           pool_);
}

std::vector<float> SequenceRunner::Logits(const TensorView& hidden, int64_t first, int64_t count) {
  const int64_t vocab = model_.config().vocab_size;
  std::vector<float> logits(static_cast<size_t>(count * vocab));
  for (int64_t at = 0; at < count; at += sampler_.pass_rows()) {
    const int64_t rows = std::min(sampler_.pass_rows(), count - at);
    std::vector<int32_t> index(static_cast<size_t>(rows));
    std::iota(index.begin(), index.end(), static_cast<int32_t>(first + at));
    const LogitPass pass = sampler_.Stage(index);
    model_.Logits(sampler_.Gather(pass, hidden), pass.live, sampler_.logits(pass));
    device_.Download(std::as_writable_bytes(std::span(logits).subspan(
                         static_cast<size_t>(at * vocab), static_cast<size_t>(rows * vocab))),
                     sampler_.logits(pass));
  }
  device_.stream().Synchronize();
  CHECK(device_.status().ok(), "{}", device_.status().message());
  return logits;
}

}  // namespace fathom
