// SPDX-License-Identifier: Apache-2.0

// Ranks go on after a loss, and take back those that come again.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "executor/world/agreement.h"
#include "tests/executor/world/ranks_in_threads.h"

using namespace arbalest;
using namespace arbalest::test;

namespace going_on_test {

TEST_CASE("a lost rank that comes back hears what all had told, and is taken in once the others are ready") {
  const int port = free_port();
  std::promise<void> others_left;
  const std::shared_future<void> left = others_left.get_future().share();
  const std::string host = host_name();
  const auto go_on = [&](Ranks& ranks) {
    CHECK_THROWS_AS(ranks.exchange("never", ""), RunError);
    ranks.go_on();
    CHECK(ranks.size() == 2);
    if (ranks.first()) others_left.set_value();
    while (ranks.first() && !ranks.awaited()) std::this_thread::yield();
    ranks.exchange("one is awaited", "");
    const std::vector<int> back = ranks.go_on(true);
    CHECK(back == (ranks.first() ? std::vector<int>{2} : std::vector<int>{}));
    CHECK(ranks.exchange("after", std::to_string(ranks.rank())) == Ranks::Parts{"0", "1", "2"});
    ranks.end();
  };
  const auto begin = [&](int rank, const std::function<void(Ranks&)>& then) {
    WorldSettings own = settings(rank, 3, port);
    own.takes_back = true;
    Ranks ranks(own);
    CHECK_FALSE(ranks.returns());
    for (const char* turn : {"first", "second"}) ranks.exchange("facts", turn + std::to_string(rank));
    ranks.begin();
    then(ranks);
  };
  const auto turned = [&](const WorldSettings& own, const std::string& why) {
    try {
      Ranks ranks(own);
      ranks.exchange("facts", "");
      ranks.exchange("unheard of", "");
      CHECK(false);
    } catch (const RunError& error) {
      has(error.what(), why);
    }
  };
  const auto come_back = [&] {
    left.wait();
    turned(settings(1, 3, port), "rank 1 on " + host + " is there, and would be there twice");
    turned(settings(2, 4, port), "is of a world of 4 ranks, and the run of one of 3");
    turned(settings(0, 3, port), "Address already in use");
    WorldSettings elsewhere = settings(2, 3, port);
    elsewhere.own_host = "elsewhere";
    turned(elsewhere, "was on " + host + " before; expected the same host");
    turned(settings(2, 3, port), "it asks for 'unheard of' once more than the others");
    Ranks ranks(settings(2, 3, port));
    CHECK(ranks.returns());
    CHECK(ranks.exchange("facts", "anew") == Ranks::Parts{"first0", "first1", "anew"});
    CHECK(ranks.exchange("facts", "again") == Ranks::Parts{"second0", "second1", "again"});
    ranks.go_on();
    CHECK_FALSE(ranks.returns());
    CHECK(ranks.exchange("after", "2") == Ranks::Parts{"0", "1", "2"});
    ranks.end();
  };
  const auto found =
      faults({[&] { begin(0, go_on); }, [&] { begin(1, go_on); }, [&] { begin(2, [](Ranks&) {}); }, come_back});
  CHECK(found == std::vector<std::string>(4));
}

TEST_CASE("a rank that waits to be taken in is told when the run ends") {
  const int port = free_port();
  const auto found = faults({[&] {
                               WorldSettings own = settings(0, 2, port);
                               own.takes_back = true;
                               Ranks ranks(own);
                               ranks.begin();
                               CHECK_THROWS_AS(ranks.exchange("never", ""), RunError);
                               ranks.go_on();
                               while (!ranks.awaited()) std::this_thread::yield();
                               ranks.end();
                             },
                             [&] {
                               { const Ranks lost(settings(1, 2, port)); }
                               std::this_thread::sleep_for(std::chrono::milliseconds(300));
                               Ranks ranks(settings(1, 2, port));
                               ranks.go_on();
                             }});
  CHECK(found[0].empty());
  has(found[1], "the run has ended");
}

TEST_CASE("ranks that are left go on, count anew and keep their names, and forget what was on its way") {
  std::atomic<int> late{0};
  const auto found = world(5, [&](Ranks& ranks) {
    const int number = ranks.rank();
    if (number == 1 || number == 3) return;  // ends without a word
    ranks.exchange("never whole", "", [&](const Ranks::Parts&) { ++late; });
    CHECK_THROWS_AS(ranks.exchange("before", std::to_string(number)), RunError);
    CHECK_FALSE(ranks.over());
    ranks.forget();
    // The other one may be lost before the ranks go on, or after.
    for (;;) {
      ranks.go_on();
      try {
        if (ranks.size() == 4) ranks.exchange("wait", "");
        break;
      } catch (const RunError&) {
      }
    }
    CHECK(ranks.size() == 3);
    CHECK(ranks.rank() == number / 2);
    CHECK(ranks.number(ranks.rank()) == number);
    CHECK(ranks.name(2) == "rank 4 on " + ranks.host(2));
    CHECK(ranks.on_this_host() == 3);
    CHECK(!ranks.lost());
    CHECK(ranks.exchange("after", std::to_string(number)) == Ranks::Parts{"0", "2", "4"});
    CHECK(largest_of(&ranks, number) == 4);
    CHECK(ranks.gather("gathered", std::to_string(number)).size() == (ranks.first() ? 3 : 0));
    ranks.end();
  });
  CHECK(found == std::vector<std::string>(5));
  CHECK(late == 0);
}

TEST_CASE("nobody goes on without rank 0, or once a rank has ended with an error") {
  for (const bool fails : {false, true}) {
    CAPTURE(fails);
    const auto found = world(4, [&](Ranks& ranks) {
      if (ranks.rank() == 3) return;
      const auto waits = [&] { ranks.exchange("never whole", ""); };
      CHECK_THROWS_AS(waits(), RunError);
      if (ranks.rank() == (fails ? 1 : 0)) {
        if (fails) ranks.fail("the disk is full");
        return;
      }
      try {
        ranks.go_on();
        waits();
      } catch (const RunError&) {
        CHECK(ranks.lost());
        CHECK(ranks.over());
        throw;
      }
    });
    CHECK(found[3] == "");
    for (const size_t rank : {size_t{fails ? 0U : 1U}, size_t{2}}) {
      has(found[rank], fails ? "failed: the disk is full" : "rank 0 on ");
    }
  }
}

}  // namespace going_on_test
