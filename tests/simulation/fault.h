// Things done wrong on purpose, to see that they are noticed.
#pragma once

#include <string_view>
#include <utility>

namespace fathom::simulation {

enum class Fault {
  kNone,
  // Of the scheduler:
  kPagesFreedAtOnce,    // with steps still in flight
  kTokenForgotten,      // by a preemption
  kLogprobsRepeated,    // after a preemption
  kFormOfRowLength,     // instead of the token's chunk
  kPagesOfTheLeast,     // as if every row brought one token
  kRowInAnotherGroup,   // two rows trade their groups
  kPageOfAnotherGroup,  // two rows get each other's pages
  kGroupLeftOut,        // of a step in which it has no row
  kShapesDiffer,        // one group's from the others'
  kShapeOfOneGroup,     // each group is told of itself alone
  kDecodeTooEarly,      // for the first stage to know its token
  kStepLeftBehind,      // between stages, with nothing that moves it on
  // Of shared prefixes:
  kWrongPageShared,     // two published pages trade their content's names
  kSharedPageWritten,   // a request begins one position before the end of its hit
  kPageInUseEvicted,    // and is handed out again
  kReferenceForgotten,  // of one of two requests that share a page
  kFormsForgotten,      // by the keys of pages
  kPublishedUnwritten,  // pages that are yet to be computed
  kChainTooLong,        // of drafts: a position more than the scheduler has room for
  // Of the device:
  kTokensTraded,            // between two rows of a step
  kPageIgnored,             // a row's new page
  kDraftsUnverified,        // all are taken for right
  kRejectedDraftsKept,      // the slot's length is not taken back
  kCapacityIgnored,         // all drafts that there are, whatever the row says
  kEndIgnored,              // rows run past the final length, and go on once it has ended
  kStopTokenIgnored,        // by what follows in its row
  kAcceptedTokenLost,       // the first of several in a result
  kRowsCounted,             // for min_tokens, instead of tokens
  kEarlierTokensForgotten,  // those generated before a preemption, for min_tokens
};

inline constexpr std::pair<Fault, const char*> kFaults[] = {
    {Fault::kPagesFreedAtOnce, "PagesFreedAtOnce"},
    {Fault::kTokenForgotten, "TokenForgotten"},
    {Fault::kLogprobsRepeated, "LogprobsRepeated"},
    {Fault::kFormOfRowLength, "FormOfRowLength"},
    {Fault::kPagesOfTheLeast, "PagesOfTheLeast"},
    {Fault::kRowInAnotherGroup, "RowInAnotherGroup"},
    {Fault::kPageOfAnotherGroup, "PageOfAnotherGroup"},
    {Fault::kGroupLeftOut, "GroupLeftOut"},
    {Fault::kShapesDiffer, "ShapesDiffer"},
    {Fault::kShapeOfOneGroup, "ShapeOfOneGroup"},
    {Fault::kDecodeTooEarly, "DecodeTooEarly"},
    {Fault::kStepLeftBehind, "StepLeftBehind"},
    {Fault::kWrongPageShared, "WrongPageShared"},
    {Fault::kSharedPageWritten, "SharedPageWritten"},
    {Fault::kPageInUseEvicted, "PageInUseEvicted"},
    {Fault::kReferenceForgotten, "ReferenceForgotten"},
    {Fault::kFormsForgotten, "FormsForgotten"},
    {Fault::kPublishedUnwritten, "PublishedUnwritten"},
    {Fault::kChainTooLong, "ChainTooLong"},
    {Fault::kTokensTraded, "TokensTraded"},
    {Fault::kPageIgnored, "PageIgnored"},
    {Fault::kDraftsUnverified, "DraftsUnverified"},
    {Fault::kRejectedDraftsKept, "RejectedDraftsKept"},
    {Fault::kCapacityIgnored, "CapacityIgnored"},
    {Fault::kEndIgnored, "EndIgnored"},
    {Fault::kStopTokenIgnored, "StopTokenIgnored"},
    {Fault::kAcceptedTokenLost, "AcceptedTokenLost"},
    {Fault::kRowsCounted, "RowsCounted"},
    {Fault::kEarlierTokensForgotten, "EarlierTokensForgotten"},
};

}  // namespace fathom::simulation
