#include "report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/printable.h"

namespace fathom {
namespace {

namespace json = boost::json;

constexpr size_t kMostRows = 20, kMostPartings = 12;

// Of a token, fit for a line.
std::string Quoted(const Tokenizer& tokenizer, TokenId id) {
  const json::string text(tokenizer.Decode({&id, 1}, /*skip_special_tokens=*/false));
  return Printable(json::serialize(json::value(text)), 40);
}

std::string Gap(const std::optional<double>& gap) {
  return gap ? fmt::format("by {:.3f}", *gap) : "the other is not listed";
}

// A line that goes on under its text where it is longer than a page is wide.
std::string Line(std::string_view title, std::string_view text) {
  constexpr size_t kIndent = 18, kWidth = 96;
  std::string out = fmt::format("{:<{}}", title, kIndent);
  size_t room = kWidth - kIndent;
  while (text.size() > room && text.rfind(' ', room) != std::string_view::npos) {
    const size_t space = text.rfind(' ', room);
    out += fmt::format("{}\n{:<{}}", text.substr(0, space), "", kIndent);
    text.remove_prefix(space + 1);
  }
  return fmt::format("{}{}\n", out, text);
}

std::string SpreadLine(std::string_view title, const Spread& spread) {
  if (spread.values.empty()) return fmt::format("{:<18}{:>10}\n", title, "none");
  return fmt::format("{:<18}{:>10.4f}{:>10.4f}{:>10.4f}{:>10}\n", title, spread.mean(),
                     spread.p99(), spread.max(), spread.values.size());
}

std::string PromptRows(const Comparison& c) {
  std::string out =
      fmt::format("{:<18}{:>8}{:>8}{:>14}{:>10}{:>16}{:>10}{:>10}\n", "prompt", "tokens", "answer",
                  "prompt: mean", "max", "answer: mean", "max", "equal");
  for (size_t i = 0; i < std::min(c.prompts.size(), kMostRows); ++i) {
    const ComparedPrompt& p = c.prompts[i];
    const Agreement& a = p.agreement;
    out += fmt::format("{:<18}{:>8}{:>8}{:>14.4f}{:>10.4f}{:>16.4f}{:>10.4f}{:>10}\n", p.name,
                       p.tokens, a.tokens, a.prompt.mean(), a.prompt.max(), a.generated.mean(),
                       a.generated.max(), a.equal_tokens);
  }
  if (c.prompts.size() > kMostRows) {
    out += fmt::format("and {} more (--json has all)\n", c.prompts.size() - kMostRows);
  }
  if (!c.left_out.empty()) {
    out += fmt::format("left out, as the model's context is too short: {}\n",
                       fmt::join(c.left_out, ", "));
  }
  return out;
}

std::string LogprobLines(const Comparison& c) {
  std::string out = fmt::format("{:<18}{:>10}{:>10}{:>10}{:>10}\n", "|difference| of", "mean",
                                "99 %", "max", "tokens");
  out += SpreadLine("prompts", c.all.prompt);
  out += SpreadLine("answers", c.all.generated);
  out += SpreadLine("KL, likeliest", c.all.divergence);
  if (c.prompt_source.empty()) {
    out += "the server has neither prompt_logprobs nor echo: prompts are not compared\n";
  }
  return out;
}

std::string GreedyLines(const Comparison& c, const AgreementLimits& limits,
                        const Tokenizer& tokenizer) {
  const Agreement& a = c.all;
  std::string out =
      Line("greedy", fmt::format("{} of {} tokens equal, {} of {} answers in full", a.equal_tokens,
                                 a.tokens, a.equal_answers, a.answers));
  for (size_t i = 0; i < std::min(a.partings.size(), kMostPartings); ++i) {
    const Parting& p = a.partings[i];
    out += fmt::format("  {}, token {}: here {} {}, there {} {}: {}\n", c.prompts[p.prompt].name,
                       p.position, Quoted(tokenizer, p.ours), Gap(p.our_gap),
                       Quoted(tokenizer, p.theirs), Gap(p.their_gap),
                       p.IsTie(limits) ? "a tie of numbers" : "NO TIE");
  }
  if (a.partings.size() > kMostPartings) {
    out += fmt::format("  and {} more (--json has all)\n", a.partings.size() - kMostPartings);
  }
  return out;
}

std::string RepeatLine(const Repeats& r) {
  std::string text = fmt::format("{} of {} answers of the server are the same when asked again",
                                 r.equal_answers, r.answers);
  if (!r.generated.values.empty()) {
    text += fmt::format("; log-probabilities differ by {:.4f}, at most {:.4f}", r.generated.mean(),
                        r.generated.max());
  }
  return Line("asked twice", text);
}

std::string TokenizerLine(const Comparison& c) {
  const TokenizerCheck& t = c.tokenizers;
  if (t.asked == 0) return Line("tokenizers", "not compared: the server has no /tokenize");
  std::string text = fmt::format("{} of {} prompts have the same tokens",
                                 static_cast<size_t>(t.asked) - t.differing.size(), t.asked);
  if (!t.differing.empty()) {
    text += fmt::format("; not the same: {}", fmt::join(t.differing, ", "));
  }
  return Line("tokenizers", text);
}

std::string DraftText(const std::optional<DraftCounts>& drafts) {
  if (!drafts || drafts->decodes == 0) return "none";
  return fmt::format("{:.1f} % of {:.0f} drafts stood, {:.2f} tokens a step",
                     100 * drafts->AcceptedShare(), drafts->proposed, drafts->MeanTokens());
}

std::string StructuredLine(const StructuredCheck& s) {
  if (!s.refusal.empty()) return "the server refuses response_format: " + s.refusal;
  const auto is_json = [](bool whole) { return whole ? "valid JSON" : "NO whole JSON"; };
  return fmt::format("here {}, there {}; {}; the first {} of {} tokens equal", is_json(s.our_json),
                     is_json(s.their_json),
                     s.forbidden_at
                         ? fmt::format("our grammar forbids their token {}", *s.forbidden_at)
                         : "our grammar takes their answer",
                     s.equal_tokens, std::max(s.our_tokens, s.their_tokens));
}

std::string LoadRow(std::string_view title, const LoadSummary& s) {
  return fmt::format("{:<18}{:>12.1f}{:>14.1f}{:>12.1f}{:>14.2f}{:>10}\n", title,
                     s.PerSecond(s.output_tokens), s.ttft_ms.median, s.ttft_ms.p99,
                     s.tpot_ms.median, s.failed);
}

std::string LoadLines(const Comparison& c) {
  if (c.loads.empty()) return "";
  std::string out = fmt::format("\n{:<18}{:>12}{:>14}{:>12}{:>14}{:>10}\n", "at a time", "tokens/s",
                                "first: median", "99 %", "next: median", "failed");
  for (const LoadCheck& load : c.loads) {
    out += LoadRow(fmt::format("{:>2}, the server", load.concurrency), load.server);
    if (load.against) {
      out += LoadRow(fmt::format("{:>2}, --against", load.concurrency), *load.against);
    }
  }
  return out + "(milliseconds to the first token, and between later ones)\n";
}

std::string_view Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kAgree: return "agree";
    case Verdict::kDiffer: return "differ";
    case Verdict::kUnknown: return "unknown";
  }
  return "";
}

json::object SpreadJson(const Spread& spread) {
  return {{"mean", spread.mean()},
          {"p99", spread.p99()},
          {"max", spread.max()},
          {"count", spread.values.size()}};
}

json::object AgreementJson(const Agreement& a) {
  return {{"prompt_logprobs", SpreadJson(a.prompt)}, {"answer_logprobs", SpreadJson(a.generated)},
          {"divergence", SpreadJson(a.divergence)},  {"tokens", a.tokens},
          {"equal_tokens", a.equal_tokens},          {"answers", a.answers},
          {"equal_answers", a.equal_answers}};
}

json::value DraftJson(const std::optional<DraftCounts>& drafts) {
  if (!drafts || drafts->decodes == 0) return nullptr;
  return json::object{{"decodes", drafts->decodes},
                      {"proposed", drafts->proposed},
                      {"accepted", drafts->accepted},
                      {"accepted_share", drafts->AcceptedShare()},
                      {"tokens_per_decode", drafts->MeanTokens()}};
}

json::value StructuredJson(const std::optional<StructuredCheck>& s) {
  if (!s) return nullptr;
  if (!s->refusal.empty()) return json::object{{"refusal", s->refusal}};
  return json::object{
      {"our_json", s->our_json},
      {"their_json", s->their_json},
      {"our_tokens", s->our_tokens},
      {"their_tokens", s->their_tokens},
      {"equal_tokens", s->equal_tokens},
      {"forbidden_at", s->forbidden_at ? json::value(*s->forbidden_at) : json::value()}};
}

json::array PartingsJson(const Comparison& c, const AgreementLimits& limits,
                         const Tokenizer& tokenizer) {
  const auto gap = [](const std::optional<double>& value) {
    return value ? json::value(*value) : json::value();
  };
  json::array out;
  for (const Parting& p : c.all.partings) {
    out.push_back(json::object{{"prompt", c.prompts[p.prompt].name},
                               {"position", p.position},
                               {"ours", Raw(p.ours)},
                               {"our_text", Quoted(tokenizer, p.ours)},
                               {"our_gap", gap(p.our_gap)},
                               {"theirs", Raw(p.theirs)},
                               {"their_text", Quoted(tokenizer, p.theirs)},
                               {"their_gap", gap(p.their_gap)},
                               {"tie", p.IsTie(limits)}});
  }
  return out;
}

json::array LoadsJson(const Comparison& c) {
  json::array out;
  for (const LoadCheck& load : c.loads) {
    json::object entry = {{"concurrency", load.concurrency}, {"server", ToJson(load.server)}};
    if (load.against) entry["against"] = ToJson(*load.against);
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

std::string ToPage(const Comparison& c, const CompareOptions& options, const Tokenizer& tokenizer) {
  const std::string& weights = options.engine.quantization;
  const std::string owner =
      c.their_owner.empty() ? "" : fmt::format(" ({})", Printable(c.their_owner, 40));
  std::string out = fmt::format("{} here, on the {} ops{}, and {} on {}{}\n\n", c.our_model,
                                c.our_ops, weights == "none" ? "" : ", weights as " + weights,
                                Printable(c.their_model), options.server.url, owner);
  out += PromptRows(c) + "\n" + LogprobLines(c) + "\n";
  out += GreedyLines(c, options.limits, tokenizer);
  out += RepeatLine(c.repeats);
  out += TokenizerLine(c);
  out += Line("speculation",
              fmt::format("here {}; there {}", DraftText(c.our_drafts), DraftText(c.their_drafts)));
  if (c.structured) out += Line("structured output", StructuredLine(*c.structured));
  out += LoadLines(c);
  const std::string_view verdict = c.judgement.verdict == Verdict::kAgree    ? "They agree"
                                   : c.judgement.verdict == Verdict::kDiffer ? "They DIFFER"
                                                                             : "No verdict";
  return out + "\n" + Line(verdict, c.judgement.why + ".");
}

json::object ToJson(const Comparison& c, const CompareOptions& options,
                    const Tokenizer& tokenizer) {
  json::array prompts;
  for (const ComparedPrompt& p : c.prompts) {
    json::object entry = {{"name", p.name}, {"prompt_tokens", p.tokens}};
    for (auto& member : AgreementJson(p.agreement)) {
      entry[member.key()] = std::move(member.value());
    }
    prompts.push_back(std::move(entry));
  }
  json::object out = {
      {"model", c.our_model},
      {"ops", c.our_ops},
      {"quantization", options.engine.quantization},
      {"server", options.server.url},
      {"server_model", c.their_model},
      {"server_owner", c.their_owner},
      {"prompt_logprobs_from", c.prompt_source},
      {"verdict", Name(c.judgement.verdict)},
      {"why", c.judgement.why},
      {"limits",
       {{"mean", options.limits.mean},
        {"divergence", options.limits.divergence},
        {"tie", options.limits.tie}}},
      {"all", AgreementJson(c.all)},
      {"repeats",
       {{"answers", c.repeats.answers},
        {"equal_answers", c.repeats.equal_answers},
        {"answer_logprobs", SpreadJson(c.repeats.generated)}}},
      {"prompts", std::move(prompts)},
      {"left_out", json::array(c.left_out.begin(), c.left_out.end())},
      {"partings", PartingsJson(c, options.limits, tokenizer)},
      {"speculation", {{"ours", DraftJson(c.our_drafts)}, {"theirs", DraftJson(c.their_drafts)}}},
      {"structured", StructuredJson(c.structured)},
      {"loads", LoadsJson(c)}};
  const auto& differing = c.tokenizers.differing;
  out["tokenizers"] = {{"asked", c.tokenizers.asked},
                       {"differing", json::array(differing.begin(), differing.end())}};
  return out;
}

}  // namespace fathom
