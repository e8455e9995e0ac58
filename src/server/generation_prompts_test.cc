// What choices of one prompt show of it: its first choice asks, whichever comes first.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_bytes.h"
#include "server/chat_generation.h"
#include "server/completion_generation.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr int32_t kChoices = 3;

class GenerationPromptsTest : public testing::Test {
 protected:
  GenerationSetup Setup(bool stream, int32_t prompt_logprobs) {
    static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("models/tiny-r1").value();
    GenerationParams params{.n = kChoices, .stream = stream, .prompt_logprobs = prompt_logprobs};
    params.sampling.logprobs = 1;
    GenerationSetup setup{.tokenizer = tokenizer.get(),
                          .metrics = &metrics_,
                          .clock = &clock_,
                          .id = "id",
                          .model = "m",
                          .params = std::move(params)};
    for (const char* text : {"a prompt", "another, longer prompt"}) {
      setup.prompts.push_back({.tokens = tokenizer->Encode(SpannedText(text, true)).value(),
                               .max_tokens = 5,
                               .echo = true,
                               .text = text});
    }
    return setup;
  }

  // The whole answer of a choice at once: an engine's, which tells what it was asked for. The
  // values of a prompt are those of its length.
  static std::string Answer(Generation& generation, size_t choice, const WorkLimits& limits = {}) {
    const GenerateRequest request = generation.Requests()[choice];
    const auto logprobs = [&](float logprob, int32_t top) {
      TokenLogprobs of_token{.logprob = logprob};
      for (int32_t i = 0; i < top; ++i) of_token.top.emplace_back(TokenId{60 + i}, logprob - i);
      return of_token;
    };
    RequestOutput output{.finish = FinishReason::kLength};
    const auto size = static_cast<float>(request.prompt.size());
    for (size_t i = 1; request.prompt_logprobs >= 0 && i < request.prompt.size(); ++i) {
      output.prompt_logprobs.push_back(logprobs(-size, request.prompt_logprobs));
    }
    output.tokens.push_back({TokenId{70 + static_cast<int32_t>(choice)}, logprobs(-0.5f, 1)});
    std::string events;
    generation.OnOutput(choice, std::move(output), &events, limits);
    return events;
  }
  static std::vector<int32_t> Asked(const Generation& generation) {
    std::vector<int32_t> asked;
    for (const GenerateRequest& request : generation.Requests()) {
      asked.push_back(request.prompt_logprobs);
    }
    return asked;
  }

  Metrics metrics_{"m"};
  VirtualClock clock_;
};

TEST_F(GenerationPromptsTest, OneChoiceOfAPromptAsksIfTheAnswerIsWhole) {
  const CompletionGeneration more(Setup(/*stream=*/false, /*prompt_logprobs=*/4));
  EXPECT_EQ(Asked(more), (std::vector<int32_t>{4, -1, -1, 4, -1, -1}));
  const CompletionGeneration echoed(Setup(/*stream=*/false, /*prompt_logprobs=*/-1));
  EXPECT_EQ(Asked(echoed), (std::vector<int32_t>{1, -1, -1, 1, -1, -1}));
  const CompletionGeneration streamed(Setup(/*stream=*/true, /*prompt_logprobs=*/-1));
  EXPECT_EQ(Asked(streamed), std::vector<int32_t>(6, 1));
}

// `shown` of a completion's choice begins with what it should of a prompt of so many tokens.
void ExpectEchoed(const json::value& shown, size_t prompt_size) {
  const json::value& logprobs = shown.at("logprobs");
  ASSERT_EQ(logprobs.at("token_logprobs").as_array().size(), prompt_size + 1);
  EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
  for (size_t i = 1; i < prompt_size; ++i) {
    EXPECT_EQ(logprobs.at("token_logprobs").at(i).as_double(), -static_cast<double>(prompt_size));
    EXPECT_EQ(logprobs.at("top_logprobs").at(i).as_object().size(), 2u);  // with the token itself
  }
  EXPECT_EQ(logprobs.at("token_logprobs").at(prompt_size).as_double(), -0.5);
  std::string text;
  for (const json::value& token : logprobs.at("tokens").as_array()) text += token.as_string();
  EXPECT_EQ(shown.at("text"), json::value(text));
}

TEST_F(GenerationPromptsTest, EveryChoiceOfAWholeAnswerShowsItsPrompt) {
  for (const bool first_is_last : {false, true}) {
    CompletionGeneration generation(Setup(/*stream=*/false, /*prompt_logprobs=*/4));
    const std::vector<GenerateRequest> requests = generation.Requests();
    for (size_t i = 0; i < requests.size(); ++i) {
      Answer(generation, first_is_last ? requests.size() - 1 - i : i);
    }
    ASSERT_TRUE(generation.done());
    const json::value body = json::parse(generation.Body().value());
    for (size_t choice = 0; choice < requests.size(); ++choice) {
      const json::value& shown = body.at("choices").at(choice);
      const size_t prompt_size = requests[choice].prompt.size();
      ExpectEchoed(shown, prompt_size);
      const json::array& of_prompt = shown.at("prompt_logprobs").as_array();
      ASSERT_EQ(of_prompt.size(), prompt_size);
      EXPECT_TRUE(of_prompt[0].is_null());
      EXPECT_EQ(of_prompt[1].as_object().size(), 5u);
      EXPECT_EQ(shown.at("prompt_logprobs"),
                body.at("choices").at(choice / kChoices * kChoices).at("prompt_logprobs"));
    }
  }
}

TEST_F(GenerationPromptsTest, EveryChoiceOfAStreamShowsItsPromptWhenItBegins) {
  CompletionGeneration generation(Setup(/*stream=*/true, /*prompt_logprobs=*/-1));
  const std::vector<GenerateRequest> requests = generation.Requests();
  for (size_t choice = requests.size(); choice-- > 0;) {
    const std::string event = Answer(generation, choice);
    const json::value shown = json::parse(event.substr(event.find('{'))).at("choices").at(0);
    EXPECT_EQ(shown.at("index"), json::value(choice));
    ExpectEchoed(shown, requests[choice].prompt.size());
  }
}

// So that workers make it, and it counts.
TEST_F(GenerationPromptsTest, WhatAStreamsFirstEventRepeatsIsKnown) {
  GenerationSetup setup = Setup(/*stream=*/true, /*prompt_logprobs=*/-1);
  setup.params.return_token_ids = true;
  setup.prompts[0].text = std::string(1000, 'x');
  const size_t ids = 8 * setup.prompts[0].tokens.size();
  CompletionGeneration generation(std::move(setup));
  EXPECT_EQ(generation.SizeOf(0, {}), 1000 + ids);
  EXPECT_GE(generation.BytesAsked(), kChoices * (1000 + ids));
  clock_.AdvanceNs(1);
  Answer(generation, 0);
  EXPECT_EQ(generation.SizeOf(0, {}), 0u);

  GenerationSetup of_chat = Setup(/*stream=*/true, /*prompt_logprobs=*/-1);
  of_chat.params.return_token_ids = true;
  EXPECT_EQ(ChatGeneration(std::move(of_chat), {.echoed = std::string(500, 'x')}).SizeOf(0, {}),
            500 + ids);
}

TEST_F(GenerationPromptsTest, WhatAWholeAnswerSaysOfItsPromptCountsAsOftenAsItStands) {
  const auto setup_of = [&](int32_t n, int32_t prompt_logprobs) {
    GenerationSetup setup = Setup(/*stream=*/false, prompt_logprobs);
    setup.prompts.pop_back();
    setup.prompts[0].echo = false;
    setup.prompts[0].tokens.assign(100, TokenId{60});
    setup.params.n = n;
    return setup;
  };
  const auto of_chat = [&](int32_t n, int32_t prompt_logprobs) {
    return ChatGeneration(setup_of(n, prompt_logprobs), {}).size();
  };
  EXPECT_EQ(of_chat(3, -1), 0u);
  EXPECT_GE(of_chat(3, 5), 100u * 5 * 60);
  EXPECT_EQ(of_chat(3, 5), of_chat(1, 5));
  const auto of_completion = [&](int32_t n, int32_t prompt_logprobs) {
    return CompletionGeneration(setup_of(n, prompt_logprobs)).size();
  };
  EXPECT_EQ(of_completion(3, 5), 3 * of_completion(1, 5));
  GenerationSetup ids = setup_of(3, -1), echo = setup_of(3, -1);
  ids.params.return_token_ids = true;
  EXPECT_EQ(CompletionGeneration(std::move(ids)).size(), 3 * 100u * 8);
  echo.prompts[0].echo = true;
  echo.prompts[0].text = std::string(500, 'x');
  EXPECT_GE(CompletionGeneration(std::move(echo)).size(), 3 * (500u + 100 * 2 * 60));
}

// It had a copy for each choice before anything was counted.
TEST_F(GenerationPromptsTest, AChatKeepsWhatItEchoesOnceAndCountsItForEachChoice) {
  constexpr size_t kBytes = size_t{1} << 20;
  const ChatOutputOptions options{.echoed = std::string(kBytes, 'x')};
  GenerationSetup setup = Setup(/*stream=*/false, /*prompt_logprobs=*/-1);
  setup.prompts.pop_back();
  setup.prompts[0].echo = false;
  const int64_t before = ThreadBytes();
  ChatGeneration generation(std::move(setup), options);
  EXPECT_LT(ThreadBytes() - before, static_cast<int64_t>(kBytes + kBytes / 2));
  EXPECT_EQ(generation.size(), kChoices * kBytes);
  for (size_t choice = 0; choice < kChoices; ++choice) Answer(generation, choice);
  const json::value body = json::parse(generation.Body().value());
  for (const json::value& choice : body.at("choices").as_array()) {
    const json::string& content = choice.at("message").at("content").as_string();
    EXPECT_TRUE(std::string_view(content).starts_with(options.echoed));
    EXPECT_EQ(content.size(), kBytes + 1);
  }
}

TEST_F(GenerationPromptsTest, AChatShowsItsPromptOnceWhicheverChoiceComesFirst) {
  for (const size_t last : {size_t{0}, size_t{2}}) {
    GenerationSetup setup = Setup(/*stream=*/false, /*prompt_logprobs=*/2);
    setup.prompts.pop_back();
    setup.prompts[0].echo = false;
    ChatGeneration generation(std::move(setup), {});
    const size_t prompt_size = generation.Requests()[0].prompt.size();
    EXPECT_EQ(Asked(generation), (std::vector<int32_t>{2, -1, -1}));
    for (const size_t choice : {2 - last, size_t{1}, last}) Answer(generation, choice);
    ASSERT_TRUE(generation.done());
    const json::value body = json::parse(generation.Body().value());
    const json::array& of_prompt = body.at("prompt_logprobs").as_array();
    ASSERT_EQ(of_prompt.size(), prompt_size);
    EXPECT_EQ(of_prompt[1].as_object().size(), 3u);
  }
}

TEST_F(GenerationPromptsTest, WritingThemIsInterrupted) {
  Interrupt interrupt(std::chrono::hours(1));
  interrupt.Raise();
  GenerationSetup of_chat = Setup(/*stream=*/false, /*prompt_logprobs=*/2),
                  of_completion = Setup(false, 2);
  for (GenerationSetup* setup : {&of_chat, &of_completion}) {
    setup->prompts.pop_back();
    setup->params.n = 1;
    setup->params.sampling.logprobs = -1;
    setup->prompts[0].echo = false;
  }
  ChatGeneration chat(std::move(of_chat), {});
  CompletionGeneration completion(std::move(of_completion));
  for (Generation* generation :
       {static_cast<Generation*>(&chat), static_cast<Generation*>(&completion)}) {
    Answer(*generation, 0);
    EXPECT_EQ(generation->Body({.interrupt = &interrupt}).status().code(), StatusCode::kCancelled);
  }
}

TEST_F(GenerationPromptsTest, WritingALongOneIsInterrupted) {
  GenerationSetup setup = Setup(/*stream=*/false, /*prompt_logprobs=*/2);
  setup.prompts.pop_back();
  setup.params.n = 1;
  setup.prompts[0].tokens.resize(200'000, TokenId{60});
  ChatGeneration generation(std::move(setup), {});
  Answer(generation, 0);
  const Interrupt interrupt(std::chrono::milliseconds(10));
  EXPECT_EQ(generation.Body({.interrupt = &interrupt}).status().code(),
            StatusCode::kResourceExhausted);
}

TEST_F(GenerationPromptsTest, WritingThemForAStreamIsInterrupted) {
  Interrupt interrupt(std::chrono::hours(1));
  interrupt.Raise();
  CompletionGeneration completion(Setup(/*stream=*/true, /*prompt_logprobs=*/-1));
  GenerationSetup of_chat = Setup(/*stream=*/true, /*prompt_logprobs=*/-1);
  of_chat.prompts.pop_back();
  ChatGeneration chat(std::move(of_chat), {});
  for (Generation* generation :
       {static_cast<Generation*>(&completion), static_cast<Generation*>(&chat)}) {
    EXPECT_EQ(Answer(*generation, 0, {.interrupt = &interrupt}).find("top_logprobs"),
              std::string::npos);
    EXPECT_NE(Answer(*generation, 1).find("top_logprobs"), std::string::npos);
  }
}

// Some tokens are of a hundred characters, and a chat shows each byte of one as a number, too.
TEST_F(GenerationPromptsTest, WhatLongTokensTakeCounts) {
  const GenerationSetup any = Setup(/*stream=*/false, -1);
  const Tokenizer& tokenizer = *any.tokenizer;
  TokenId longest{0};
  for (TokenId id{0}; Raw(id) < tokenizer.vocab_size(); id = TokenId{Raw(id) + 1}) {
    if (tokenizer.TokenBytes(id).size() > tokenizer.TokenBytes(longest).size()) longest = id;
  }
  for (const int32_t top : {-1, 20}) {
    GenerationSetup setup = Setup(/*stream=*/false, /*prompt_logprobs=*/-1);
    setup.prompts.pop_back();
    setup.params.n = 1;
    setup.params.skip_special_tokens = false;
    setup.params.sampling.logprobs = top;
    ChatGeneration generation(std::move(setup), {});
    const size_t none = generation.size();
    GeneratedToken token{longest, {}};
    if (top > 0) token.logprobs.emplace(-12.345678f).top.assign(20, {longest, -12.345678f});
    generation.OnOutput(0, {.tokens = std::vector(500, token), .finish = FinishReason::kLength},
                        nullptr);
    const size_t counted = generation.size(), bytes = generation.Body().value().size();
    EXPECT_GE(counted, bytes - 500) << top;  // but for what all answers have
    const size_t text = 500 * tokenizer.TokenBytes(longest).size();
    EXPECT_GT(counted - none, text + 500 * 16) << top;  // and the tokens
    EXPECT_LT(counted, 3 * bytes) << top;
  }
}

// Nothing is shown without what the first choice alone would have told.
TEST_F(GenerationPromptsTest, AFirstChoiceThatFailsEndsTheOthersThatHaveEnded) {
  for (const FinishReason finish : {FinishReason::kError, FinishReason::kCancelled}) {
    CompletionGeneration generation(Setup(/*stream=*/false, /*prompt_logprobs=*/4));
    for (const size_t choice : {1, 2, 3, 4, 5}) Answer(generation, choice);
    ASSERT_FALSE(generation.done());
    generation.OnOutput(0, {.finish = finish, .error = Internal("NaN")}, nullptr);
    ASSERT_TRUE(generation.done() && generation.error());
    EXPECT_EQ(generation.error()->status, finish == FinishReason::kError ? 500 : 503);
  }
}

}  // namespace
}  // namespace fathom
