#include "server/response_store.h"

#include <gtest/gtest.h>

#include <string>

namespace fathom {
namespace {

void Put(ResponseStore& store, const std::string& owner, const std::string& id, size_t bytes = 1) {
  store.Put({.owner = owner, .id = id, .response = std::string(bytes, 'x')});
}

TEST(ResponseStore, IsThereForItsOwnerAlone) {
  ResponseStore store(10, 1 << 20);
  Put(store, "anna", "a");
  EXPECT_TRUE(store.Get("anna", "a"));
  EXPECT_FALSE(store.Get("ben", "a"));
  EXPECT_FALSE(store.Erase("ben", "a"));
  EXPECT_TRUE(store.Get("anna", "a"));
  EXPECT_TRUE(store.Erase("anna", "a"));
  EXPECT_FALSE(store.Get("anna", "a"));
  EXPECT_FALSE(store.Erase("anna", "a"));
}

TEST(ResponseStore, WhoeverHasTheMostGivesWay) {
  ResponseStore store(4, 1 << 20);
  Put(store, "anna", "a");
  for (int i = 0; i < 100; ++i) Put(store, "ben", "b" + std::to_string(i));
  EXPECT_TRUE(store.Get("anna", "a"));
  for (const char* kept : {"b97", "b98", "b99"}) EXPECT_TRUE(store.Get("ben", kept)) << kept;
  EXPECT_FALSE(store.Get("ben", "b96"));
}

TEST(ResponseStore, WhoeverHasTheMostBytesGivesWay) {
  ResponseStore store(100, 10'000);
  for (int i = 0; i < 5; ++i) Put(store, "anna", "a" + std::to_string(i));
  Put(store, "ben", "first", 4'000);
  Put(store, "ben", "second", 6'000);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(store.Get("anna", "a" + std::to_string(i))) << i;
  EXPECT_FALSE(store.Get("ben", "first"));
  EXPECT_TRUE(store.Get("ben", "second"));
  Put(store, "ben", "too much", 10'000);
  EXPECT_FALSE(store.Get("ben", "too much"));
  EXPECT_TRUE(store.Get("ben", "second"));
}

TEST(ResponseStore, WhatIsUnusedLongestGoesFirst) {
  ResponseStore store(3, 1 << 20);
  for (const char* owner : {"anna", "ben", "carl"}) Put(store, owner, owner);
  EXPECT_TRUE(store.Get("anna", "anna"));
  Put(store, "dora", "dora");  // each has one
  EXPECT_FALSE(store.Get("ben", "ben"));
  for (const char* owner : {"anna", "carl", "dora"}) EXPECT_TRUE(store.Get(owner, owner)) << owner;
  Put(store, "dora", "second");
  EXPECT_FALSE(store.Get("dora", "dora"));
  EXPECT_TRUE(store.Get("dora", "second"));
}

TEST(ResponseStore, OfOneOwnerTheLeastLatelyUsedGo) {
  ResponseStore store(2, 1 << 20);
  for (const char* id : {"a", "b"}) Put(store, "anna", id);
  EXPECT_TRUE(store.Get("anna", "a"));
  Put(store, "anna", "c");
  EXPECT_TRUE(store.Get("anna", "a"));
  EXPECT_FALSE(store.Get("anna", "b"));
}

TEST(ResponseStore, BytesAreBounded) {
  ResponseStore store(100, 10'000);
  for (const char* id : {"a", "b", "c"}) Put(store, "anna", id, 4'000);
  EXPECT_FALSE(store.Get("anna", "a"));
  EXPECT_TRUE(store.Get("anna", "b") && store.Get("anna", "c"));
  Put(store, "anna", "c", 20'000);
  EXPECT_FALSE(store.Get("anna", "c"));  // in place of which nothing fits
  EXPECT_NE(ResponseStore::NewId(), ResponseStore::NewId());
}

TEST(ResponseStore, WhatIsPutAgainTakesNoMoreRoom) {
  ResponseStore store(10, 2'000);
  for (int i = 0; i < 10; ++i) Put(store, "anna", "a", 1'000 + static_cast<size_t>(i));
  ASSERT_TRUE(store.Get("anna", "a"));
  EXPECT_EQ(store.Get("anna", "a")->response.size(), 1'009u);
  EXPECT_TRUE(store.Erase("anna", "a"));
  Put(store, "ben", "b", 1'700);
  EXPECT_TRUE(store.Get("ben", "b"));
}

}  // namespace
}  // namespace fathom
