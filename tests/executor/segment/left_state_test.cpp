// SPDX-License-Identifier: Apache-2.0

// The state of a run of which processes were lost: what a segment says that it has come to, and what ranks make of it.

#include "executor/segment/left_state.h"

#include <doctest/doctest.h>

#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "executor/segment/segment.h"
#include "executor/segment/whole_state.h"
#include "executor/session/state.h"
#include "tests/executor/fixture.h"
#include "tests/executor/session/reference.h"
#include "tests/executor/world/free_port.h"

using namespace arbalest;
using namespace arbalest::test;

namespace left_state_test {
namespace {

std::vector<std::byte> bytes(float value) {
  std::vector<std::byte> content(sizeof value);
  std::memcpy(content.data(), &value, sizeof value);
  return content;
}

float number(const std::vector<std::byte>& content) {
  float value = 0;
  REQUIRE(content.size() == sizeof value);
  std::memcpy(&value, content.data(), sizeof value);
  return value;
}

// The setting's run, which after each of `lengths` iterations goes on from what Segment::left() says.
std::vector<double> from_left(const Setting& setting, const std::vector<int64_t>& lengths) {
  const SessionOptions options = options_of(setting);
  Prepared prepared = prepare(graph_of(setting), options);
  const StrategyOptions strategy = prepared.request.strategy;
  Recorder story;
  Monitor monitor(prepared.program, options.rules, story);
  LeftState left;
  ModelState model;
  for (const int64_t length : lengths) {
    prepared.request.iterations = length;
    Segment segment(prepared, options, left.next, monitor);
    if (left.run.learners.empty()) segment.start_from(initial_values(prepared, options));
    if (!left.run.learners.empty()) {
      segment.start_from(
          with_learners(left.run, size_t(setting.devices), size_t(setting.learners), strategy, strategy));
      CHECK(segment.left().run.averages.size() == left.run.averages.size());  // before it runs as well
    }
    segment.run({}, nullptr);
    model = segment.model();
    left = segment.left();
    CHECK(left.next.iteration == segment.cursor().iteration);
    CHECK(left.iterations == std::vector<int64_t>(left.run.learners.size(), left.next.iteration));
    CHECK_FALSE(left.meeting);
  }
  TensorFile file;
  append_tensors(file, prepared.program.training().graph, prepared.program.training().arenas.weights, model.weights);
  return weights_of(file);
}

// The states that ranks get if they give these.
std::vector<LeftState> exchange(const std::vector<LeftState>& states) {
  const int port = free_port();
  std::vector<std::future<LeftState>> running;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    running.push_back(std::async(std::launch::async, [=, &states] {
      WorldSettings world;
      world.rank = int(rank);
      world.size = int(states.size());
      world.host = "127.0.0.1";
      world.port = port;
      Ranks ranks(world);
      LeftState all = exchanged(ranks, states[rank]);
      ranks.end();
      return all;
    }));
  }
  std::vector<LeftState> all;
  for (auto& each : running) all.push_back(each.get());
  return all;
}

LeftState left_on(int32_t host, int64_t averagings, float z, const std::vector<int64_t>& iterations) {
  LeftState left;
  for (const int64_t each : iterations) {
    left.run.learners.push_back({bytes(z + float(each)), {}, {}, each, 0, host});
    left.next.iteration = std::max(left.next.iteration, each);
  }
  left.next.epoch = left.next.iteration / 10;
  left.iterations = iterations;
  left.averagings = averagings;
  left.run.averages.resize(size_t(host) + 1);
  left.run.averages.back() = {bytes(z), bytes(z - 1)};
  left.run.moving_average = {0.9, bytes(-z), averagings, 1};
  return left;
}

}  // namespace

TEST_CASE("a run that goes on from what its learners have come to is the run in one") {
  for (const StrategyOptions& strategy : {StrategyOptions{.name = "sma", .momentum = 0},
                                          {.name = "sma", .momentum = 0.9},
                                          {.name = "sma", .every = 7, .momentum = 0.9},
                                          {.name = "local", .every = 7}}) {
    for (const auto& [devices, learners] : {std::pair{1, 3}, {2, 2}}) {
      Setting setting;
      setting.strategy = strategy;
      setting.devices = devices;
      setting.learners = learners;
      setting.momentum = strategy.momentum > 0 ? 0 : 0.9;
      setting.rate = setting.momentum > 0 ? 0.01 : 0.05;
      INFO(to_string(setting));
      CHECK(greatest_difference(from_left(setting, {14, 7, 29}), simulated(setting)) < 1e-6);
    }
  }
}

TEST_CASE("ranks that are left have all learners, and the average that has seen most") {
  const std::vector<LeftState> all =
      exchange({left_on(0, 5, 5, {10}), left_on(0, 6, 6, {12, 11}), left_on(0, 5, 5, {11})});
  for (const LeftState& left : all) {
    REQUIRE(left.run.averages.size() == 1);
    CHECK(number(left.run.averages[0].now) == 6);
    CHECK(number(left.run.averages[0].before) == 5);
    CHECK(number(left.run.moving_average.weights) == -6);
    CHECK(left.run.moving_average.updates == 6);
    CHECK(left.next.iteration == 12);
    CHECK(left.next.epoch == 1);
    CHECK(left.iterations == std::vector<int64_t>{10, 12, 11, 11});
    REQUIRE(left.run.learners.size() == 4);
    CHECK(number(left.run.learners[1].weights) == 18);
    CHECK(left.run.learners[2].updates == 11);
  }
  // A segment that began later has seen more, however few averagings it has made.
  LeftState later = left_on(0, 1, 9, {20});
  later.segment = 1;
  CHECK(number(exchange({left_on(0, 8, 8, {19}), later})[0].run.averages[0].now) == 9);
}

TEST_CASE("each host that is left has an average, and learners start anew where hosts were meeting") {
  std::vector<LeftState> states = {left_on(0, 4, 4, {10}), left_on(2, 5, 7, {10}), left_on(2, 6, 8, {10})};
  const LeftState apart = exchange(states)[1];
  REQUIRE(apart.run.averages.size() == 3);
  CHECK(number(apart.run.averages[0].now) == 4);
  CHECK(apart.run.averages[1].now.empty());  // its host is lost
  CHECK(number(apart.run.averages[2].now) == 8);
  states[1].meeting = true;
  const LeftState met = exchange(states)[0];
  REQUIRE(met.run.averages.size() == 1);
  const float z = (3 + 7 + 7) / 3.0F;  // the mean over learners of the averages before
  CHECK(number(met.run.averages[0].now) == doctest::Approx(z));
  for (const LearnerState& learner : met.run.learners) CHECK(number(learner.weights) == doctest::Approx(z));
}

}  // namespace left_state_test
