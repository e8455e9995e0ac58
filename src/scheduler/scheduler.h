// Pure policy: requests and pages in, step plans out. No tensors, no device, no threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cache/page_pool.h"
#include "cache/prefix_index.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace fathom {

struct SchedulerOptions {
  int32_t groups = 1;         // data-parallel; the next two, and num_pages, are those of each
  int32_t max_num_seqs = 32;  // slots
  int32_t max_num_batched_tokens = 1024;  // token budget of a step; at least prefill_chunk
  int32_t prefill_chunk = 512;  // prefill is cut at absolute multiples of this many positions
  int32_t num_pages = 0;
  int32_t max_model_len = 0;  // prompt and generated tokens
  // Prompts' parts of chunks that are longer take the expanded form (base/attention_form.h). To be
  // set: the model's.
  int64_t absorbed_limit = -1;
  // Pipeline stages, of which each works on another step: what a step draws is known to the first
  // stage when the one so many steps later begins.
  int32_t stages = 1;
  int32_t depth = 2;       // steps planned ahead of results; more than there are stages
  int32_t max_drafts = 0;  // that a decode verifies at most
  int32_t lookahead = 0;   // positions behind what is drawn that a chain of drafts is computed at

  bool prefix_caching = false;  // requests share the full pages of equal beginnings
  // Pages of generated tokens too, and whatever form their tokens took: rows of known tokens take
  // the form that is cheaper for them. Then bits depend on what was found.
  bool reuse_decoded = false;
  PrefixScope prefix_scope = {};  // what of it is the engine's; a request adds its own
  PrefixHash prefix_hash = Sha256;
};

// kInvalidArgument, naming the flag, for what no scheduler can run with.
Status Validate(const SchedulerOptions& options);

// What the device says of a row.
struct RowOutcome {
  // The request ends, after the tokens that a decode brought before, if none of these ended it.
  bool failed = false;
  // If the row samples and the request had not ended: 1 to num_tokens() of a decode, else 1, or
  // fewer if it failed; none after a token that ends the request.
  std::vector<TokenId> tokens;
};

enum class SequenceEnd { kStop, kLength, kFailed };

// What a row's outcome means for its request.
struct RowEffect {
  bool counts = false;  // false: the request had ended before; the outcome is dropped
  std::optional<SequenceEnd> end;
  int32_t cached_tokens = 0;  // of its prompt: found when it first entered a slot
  int32_t preemptions = 0;    // of it, so far
};

// Policy: in each group every running request decodes in each step (of several stages: each has its
// share of them in turn), by turn, and verifies as many drafts as budget and free pages have room
// for once everybody has a token; what the budget leaves goes to prefill chunks, by turn. Clients
// take turns to enter, each with its own oldest request. That one enters with the pages of its
// whole prefill, and in the group where pages and the step's tokens then have the most room. It
// stays there until its end, unless a decode finds no page for its token: then the request of its
// group whose turn is the last is preempted. That one gives its pages back and later, in whatever
// group, but in its old turn, computes its prompt and generated tokens anew, in the forms that they
// had. Any request that fits alone thus ends.
//
// With prefix caching a request enters with the pages of its prompt's beginning that the group's
// index has, never that of the last token, and one whose next page another request is computing
// waits for it; others may pass it meanwhile. Pages that a prefill wrote are published once the
// step that wrote them is applied.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);  // REQUIRES: Validate(options).ok()
  ~Scheduler();

  // kInvalidArgument, with the numbers, when such a request can never run. A prompt may fill the
  // context if one token is all it asks for. THREAD: any.
  Status CheckFits(int64_t prompt_tokens, int64_t max_tokens) const;

  // `client`: who asks. `cache_salt`: pages are shared among equal ones. `priority`: those of a
  // lower number enter before others, and are preempted after them. REQUIRES: CheckFits(), a new
  // id.
  void Add(RequestId id, std::shared_ptr<const RequestParams> params, uint64_t client = 0,
           const std::string& cache_salt = {}, int32_t priority = 0);
  // False if the request is unknown or has ended. Its pages are free once no row of it is in
  // flight; Apply() drops the results of those.
  bool Cancel(RequestId id);
  // From now on no page is found that was written before.
  void ResetPrefixCache();

  // Of the decodes of the steps from now on, at the most; at first max_drafts.
  // REQUIRES: 0 to max_drafts.
  void SetDrafts(int32_t drafts);

  // The next step of all groups; empty() if nothing can run before another result. With stages it
  // may have no rows: it moves those before it on, and is not applied.
  // REQUIRES: fewer than `depth` plans with rows without Apply().
  StepPlans Plan();
  // One effect per row. REQUIRES: `step` is the oldest not yet applied, and `rows` are its Rows().
  std::vector<RowEffect> Apply(uint64_t step, std::span<const StepRow> rows,
                               std::span<const RowOutcome> outcomes);

  // REQUIRES: the request is known and has not ended.
  const Sequence& sequence(RequestId id) const;

  const SchedulerOptions& options() const { return options_; }
  int32_t running() const;
  int32_t running(int32_t group) const;
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // No request, and nothing of an ended one in flight.
  bool empty() const { return sequences_.empty(); }
  int32_t free_pages() const;
  int32_t free_pages(int32_t group) const;
  int32_t num_pages() const { return options_.groups * options_.num_pages; }
  int64_t preemptions() const { return preemptions_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }        // planned, each once
  int64_t generated_tokens() const { return generated_tokens_; }  // applied
  // Prompt tokens of requests that have entered, each once, and those of them that were found.
  int64_t prefix_queries() const { return prefix_queries_; }
  int64_t prefix_hits() const { return prefix_hits_; }

  // CHECKs every invariant; when empty(), that every slot and page is free.
  void CheckIntegrity() const;

 private:
  friend struct SchedulerSaboteur;  // breaks it on purpose: the simulation must notice

  struct Group {
    Group(int32_t number, const SchedulerOptions& options);

    const int32_t number;
    PagePool pool;
    PrefixIndex index;
    // Pages that running requests compute and will publish.
    std::unordered_map<PrefixKey, const Sequence*, PrefixKeyHash> promised;
    std::vector<SlotId> free_slots;  // a stack
    std::vector<Sequence*> running;  // by turn
    std::vector<Sequence*> leaving;  // their slots and pages are still in flight

    // Of the step that is being planned:
    StepPlan part;
    int32_t tokens_left = 0;
    bool logprobs = false;  // a row that samples wants them
    bool prefills = false;  // it has a row of known tokens
  };

  // Where a request that waits may enter.
  struct Entrance {
    Group* group = nullptr;  // null: nowhere
    int32_t cached = 0;      // leading pages of its prompt that it finds there
    int32_t shared = 0;      // with those that are being computed there: for these it waits
    int64_t pages_left = 0;  // behind it
    int32_t tokens = 0;      // of its first row; 0 if it waits

    bool waits() const { return shared > cached; }
  };

  // Of so many positions of a request, and of drafts behind them, as far as it can ever go.
  int32_t PagesOf(const Sequence& seq, int64_t positions) const {
    return PagesFor(std::min<int64_t>(positions + options_.lookahead, seq.final_length - 1));
  }
  Group& GroupOf(const Sequence& seq) { return groups_[static_cast<size_t>(seq.group)]; }
  uint64_t TurnOf(uint64_t client) const;
  int64_t FinalLength(int64_t prompt_tokens, int64_t max_tokens) const;
  int32_t FirstPrefillTokens(const Group& group, const Entrance& head) const;
  void PlanDecodes(Group& group, int32_t held_back);
  void PlanPrefills(Group& group);
  void PlanChunk(Group& group, Sequence& seq);
  void AddPrefill(Group& group, Sequence& seq, int32_t tokens);
  std::vector<Sequence*> DecodesOf(const Group& group) const;
  StepPlans TakeParts();
  int32_t PrefillTokens(const Sequence& seq, int32_t begin, int32_t end) const;
  AttentionForm FormOfRow(const Sequence& seq, int32_t begin, int32_t tokens) const;
  // Admission.
  void OpenSlots();
  Entrance EntranceOfHead();
  Entrance BestEntrance(const Sequence& seq, bool with_tokens);
  Entrance EntranceOf(const Sequence& seq, Group& group) const;
  int64_t RoomBehind(const Entrance& entrance) const;
  void OpenSlot(const Entrance& entrance, Sequence& seq);
  // Shared prefixes.
  PrefixChain ChainOf(const RequestParams& params, const std::string& cache_salt) const;
  void ExtendChain(Sequence& seq) const;
  bool Awaits(const Sequence& seq) const;
  void TakePages(const Entrance& entrance, Sequence& seq);
  void Publish(Sequence& seq, int32_t written);
  void WithdrawPromises(Sequence& seq);
  static void CheckWritable(const Group& group, const Sequence& seq, const StepRow& row);
  bool ReserveToken(Group& group, Sequence& seq, int32_t& pages_owed);
  void AddDrafts(Group& group, int32_t drafts, Sequence& seq, StepRow& row) const;
  static int32_t PagesSoonFree(const Group& group);
  void Preempt(Sequence& seq);
  void AddRow(Group& group, Sequence& seq, StepRow row) const;
  static void HandOverPages(Sequence& seq, StepRow& row);
  std::optional<SequenceEnd> Advance(Sequence& seq, const StepRow& row, const RowOutcome& outcome);
  void End(Sequence& seq);
  void Leave(Sequence& seq);
  void ReleaseIfDrained(Sequence& seq);
  void CheckGroup(const Group& group) const;
  void CheckSequence(const Sequence& seq) const;

  const SchedulerOptions options_;
  std::deque<Group> groups_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::deque<Sequence*> waiting_;   // by turn
  std::deque<uint64_t> in_flight_;  // steps planned and not applied
  int32_t drafts_;
  uint64_t next_step_ = 0;
  std::optional<uint64_t> last_with_rows_;
  uint64_t next_arrival_ = 0;
  uint64_t turn_ = 0;  // the latest that has entered
  // The last step left out a group's first prefill for want of tokens: the next one holds some
  // back from the decodes, or a small budget would starve it. All groups do so at once, so that
  // their prefills share steps.
  bool prefill_left_out_ = false;
  int64_t preemptions_ = 0;
  int64_t prompt_tokens_ = 0;
  int64_t generated_tokens_ = 0;
  int64_t prefix_queries_ = 0;
  int64_t prefix_hits_ = 0;
};

}  // namespace fathom
