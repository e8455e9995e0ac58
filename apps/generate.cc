// fathom generate: an answer in the terminal.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "base/printable.h"
#include "chat/chat_template.h"
#include "chat/output_parser.h"
#include "commands.h"
#include "engine_flags.h"
#include "server/request_stream.h"
#include "server/text_stream.h"
#include "taken_flags.h"
#include "tokenizer/utf8.h"
#include "usage.h"

namespace fathom {
namespace {

namespace json = boost::json;

struct GenerateOptions {
  EngineSettings engine;
  std::optional<std::string> prompt;
  std::string system;
  bool raw = false;
  bool no_thinking = false;
  int32_t max_tokens = 0;
  std::optional<float> temperature, top_p, min_p;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
};

volatile std::sig_atomic_t interrupted = 0;

// Ctrl-C ends the answer, not the program.
class InterruptGuard {
 public:
  InterruptGuard() {
    interrupted = 0;
    before_ = std::signal(SIGINT, [](int) { interrupted = 1; });
  }
  ~InterruptGuard() { std::signal(SIGINT, before_); }

 private:
  void (*before_)(int);
};

// The answer goes to stdout. Reasoning is dimmed on a terminal, and goes to stderr where stdout is
// none, so that a pipe gets the answer alone.
class Printer {
 public:
  void Reasoning(const std::string& text) {
    if (text.empty()) return;
    if (terminal_ && !dim_) std::fputs("\033[2m", stdout);
    dim_ = true;
    fmt::print(terminal_ ? stdout : stderr, "{}", PrintableLines(text));
    std::fflush(stdout);
  }
  void Content(const std::string& text) {
    if (text.empty()) return;
    EndReasoning();
    fmt::print("{}", terminal_ ? PrintableLines(text) : text);
    std::fflush(stdout);
  }
  void End() {
    EndReasoning();
    fmt::print("\n");
    std::fflush(stdout);
  }

 private:
  void EndReasoning() {
    if (!dim_) return;
    dim_ = false;
    if (terminal_) {
      std::fputs("\033[0m\n\n", stdout);
    } else {
      std::fputs("\n", stderr);
    }
  }

  const bool terminal_ = isatty(STDOUT_FILENO) != 0;
  bool dim_ = false;
};

// Waits for one request's outputs.
class Waiter {
 public:
  void Wake() {
    {
      std::lock_guard lock(mutex_);
      awake_ = true;
    }
    changed_.notify_one();
  }
  void Wait() {  // a tenth of a second at most: for Ctrl-C
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(100), [this] { return awake_; });
    awake_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool awake_ = false;  // guarded by mutex_
};

class Conversation {
 public:
  Conversation(const GenerateOptions& options, LoadedEngine& loaded, EngineOutputs& outputs)
      : options_(options), loaded_(loaded), outputs_(outputs) {
    if (!options.system.empty()) Say("system", options.system);
    for (const std::string_view marker : OutputMarkers(/*parse_tools=*/false)) {
      if (const auto id = loaded.tokenizer->IdOf(marker)) text_options_.kept_special.push_back(*id);
    }
  }

  // Prints the answer to `text`. After an error the talk is as it was before.
  Status Ask(const std::string& text);

 private:
  void Say(const char* role, const std::string& text) {
    messages_.push_back(json::object{{"role", role}, {"content", text}});
  }
  Status Answer(const std::string& text);
  Result<std::vector<TokenId>> Encode(const std::string& text, OutputParserOptions* parser);
  GenerateRequest RequestFor(std::vector<TokenId> prompt);
  Status Print(RequestStream& stream, Waiter& waiter, OutputParser parser, std::string* content);

  const GenerateOptions& options_;
  LoadedEngine& loaded_;
  EngineOutputs& outputs_;
  json::array messages_;
  TextStreamOptions text_options_;
};

Result<std::vector<TokenId>> Conversation::Encode(const std::string& text,
                                                  OutputParserOptions* parser) {
  if (!loaded_.chat_template) {
    *parser = {.parse_reasoning = false};
    return loaded_.tokenizer->Encode(text, /*add_special_tokens=*/true);
  }
  json::object variables = {{"messages", messages_}, {"add_generation_prompt", true}};
  if (options_.no_thinking) {
    variables["thinking"] = false;
    variables["enable_thinking"] = false;
  }
  const SpannedText rendered = TRY(
      loaded_.chat_template->Render(variables, {{"bos_token", loaded_.tokenizer->bos_token()},
                                                {"eos_token", loaded_.tokenizer->eos_token()}}));
  *parser = OptionsAfter(rendered.text(), loaded_.tokenizer->IdOf("<think>").has_value());
  return loaded_.tokenizer->Encode(rendered);
}

GenerateRequest Conversation::RequestFor(std::vector<TokenId> prompt) {
  const GenerationConfig& defaults = loaded_.generation;
  const auto pick = [](const auto& asked, const auto& model, auto otherwise) {
    return asked ? *asked : model ? *model : otherwise;
  };
  const int32_t room = loaded_.engine->max_model_len() - static_cast<int32_t>(prompt.size());
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.stop_tokens = loaded_.eos;
  SamplingParams& sampling = request.sampling;
  sampling.temperature =
      pick(options_.temperature, defaults.temperature, defaults.do_sample ? 1.0f : 0.0f);
  sampling.top_p = pick(options_.top_p, defaults.top_p, 1.0f);
  sampling.min_p = pick(options_.min_p, defaults.min_p, 0.0f);
  sampling.top_k = std::max(0, pick(options_.top_k, defaults.top_k, 0));
  sampling.repetition_penalty = defaults.repetition_penalty.value_or(1.0f);
  std::random_device device;
  sampling.seed = options_.seed ? *options_.seed : uint64_t{device()} << 32 | device();
  request.max_tokens = options_.max_tokens > 0 ? std::min(options_.max_tokens, room) : room;
  return request;
}

Status Conversation::Print(RequestStream& stream, Waiter& waiter, OutputParser parser,
                           std::string* content) {
  Printer printer;
  TextStream text(*loaded_.tokenizer, text_options_);
  const auto show = [&](const ChatDelta& delta) {
    printer.Reasoning(delta.reasoning);
    printer.Content(delta.content);
    *content += delta.content;
  };
  const InterruptGuard guard;
  bool ended = false;
  while (!ended && !interrupted) {
    waiter.Wait();
    while (auto next = stream.Next()) {
      RequestOutput& output = next->second;
      if (output.finish == FinishReason::kError) return output.error;
      const bool stopped = output.finish == FinishReason::kStop;
      for (size_t i = 0; i + stopped < output.tokens.size(); ++i) {
        show(parser.Push(text.Push(output.tokens[i].id)));
      }
      ended = ended || output.finish.has_value();
    }
  }
  show(parser.Push(text.Finish()));
  show(parser.Finish());
  printer.End();
  return {};
}

Status Conversation::Ask(const std::string& text) {
  Say("user", text);
  const Status status = Answer(text);
  if (!status.ok()) messages_.pop_back();  // the talk goes on without it
  return status;
}

Status Conversation::Answer(const std::string& text) {
  TRY(CheckUtf8(text));  // what is tokenised is longer, and so is the place in it
  OutputParserOptions parser;
  std::vector<TokenId> prompt = TRY(Encode(text, &parser));
  if (prompt.empty()) return InvalidArgument("the prompt is empty");
  const int32_t max_model_len = loaded_.engine->max_model_len();
  if (prompt.size() >= static_cast<size_t>(max_model_len)) {
    return InvalidArgument(
        "too long: the prompt{} has {} tokens; prompt and answer together have room for {} "
        "(--max-model-len)",
        messages_.size() > 1 ? ", with what was said before," : "", prompt.size(), max_model_len);
  }
  Waiter waiter;
  RequestStream stream(outputs_, *loaded_.engine, [&waiter] { waiter.Wake(); });
  std::vector<GenerateRequest> requests;
  requests.push_back(RequestFor(std::move(prompt)));
  TRY(stream.Submit(std::move(requests)));
  std::string content;
  TRY(Print(stream, waiter, OutputParser(parser), &content));
  Say("assistant", content);
  return {};
}

// What cannot be answered is said, and the talk goes on.
Status Talk(Conversation& conversation) {
  std::string line;
  while (fmt::print("> "), std::fflush(stdout), std::getline(std::cin, line)) {
    if (line.empty()) continue;
    const Status status = conversation.Ask(line);
    if (status.code() == StatusCode::kInvalidArgument) {
      fmt::print(stderr, "{}\n", status.message());
    } else {
      TRY(status);
    }
    fmt::print("\n");
  }
  fmt::print("\n");
  return {};
}

Status Generate(const GenerateOptions& options) {
  EngineOutputs outputs;
  EngineSettings settings = options.engine;
  settings.chat_template = options.raw ? ChatTemplateUse::kNone : ChatTemplateUse::kRequired;
  LoadedEngine loaded = TRY(LoadEngine(
      settings, [&outputs](std::vector<RequestOutput> news) { outputs.Deliver(std::move(news)); }));
  if (loaded.follower) return loaded.watch->Wait();
  loaded.engine->Start();
  Conversation conversation(options, loaded, outputs);
  if (options.prompt) return conversation.Ask(*options.prompt);
  if (isatty(STDIN_FILENO)) return Talk(conversation);
  std::string text(std::istreambuf_iterator<char>(std::cin), {});
  if (!options.raw && text.ends_with('\n')) text.pop_back();
  if (text.empty()) return InvalidArgument("there is nothing on standard input to answer");
  return conversation.Ask(text);
}

}  // namespace

void AddGenerate(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand(
      "generate", "Answer a prompt in the terminal; without one, talk, or read standard input.");
  auto options = std::make_shared<GenerateOptions>();
  options->engine.max_num_seqs = 1;
  AddEngineFlags(*command, &options->engine);
  AddHostFlags(*command, &options->engine.hosts);
  AddTemplateFlag(*command, &options->engine, "Options");
  command->add_option("prompt", options->prompt, "What to answer")
      ->check([](const std::string& prompt) {
        return prompt.empty() ? "it is empty: leave it out to talk, or to read standard input" : "";
      });
  command->add_flag("--raw", options->raw, "Continue the prompt as it is: no chat template");
  command->add_option("--system", options->system, "The system message");
  command->add_flag("--no-thinking", options->no_thinking, "Answer at once, without reasoning");
  command->add_option("--max-tokens", options->max_tokens, "0: what the context has room for")
      ->check(CLI::Range(0, 1 << 30));
  const char* group = "Sampling (otherwise the model's generation_config.json)";
  command->add_option("--temperature", options->temperature, "0: always the likeliest token")
      ->check(Between(0, 1000))
      ->group(group);
  command->add_option("--top-p", options->top_p, "The likeliest tokens that make up this share")
      ->check(Between(1e-6, 1))
      ->group(group);
  command->add_option("--min-p", options->min_p, "Tokens this likely, relative to the likeliest")
      ->check(Between(0, 1))
      ->group(group);
  command->add_option("--top-k", options->top_k, "The likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->group(group);
  command->add_option("--seed", options->seed, "The same seed, the same answer")->group(group);
  AddLogLevel(*command, "warning");
  TakeWhatRunsAnyway(*command);
  OnRun(*command, exit_code, [options] { return Generate(*options); });
}

}  // namespace fathom
