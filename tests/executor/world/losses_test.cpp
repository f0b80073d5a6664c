// SPDX-License-Identifier: Apache-2.0

// A rank that is lost, or stands still, is found and named.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "tests/executor/world/ranks_in_threads.h"

using namespace arbalest;
using namespace arbalest::test;

namespace losses_test {
namespace {

using UnderWay = RankProgress::UnderWay;

}  // namespace

TEST_CASE("a rank that ends before the others is lost, and one that fails says why") {
  const auto lost = world(3, [&](Ranks& ranks) {
    ranks.exchange("all are there", "");
    if (ranks.rank() == 1) return;
    ranks.exchange("never", "");
  });
  CHECK(lost[1].empty());
  for (const size_t rank : {size_t{0}, size_t{2}}) has(lost[rank], "rank 1 on " + host_name() + " is lost");

  const auto failed = world(3, [&](Ranks& ranks) {
    std::atomic<int> heard{0};
    ranks.listen([&](const std::string&) { ++heard; });
    if (ranks.rank() == 2) ranks.fail("no disk");
    if (ranks.rank() != 2) {
      try {
        ranks.exchange("never", "");
      } catch (const RunError&) {
        while (heard == 0) std::this_thread::yield();
        ranks.listen({});
        throw;
      }
    }
  });
  CHECK(failed[2].empty());
  for (const size_t rank : {size_t{0}, size_t{1}}) has(failed[rank], "rank 2 on " + host_name() + " failed: no disk");
}

TEST_CASE("a rank that stands still while others wait for it is lost, and hears of it") {
  const auto found = world(3, [](Ranks& ranks) {
    std::promise<std::string> lost;
    ranks.listen([&](const std::string& message) { lost.set_value(message); });
    const bool frozen = ranks.rank() == 1;
    ranks.watch([frozen] {
      return RankProgress{frozen ? UnderWay::Own : UnderWay::Others, 1, 7, 0, frozen ? "forward, step 7" : "sum"};
    });
    const std::string message = lost.get_future().get();
    has(message, "rank 1 on ");
    has(message, " is lost: it stands still at forward, step 7, for ");
    if (ranks.first()) has(ranks.places(), ": sum, for ");
    if (ranks.first()) has(ranks.places(), "; it owes sum, to ranks 0, 2, for ");
    ranks.listen({});
    ranks.watch({});
  });
  CHECK(found == std::vector<std::string>(3));
}

TEST_CASE("each rank says what it waits for from a lost one, and where that was") {
  for (const int gone : {2, 0}) {
    CAPTURE(gone);
    const auto found = world(4, [&](Ranks& ranks) {
      const int rank = ranks.rank();
      std::promise<std::string> lost;
      ranks.listen([&](const std::string& message) { lost.set_value(message); });
      ranks.watch([&, rank] {
        RankProgress own = {rank == gone ? UnderWay::Own : UnderWay::Others, 100, 7, 0, fmt::format("node {}", rank)};
        if (rank == 1) own.waits = {{"sum 3, step 7", 0.5, {0, 1, 3}}, {"sum 9, step 7", 0.2, {0, 1, 2, 3}}};
        if (rank == 3) own.waits = {{"sum 4, step 7", 0.1, {1, 3}}};
        return own;
      });
      const auto signs_of_life = std::chrono::milliseconds(4500);
      std::this_thread::sleep_for(signs_of_life);
      ranks.exchange("all are here", "");
      if (rank == gone) return;
      const std::string message = lost.get_future().get();
      has(message, fmt::format("rank {} on {} is lost: it has ended; ", gone, host_name()));
      has(message, fmt::format(" s before, it was at node {}; ", gone));
      const std::string waits = gone == 0 ? "sum 3, step 7, for 0.5 s" : "sum 9, step 7, for 0.2 s";
      if (rank == 1) has(message, "; rank 1 has waited for it at " + waits);
      if (rank == 3) has(message, "; rank 3 waits for nothing from it and is at node 3");
      ranks.listen({});
      ranks.watch({});
    });
    for (const std::string& error : found) CHECK((error.empty() || error.find(" is lost: ") != error.npos));
  }
}

// Three ranks wait for the exchange 'facts', which rank 2 never takes part in: it ends once the others wait. The
// messages of ranks 0 and 1; `before` is called at each of them before it waits.
std::vector<std::string> lost_at_exchange(const std::function<void(int rank)>& before = [](int) {}) {
  std::latch waiting(2);
  std::vector<std::string> messages(2);
  world(3, [&](Ranks& ranks) {
    ranks.exchange("all are here", "");
    if (ranks.rank() == 2) return waiting.wait();
    std::promise<std::string> lost;
    ranks.listen([&](const std::string& message) { lost.set_value(message); });
    before(ranks.rank());
    ranks.exchange("facts", "", [](const Ranks::Parts&) {});
    waiting.count_down();
    messages[size_t(ranks.rank())] = lost.get_future().get();
    ranks.listen({});
  });
  return messages;
}

TEST_CASE("without tasks under way, a rank says which exchange it waits for") {
  const std::vector<std::string> found = lost_at_exchange();
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    has(found[rank], fmt::format("; rank {} has waited for it at the exchange 'facts', for ", rank));
  }
}

TEST_CASE("rank 0 waits from its own part on, also where another rank's came before") {
  const std::vector<std::string> found = lost_at_exchange([](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  });
  const auto waited = [&](size_t rank) {
    const std::string before = fmt::format("; rank {} has waited for it at the exchange 'facts', for ", rank);
    REQUIRE(has(found[rank], before));
    return std::stod(found[rank].substr(found[rank].find(before) + before.size()));
  };
  CHECK(waited(0) + 1 < waited(1));
}

TEST_CASE("a rank whose own thread that reads from another stands still says so, and does not blame the other") {
  for (const bool ends : {false, true}) {
    CAPTURE(ends);
    const int port = free_port();
    std::promise<void> given, let_go;
    const auto join = [port](int rank) {
      WorldSettings own = settings(rank, 2, port);
      own.silence = 1;
      return own;
    };
    const auto waits = [] { return RankProgress{UnderWay::Others, 100, 7, 0, "sum"}; };
    const auto found = faults(
        {[&] {
           Ranks ranks(join(0));
           std::promise<std::string> lost;
           ranks.listen([&](const std::string& message) { lost.set_value(message); });
           ranks.watch(waits);
           // On the thread that reads from rank 1, whose part is the last.
           ranks.exchange("part", "", [&](const Ranks::Parts&) { let_go.get_future().wait(); });
           given.set_value();
           const std::string message = lost.get_future().get();
           has(message, ranks.name(0) + " stands still in part: its own thread that reads from " + ranks.name(1) +
                            (ends ? " has not seen that their connection has ended" : " has read nothing for "));
           let_go.set_value();
           ranks.listen({});
           ranks.watch({});
         },
         [&] {
           Ranks ranks(join(1));
           ranks.watch(waits);
           given.get_future().wait();
           ranks.exchange("part", "");
           if (!ends) CHECK_THROWS_AS(ranks.exchange("never whole", ""), RunError);
           ranks.watch({});
         }});
    CHECK(found == std::vector<std::string>(2));
  }
}

// Keeps the thread that shows that a rank lives, as if it were stopped, until this is let go.
class Stop {
 public:
  // Returns once the thread has been kept for so long.
  void keep(Ranks& ranks, std::chrono::milliseconds longest) {
    ranks.watch([this] {
      if (!is_kept_.exchange(true)) kept_.set_value();
      go_on_.wait();
      return RankProgress{UnderWay::Others, 100, 7, 0, "sum"};
    });
    kept_.get_future().wait();
    std::this_thread::sleep_for(longest);
  }
  void let_go(Ranks& ranks) {
    let_go_.set_value();
    ranks.watch({});
  }

 private:
  std::atomic<bool> is_kept_{false};
  std::promise<void> kept_, let_go_;
  const std::shared_future<void> go_on_ = let_go_.get_future().share();
};

TEST_CASE("a rank that was stopped says so, and does not blame the rank that has ended since") {
  const int port = free_port();
  const auto join = [port](int rank) {
    WorldSettings own = settings(rank, 2, port);
    own.silence = rank == 1 ? 3 : 9;  // rank 0 waits for longer than rank 1 is stopped
    return own;
  };
  std::promise<void> given, over;
  const auto found = faults({[&] {
                               Ranks ranks(join(0));
                               ranks.exchange("part", "", [](const Ranks::Parts&) {});
                               given.set_value();
                               over.get_future().wait();
                             },
                             [&] {
                               Ranks ranks(join(1));
                               std::promise<std::string> lost;
                               ranks.listen([&](const std::string& message) { lost.set_value(message); });
                               given.get_future().wait();
                               Stop stop;
                               std::promise<void> stopped;
                               // On the thread that reads, which is stopped as well.
                               ranks.exchange("part", "", [&](const Ranks::Parts&) { stopped.get_future().wait(); });
                               stop.keep(ranks, std::chrono::milliseconds(3500));
                               over.set_value();
                               stopped.set_value();
                               const std::string message = lost.get_future().get();
                               has(message, ranks.name(1) + " was itself silent for ");
                               has(message, "; " + ranks.name(0) + " has taken it for lost since: it has ended");
                               stop.let_go(ranks);
                               ranks.listen({});
                             }});
  CHECK(found == std::vector<std::string>(2));
}

TEST_CASE("rank 0 goes on without a rank that has ended while rank 0 was stopped") {
  const int port = free_port();
  std::promise<void> stopped;
  const std::shared_future<void> leave = stopped.get_future().share();
  const auto join = [port](int rank) {
    WorldSettings own = settings(rank, 3, port);
    own.silence = rank == 0 ? 3 : 9;  // the others wait for longer than rank 0 is stopped
    return own;
  };
  const auto found = faults({[&] {
                               Ranks ranks(join(0));
                               std::promise<std::string> lost;
                               ranks.listen([&](const std::string& message) { lost.set_value(message); });
                               Stop stop;
                               stop.keep(ranks, std::chrono::milliseconds(3500));
                               stopped.set_value();
                               const std::string message = lost.get_future().get();
                               has(message, ranks.name(2) + " is lost: it has ended");
                               has(message, "; " + ranks.name(0) + " was itself silent for ");
                               stop.let_go(ranks);
                               ranks.listen({});
                               ranks.go_on();
                               CHECK(ranks.size() == 2);
                               ranks.end();
                             },
                             [&] {
                               Ranks ranks(join(1));
                               CHECK_THROWS_AS(ranks.exchange("never whole", ""), RunError);
                               ranks.go_on();
                               ranks.end();
                             },
                             [&] {
                               Ranks ranks(join(2));
                               leave.wait();
                             }});
  CHECK(found == std::vector<std::string>(3));
}

}  // namespace losses_test
