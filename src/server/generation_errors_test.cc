// What ends a generation before its text does.
#include <gtest/gtest.h>

#include <memory>

#include "server/completion_generation.h"

namespace fathom {
namespace {

// What a client hears of a request, asked for by `grammar`, that the engine ends with `status`.
ApiError ErrorOf(std::optional<AskedGrammar> grammar, Status status) {
  static const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::Load("models/tiny-r1").value();
  Metrics metrics("m");
  SteadyClock clock;
  GenerationParams params;
  params.grammar = std::move(grammar);
  GenerationSetup setup{.tokenizer = tokenizer.get(),
                        .metrics = &metrics,
                        .clock = &clock,
                        .id = "id",
                        .model = "m",
                        .params = std::move(params)};
  setup.prompts.push_back({.tokens = {TokenId{5}}, .max_tokens = 100});
  CompletionGeneration generation(std::move(setup));
  RequestOutput output{.finish = FinishReason::kError, .error = std::move(status)};
  generation.OnOutput(0, std::move(output), nullptr);
  EXPECT_TRUE(generation.done());
  return *generation.error();
}

TEST(GenerationErrors, AGrammarsNamesTheFieldThatAskedForIt) {
  const AskedGrammar asked{{GrammarKind::kEbnf, "root ::= x"}, "guided_grammar"};
  ApiError error = ErrorOf(asked, InvalidArgument("the grammar takes long"));
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "guided_grammar");
  EXPECT_EQ(error.message, "guided_grammar: the grammar takes long");
  error = ErrorOf(asked, Internal("NaN"));
  EXPECT_EQ(error.status, 500);
  EXPECT_EQ(error.param, "");
  EXPECT_EQ(ErrorOf(std::nullopt, InvalidArgument("too long")).param, "");
}

}  // namespace
}  // namespace fathom
