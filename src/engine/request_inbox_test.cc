#include "engine/request_inbox.h"

#include <gtest/gtest.h>

#include <vector>

namespace fathom {
namespace {

GenerateRequest Request(uint64_t id) {
  GenerateRequest request;
  request.id = RequestId{id};
  return request;
}

TEST(RequestInbox, CancelsARequestOnceAndAgainWhenItsIdIsUsedAgain) {
  RequestInbox inbox(4);
  const std::vector<RequestId> id = {RequestId{7}};
  for (int use = 0; use < 3; ++use) {
    SCOPED_TRACE(use);
    ASSERT_TRUE(inbox.Put(Request(7)).ok());
    EXPECT_EQ(inbox.Put(Request(7)).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(inbox.Take().requests.size(), 1u);
    inbox.Cancel(RequestId{7});
    inbox.Cancel(RequestId{7});
    EXPECT_EQ(inbox.Take().cancels, id);
    inbox.Forget(id);
    inbox.Cancel(RequestId{7});  // unknown now
    EXPECT_TRUE(inbox.Take().cancels.empty());
  }
}

}  // namespace
}  // namespace fathom
