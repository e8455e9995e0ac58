#include "server/generation.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace fathom {

namespace json = boost::json;

namespace {

// Of JSON, roughly: of a token, and of a log-probability with the token that it is of; of each byte
// of that token where it is known, which a chat shows as text and as a number.
constexpr size_t kTokenBytes = 32, kLogprobBytes = 96, kBareLogprobBytes = 72, kNameBytes = 5;

double Seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// The first choice has the request's own seed; the others have numbers that follow from it.
uint64_t ChoiceSeed(uint64_t seed, uint32_t choice) {
  if (choice == 0) return seed;
  const std::array<uint32_t, 4> mixed = Philox4x32(
      {choice, 0, 0, 0}, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return uint64_t{mixed[1]} << 32 | mixed[0];
}

}  // namespace

const char* FinishName(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

Generation::Generation(GenerationSetup&& setup, const char* object_name)
    : setup_(std::move(setup)),
      object_name_(object_name),
      created_(std::time(nullptr)),
      arrival_ns_(setup_.clock->NowNs()),
      grammar_(setup_.token_grammar) {
  const GenerationParams& params = setup_.params;
  text_options_ = {
      .skip_special_tokens = params.skip_special_tokens,
      .kept_special = setup_.kept_special,
      .include_stop = params.include_stop_str_in_output,
      .min_tokens = params.min_tokens,
      .stop = params.stop.empty() ? nullptr : std::make_shared<const StopStrings>(params.stop)};
  open_choices_ = setup_.prompts.size() * params.n;
  choices_.reserve(open_choices_);
  for (size_t i = 0; i < open_choices_; ++i) {
    choices_.push_back({.text = TextStream(*setup_.tokenizer, text_options_)});
  }
}

Generation::~Generation() = default;

std::vector<GenerateRequest> Generation::Requests() const {
  CHECK(!asked_grammar() || grammar_ != nullptr, "a request without its grammar");
  const GenerationParams& params = setup_.params;
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < choices_.size(); ++i) {
    GenerateRequest request;
    request.client = setup_.places.client();
    request.priority = params.priority;
    request.cache_salt = params.cache_salt;
    request.prompt = prompt(i).tokens;
    request.sampling = params.sampling;
    request.stop_tokens = params.stop_token_ids;
    request.max_tokens = std::max(prompt(i).max_tokens, 1);
    request.min_tokens = std::min(params.min_tokens, request.max_tokens);
    request.sampling.seed = ChoiceSeed(params.sampling.seed, static_cast<uint32_t>(i % params.n));
    if (!params.ignore_eos) {
      for (const TokenId eos : setup_.eos_tokens) {
        const auto& have = request.stop_tokens;
        if (std::find(have.begin(), have.end(), eos) == have.end()) {
          request.stop_tokens.push_back(eos);
        }
      }
    }
    request.grammar = grammar_;
    request.grammar_after = setup_.grammar_after;
    // Who asks computes the whole prompt: one choice does, and the others share its pages. A stream
    // may show another choice first, so that there each has its own.
    if (streams() || i == first_choice(i)) {
      request.prompt_logprobs = params.prompt_logprobs;
      if (prompt(i).echo) {
        request.prompt_logprobs = std::max(request.prompt_logprobs, params.sampling.logprobs);
      }
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

void Generation::TakeTokens(ChoiceState& choice, RequestOutput& output, Piece* piece) {
  for (size_t i = 0; i < output.tokens.size(); ++i) {
    GeneratedToken& token = output.tokens[i];
    const bool stop_token = output.finish == FinishReason::kStop && i + 1 == output.tokens.size();
    ++choice.tokens;
    piece->text += stop_token ? choice.text.PushStopToken(token.id) : choice.text.Push(token.id);
    const auto& eos = setup_.eos_tokens;
    if (stop_token &&
        (setup_.params.ignore_eos || std::find(eos.begin(), eos.end(), token.id) == eos.end())) {
      piece->stop_reason = Raw(token.id);
    }
    if (returns_token_ids()) choice.ids.push_back(token.id);
    logprob_bytes_ += LogprobsBytes(token);
    piece->tokens.push_back(std::move(token));
    if (choice.text.stopped()) break;
  }
  piece->finish = output.finish;
  if (!choice.text.stopped() && output.finish) piece->text += choice.text.Finish();
  if (choice.text.stopped()) {
    piece->finish = FinishReason::kStop;
    piece->stop_reason = *choice.text.stopped();
  }
}

ApiError Generation::ErrorOf(const RequestOutput& output) const {
  if (output.finish != FinishReason::kError || output.error.ok()) {
    return EngineError(Unavailable("The engine stopped before this request ended."));
  }
  // Once it runs, nothing but its grammar is found wrong with a request.
  if (asked_grammar() && output.error.code() == StatusCode::kInvalidArgument) {
    const std::string& param = asked_grammar()->param;
    return BadParameter(param, fmt::format("{}: {}", param, output.error.message()));
  }
  return EngineError(output.error);
}

void Generation::OnOutput(size_t index, RequestOutput output, std::string* events,
                          const WorkLimits& limits) {
  ChoiceState& choice = choices_[index];
  if (choice.ended || error_) return;
  if (output.finish == FinishReason::kError || output.finish == FinishReason::kCancelled) {
    Fail(ErrorOf(output), "error");
    return;
  }
  if (prompt(index).max_tokens == 0) {  // only the prompt's log-probabilities are wanted
    output.tokens.clear();
    output.finish = FinishReason::kLength;
  }
  const int64_t now = setup_.clock->NowNs();
  Piece piece{.choice = index,
              .first = choice.first_ns == 0,
              .prompt_logprobs = std::move(output.prompt_logprobs)};
  if (piece.first) {
    choice.first_ns = now;
    choice.cached_tokens = output.cached_tokens;
    choice.queued_ns = output.queued_ns;
    setup_.metrics->OnFirstToken(static_cast<int64_t>(prompt(index).tokens.size()),
                                 choice.cached_tokens, Seconds(now - arrival_ns_));
  } else if (!output.tokens.empty()) {
    setup_.metrics->OnTokenGap(Seconds(now - choice.last_ns));
  }
  choice.last_ns = now;
  choice.preemptions = output.preemptions;
  TakeTokens(choice, output, &piece);
  if (!piece.finish && CancelAsked()) piece.finish = FinishReason::kCancelled;
  text_bytes_ += piece.text.size();
  setup_.metrics->OnTokens(static_cast<int64_t>(piece.tokens.size()));
  if (piece.finish) {
    if (!output.finish) cancels_.push_back(index);
    End(index, piece.finish == FinishReason::kCancelled ? "abort" : FinishName(*piece.finish));
  }
  if (streams()) {
    Stream(std::move(piece), events, limits);
  } else {
    Collect(std::move(piece));
  }
}

void Generation::End(size_t index, std::string_view reason) {
  ChoiceState& choice = choices_[index];
  choice.ended = true;
  --open_choices_;
  const auto since_arrival = [&](int64_t ns) { return Seconds(ns - arrival_ns_); };
  setup_.metrics->OnEnded({.reason = reason,
                           .prompt_tokens = static_cast<int64_t>(prompt(index).tokens.size()),
                           .cached_tokens = choice.cached_tokens,
                           .generated_tokens = choice.tokens,
                           .max_tokens = prompt(index).max_tokens,
                           .preemptions = choice.preemptions,
                           .at = since_arrival(setup_.clock->NowNs()),
                           .entered = Seconds(choice.queued_ns),
                           .first = since_arrival(choice.first_ns),
                           .last = since_arrival(choice.last_ns)});
  if (open_choices_ == 0) CountPrompts();
}

void Generation::CountPrompts() const {
  const size_t n = setup_.params.n;
  for (size_t first = 0; first < choices_.size(); first += n) {
    int64_t most = 0;
    for (size_t i = first; i < first + n; ++i) most = std::max(most, choices_[i].tokens);
    setup_.metrics->OnPromptEnded(static_cast<int64_t>(n), most);
  }
}

void Generation::Fail(ApiError error, std::string_view reason) {
  if (!error_) error_ = std::move(error);
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].ended) End(i, reason);
  }
}

std::vector<size_t> Generation::TakeCancels() {
  return std::exchange(cancels_, {});
}

Usage Generation::usage() const {
  Usage usage;
  for (const GenerationPrompt& prompt : setup_.prompts) {
    usage.prompt_tokens += static_cast<int64_t>(prompt.tokens.size());
  }
  for (const ChoiceState& choice : choices_) usage.completion_tokens += choice.tokens;
  // A prompt counts once, and its first choice is the one that others share pages with.
  for (size_t i = 0; i < choices_.size(); i += static_cast<size_t>(setup_.params.n)) {
    usage.cached_tokens += choices_[i].cached_tokens;
  }
  usage.reasoning_tokens = ReasoningTokens();
  return usage;
}

json::object Generation::Head() const {
  json::object head = {{"id", setup_.id},
                       {"object", object_name_},
                       {"created", created_},
                       {"model", setup_.model},
                       {"system_fingerprint", setup_.fingerprint}};
  if (!setup_.params.service_tier.empty()) head["service_tier"] = "default";  // there is one
  return head;
}

std::string Generation::Chunk(std::string_view choices, const Usage* usage,
                              json::object more) const {
  json::object chunk = Head();
  for (auto& [key, value] : more) chunk[key] = std::move(value);
  std::string event = "data: " + json::serialize(chunk);
  event.back() = ',';
  event.append(R"("choices":[)").append(choices).append("]");
  if (usage != nullptr) {
    event.append(R"(,"usage":)").append(json::serialize(ToJson(*usage)));
  } else if (setup_.params.include_usage) {
    event.append(R"(,"usage":null)");
  }
  return std::move(event.append("}\n\n"));
}

void Generation::AddNewTokenIds(size_t choice, json::object* fields) {
  if (returns_token_ids()) {
    (*fields)["token_ids"] = TokenIds(std::exchange(choices_[choice].ids, {}));
  }
}

std::string Generation::ChoiceChunk(size_t choice, json::object fields, std::string_view logprobs,
                                    json::object more) {
  fields["index"] = choice;
  std::string text = json::serialize(fields);
  text.back() = ',';
  text.append(R"("logprobs":)").append(logprobs).append("}");
  const Usage so_far = usage();
  return Chunk(text, setup_.params.continuous_usage_stats ? &so_far : nullptr, std::move(more));
}

size_t Generation::size() const {
  const auto tokens = static_cast<size_t>(usage().completion_tokens);
  size_t bytes = repeated_bytes() + text_bytes_ + logprob_bytes_ +
                 (kTokenBytes + (returns_token_ids() ? kIdBytes : 0)) * tokens;
  for (size_t i = 0; i < choices_.size(); ++i) bytes += PromptBytes(i);
  return bytes;
}

size_t Generation::LogprobsBytes(size_t tokens, int32_t top) {
  return top < 0 ? 0 : tokens * (kTokenBytes + kLogprobBytes * (1 + static_cast<size_t>(top)));
}

size_t Generation::LogprobsBytes(const GeneratedToken& token) const {
  if (!token.logprobs) return 0;
  const auto entry = [&](TokenId id) {
    return kBareLogprobBytes + kNameBytes * setup_.tokenizer->TokenBytes(id).size();
  };
  size_t bytes = entry(token.id);
  for (const auto& [id, logprob] : token.logprobs->top) bytes += entry(id);
  return bytes;
}

size_t Generation::SizeOf(size_t index, const RequestOutput& output) const {
  const bool first = streams() && choices_[index].first_ns == 0;
  size_t bytes = kTokenBytes * output.tokens.size() + (first ? FirstBytes(index) : 0);
  for (const TokenLogprobs& logprobs : output.prompt_logprobs) {
    bytes += kLogprobBytes * (1 + logprobs.top.size());
  }
  for (const GeneratedToken& token : output.tokens) bytes += LogprobsBytes(token);
  return bytes;
}

size_t Generation::BytesAsked() const {
  size_t bytes = streams() ? 2 * repeated_bytes() : 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    bytes += prompt(i).tokens.size() * sizeof(TokenId) + (streams() ? FirstBytes(i) : 0);
  }
  return bytes;
}

std::string Generation::LastEvents() {
  std::string events;
  if (setup_.params.include_usage) {
    const Usage all = usage();
    events = Chunk({}, &all, {});
  }
  return std::move(events.append(kDoneEvent));
}

std::string Generation::ErrorEvents() {
  return ErrorEvent(*error_).append(kDoneEvent);
}

Result<std::string> Generation::Body(const WorkLimits& limits) {
  // Choice by choice: the JSON of all would take many times the text.
  std::string body = json::serialize(Head());
  body.reserve(body.size() + size());
  body.back() = ',';
  body += R"("choices":[)";
  for (size_t i = 0; i < choices_.size(); ++i) {
    TRY(limits.Check());
    json::object choice = Choice(i);
    choice["index"] = i;
    choice["token_ids"] =
        returns_token_ids() ? json::value(TokenIds(choices_[i].ids)) : json::value(nullptr);
    body.append(i > 0 ? "," : "").append(json::serialize(choice));
    body.back() = ',';
    body.append(R"("logprobs":)");
    TRY(AddLogprobs(i, limits, &body));
    TRY(AddChoiceTail(i, limits, &body));
    body.append("}");
  }
  body.append(R"(],"usage":)").append(json::serialize(ToJson(usage())));
  TRY(AddTail(limits, &body));
  return std::move(body.append("}"));  // which is a reference: it would be copied
}

}  // namespace fathom
