// SPDX-License-Identifier: Apache-2.0

// Ranks hand each other bytes and agree on values.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "executor/world/agreement.h"
#include "tests/executor/world/ranks_in_threads.h"

using namespace arbalest;
using namespace arbalest::test;

namespace exchange_test {

TEST_CASE("ranks exchange parts, and rank 0 gathers them, also from ranks that are ahead") {
  std::atomic<int> calls{0};
  const auto found = world(3, [&](Ranks& ranks) {
    const std::string mine = std::string(size_t(ranks.rank()), 'x');
    const Ranks::Parts expected = {"", "x", "xx"};
    for (int i = 0; i < 50; ++i) {
      const Ranks::Parts parts = ranks.gather("g", mine + std::to_string(i));
      if (ranks.first()) CHECK(parts[2] == "xx" + std::to_string(i));
    }
    CHECK(ranks.exchange("e", mine) == expected);
    ranks.exchange("later", mine, [&](const Ranks::Parts& parts) { calls += parts == expected; });
    const std::string large(9 << 20, char('a' + ranks.rank()));
    CHECK(ranks.exchange("large", large)[1] == std::string(9 << 20, 'b'));
    ranks.end();
  });
  CHECK(found == std::vector<std::string>(3));
  CHECK(calls == 3);
}

TEST_CASE("ranks agree on the largest number, the first text, and whether a step has succeeded on all") {
  std::atomic<int> steps{0};
  const auto found = world(3, [&](Ranks& ranks) {
    CHECK(largest_of(&ranks, -7 + ranks.rank()) == -5);
    CHECK(first_of(&ranks, ranks.rank() == 0 ? "" : std::to_string(ranks.rank())) == "1");
    CHECK(first_of(&ranks, "") == "");
    on_all(&ranks, [&] { ++steps; });
    const auto fails = [&] {
      if (ranks.rank() > 0) throw RunError("no memory at rank " + std::to_string(ranks.rank()));
    };
    std::string error;
    try {
      on_all(&ranks, fails);
    } catch (const AgreedError& thrown) {
      error = thrown.what();
    }
    CHECK(error == ranks.name(1) + ": no memory at rank 1");
    CHECK(largest_of(&ranks, 5) == 5);  // all go on
    ranks.end();
  });
  CHECK(found == std::vector<std::string>(3));
  CHECK(steps == 3);
  CHECK(largest_of(nullptr, 3) == 3);
  CHECK(first_of(nullptr, "x") == "x");
}

TEST_CASE("facts that differ are named, and long ones by their first lines that differ") {
  using Lines = std::vector<std::string>;
  const auto differ = [](const Lines& usual, const Lines& of_rank_2, const std::string& expected) {
    const auto found = world(3, [&](Ranks& ranks) {
      const Lines& own = ranks.rank() == 2 ? of_rank_2 : usual;
      check_alike(ranks, {{"seed", "5"}, long_fact("graph", {own.size(), [&](size_t i) { return own[i]; }})});
      ranks.end();
    });
    for (const std::string& error : found) {
      if (expected.empty()) CHECK(error.empty());
      if (!expected.empty()) has(error, "differs from rank 0 on ") && has(error, ": graph: " + expected);
    }
  };
  const Lines usual = {"a", "b\nb 2\nb 3", "c"};
  differ(usual, usual, "");
  differ(usual, {"a", "b\nb 7\nb 3", "c"}, "b 7; expected as on rank 0");
  differ(usual, {"a", "b\nb 2\nb 3"}, "nothing; it has 2 in all; expected as on rank 0");
  differ(usual, {"a", "b\nb 2\nb 3", "c", "d"}, "d; expected as on rank 0");
  differ(usual, {"a", "b\nb 2", "c"}, "nothing more after b 2; expected as on rank 0");
  differ(usual, {}, "nothing; it has 0 in all; expected as on rank 0");
}

TEST_CASE("a rank of another build, which states more or less, is refused everywhere") {
  for (const int states_build : {0, 1}) {
    const auto found = world(2, [&](Ranks& ranks) {
      std::vector<Fact> facts = {{"seed", "5"}};
      if (ranks.rank() == states_build) facts.push_back({"build", "1"});
      check_alike(ranks, facts);
    });
    for (const std::string& error : found) {
      has(error, "rank 1 on ") && has(error, fmt::format(": rank {} on ", states_build));
      has(error, " alone states its build; expected the same build on both");
    }
  }
}

TEST_CASE("ranks know rank 0's clock to within an error that they know as well") {
  const auto found = world(3, [&](Ranks& ranks) {
    const Ranks::ClockReading clock = ranks.read_clock();  // here all have the same
    CHECK(std::abs(clock.there - clock.here) <= clock.error);
    CHECK(clock.error >= 0);
    CHECK(clock.error < 50'000'000);
    CHECK((clock.error == 0) == ranks.first());
    ranks.end();
  });
  CHECK(found == std::vector<std::string>(3));
}

TEST_CASE("a number that one rank raises is seen by all") {
  const auto found = world(3, [&](Ranks& ranks) {
    if (ranks.rank() == 2) ranks.call(7);
    while (ranks.called() < 7) std::this_thread::yield();
    ranks.end();
  });
  CHECK(found == std::vector<std::string>(3));
}

TEST_CASE("what all have exchanged is heard by all, also if a rank ends because of it") {
  for (int round = 0; round < 30; ++round) {
    const auto found = world(3, [&](Ranks& ranks) {
      CHECK(first_of(&ranks, ranks.rank() == 2 ? "no" : "") == "no");
      ranks.fail("no");
    });
    CHECK(found == std::vector<std::string>(3));
  }
}

}  // namespace exchange_test
