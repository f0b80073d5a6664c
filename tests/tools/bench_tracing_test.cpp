// SPDX-License-Identifier: Apache-2.0

// The cost of a trace: the order of the runs, and costs within rounds.

#include "tools/measure/bench_tracing.h"

#include <doctest/doctest.h>

#include "tests/executor/fixture.h"

using namespace arbalest;
using test::contains;

TEST_CASE("each round runs all three ways, and begins with another one") {
  std::vector<Tracing> order;
  const Train train = [&](const Graph&, const SessionOptions& session, RunObserver& observer,
                          const std::stop_token& stop) {
    const bool traced = !session.files.trace.empty();
    CHECK((traced || session.execution.sample_ms == 0));
    order.push_back(!traced ? Tracing::None : session.execution.sample_ms > 0 ? Tracing::Sampled : Tracing::Recorded);
    RunStarted started;
    started.samples_per_epoch = 100;
    started.iterations_per_epoch = 10;
    observer.on(started);
    RunProgress progress;
    for (int i = 1; !stop.stop_requested(); ++i) {
      progress.iteration = i * 10;
      progress.seconds = i * (order.back() == Tracing::None ? 1.0 : 1.25);
      observer.on(progress);
    }
  };
  std::vector<TracingRound> rounds;
  for (int round = 0; round < 3; ++round) {
    rounds.push_back(measure_tracing({}, {}, {2, 1, 0}, round, 50, {}, train));
    CHECK(rounds.back().images_per_second == std::array<double, 3>{100, 80, 80});
  }
  using enum Tracing;
  CHECK(order == std::vector<Tracing>{None, Recorded, Sampled, Recorded, Sampled, None, Sampled, None, Recorded});
  CHECK(cost_of(rounds, None, Recorded).median == doctest::Approx(0.2));
  CHECK(contains(tracing_report(rounds), "sampling costs, on top of recording"));
}

TEST_CASE("costs are those within rounds, and the median of them") {
  std::vector<TracingRound> rounds;
  for (const double drift : {1.0, 0.5, 2.0, 1.0, 1.0}) {
    rounds.push_back({{100 * drift, 98 * drift, 97 * drift}});
  }
  rounds[3].images_per_second[1] = 50;  // something else ran
  const TracingCost cost = cost_of(rounds, Tracing::None, Tracing::Recorded);
  CHECK(cost.median == doctest::Approx(0.02));
  CHECK(cost.low == doctest::Approx(0.02));
  CHECK(cost.high == doctest::Approx(0.02));
  CHECK(cost_of(rounds, Tracing::None, Tracing::Sampled).median == doctest::Approx(0.03));
}
