// SPDX-License-Identifier: Apache-2.0

// Ranks that meet, hand each other bytes and get lost; each is a thread here.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/process.h"
#include "executor/world/agreement.h"
#include "executor/world/ranks.h"
#include "tests/executor/world/free_port.h"

using namespace arbalest;
using namespace arbalest::test;

namespace ranks_test {
namespace {

using UnderWay = RankProgress::UnderWay;

WorldSettings settings(int rank, int size, int port) {
  WorldSettings world;
  world.rank = rank;
  world.size = size;
  world.host = "127.0.0.1";
  world.port = port;
  world.told_by = "SIZE=" + std::to_string(size);
  world.secret = "a secret";
  world.patience = 20;
  return world;
}

// Runs each function in a thread and returns their errors: "": none.
std::vector<std::string> faults(const std::vector<std::function<void()>>& functions) {
  std::vector<std::future<std::string>> running;
  for (const auto& function : functions) {
    running.push_back(std::async(std::launch::async, [&function]() -> std::string {
      try {
        function();
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    }));
  }
  std::vector<std::string> found;
  for (auto& each : running) found.push_back(each.get());
  return found;
}

// The errors of a world in which each rank does this.
std::vector<std::string> world(int size, const std::function<void(Ranks&)>& each) {
  const int port = free_port();
  std::vector<std::function<void()>> functions;
  for (int rank = 0; rank < size; ++rank) {
    functions.emplace_back([=] {
      Ranks ranks(settings(rank, size, port));
      each(ranks);
    });
  }
  return faults(functions);
}

bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  CHECK_MESSAGE(found, "'", text, "' has no '", part, "'");
  return found;
}

// Sends the beginning of a frame byte by byte, until the others have met or it is sent away.
void trickle(int port, std::promise<void>& visited, const std::atomic<bool>& met) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(uint16_t(port));
  REQUIRE(connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  visited.set_value();
  // A header that announces a body of 4096 bytes.
  std::string frame = {'\xb5', '\xa6', 1, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0};
  frame.resize(frame.size() + 4096, 'x');
  for (const char& byte : frame) {
    if (met || send(descriptor, &byte, 1, MSG_NOSIGNAL) != 1) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  while (!met) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  close(descriptor);
}

}  // namespace

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

TEST_CASE("what all have exchanged is heard by all, also if a rank ends because of it") {
  for (int round = 0; round < 30; ++round) {
    const auto found = world(3, [&](Ranks& ranks) {
      CHECK(first_of(&ranks, ranks.rank() == 2 ? "no" : "") == "no");
      ranks.fail("no");
    });
    CHECK(found == std::vector<std::string>(3));
  }
}

TEST_CASE("ranks that do not come are named, with the variable that counts them") {
  const int port = free_port();
  const auto found = faults({[&] {
                               WorldSettings first = settings(0, 4, port);
                               first.patience = 1;
                               Ranks ranks(first);
                             },
                             [&] { Ranks ranks(settings(2, 4, port)); }});
  for (const std::string& message : found) {
    has(message, "ranks 1, 3 of 4 did not come to rank 0, on " + host_name());
    has(message, "SIZE=4");
  }
}

TEST_CASE("without rank 0 the others say where they looked") {
  const int port = free_port();
  const auto found = faults({[&] {
    WorldSettings other = settings(1, 2, port);
    other.patience = 0.5;
    Ranks ranks(other);
  }});
  has(found[0], "rank 1 of 2 finds no rank 0 at 127.0.0.1:" + std::to_string(port));
  has(found[0], "; 127.0.0.1 is this host itself, " + host_name());
}

TEST_CASE("a rank that was started twice, or is of another world, ends all") {
  const int port = free_port();
  auto found = faults({[&] { Ranks ranks(settings(0, 3, port)); }, [&] { Ranks ranks(settings(1, 3, port)); },
                       [&] { Ranks ranks(settings(1, 3, port)); }});
  for (const std::string& message : found) {
    has(message, "rank 1 was started twice: on " + host_name());
    has(message, "process " + std::to_string(getpid()));
  }
  const int other = free_port();
  found = faults({[&] { Ranks ranks(settings(0, 2, other)); }, [&] { Ranks ranks(settings(1, 3, other)); }});
  for (const std::string& message : found) has(message, "is of a world of 3 ranks, and rank 0 on");
  const int taken = free_port();
  const Listener listener("127.0.0.1", taken);
  found = faults({[&] { Ranks ranks(settings(0, 2, taken)); }});
  has(found[0], "rank 0 cannot wait for the others at 127.0.0.1:" + std::to_string(taken));
  has(found[0], "Address already in use");
}

TEST_CASE("a rank with another secret is sent away, and named where a rank is missing") {
  const int port = free_port();
  const auto found = faults({[&] {
                               WorldSettings first = settings(0, 2, port);
                               first.patience = 1;
                               Ranks ranks(first);
                             },
                             [&] {
                               WorldSettings other = settings(1, 2, port);
                               other.secret = "another";
                               Ranks ranks(other);
                             }});
  has(found[0], "a process on " + host_name() + " that says it is rank 1 has another secret");
  has(found[1], "rank 0, on " + host_name() + ", has another secret (ARBALEST_SECRET or --secret-file)");
}

TEST_CASE("many that connect and say nothing keep nobody from meeting") {
  const int port = free_port();
  std::vector<int> silent;
  WorldSettings first = settings(0, 2, port), second = settings(1, 2, port);
  first.patience = second.patience = 10;
  auto rank_zero = std::async(std::launch::async, [&] {
    return faults({[&] {
      Ranks ranks(first);
      ranks.end();
    }});
  });
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(uint16_t(port));
  while (silent.size() < 20) {
    const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      silent.push_back(descriptor);
    } else {
      close(descriptor);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  CHECK(faults({[&] {
          Ranks ranks(second);
          ranks.end();
        }}) == std::vector<std::string>(1));
  CHECK(rank_zero.get() == std::vector<std::string>(1));
  for (const int descriptor : silent) close(descriptor);
}

TEST_CASE("something else at rank 0's port is named with the place") {
  const int port = free_port();
  Listener mute("127.0.0.1", port);
  WorldSettings lone = settings(1, 2, port);
  lone.patience = 0.2;
  const auto found = faults({[&] { Ranks ranks(lone); }});
  has(found.at(0), "rank 0 at 127.0.0.1:" + std::to_string(port) + ": nothing was heard of it for ");
}

TEST_CASE("strangers that say nothing, or anything, keep nobody from meeting") {
  const int port = free_port();
  std::promise<void> visited;
  const std::future<void> after = visited.get_future();
  std::atomic<bool> met{false};
  const auto found = faults({[&] {
                               Ranks ranks(settings(0, 2, port));
                               met = true;
                               ranks.end();
                             },
                             [&] {
                               const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
                               const auto silent = connect_to("127.0.0.1", port, until);
                               const auto loud = connect_to("127.0.0.1", port, until);
                               loud->send(Frame::Kind::Hello, "k", std::string(1000, '\xff'));
                               const auto large = connect_to("127.0.0.1", port, until);
                               try {
                                 large->send(Frame::Kind::Hello, "k", std::string(8 << 20, 'x'));
                               } catch (const RunError&) {  // rank 0 reads no more of it
                               }
                               trickle(port, visited, met);
                             },
                             [&] {
                               after.wait();
                               Ranks ranks(settings(1, 2, port));
                               ranks.end();
                             }});
  CHECK(found == std::vector<std::string>(3));
}

TEST_CASE("rank 0 that other hosts reach is found at addresses of either kind") {
  const int port = free_port();
  Listener listener("a-host-of-others", port);
  const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  CHECK_NOTHROW(connect_to("127.0.0.1", port, soon));
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 own{};
  own.sin6_family = AF_INET6;
  own.sin6_addr = in6addr_loopback;
  const bool here = six >= 0 && bind(six, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0;
  if (six >= 0) close(six);
  if (!here) {
    MESSAGE("SKIP: this machine has no IPv6");
    return;
  }
  CHECK_NOTHROW(connect_to("::1", port, soon));
}

TEST_CASE("rank 0 waits at lists of addresses, with loopback ones among them") {
  const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  for (const char* list : {"127.0.0.1,10.0.0.1", "127.0.0.1,localhost", "localhost,127.0.0.1"}) {
    CAPTURE(list);
    const int port = free_port();
    std::optional<Listener> listener;
    REQUIRE_NOTHROW(listener.emplace(list, port));
    CHECK_NOTHROW(connect_to(list, port, soon));
  }
}

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

TEST_CASE("rank 0 says at once that others may not find its host by the address that it was given") {
  const std::string elsewhere = "198.51.100.7";  // of no host: kept for examples
  CHECK(not_this_host("localhost") == "");
  CHECK(not_this_host("0.0.0.0") == "");
  CHECK(not_this_host(elsewhere + ",127.0.0.1") == "");
  has(not_this_host(elsewhere), elsewhere + " is no address of this host, which has ");
  has(not_this_host("no-such-name.invalid"), "no-such-name.invalid: ");
  static std::vector<std::string> warnings;
  const MessageHandler before = set_warning_handler([](const std::string& message) { warnings.push_back(message); });
  const auto found = faults({[&] {
    WorldSettings first = settings(0, 2, free_port());
    first.host = elsewhere;
    first.patience = 0.2;
    Ranks ranks(first);
  }});
  set_warning_handler(before);
  REQUIRE(warnings.size() == 1);
  has(warnings[0], "and " + elsewhere + " is no address of this host, which has ");
  has(found[0], "rank 1 of 2 did not come to rank 0");
  has(found[0], "; " + elsewhere + " is no address of this host, which has ");
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

}  // namespace ranks_test
