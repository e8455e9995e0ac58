// One HTTP request for text: what it asks of the engine, and its answer as the tokens come. Knows
// neither sockets nor threads.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/work_limits.h"
#include "engine/messages.h"
#include "server/client_accounts.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/text_stream.h"

namespace fathom {

struct GenerationPrompt {
  std::vector<TokenId> tokens;
  int32_t max_tokens = 0;  // 0: the engine makes one all the same, which is not shown
  bool echo = false;       // the answer begins with the prompt
  std::string text;        // with echo: the prompt as text
};

// What a Generation is made of. The pointers outlive it.
struct GenerationSetup {
  const Tokenizer* tokenizer = nullptr;
  Metrics* metrics = nullptr;
  const Clock* clock = nullptr;
  std::string id;           // of the response
  std::string model;        // as reported
  std::string fingerprint;  // of what serves: changes when answers may
  GenerationParams params;
  std::vector<GenerationPrompt> prompts;
  std::vector<TokenId> eos_tokens;
  std::vector<TokenId> kept_special;             // see TextStreamOptions
  std::shared_ptr<const Grammar> token_grammar;  // of bad_words and the like; null: none
  std::optional<TokenId> grammar_after;          // what ends the thinking before a grammar begins
  PlacesInFlight places;
};

class Generation {
 public:
  virtual ~Generation();

  bool streams() const { return setup_.params.stream; }
  // What the answer is to be held to, if anything; SetGrammar() before Requests().
  const std::optional<AskedGrammar>& asked_grammar() const { return setup_.params.grammar; }
  void SetGrammar(std::shared_ptr<const Grammar> grammar) { grammar_ = std::move(grammar); }
  // One per choice, prompt by prompt.
  std::vector<GenerateRequest> Requests() const;
  // News of the request at `index`. A stream's events are appended to `*events`. Once `limits` end
  // it, which they tell from then on, one may lack: what is left is to Fail.
  void OnOutput(size_t index, RequestOutput output, std::string* events,
                const WorkLimits& limits = {});
  // Indices of requests whose further output is not needed, since the last call.
  std::vector<size_t> TakeCancels();
  // Every choice has ended, or one has failed.
  bool done() const { return error_ || open_choices_ == 0; }
  const std::optional<ApiError>& error() const { return error_; }
  // Ends what has not ended, for this `reason` in the metrics. The first error stays.
  void Fail(ApiError error, std::string_view reason);
  // REQUIRES: done(), without an error. A stream's last events, or the whole body of the answer.
  virtual std::string LastEvents();
  // REQUIRES: error(). The last events of a stream that failed.
  virtual std::string ErrorEvents();
  virtual Result<std::string> Body(const WorkLimits& limits = {});
  Usage usage() const;
  // Roughly the bytes of JSON that its tokens make, and what a whole answer says of its request.
  size_t size() const;
  // Roughly the bytes of JSON that these news of the request at `index` make, with what is repeated
  // of the request where they are a stream's first.
  size_t SizeOf(size_t index, const RequestOutput& output) const;
  // Of its request, what a whole answer repeats, or a stream's last events.
  virtual size_t repeated_bytes() const { return 0; }
  // Of its own text so far, a stream's: what it keeps, and roughly what events to come repeat.
  virtual size_t kept_text() const { return 0; }
  virtual size_t repeated_text() const { return 0; }
  // What its requests take of the engine's memory, and a stream to repeat what was asked.
  size_t BytesAsked() const;

 protected:
  Generation(GenerationSetup&& setup, const char* object_name);

  // What an output adds to a choice.
  struct Piece {
    size_t choice;
    bool first;
    std::string text;
    std::vector<GeneratedToken> tokens;
    std::vector<TokenLogprobs> prompt_logprobs;
    std::optional<FinishReason> finish;
    boost::json::value stop_reason;  // the stop string or token id that was met; else null
  };
  virtual void Stream(Piece piece, std::string* events, const WorkLimits& limits) = 0;
  virtual void Collect(Piece piece) = 0;
  // Of what was collected, once: all of a choice but its log-probabilities.
  virtual boost::json::object Choice(size_t choice) = 0;
  // These append to a whole answer's text, since JSON takes many times that, and another text would
  // take it twice. A choice's log-probabilities, once:
  virtual Status AddLogprobs(size_t, const WorkLimits&, std::string* body) {
    body->append("null");
    return {};
  }
  // Further members of a choice, and of a whole answer, each behind a comma.
  virtual Status AddChoiceTail(size_t, const WorkLimits&, std::string*) { return {}; }
  virtual Status AddTail(const WorkLimits&, std::string*) { return {}; }
  // Of its request, what a stream's first event of a choice repeats.
  virtual size_t FirstBytes(size_t) const { return 0; }
  // Of its request, what a choice of a whole answer says.
  virtual size_t PromptBytes(size_t) const { return 0; }
  // Roughly, of JSON: of so many tokens with the `top` likeliest of each; -1: nothing is shown.
  static size_t LogprobsBytes(size_t tokens, int32_t top);
  // Whether it is to end at its next token, as one that somebody else has ended.
  virtual bool CancelAsked() const { return false; }
  virtual std::optional<int64_t> ReasoningTokens() const { return std::nullopt; }

  // {"id", "object", "created", "model"} and so on: of a chunk and of a whole answer.
  boost::json::object Head() const;
  // Of the tokens that no event has shown, if the request wants them.
  void AddNewTokenIds(size_t choice, boost::json::object* fields);
  // An event of one choice with `logprobs`, JSON, and with `more` beside the choices; usage if the
  // request wants it.
  std::string ChoiceChunk(size_t choice, boost::json::object fields, std::string_view logprobs,
                          boost::json::object more = {});
  bool returns_token_ids() const { return setup_.params.return_token_ids; }
  // Of the prompt's, as JSON, where they are shown.
  size_t TokenIdBytes(size_t choice) const {
    return returns_token_ids() ? kIdBytes * prompt(choice).tokens.size() : 0;
  }
  TokenNames names() const { return {*setup_.tokenizer, setup_.params.return_tokens_as_token_ids}; }
  const GenerationSetup& setup() const { return setup_; }
  const GenerationPrompt& prompt(size_t choice) const {
    return setup_.prompts[choice / setup_.params.n];
  }
  size_t num_choices() const { return choices_.size(); }
  // Of the same prompt: what a whole answer says of the prompt comes with it, for the others too.
  size_t first_choice(size_t choice) const { return choice - choice % setup_.params.n; }
  int64_t created() const { return created_; }

 private:
  struct ChoiceState {
    TextStream text;
    int64_t tokens = 0;
    int64_t cached_tokens = 0;  // of its prompt
    int64_t preemptions = 0;
    int64_t queued_ns = 0;  // before it entered the batch
    int64_t first_ns = 0, last_ns = 0;
    bool ended = false;
    std::vector<TokenId> ids;  // that no answer or event has shown, where they are wanted
  };

  // `choices`: the members of the array, as JSON.
  static constexpr size_t kIdBytes = 8;  // of JSON
  std::string Chunk(std::string_view choices, const Usage* usage, boost::json::object more) const;
  ApiError ErrorOf(const RequestOutput& output) const;
  void TakeTokens(ChoiceState& choice, RequestOutput& output, Piece* piece);
  size_t LogprobsBytes(const GeneratedToken& token) const;
  void End(size_t index, std::string_view reason);
  void CountPrompts() const;

  const GenerationSetup setup_;
  const char* const object_name_;
  const int64_t created_;  // Unix time
  const int64_t arrival_ns_;
  TextStreamOptions text_options_;
  std::shared_ptr<const Grammar> grammar_;
  std::vector<ChoiceState> choices_;
  size_t open_choices_ = 0;
  size_t text_bytes_ = 0, logprob_bytes_ = 0;  // of all choices, the latter of JSON
  std::vector<size_t> cancels_;
  std::optional<ApiError> error_;
};

// "stop", "length"
const char* FinishName(FinishReason reason);

}  // namespace fathom
