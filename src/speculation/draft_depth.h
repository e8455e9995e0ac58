// How many drafts the rows of a step verify: what brings most tokens a second by the times of late
// steps and the drafts that stood in them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fathom {

// How long a step of decodes alone takes, each of which verifies and proposes so many drafts.
struct StepTime {
  int32_t decodes = 0, drafts = 0;
  double seconds = 0;

  friend bool operator==(const StepTime&, const StepTime&) = default;
};

// Learns while it runs, for each size of batch: a depth is tried for a few steps, then judged by
// what it is expected to bring, (1 + drafts that stand) / time. Neighbours of the best depth are
// tried again now and then; where two are as good as each other, it is the lesser. THREAD: one.
class DraftDepth {
 public:
  explicit DraftDepth(int32_t most);

  // Of batches of up to `most` decodes: of each size that is judged alone the largest.
  static std::vector<int32_t> Sizes(int32_t most);
  // What is known before the first step: where to begin. Such times are held against each other
  // alone, as contexts differ, and no more once two neighbouring depths have steps of their own.
  void Expect(const StepTime& time);

  struct Choice {
    int32_t drafts = 0;
    bool settled = false;  // the steps before had as many: this one's time and drafts say something
  };
  // Of the next step, with so many decodes in the fullest group.
  Choice Choose(int32_t decodes);

  // Of a settled step of decodes alone.
  void Took(int32_t decodes, int32_t drafts, double seconds);
  // Of a decode in a settled step, with room for `drafts`.
  void Verified(int32_t decodes, int32_t drafts, int32_t stood);

 private:
  static constexpr int kUnsettled = 2;  // a trial's first steps have other drafts, or none

  struct Depth {
    std::vector<double> times;  // of late steps, up to a limit
    double seconds = 0;         // their median: now and then the host is held up, not the step
    double doubt = 0;           // its standard error, as a share of it
    double expected = 0;        // Expect(); 0: nobody knows
    // Decodes that got as far as this draft, and those in which it stood.
    double reached = 4, stood = 3;

    bool timed() const;  // by its own steps
  };
  struct Batch {
    std::vector<Depth> depths;  // [0..most]
    int32_t best = 1, trial = 1;
    int32_t trial_steps = 0;  // of a trial: the fewer decodes, the more
    int32_t trial_left = 0, since_trial = 0;
    bool upwards = false;  // where the last trial went
  };

  Batch& Of(int32_t decodes);
  // Whether one draft more than `drafts` brings more, beyond what times leave in doubt: fewer
  // drafts are never far from what there is without any. Nothing: there are no times of both.
  static std::optional<bool> OneMorePays(const Batch& batch, int32_t drafts);
  int32_t Next(Batch& batch) const;
  // The neighbour of the best depth that is to be tried next; -1: there is none.
  int32_t Candidate(const Batch& batch) const;
  static void BeginTrial(Batch& batch, int32_t drafts);

  const int32_t most_;
  std::vector<Batch> batches_;  // by size
  int32_t last_ = -1;           // chosen
  int32_t repeated_ = 0;
};

}  // namespace fathom
