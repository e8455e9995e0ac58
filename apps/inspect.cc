// `fathom inspect`: what a checkpoint is, and whether it is whole.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstdio>
#include <map>
#include <memory>

#include "base/printable.h"
#include "chat/chat_template.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/folder.h"
#include "checkpoint/schema.h"
#include "commands.h"
#include "engine_flags.h"
#include "inspect_ranks.h"
#include "tokenizer/tokenizer.h"

namespace fathom {
namespace {

struct InspectOptions {
  std::string model;
  bool json = false;
  bool tensors = false;
  ParallelLayout layout;
};

struct FileSummary {
  uint64_t bytes = 0;
  int64_t tensors = 0;
};

struct Summary {
  int64_t parameters = 0;         // without the MTP layers; scales are not counted
  int64_t active_parameters = 0;  // those that a token meets: the shared ones and its experts
  int64_t mtp_parameters = 0;     // but for its copies of embedding and head
  std::map<std::string, uint64_t> bytes_by_dtype;  // of the model's tensors, scales included
  std::vector<FileSummary> files;                  // as Checkpoint::files()
  int64_t ignored_tensors = 0;
  int64_t moe_layers = 0;          // without the MTP layers
  int64_t kv_bytes_per_token = 0;  // BF16, MTP layers included
};

// What serving needs beside the weights.
struct TextSide {
  int32_t vocab_size = 0;
  bool chat = false;  // there is a chat template
};

Result<TextSide> InspectText(const Checkpoint& checkpoint) {
  const auto tokenizer = TRY(Tokenizer::Load(checkpoint.folder()));
  if (tokenizer->vocab_size() > checkpoint.config().vocab_size) {
    return DataLoss("the tokenizer has {} tokens, the model {}", tokenizer->vocab_size(),
                    checkpoint.config().vocab_size);
  }
  const std::string& source = tokenizer->chat_template();
  if (!source.empty()) {
    const Result<ChatTemplate> parsed = ChatTemplate::Parse(source);
    if (!parsed.ok()) return parsed.status().WithContext("the chat template");
  }
  return TextSide{.vocab_size = tokenizer->vocab_size(), .chat = !source.empty()};
}

boost::json::object ToJson(const Result<TextSide>& text) {
  if (!text.ok()) return {{"error", text.status().message()}};
  return {{"vocab_size", text->vocab_size}, {"chat_template", text->chat}};
}

Summary Summarise(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  Summary s;
  int64_t expert_parameters = 0;
  for (const SchemaEntry& entry : ExpectedTensors(config)) {
    if (!checkpoint.Has(entry.name)) continue;
    const int64_t elements = checkpoint.Get(entry.name).values.elements();
    if (entry.layer >= config.num_layers) {
      // Of an MTP layer these alone may be missing: they repeat the model's embedding and head.
      if (entry.rule->optional == nullptr) s.mtp_parameters += elements;
    } else {
      s.parameters += elements;
      if (entry.expert >= 0) expert_parameters += elements;
    }
  }
  s.active_parameters = s.parameters;
  if (config.n_routed_experts > 0) {
    const int64_t per_expert = expert_parameters / config.n_routed_experts;
    s.active_parameters += per_expert * config.num_experts_per_tok - expert_parameters;
  }
  s.files.resize(checkpoint.files().size());
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    FileSummary& file = s.files[static_cast<size_t>(tensor.file)];
    file.bytes += tensor.bytes;
    ++file.tensors;
    if (tensor.in_schema) {
      s.bytes_by_dtype[tensor.dtype_name] += tensor.bytes;
    } else {
      ++s.ignored_tensors;
    }
  }
  for (int layer = 0; layer < config.num_layers; ++layer) s.moe_layers += config.IsMoeLayer(layer);
  s.kv_bytes_per_token = int64_t{2} * config.latent_dim() * config.total_layers();
  return s;
}

// 25876728 -> "25.9 MB"; also for counts, with an empty unit.
std::string Scaled(uint64_t count, std::string_view unit) {
  double value = static_cast<double>(count);
  std::string_view prefix = "";
  for (const std::string_view next : {"k", "M", "G", "T"}) {
    if (value < 1000) break;
    value /= 1000;
    prefix = next;
  }
  if (prefix.empty())
    return unit.empty() ? fmt::format("{}", count) : fmt::format("{} {}", count, unit);
  return fmt::format("{:.{}f} {}{}", value, value < 10 ? 2 : 1, prefix, unit);
}

std::string Parameters(int64_t count) {
  if (count >= 1'000'000'000)
    return fmt::format("{:.1f} billion", static_cast<double>(count) / 1e9);
  return fmt::format("{:.1f} million", static_cast<double>(count) / 1e6);
}

std::string_view SelectionName(RouterConfig::Selection selection) {
  switch (selection) {
    case RouterConfig::kGreedy: return "greedy";
    case RouterConfig::kGroupMax: return "group_limited_greedy";
    case RouterConfig::kGroupTopTwoBiased: return "noaux_tc";
  }
  return "unknown";
}

std::string_view ScoringName(RouterConfig::Scoring scoring) {
  return scoring == RouterConfig::kSigmoid ? "sigmoid" : "softmax";
}

template <class... Args>
void Line(std::string_view label, fmt::format_string<Args...> format, Args&&... args) {
  fmt::print("  {:<14}{}\n", label, fmt::format(format, std::forward<Args>(args)...));
}

void PrintModel(const ModelConfig& c, const Summary& s) {
  Line("architecture", "{}", c.model_type);
  Line("layers", "{} ({} dense, {} MoE){}", c.num_layers, c.num_layers - s.moe_layers, s.moe_layers,
       c.num_mtp_layers > 0 ? fmt::format(", and {} for multi-token prediction", c.num_mtp_layers)
                            : "");
  Line("sizes", "hidden {}, dense MLP {}, vocabulary {}, context {} tokens", c.hidden_size,
       c.intermediate_size, c.vocab_size, c.max_position_embeddings);
  Line("attention", "{}: queries and keys {} + {} rotary, values {}; latent {}; queries {}",
       Counted(c.num_heads, "head"), c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim,
       c.kv_lora_rank, c.q_lora_rank > 0 ? fmt::format("of rank {}", c.q_lora_rank) : "in full");
  if (c.n_routed_experts > 0) {
    const RouterConfig& r = c.router;
    Line("experts", "{} of {} per token, and {} shared; MLP {}", c.num_experts_per_tok,
         c.n_routed_experts, c.n_shared_experts, c.moe_intermediate_size);
    Line("router", "{}, {}, {} of {}, weights {}, scaled by {}", ScoringName(r.scoring),
         SelectionName(r.selection), r.topk_group, Counted(r.n_group, "group"),
         r.norm_topk_prob ? "normalised" : "as they are", r.routed_scaling_factor);
  }
  Line("rotary", "theta {}{}", c.rope_theta,
       c.yarn ? fmt::format(", YaRN x{} from {} tokens", c.yarn->factor,
                            c.yarn->original_max_position_embeddings)
              : "");
  if (c.fp8) {
    Line("quantisation", "FP8 (E4M3) in tiles of 128 x 128, activation scales {}",
         c.scale_ue8m0 ? "rounded up to powers of two (ue8m0)" : "in fp32");
  }
}

void PrintText(const Checkpoint& checkpoint, const Summary& s, const Result<TextSide>& text) {
  const ModelConfig& c = checkpoint.config();
  fmt::print("{}\n", checkpoint.folder());
  PrintModel(c, s);
  Line("parameters", "{}, {} active per token{}", Parameters(s.parameters),
       Parameters(s.active_parameters),
       s.mtp_parameters > 0
           ? fmt::format("; {} more for multi-token prediction", Parameters(s.mtp_parameters))
           : "");
  std::vector<std::string> parts;
  for (const auto& [dtype, bytes] : s.bytes_by_dtype) {
    parts.push_back(fmt::format("{} {}", dtype, Scaled(bytes, "B")));
  }
  Line("weights", "{}: {}", Scaled(checkpoint.total_bytes(), "B"), fmt::join(parts, ", "));
  Line("KV cache",
       "{} bytes per token in BF16, twice that in fp32, {} in FP8 ({} for the whole context in "
       "BF16)",
       s.kv_bytes_per_token,
       c.total_layers() * (c.kv_lora_rank + int64_t{sizeof(float)} + 2 * c.qk_rope_head_dim),
       Scaled(static_cast<uint64_t>(s.kv_bytes_per_token * c.max_position_embeddings), "B"));
  for (size_t i = 0; i < s.files.size(); ++i) {
    Line(i == 0 ? "files" : "", "{}: {}, {}", checkpoint.files()[i],
         Counted(s.files[i].tensors, "tensor"), Scaled(s.files[i].bytes, "B"));
  }
  if (text.ok()) {
    Line("tokenizer", "{} tokens, {}", text->vocab_size,
         text->chat ? "with a chat template" : "no chat template: completions only");
  }
  for (const std::string& warning : checkpoint.warnings()) Line("note", "{}", warning);
  Line("checked", "every tensor that the model needs is there, of the right shape and type");
}

void PrintTensors(const Checkpoint& checkpoint) {
  std::map<std::string_view, const TensorRule*> rules;
  const std::vector<SchemaEntry> expected = ExpectedTensors(checkpoint.config());
  for (const SchemaEntry& entry : expected) rules.emplace(entry.name, entry.rule);
  fmt::print("\n{:<62} {:<8} {:<16} {:>12}  {:<16} {}\n", "tensor", "type", "shape", "bytes",
             "sharded by", "file");
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    const auto rule = rules.find(tensor.name);
    const std::string_view axis = rule != rules.end() ? Name(rule->second->axis)
                                  : tensor.in_schema  ? "as its weight"
                                                      : "ignored";
    fmt::print("{:<62} {:<8} {:<16} {:>12}  {:<16} {}\n", Printable(tensor.name), tensor.dtype_name,
               fmt::format("[{}]", fmt::join(tensor.shape, ", ")), tensor.bytes, axis,
               checkpoint.files()[static_cast<size_t>(tensor.file)]);
  }
}

void PrintRanks(const ModelConfig& config, const std::vector<PartOfRank>& ranks) {
  if (ranks.size() < 2) return;
  fmt::print("\n{:<6}{:<7}{:<7}{:<12}{:<12}{:<12}{:<18}{:<16}{}\n", "rank", "stage", "group",
             "layers", "heads", "experts", "their channels", "vocabulary", "weights");
  const auto span = [](const Share& share) {
    return share.size() == 0 ? "none" : fmt::format("{}-{}", share.begin, share.end - 1);
  };
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const PartOfRank& part = ranks[rank];
    const bool has_vocabulary = part.has_embedding || part.has_head;
    const bool has_experts = config.n_routed_experts > 0;
    fmt::print("{:<6}{:<7}{:<7}{:<12}{:<12}{:<12}{:<18}{:<16}{}\n", rank, part.stage, part.group,
               span(part.layers), span(part.heads), has_experts ? span(part.experts) : "none",
               has_experts ? span(part.expert_channels) : "none",
               has_vocabulary ? span(part.vocabulary) : "none",
               Scaled(static_cast<uint64_t>(part.weight_bytes), "B"));
  }
}

boost::json::array ToJson(const std::vector<PartOfRank>& ranks) {
  boost::json::array json;
  const auto span = [](const Share& share) { return boost::json::array{share.begin, share.end}; };
  for (const PartOfRank& part : ranks) {
    json.push_back({{"stage", part.stage},
                    {"group", part.group},
                    {"layers", span(part.layers)},
                    {"heads", span(part.heads)},
                    {"experts", span(part.experts)},
                    {"expert_channels", span(part.expert_channels)},
                    {"vocabulary", span(part.vocabulary)},
                    {"embedding", part.has_embedding},
                    {"head", part.has_head},
                    {"weight_bytes", part.weight_bytes}});
  }
  return json;
}

boost::json::object ConfigJson(const ModelConfig& c) {
  boost::json::object json = {
      {"model_type", c.model_type},
      {"num_hidden_layers", c.num_layers},
      {"num_nextn_predict_layers", c.num_mtp_layers},
      {"hidden_size", c.hidden_size},
      {"intermediate_size", c.intermediate_size},
      {"moe_intermediate_size", c.moe_intermediate_size},
      {"vocab_size", c.vocab_size},
      {"num_attention_heads", c.num_heads},
      {"q_lora_rank", c.q_lora_rank},
      {"kv_lora_rank", c.kv_lora_rank},
      {"qk_nope_head_dim", c.qk_nope_head_dim},
      {"qk_rope_head_dim", c.qk_rope_head_dim},
      {"v_head_dim", c.v_head_dim},
      {"n_routed_experts", c.n_routed_experts},
      {"n_shared_experts", c.n_shared_experts},
      {"num_experts_per_tok", c.num_experts_per_tok},
      {"scoring_func", ScoringName(c.router.scoring)},
      {"topk_method", SelectionName(c.router.selection)},
      {"max_position_embeddings", c.max_position_embeddings},
      {"fp8", c.fp8},
      {"scale_fmt", c.scale_ue8m0 ? "ue8m0" : "float32"},
  };
  return json;
}

void PrintJson(const Checkpoint& checkpoint, const Summary& s, const Result<TextSide>& text,
               const std::vector<PartOfRank>& ranks, bool with_tensors) {
  boost::json::object by_dtype;
  for (const auto& [dtype, bytes] : s.bytes_by_dtype) by_dtype[dtype] = bytes;
  boost::json::array files, tensors, warnings;
  for (size_t i = 0; i < s.files.size(); ++i) {
    files.push_back({{"name", checkpoint.files()[i]},
                     {"tensors", s.files[i].tensors},
                     {"bytes", s.files[i].bytes}});
  }
  for (const std::string& warning : checkpoint.warnings()) warnings.emplace_back(warning);
  boost::json::object json = {{"folder", checkpoint.folder()},
                              {"config", ConfigJson(checkpoint.config())},
                              {"parameters", s.parameters},
                              {"active_parameters", s.active_parameters},
                              {"mtp_parameters", s.mtp_parameters},
                              {"weight_bytes", checkpoint.total_bytes()},
                              {"weight_bytes_by_dtype", by_dtype},
                              {"kv_bytes_per_token", s.kv_bytes_per_token},
                              {"ignored_tensors", s.ignored_tensors},
                              {"files", files},
                              {"tokenizer", ToJson(text)},
                              {"ranks", ToJson(ranks)},
                              {"warnings", warnings}};
  if (with_tensors) {
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      tensors.push_back({{"name", tensor.name},
                         {"dtype", tensor.dtype_name},
                         {"shape", boost::json::value_from(tensor.shape)},
                         {"bytes", tensor.bytes},
                         {"file", checkpoint.files()[static_cast<size_t>(tensor.file)]},
                         {"in_schema", tensor.in_schema}});
    }
    json["tensors"] = std::move(tensors);
  }
  fmt::print("{}\n", boost::json::serialize(json));
}

int Refuse(const InspectOptions& options, const Status& why) {
  if (options.json) {
    fmt::print("{}\n", boost::json::serialize(boost::json::object{{"error", why.message()}}));
  } else {
    fmt::print(stderr, "fathom inspect: {}\n", why.message());
  }
  return 1;
}

// And what is wrong with the tokenizer of the folder, so that both can be mended at once.
Status WithTokenizer(const std::string& model, const Status& why) {
  const Result<std::string> folder = ResolveFolder(model);
  if (!folder.ok()) return why;
  const auto tokenizer = Tokenizer::Load(*folder);
  if (tokenizer.ok()) return why;
  return DataLoss("{}\n{}", why.message(), tokenizer.status().message());
}

int Inspect(const InspectOptions& options) {
  const Result<Checkpoint> checkpoint = Checkpoint::Open(options.model);
  if (!checkpoint.ok()) return Refuse(options, WithTokenizer(options.model, checkpoint.status()));
  const Result<std::vector<PartOfRank>> ranks = PartsOfRanks(*checkpoint, options.layout);
  if (!ranks.ok()) return Refuse(options, ranks.status());
  const Summary summary = Summarise(*checkpoint);
  const Result<TextSide> text = InspectText(*checkpoint);
  if (options.json) {
    PrintJson(*checkpoint, summary, text, *ranks, options.tensors);
  } else {
    PrintText(*checkpoint, summary, text);
    PrintRanks(checkpoint->config(), *ranks);
    if (options.tensors) PrintTensors(*checkpoint);
    if (!text.ok()) {
      std::fflush(stdout);
      fmt::print(stderr, "fathom inspect: the weights are whole, but cannot be served: {}\n",
                 text.status().message());
    }
  }
  return text.ok() ? 0 : 1;
}

}  // namespace

void AddInspect(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "inspect", "Say what a checkpoint is, and list what is wrong with it, without loading it.");
  auto options = std::make_shared<InspectOptions>();
  command
      ->add_option("model", options->model,
                   "A Hugging Face folder or the hub id of one in its cache")
      ->required();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->add_flag("--tensors", options->tensors, "List every tensor");
  AddLayoutFlags(*command, &options->layout, "Say what each rank gets");
  command->callback([options, &exit_code] { exit_code = Inspect(*options); });
}

}  // namespace fathom
