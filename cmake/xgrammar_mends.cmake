# What of xgrammar is built otherwise, and where its work is counted (cmake/xgrammar.cmake): each with what
# went wrong before.
# In strings of counted length it takes control characters as they stand, but for line ends; JSON has
# none of them.
xgrammar_mend(json_schema_converter [=[{'"', '"'}, {'\\', '\\'}, {'\r', '\r'}, {'\n', '\n'}}, true)]=]
              [=[{'"', '"'}, {'\\', '\\'}, {0, 0x1f}}, true)]=])
# What may be left out it takes by an edge from its first state to its last, which may have edges of
# their own: a(b[0-9]+)? took a5.
xgrammar_mend(fsm [=[
  if (!ends_.empty()) {
    fsm.AddEpsilonEdge(start_, ends_.front());
  }
  return FSMWithStartEnd(fsm, start_, ends_);]=] [=[
  const int start = fsm.AddState();
  const int end = fsm.AddState();
  fsm.AddEpsilonEdge(start, start_);
  fsm.AddEpsilonEdge(start, end);
  for (const auto of_this : ends_) fsm.AddEpsilonEdge(of_this, end);
  return FSMWithStartEnd(fsm, start, {end});]=])
# A repetition without an end went back to one of the states that end the first, which may have edges
# of its own: (bc{0,2}){0,}|b took bccc.
xgrammar_mend(fsm_builder [=[  if (!has_upper_bound) {
    for (int i = 2;]=] [=[  if (!has_upper_bound) {
    if (state.lower_bound == 0) return ResultOk(child.Star());
    std::vector<FSMWithStartEnd> copies(state.lower_bound - 1, child);
    copies.push_back(child.Plus());
    return ResultOk(FSMWithStartEnd::Concat(copies));
    for (int i = 2;]=])
# States that nothing follows it takes for one, also such as it has taken for another in the same
# round: b*|a{1,3}|a took any number of a.
xgrammar_mend(fsm [=[      if (outgoing_count == 0) {
        if (result.IsEndState(i)) {]=] [=[      if (union_find_set.Count(i)) continue;
      if (outgoing_count == 0) {
        if (result.IsEndState(i)) {]=])
# Counts above 128 are an edge of a state that must have no other; merged with another one such a state
# had some: ([ab]{200}|c)d took aacd.
xgrammar_mend(fsm [=[      if (edge.IsExcludeToken()) {
        has_exclude_token]=] [=[      if (edge.IsExcludeToken() || edge.IsRepeatRef()) {
        has_exclude_token]=])
xgrammar_mend(fsm [=[    // Case 1: Like ab]=] [=[    const auto counts = [&](int state) {
      for (const auto& edge : result.GetFsm().GetEdges(state)) {
        if (edge.IsRepeatRef()) return true;
      }
      return false;
    };
    // Case 1: Like ab]=])
xgrammar_mend(fsm "union_find_set.Count(i) || i == result.GetStart()) {"
              "union_find_set.Count(i) || i == result.GetStart() || counts(i)) {")
xgrammar_mend(fsm [=[sibling == result.GetStart() ||
            result.IsEndState(sibling)]=] [=[sibling == result.GetStart() || counts(sibling) ||
            result.IsEndState(sibling)]=])
# Of a string in JSON only what stands outside of counts above 128 kept to what needs no escape: .{0,129} took
# """.
xgrammar_mend(fsm_builder "const std::string& regex_with_flags, GrammarBuilder* builder, const std::string& rule_hint
" "const std::string& regex_with_flags, GrammarBuilder* builder, const std::string& rule_hint,
    bool json_string = false
")
xgrammar_mend(fsm_builder "builder->AddRegex(inner_regex)" "builder->AddRegex(inner_regex, json_string)")
xgrammar_mend(fsm_builder "  auto build_result = Build(regex, builder, rule_hint);"
[=[  auto parsed = ParseRegexToIR(regex, builder, rule_hint, forbidden_chars.any());
  if (parsed.IsErr()) return ResultErr(std::move(parsed).UnwrapErr());
  auto build_result = std::move(parsed).Unwrap().Build();]=])
# And a pattern that no automaton takes became rules, which know nothing of JSON.
xgrammar_mend(json_schema_converter "  // Keep regex conversion independent." [=[
  if (json_string) XGRAMMAR_LOG(FATAL) << "a string cannot be held to the pattern " << regex;
  // Keep regex conversion independent.]=])
xgrammar_mend(json_schema_converter [=[[\\x00-\\x2E]|[\\x30-\\x7D]|[\\x7F-]=]
                                    [=[[ !#-\\x2E]|[\\x30-\\x5B\\x5D-\\x7D]|[\\x80-]=])
# What it leaves out of a string leaves states from which no end can be reached: "a\n|b" took an a behind
# which nothing came.
xgrammar_mend(fsm_builder "  new_fsm.SetEdgeAuxData(std::vector<int32_t>(fsm.GetEdgeAuxData()));" [=[
  std::vector<std::vector<int>> before(new_fsm.NumStates());
  for (int state = 0; state < new_fsm.NumStates(); ++state) {
    for (const auto& edge : new_fsm.GetEdges(state)) before[edge.target].push_back(state);
  }
  std::vector<bool> ends(new_fsm.NumStates());
  std::vector<int> found;
  for (int state = 0; state < new_fsm.NumStates(); ++state) {
    if (!fsm_wse.IsEndState(state)) continue;
    ends[state] = true;
    found.push_back(state);
  }
  while (!found.empty()) {
    const int state = found.back();
    found.pop_back();
    for (const int one : before[state]) {
      if (ends[one]) continue;
      ends[one] = true;
      found.push_back(one);
    }
  }
  FSM all = std::move(new_fsm);
  new_fsm = FSM(all.NumStates());
  for (int state = 0; state < all.NumStates(); ++state) {
    for (const auto& edge : all.GetEdges(state)) {
      if (ends[edge.target]) new_fsm.AddEdge(state, edge.target, edge.min, edge.max);
    }
  }
  new_fsm.SetEdgeAuxData(std::vector<int32_t>(fsm.GetEdgeAuxData()));]=])
# A quoted part of an address has two backslashes in JSON where it has one itself.
xgrammar_mend(json_schema_converter [=["\\\\\"(\\\\[\\x20-\\x7E]|]=] [=["\\\\\"(\\\\\\\\(\\\\[\"\\\\]|[ !#-\\x5B\\x5D-\\x7E])|]=])
# A bracket that closes nothing is itself, as in JavaScript and Python.
xgrammar_mend(fsm_builder [=[    if (current_char == ']') {
      return ResultErr(error_at(i, "Unmatched ']'"));
    }
]=] "")
# A rule that is only another one, counted, has that one counted twice, and so on: a ::= a{2} had no
# end. A rule within itself, or behind many such, stays a rule.
xgrammar_mend(grammar_functor "    if (ref_choice.size() == 1) {
      // Visit the element instead"
"    if (ref_choice.size() == 1 && open_.size() < 16 && open_.insert(rule_id).second) {
      // Visit the element instead")
xgrammar_mend(grammar_functor "      grammar_expr_id = VisitExpr(ref_choice[0]);
    }
  }

  // Memoize" "      grammar_expr_id = VisitExpr(ref_choice[0]);
      open_.erase(rule_id);
    }
  }

  // Memoize")
xgrammar_mend(grammar_functor "  std::map<std::vector<int64_t>, int32_t> repetition_cache_;"
              "  std::map<std::vector<int64_t>, int32_t> repetition_cache_;
  std::set<int32_t> open_;  // rules whose element is being visited")
# The name of a rule whose pattern fails is said of a copy: rules that the pattern's counts had added moved
# the names, and what was read then was anything.
xgrammar_mend(grammar_functor "automaton for rule \" << *rule_name_" "automaton for rule \" << rule_hint")
# A mask of the root's knows of nothing behind the root; where rules name it, another one is the root.
xgrammar_mend(grammar_compiler
"CompiledGrammar GrammarCompilerSub::MultiThreadCompileGrammar(Grammar grammar_unoptimized) {"
[=[static Grammar WithRootOfItsOwn(const Grammar& grammar) {
  using Type = Grammar::Impl::GrammarExprType;
  const int32_t root = grammar->GetRootRuleId();
  bool named = false;
  for (int32_t i = 0; i < grammar->NumGrammarExprs(); ++i) {
    const auto expr = grammar->GetGrammarExpr(i);
    named |= (expr.type == Type::kRuleRef || expr.type == Type::kRepeat) && expr[0] == root;
  }
  if (!named) return grammar;
  GrammarBuilder builder(grammar);
  const int32_t body = builder.AddChoices({builder.AddSequence({builder.AddRuleRef(root)})});
  return builder.Get(builder.AddRuleWithHint("root", body));
}

CompiledGrammar GrammarCompilerSub::MultiThreadCompileGrammar(Grammar grammar_unoptimized) {
  grammar_unoptimized = WithRootOfItsOwn(grammar_unoptimized);]=])
xgrammar_mend(grammar_compiler "#include \"earley_parser.h\"" "#include \"earley_parser.h\"
#include \"grammar_builder.h\"")
# Classes in what follows a rule, by which tokens of a mask are judged, were looked at by the last byte of
# their bounds, and a character that one leaves out was known by its last byte only.
xgrammar_mend(earley_parser "    if (static_cast<uint8_t>(sub_sequence[i]) <= ch &&
        ch <= static_cast<uint8_t>(sub_sequence[i + 1])) {"
"    if (sub_sequence[i] <= ch && ch <= sub_sequence[i + 1]) {")
xgrammar_mend(earley_parser "bool should_continue = is_negative ? true : could_match;"
[=[bool all_within = false;
      for (int i = 1; i < sub_sequence.size(); i += 2) {
        all_within |= sub_sequence[i] <= min_codepoint && max_codepoint <= sub_sequence[i + 1];
      }
      bool should_continue = is_negative ? !all_within : could_match;]=])
# What begins with E0 or F0 was taken for any character of as many bits, shorter ones too.
xgrammar_mend(earley_parser "    int32_t max_codepoint = min_codepoint | ((1 << (6 * (num_bytes - 1))) - 1);"
"    int32_t max_codepoint = std::min(min_codepoint | ((1 << (6 * (num_bytes - 1))) - 1), 0x10ffff);
    min_codepoint = std::max(min_codepoint, num_bytes == 2 ? 0x80 : num_bytes == 3 ? 0x800 : 0x10000);")
# Its regular expressions become EBNF, where \x41 goes on as long as digits do: \x61a was U+061A. Names
# of groups are of letters alone for it.
xgrammar_mend(regex_converter "  auto [codepoint, len] = ParseNextEscaped(current_, CUSTOM_ESCAPE_MAP);"
[=[  if (current_[1] == 'x') {
    current_ += 4;
    return EscapeString(16 * HexCharToInt(current_[-2]) + HexCharToInt(current_[-1]));
  }
  auto [codepoint, len] = ParseNextEscaped(current_, CUSTOM_ESCAPE_MAP);]=])
xgrammar_mend(regex_converter [=[      return "\\" + res;
    } else {
      return res;]=] [=[      return "\\" + res;
    } else {
      if (res.rfind("\\x", 0) == 0) return "\\u00" + res.substr(2);
      if (res == "^") return "\\u005e";
      return res;]=])
xgrammar_mend(regex_converter [=[    RaiseWarning(
        "Escape sequence '\\" + EscapeString(current_[1]) +
        "' is not recognized. The character itself will be matched"
    );
]=] "")
xgrammar_mend(regex_converter [=[\u0020\u00a0]=] [=[\u0020]=])
# Behind \s or the like in a class a dash is one, and no range.
xgrammar_mend(regex_converter "      char_class += HandleEscapeInCharClass();" [=[
      const bool several = std::string("dDwWsS").find(static_cast<char>(current_[1])) != std::string::npos;
      char_class += HandleEscapeInCharClass();
      if (several && current_ != end_ && *current_ == '-') {
        char_class += "\\-";
        ++current_;
      }]=])
xgrammar_mend(regex_converter [=[\x21-\x9F\xA1-\U0010FFFF]=] [=[\x21-\U0010FFFF]=])
xgrammar_mend(regex_converter "isalpha(*current_)) {
      ++current_;" "(isalnum(*current_) || *current_ == '_')) {
      ++current_;")
xgrammar_mend(regex_converter "  if (*current_ == ':') {" "  if (*current_ == 'P' && current_[1] == '<') ++current_;
  if (*current_ == ':') {")
xgrammar_mend(regex_converter "Group modifier flag is not supported yet."
              "(?i) goes with small patterns alone: write [aA]")
# Of its macros in EBNF those of tokens are the server's own, and a pattern has limits.
xgrammar_mend(grammar_parser "    if (kMacroFunctions.count(id)) {" [=[    if (kMacroFunctions.count(id)) {
      if (id != "Regex") ReportParseError("Of macros there is Regex alone, and " + id + " names no rule");]=])
xgrammar_mend(grammar_parser "  std::string pattern = pattern_node->value;"
[=[  std::string pattern = pattern_node->value;
  if (const std::string why = fathom::FaultOfMacro(pattern, json_string); !why.empty()) {
    ReportParseError(why, delta_element);
  }]=])
# What is asked to follow a rule is for it a hint, to which no answer is held.
xgrammar_mend(grammar_parser [=[  PeekAndConsume(TokenType::LookaheadLParen,]=]
[=[  ReportParseError("(= is not known here: write what follows behind the rule's name");
  PeekAndConsume(TokenType::LookaheadLParen,]=])
# Of a character that it does not know it names the first byte.
xgrammar_mend(grammar_parser "std::string(1, *cur_)" "std::string(cur_, cur_ + std::max(1, ParseNextUTF8(cur_).second))")
xgrammar_mend(grammar_parser "\"Invalid escape sequence\" + std::string(cur_, cur_ + 2)"
              "\"Invalid escape sequence \" + std::string(cur_, cur_ + 1 + std::max(1, ParseNextUTF8(cur_ + 1).second))")
# Its rules may have attributes. It has no answer to them here, and works for them without a bound.
xgrammar_mend(grammar_parser "      if (has_capture && capture_value.empty()) {"
[=[      ReportLexerError("A rule has no attributes here", start_line, start_column);
      if (has_capture && capture_value.empty()) {]=])
# It makes masks for as long as that takes; before each somebody looks.
xgrammar_mend(grammar_compiler [=[  auto add_adaptive_token_mask = [&](const ParserState& state, bool is_root_rule) {
]=] [=[  auto add_adaptive_token_mask = [&](const ParserState& state, bool is_root_rule) {
    fathom::LookAtSteps();
]=])
# Before that it makes rules of a grammar and automata of the rules, and these smaller.
xgrammar_steps(grammar_builder 1 "grammar_->grammar_expr_indptr_.push_back(")
xgrammar_steps(grammar_builder 1 "grammar_->rules_.push_back(")
xgrammar_steps(grammar_functor 1 "auto rule_id = visit_queue_.front();")
xgrammar_steps(fsm 1 "edges_.emplace_back();")
xgrammar_steps(fsm 1 "edges_[from].push_back({min, max, to});")
xgrammar_steps(fsm 1 "int current = queue.front();")
xgrammar_steps(fsm 1 "int sibling = siblings[group_begin].peer;")
xgrammar_steps(fsm 1 "union_find_set.Add(no_successor_end_states[i]);")
xgrammar_steps(fsm 1 "if (precursors.find(partition_state) != precursors.end()) {")
xgrammar_steps(fsm 1 "const auto& edges = fsm_->GetEdges(state);")
# What may follow in an answer are states of a parser, for one token sometimes millions.
xgrammar_steps(earley_parser 8 "tmp_process_state_queue_.pop();")
xgrammar_steps(earley_parser 1 "if (ref_id != state.rule_id) {")
xgrammar_steps(earley_parser 1 "if (!edge.IsRepeatRef()) continue;")
xgrammar_steps(earley_parser 1 "if (parent_state_iter.first != state.rule_id) continue;")
xgrammar_steps(earley_parser 1 "return StateEqualForParsing()(s.second, state_)")
xgrammar_steps(earley_parser 2 "if (edge.IsEpsilon()) {")
xgrammar_steps(earley_parser 8 "rule_id_to_completable_states_.PushBackInLatestRow(")
xgrammar_steps(earley_parser 2 "Scan(state, ch);")
xgrammar_steps(earley_parser 1 "if ((!edge.IsCharRange()) || ch < edge.min")
xgrammar_steps(grammar_matcher 1 "const auto cur_token_idx = *token_it++;")
xgrammar_steps(grammar_matcher "64 + tokenizer_info_.GetVocabSize() / 256" "latest_states_with_masks.push_back(")
# Those that are known at a byte were nodes of a hash table, whose buckets stayed as many as they had
# ever been. They are a table without nodes, as large as is needed.
xgrammar_mend(earley_parser "bool RepeatDetector::IsVisited(const ParserState& state) const {"
[=[static constexpr int32_t kNoState = std::numeric_limits<int32_t>::min();  // as rule_start_pos

static size_t SlotOf(const std::vector<ParserState>& table, const ParserState& state) {
  const size_t mask = table.size() - 1;
  size_t slot = (StateHashForParsing()(state) * 0x9e3779b97f4a7c15ull >> 32) & mask;
  for (; table[slot].rule_start_pos != kNoState; slot = (slot + 1) & mask) {
    fathom::CountSteps(2);
    if (StateEqualForParsing()(table[slot], state)) break;
  }
  return slot;
}

static std::vector<ParserState> TableOf(const std::vector<ParserState>& states, size_t slots) {
  fathom::CountSteps(slots);
  ParserState none;
  none.rule_start_pos = kNoState;
  std::vector<ParserState> table(slots, none);
  for (const ParserState& state : states) {
    if (state.rule_start_pos != kNoState) table[SlotOf(table, state)] = state;
  }
  return table;
}

bool RepeatDetector::IsVisited(const ParserState& state) const {
  fathom::CountSteps(1 + (size_ > transition_threshold_ ? 0 : size_ / 16));]=])
xgrammar_mend(earley_parser "visited_set_.find(state) != visited_set_.end()"
              "visited_vector_[SlotOf(visited_vector_, state)].rule_start_pos != kNoState")
xgrammar_mend(earley_parser [=[    for (const auto& s : visited_vector_) {
      visited_set_.insert(s);
    }
  }
  size_++;]=] [=[    visited_vector_ = TableOf(visited_vector_, 256);
  } else if (size_ > transition_threshold_ && 2 * size_ >= visited_vector_.size()) {
    visited_vector_ = TableOf(visited_vector_, 2 * visited_vector_.size());
  }
  size_++;]=])
xgrammar_mend(earley_parser "    visited_set_.insert(state);" [=[    fathom::CountSteps(12);
    visited_vector_[SlotOf(visited_vector_, state)] = state;]=])
xgrammar_mend(earley_parser "    visited_set_.clear();" "    visited_vector_.resize(transition_threshold_);")
# What it knows of automata's states it keeps for each rule by the state's number among those of all
# rules: 7 MB an answer where a schema has 200 branches. A state is one rule's alone, so that one
# table does for all; those that an inlined function looks into stay empty.
xgrammar_mend(earley_parser "fsm_state_flags_cache_(grammar->NumRules())"
              "fsm_state_flags_cache_(grammar->NumRules() + 1)")
xgrammar_mend(earley_parser "auto& flags_cache = fsm_state_flags_cache_[rule_id];"
              "auto& flags_cache = fsm_state_flags_cache_.back();")
# Of each byte of an answer it keeps the states that may go on from there, of a counted repetition 128,
# 10 KB, to take tokens back. Nobody takes back more than the last 32 (xgrammar_adapter.cc), and what
# rules that have begun need is elsewhere; so those of earlier bytes are let go.
xgrammar_mend(grammar_matcher "std::deque<int> token_length_history;"
              "std::deque<int> token_length_history; int32_t forget_at_ = 128;")
xgrammar_mend(grammar_matcher "  return FinishAccept(consumed_past_deadline);"
[=[
  if (const int32_t rows = scanable_state_history_.size(); rows >= forget_at_) {
    int32_t kept = 1, tokens = 0;
    for (auto length = token_length_history.rbegin();
         length != token_length_history.rend() && tokens < 32; ++length, ++tokens) {
      kept += *length;
    }
    Compact2DArray<ParserState> rest;
    for (int32_t i = 0; i < rows; ++i) {
      const auto row = scanable_state_history_[i];
      rest.PushBack(row.data, i + kept < rows ? 0 : row.data_len);
    }
    scanable_state_history_ = std::move(rest);
    forget_at_ = rows + std::max(64, rows / 256);
  }
  return FinishAccept(consumed_past_deadline);]=])
