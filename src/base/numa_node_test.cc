#include "base/numa_node.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/test_folder.h"

namespace fathom {
namespace {

using Cpus = std::vector<int>;

TEST(CpuList, IsReadAsLinuxWritesIt) {
  EXPECT_EQ(ParseCpuList(""), Cpus{}) << "a node of memory alone";
  EXPECT_EQ(ParseCpuList("0"), Cpus{0});
  EXPECT_EQ(ParseCpuList("0-3,8,10-11"), (Cpus{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ParseCpuList("7-7"), Cpus{7});
  EXPECT_EQ(ParseCpuList("65535"), Cpus{65535});
  EXPECT_EQ(ParseCpuList("0-65535")->size(), 65536u);
}

TEST(CpuList, RefusesWhatIsNone) {
  for (const char* list : {"65536",
                           "0-65536",
                           "0-4294967296",
                           "99999999999999999999",
                           "-1",
                           "-0",
                           "0--1",
                           "0--0",
                           "3-1",
                           "0-",
                           "-",
                           ",",
                           "0,",
                           ",0",
                           "0,,1",
                           "0-1-2",
                           "1,0",
                           "0,0",
                           "0-3,2",
                           " 0",
                           "0 ",
                           "0-3\n",
                           "0x1",
                           "+1",
                           "a",
                           "0;1"}) {
    EXPECT_EQ(ParseCpuList(list), std::nullopt) << list;
  }
}

class CpusNearTest : public testing::Test {
 protected:
  NearCpus Near(const Cpus& allowed) const {
    return CpusNear("0000:1B:00.0", allowed, system_.path());  // as CUDA writes it
  }
  void WriteNode(const std::string& node) const {
    system_.Write("bus/pci/devices/0000:1b:00.0/numa_node", node + "\n");
  }
  void WriteCpus(const std::string& list) const {
    system_.Write("devices/system/node/node1/cpulist", list + "\n");
  }
  TestFolder system_;
};

TEST_F(CpusNearTest, AreThoseOfTheNodeThatMayBeUsed) {
  WriteNode("1");
  WriteCpus("4-7,12-15");
  system_.Write("devices/system/node/node0/cpulist", "0-3,8-11\n");
  EXPECT_EQ(Near({0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16}).cpus,
            (Cpus{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(Near({0, 5, 8, 14}).cpus, (Cpus{5, 14}));
  EXPECT_EQ(Near({0, 5, 8, 14}).remark, "NUMA node 1, 2 of its 8 CPUs");
}

TEST_F(CpusNearTest, AreNoneWhereTheProcessMayUseNone) {
  WriteNode("1");
  WriteCpus("4-7");
  EXPECT_EQ(Near({0, 1, 2, 3}).cpus, Cpus{});
  EXPECT_EQ(Near({0}).remark, "any CPU: this process may use none of NUMA node 1");
  WriteCpus("");
  EXPECT_EQ(Near({0}).cpus, Cpus{});
}

TEST_F(CpusNearTest, AreNoneWhereTheSystemSaysNothing) {
  EXPECT_EQ(Near({0}).remark, "any CPU: no NUMA node is said") << "no such device";
  for (const char* node : {"-1", "", "1 ", "one", "99999999999"}) {
    WriteNode(node);
    EXPECT_EQ(Near({0}).cpus, Cpus{}) << node;
    EXPECT_EQ(Near({0}).remark, "any CPU: no NUMA node is said") << node;
  }
  WriteNode("1");  // of which there is no list
  EXPECT_EQ(Near({0}).remark, "any CPU: this process may use none of NUMA node 1");
  WriteCpus("4-");
  EXPECT_EQ(Near({4}).cpus, Cpus{});
  EXPECT_EQ(Near({4}).remark, "any CPU: those of NUMA node 1 are not said");
}

TEST(OnCpus, HoldsForTheThreadAndForThoseThatItStarts) {
  const Cpus before = AllowedCpus();
  ASSERT_FALSE(before.empty());
  const Cpus last = {before.back()};
  std::promise<void> ended;
  Cpus of_started;
  std::thread started;
  {
    const OnCpus near(last);
    EXPECT_EQ(AllowedCpus(), last);
    started = std::thread([&] {
      ended.get_future().wait();
      of_started = AllowedCpus();
    });
  }
  EXPECT_EQ(AllowedCpus(), before);
  ended.set_value();
  started.join();
  EXPECT_EQ(of_started, last) << "for good";
  {
    const OnCpus nowhere({});
    EXPECT_EQ(AllowedCpus(), before);
  }
  EXPECT_EQ(AllowedCpus(), before);
}

}  // namespace
}  // namespace fathom
