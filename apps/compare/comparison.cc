#include "comparison.h"

#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/printable.h"
#include "engine_answers.h"
#include "grammar/xgrammar_adapter.h"
#include "grammar_vocabulary.h"
#include "load_run.h"
#include "prompts.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr int32_t kStructuredTokens = 256;
constexpr char kStructuredPrompt[] =
    "Lisbon, and whether it lies on the coast, as a JSON object:\n";
// Every part is bounded, so that a model that knows no JSON ends too.
constexpr char kSchema[] = R"({"type": "object", "properties": {
  "name": {"type": "string", "maxLength": 12}, "coast": {"type": "boolean"}},
  "required": ["name", "coast"], "additionalProperties": false})";

std::string Text(const LoadedEngine& loaded, const std::vector<TokenId>& tokens) {
  return loaded.tokenizer->Decode(tokens, /*skip_special_tokens=*/true);
}

bool IsJson(const std::string& text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  return !error && value.is_object();
}

// The first token that a grammar forbids; nothing if it stands all of them.
Result<std::optional<size_t>> FirstForbidden(const Grammar& grammar,
                                             const std::vector<TokenId>& tokens) {
  const std::unique_ptr<GrammarState> state = TRY(grammar.Start());
  for (size_t i = 0; i < tokens.size() && !state->terminated(); ++i) {
    if (!TRY(state->Accept(tokens[i]))) return std::optional(i);
  }
  return std::optional<size_t>();
}

void ShowProgress(size_t done, size_t all) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r{} of {} prompts{}", done, all, done == all ? "\n" : "");
  std::fflush(stderr);
}

class Comparing {
 public:
  Comparing(const CompareOptions& options, const ComparedServers& servers, LoadedEngine& loaded,
            EngineOutputs& outputs)
      : options_(options),
        server_(servers.server),
        against_(servers.against),
        loaded_(loaded),
        engine_(*loaded.engine, outputs, options.server.top) {}

  Result<Comparison> Run();

 private:
  Status AskPrompts(const std::vector<ComparePrompt>& prompts);
  Status AskTokenizer(const std::vector<ComparePrompt>& prompts);
  Status AskStructured();
  Status RunLoads();
  Result<LoadSummary> Load(const std::string& url, const std::string& model, int32_t concurrency);

  const CompareOptions& options_;
  AskedServer& server_;
  const AskedServer* const against_;
  LoadedEngine& loaded_;
  EngineAnswers engine_;
  Comparison result_;
};

Status Comparing::AskPrompts(const std::vector<ComparePrompt>& prompts) {
  const std::optional<DraftCounts> before = server_.Drafts();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const ComparePrompt& prompt = prompts[i];
    ShowProgress(i, prompts.size());
    const auto in_prompt = [&](const Status& status) {
      return status.WithContext("prompt " + prompt.name);
    };
    Exchanged exchanged;
    Result<Answer> theirs = server_.Greedy(prompt.tokens, options_.max_tokens);
    if (!theirs.ok()) return in_prompt(theirs.status());
    exchanged.theirs = *std::move(theirs);
    if (exchanged.theirs.tokens.size() > static_cast<size_t>(options_.max_tokens)) {
      return in_prompt(Unavailable("the server generated {} tokens, and was asked for {}",
                                   exchanged.theirs.tokens.size(), options_.max_tokens));
    }
    const Result<Answer> again = server_.Greedy(prompt.tokens, options_.max_tokens);
    if (!again.ok()) return in_prompt(again.status());
    result_.repeats.Add(exchanged.theirs.tokens, again->tokens);
    Result<Answer> ours = engine_.Follow(prompt.tokens, exchanged.theirs.tokens);
    if (!ours.ok()) return in_prompt(ours.status());
    exchanged.ours = *std::move(ours);
    result_.prompts.push_back(
        {.name = prompt.name, .tokens = prompt.tokens.size(), .agreement = Compare(exchanged, i)});
    result_.all.Add(result_.prompts.back().agreement);
  }
  ShowProgress(prompts.size(), prompts.size());
  const std::optional<DraftCounts> after = server_.Drafts();
  if (before && after) result_.their_drafts = *after - *before;
  if (loaded_.engine->Stats().drafts.decodes > 0) {
    const DraftStats drafts = loaded_.engine->Stats().drafts;
    result_.our_drafts = {static_cast<double>(drafts.decodes), static_cast<double>(drafts.proposed),
                          static_cast<double>(drafts.accepted)};
  }
  return {};
}

Status Comparing::AskTokenizer(const std::vector<ComparePrompt>& prompts) {
  for (const ComparePrompt& prompt : prompts) {
    const std::optional<std::vector<TokenId>> tokens = TRY(server_.Tokenize(prompt));
    if (!tokens) continue;
    ++result_.tokenizers.asked;
    if (*tokens != prompt.tokens) result_.tokenizers.differing.push_back(prompt.name);
  }
  return {};
}

Status Comparing::AskStructured() {
  const std::vector<TokenId> prompt = TRY(EncodeText(loaded_, kStructuredPrompt));
  if (loaded_.engine->max_model_len() < static_cast<int32_t>(prompt.size()) + kStructuredTokens) {
    return {};
  }
  StructuredCheck& check = result_.structured.emplace();
  const Result<Answer> theirs = server_.Structured(prompt, kSchema, kStructuredTokens);
  if (!theirs.ok()) {
    if (theirs.status().code() != StatusCode::kUnimplemented) return theirs.status();
    check.refusal = theirs.status().message();
    return {};
  }
  const std::shared_ptr<const Grammar> grammar = TRY(MakeXgrammarCompile(VocabularyOf(loaded_))(
      {.kind = GrammarKind::kJsonSchema, .text = kSchema}));
  std::vector<TokenId> ours =
      TRY(engine_.Structured(prompt, grammar, loaded_.eos, kStructuredTokens));
  std::vector<TokenId> drawn;
  for (const GeneratedToken& token : theirs->tokens) drawn.push_back(token.id);
  check.forbidden_at = TRY(FirstForbidden(*grammar, drawn));
  check.our_json = IsJson(Text(loaded_, ours));
  check.their_json = IsJson(Text(loaded_, drawn));
  // Some servers say the token that ended an answer, others do not.
  for (std::vector<TokenId>* tokens : {&ours, &drawn}) {
    const auto& eos = loaded_.eos;
    if (!tokens->empty() && std::find(eos.begin(), eos.end(), tokens->back()) != eos.end()) {
      tokens->pop_back();
    }
  }
  check.our_tokens = ours.size();
  check.their_tokens = drawn.size();
  const auto parting = std::mismatch(ours.begin(), ours.end(), drawn.begin(), drawn.end());
  check.equal_tokens = static_cast<size_t>(parting.first - ours.begin());
  return {};
}

Result<LoadSummary> Comparing::Load(const std::string& url, const std::string& model,
                                    int32_t concurrency) {
  LoadOptions load;
  load.base_url = url;
  load.max_concurrency = concurrency;
  load.source = {.model = model,
                 .dataset_path = "",
                 .num_prompts = std::max(4, 2 * concurrency),
                 .input_len = options_.load_input_len,
                 .output_len = options_.load_output_len,
                 .vocab_size = std::min(static_cast<int32_t>(loaded_.config.vocab_size), 1000),
                 // Prompts that no load before has left in a cache.
                 .seed = static_cast<uint64_t>(concurrency)};
  const Target target =
      TRY(Target::Resolve(url, options_.server.api_key, options_.server.timeout_s));
  const RequestSource source = TRY(RequestSource::Make(load.source));
  LoadRun run(load, target, source);
  const int64_t count = load.source.num_prompts;
  run.Run(count, 1, INFINITY);  // the first of a kind may cost more
  const LoadSummary summary = Summarize(run.Run(0, count, INFINITY), {});
  if (summary.completed > 0) return summary;
  return Unavailable("{}: no request of the load of {} was answered: {}", url, concurrency,
                     summary.errors.empty() ? "" : Printable(summary.errors.front(), 300));
}

Status Comparing::RunLoads() {
  for (const int32_t concurrency : options_.loads) {
    LoadCheck check{.concurrency = concurrency, .server = {}, .against = {}};
    check.server = TRY(Load(options_.server.url, server_.model(), concurrency));
    if (against_ != nullptr) {
      check.against = TRY(Load(options_.against, against_->model(), concurrency));
    }
    result_.loads.push_back(std::move(check));
  }
  return {};
}

Result<Comparison> Comparing::Run() {
  server_.SetVocabulary(static_cast<int32_t>(loaded_.config.vocab_size));
  const ComparePrompts prompts = TRY(MakePrompts(options_.prompts, loaded_, options_.max_tokens));
  result_.our_model = loaded_.model_name;
  result_.our_ops = loaded_.backend.ops->name;
  result_.their_model = server_.model();
  result_.their_owner = server_.owner();
  result_.left_out = prompts.left_out;
  TRY(AskTokenizer(prompts.prompts));
  TRY(AskPrompts(prompts.prompts));
  result_.prompt_source = server_.prompt_source();
  result_.judgement = Judge(result_.all, options_.limits);
  TRY(AskStructured());
  TRY(RunLoads());
  return std::move(result_);
}

}  // namespace

Result<Comparison> RunComparison(const CompareOptions& options, const ComparedServers& servers,
                                 LoadedEngine& loaded, EngineOutputs& outputs) {
  return Comparing(options, servers, loaded, outputs).Run();
}

}  // namespace fathom
