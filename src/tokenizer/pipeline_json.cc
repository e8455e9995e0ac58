#include "tokenizer/pipeline_json.h"

#include <boost/json.hpp>

#include "tokenizer/regex_syntax.h"

namespace fathom {
namespace {

// How GPT-2 cuts text, which ByteLevel does by default.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Status RefuseType(const JsonAt& at, std::string_view what, std::string_view type,
                  std::string_view supported) {
  return Unimplemented("{}: the {} '{}' is not supported (supported: {})", at.path(), what, type,
                       supported);
}

Result<SplitBehavior> ReadBehavior(const JsonAt& at) {
  const std::string_view name = TRY(at.String());
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return RefuseType(at, "behaviour", name,
                    "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

Result<Regex> CompileAt(const JsonAt& at, std::string_view pattern) {
  Result<Regex> regex = Regex::Compile(pattern);
  if (!regex.ok()) return regex.status().WithContext(at.path());
  return regex;
}

Status ReadSplit(const JsonAt& at, PreTokenizer* pre_tokenizer) {
  const JsonAt pattern = at["pattern"];
  const JsonAt text = pattern["String"], regex = pattern["Regex"];
  if (text.present() == regex.present()) {
    return InvalidArgument("{} should be {{\"Regex\": ...}} or {{\"String\": ...}}",
                           pattern.path());
  }
  const std::string_view given = TRY((text.present() ? text : regex).String());
  if (given.empty()) {
    return InvalidArgument("{} is empty, which splits nothing: remove the step", pattern.path());
  }
  pre_tokenizer->AddSplit(
      TRY(CompileAt(pattern, text.present() ? EscapeRegex(given) : std::string(given))),
      TRY(ReadBehavior(at["behavior"])), TRY(at["invert"].Bool(false)));
  return {};
}

Status ReadDigits(const JsonAt& at, PreTokenizer* pre_tokenizer) {
  const bool individual = TRY(at["individual_digits"].Bool(false));
  pre_tokenizer->AddSplit(TRY(CompileAt(at, R"(\p{N})")),
                          individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                          /*inverted=*/false);
  return {};
}

Status ReadByteLevel(const JsonAt& at, PreTokenizer* pre_tokenizer) {
  if (TRY(at["add_prefix_space"].Bool(true))) pre_tokenizer->AddPrefixSpace();
  if (TRY(at["use_regex"].Bool(true))) {
    pre_tokenizer->AddSplit(TRY(CompileAt(at, kByteLevelPattern)), SplitBehavior::kIsolated,
                            /*inverted=*/false);
  }
  return {};
}

// The steps of a Sequence, nested ones included, in order.
Status Flatten(const JsonAt& at, std::string_view member, std::vector<JsonAt>* steps) {
  const std::string_view type = TRY(at["type"].String());
  if (type != "Sequence") {
    steps->push_back(at);
    return {};
  }
  for (const JsonAt& step : TRY(at[member].Array())) TRY(Flatten(step, member, steps));
  return {};
}

}  // namespace

Status CheckNormalizer(const JsonAt& at) {
  if (!at.present()) return {};
  std::vector<JsonAt> steps;
  TRY(Flatten(at, "normalizers", &steps));
  if (steps.empty()) return {};
  return RefuseType(steps[0], "normaliser", TRY(steps[0]["type"].String()), "none");
}

Status CheckDecoder(const JsonAt& at) {
  if (!at.present()) {
    return Unimplemented("{} is absent: only the decoder 'ByteLevel' is supported", at.path());
  }
  const std::string_view type = TRY(at["type"].String());
  return type == "ByteLevel" ? Status() : RefuseType(at, "decoder", type, "ByteLevel");
}

Status ReadPreTokenizer(const JsonAt& at, PreTokenizer* pre_tokenizer) {
  static constexpr std::string_view kSupported = "Sequence, Split, Digits, ByteLevel";
  std::vector<JsonAt> steps;
  if (at.present()) TRY(Flatten(at, "pretokenizers", &steps));
  bool byte_level = false;
  for (const JsonAt& step : steps) {
    const std::string_view type = TRY(step["type"].String());
    if (byte_level) {
      return Unimplemented("{}: a step after 'ByteLevel' is not supported; ByteLevel comes last",
                           step.path());
    }
    if (type == "Split") {
      TRY(ReadSplit(step, pre_tokenizer));
    } else if (type == "Digits") {
      TRY(ReadDigits(step, pre_tokenizer));
    } else if (type == "ByteLevel") {
      TRY(ReadByteLevel(step, pre_tokenizer));
      byte_level = true;
    } else {
      return RefuseType(step, "pre-tokeniser", type, kSupported);
    }
  }
  if (!byte_level) {
    return Unimplemented("{} has no 'ByteLevel' step: only byte-level BPE is supported", at.path());
  }
  return {};
}

namespace {

// The ids that a template's special token stands for.
Status AppendTemplateIds(const JsonAt& processor, const JsonAt& piece, const Vocabulary& vocabulary,
                         std::vector<TokenId>* ids) {
  const std::string_view name = TRY(piece["id"].String());
  const JsonAt token = processor["special_tokens"][name];
  for (const JsonAt& item : TRY(token["ids"].Array())) {
    const int64_t id = TRY(item.Integer());
    if (id < 0 || id >= vocabulary.size() ||
        !vocabulary[TokenId{static_cast<int32_t>(id)}].exists) {
      return InvalidArgument("{} is {}, which is no token of the vocabulary", item.path(), id);
    }
    ids->push_back(TokenId{static_cast<int32_t>(id)});
  }
  return {};
}

// "single": what stands before and after the sequence A. The template goes around what earlier
// processors put there.
Status ReadTemplate(const JsonAt& at, TokenizerParts* parts) {
  std::vector<TokenId> before, after;
  bool seen = false;
  for (const JsonAt& piece : TRY(at["single"].Array())) {
    const JsonAt sequence = piece["Sequence"], special = piece["SpecialToken"];
    if (special.present()) {
      TRY(AppendTemplateIds(at, special, parts->vocabulary, seen ? &after : &before));
    } else if (!sequence.present() || TRY(sequence["id"].String()) != "A" || seen) {
      return InvalidArgument("{} should be a SpecialToken or the only Sequence 'A'", piece.path());
    } else {
      seen = true;
    }
  }
  if (!seen) return InvalidArgument("{} lacks the Sequence 'A'", at["single"].path());
  parts->prefix.insert(parts->prefix.begin(), before.begin(), before.end());
  parts->suffix.insert(parts->suffix.end(), after.begin(), after.end());
  return {};
}

}  // namespace

Status ReadPostProcessor(const JsonAt& at, TokenizerParts* parts) {
  if (!at.present()) return {};
  std::vector<JsonAt> steps;
  TRY(Flatten(at, "processors", &steps));
  for (const JsonAt& step : steps) {
    const std::string_view type = TRY(step["type"].String());
    if (type == "TemplateProcessing") {
      TRY(ReadTemplate(step, parts));
    } else if (type != "ByteLevel") {
      return RefuseType(step, "post-processor", type, "Sequence, ByteLevel, TemplateProcessing");
    }
  }
  return {};
}

}  // namespace fathom
