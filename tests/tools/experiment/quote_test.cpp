// SPDX-License-Identifier: Apache-2.0

// bench --quote: what cells will do, from a profile of one device.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "executor/limit/recomputation.h"
#include "executor/plan/plan_part.h"
#include "executor/trace/simulate.h"
#include "executor/trace/trace_file.h"
#include "tests/tools/experiment/bench_place.h"
#include "tools/experiment/quote/plan_costs.h"
#include "tools/experiment/quote/quote.h"
#include "tools/experiment/trials/cell_command.h"
#include "tools/experiment/trials/machine_state.h"

using namespace arbalest;
using namespace arbalest::test;

namespace quote_test {
namespace {

namespace fs = std::filesystem;

// The graph with a Synchronize node, for averagings between hosts that are rarer than those within.
std::string with_synchronize() {
  std::string text = kGraph;
  const std::string before = "(trained, loss", line = "  report";
  text.replace(text.find(before), before.size(), "(synced, loss");
  text.insert(text.find(line), "  synced = arbalest.Synchronize <strategy = \"sma\"> (trained)\n");
  return text;
}

// The plan of a graph of synthetic samples on so many devices and learners, of each of so many hosts.
PlannedCell planned(const BenchPlace& place, const std::string& devices, int learners, const char* strategy = "ssgd",
                    int hosts = 1, int every_hosts = 1) {
  Words words = {"bench", "scaling",    place.path("g.onnxtxt"),  "--devices",
                 devices, "--learners", std::to_string(learners), "--threads",
                 "1"};
  if (every_hosts > 1) {
    words.insert(words.end(), {"--set", fmt::format("synchronize.every_hosts={}", every_hosts)});
  } else {
    words.insert(words.end(), {"--strategy", strategy});
  }
  return plan_of(words, hosts);
}

// A profile as a trace of the plan would be, whose tasks take as long as `ns` says, one number after the other: a
// simulation with such costs.
template <typename Ns>
Profile profile_of(const PlannedCell& cell, const Ns& ns) {
  Costs costs;
  for (const Task& task : cell.plan.tasks) costs.tasks.push_back({.duration = std::vector<int64_t>(ns(task))});
  costs.lanes.resize(cell.plan.lanes.size());
  costs.contention.resize(cell.plan.devices.size());
  Profile profile{{}, cell.plan};
  TraceFile& trace = profile.trace;
  trace.plan = cell.plan;
  trace.run.learners = cell.learners;
  trace.tasks = simulate(cell.plan, costs, {.iterations = 100}).spans;
  trace.threads = {1, 1};
  trace.launches.resize(cell.plan.launches.size());
  for (const TaskId t : cell.plan.tasks.ids()) {  // nodes share the time of their task
    const Task& task = cell.plan.tasks[t];
    for (int32_t l = task.first_launch; l < task.first_launch + task.launches; ++l) {
      const Launch& launch = cell.plan.launches[size_t(l)];
      trace.launches[size_t(l)] = cell.plan.graphs[size_t(launch.program)].nodes[launch.node].name;
      if (task.kind == Task::Kind::Compute) trace.timed.push_back({l, t, 1000});
    }
  }
  return profile;
}

std::vector<int64_t> usual(const Task& task) {
  return {task.kind == Task::Kind::Compute ? 1'000'000 : task.kind == Task::Kind::Average ? 300'000 : 1000};
}

// Steps that vary.
std::vector<int64_t> varied(const Task& task) {
  const int64_t ns = usual(task).front();
  return {ns, ns * 9 / 8, ns * 7 / 8, ns, ns * 5 / 4};
}

double iteration_ms(const PlannedCell& cell, const Profile& profile, const WorldLinks& links = {{0, 1e9}, {0, 1e9}}) {
  const Costs costs = costs_of_plan(cell.plan, cell.learners, profile, links);
  return simulate(cell.plan, costs, {.iterations = 200}).steady.iteration_ns * 1e-6;
}

}  // namespace

TEST_CASE("a plan takes what its profile took, and learners of a CPU take turns") {
  const BenchPlace place;
  const PlannedCell one = planned(place, "cpu:0", 1), two = planned(place, "cpu:0", 2),
                    four = planned(place, "cpu:0", 4);
  const Profile alone = profile_of(one, usual), pair = profile_of(two, usual);
  const double single = iteration_ms(one, alone);
  CHECK(single == doctest::Approx(1.0).epsilon(0.05));
  // A profile of one learner knows no averages, so that steps alone count.
  CHECK(iteration_ms(four, alone) == doctest::Approx(4 * single).epsilon(0.2));
  size_t steps = 0;  // of a learner
  for (const Task& task : two.plan.tasks) steps += task.kind == Task::Kind::Compute && task.learner == 0 ? 1 : 0;
  size_t averages = 0;
  for (const Task& task : two.plan.tasks) averages += task.kind == Task::Kind::Average ? 1 : 0;
  CHECK(iteration_ms(two, pair) == doctest::Approx(2.0 * double(steps) + 0.3 * double(averages)).epsilon(0.05));
  // An average of four reads four models and writes one: 5/3 of what one of two does.
  CHECK(iteration_ms(four, pair) ==
        doctest::Approx(4.0 * double(steps) + 0.3 * double(averages) * 5 / 3).epsilon(0.05));
}

TEST_CASE("devices that are not in the profile add what their links take") {
  const BenchPlace place;
  const PlannedCell one = planned(place, "cpu:0", 1), two = planned(place, "cpu:0-1", 1);
  const Profile profile = profile_of(one, usual);
  const double fast = iteration_ms(two, profile, {{0, 1e15}, {0, 1e15}});
  CHECK(fast == doctest::Approx(1.0).epsilon(0.2));  // both at the same time
  const double latency = 5e-3;
  const double slow = iteration_ms(two, profile, {{latency, 1e15}, {latency, 1e15}});
  CHECK(slow >= fast + 2 * latency * 1e3 * 0.9);  // a ring of two sends two messages, one after the other
}

TEST_CASE("the part of one host takes as long as all hosts together") {
  const BenchPlace place;
  place.folder.write("g.onnxtxt", with_synchronize());
  const WorldLinks links = {{5e-6, 1e9}, {1e-4, 1e8}};
  for (const char* devices : {"cuda:0", "cuda:0-1"}) {
    for (const int learners : {1, 2}) {
      const Profile profile = profile_of(planned(place, "cuda:0", learners), varied);
      for (const int hosts : {2, 3, 4}) {
        for (const auto& [strategy, every] : {std::pair("ssgd", 1), std::pair("sma", 1), std::pair("", 4)}) {
          INFO(fmt::format("{} x {}, {} learners, {} every {}", hosts, devices, learners, strategy, every));
          const PlannedCell world = planned(place, devices, learners, strategy, hosts, every);
          const auto run = [&](const Plan& plan, int simulated) {
            Costs costs = costs_of_plan(plan, learners, profile, links);
            costs.threads = {64 * simulated, 64 * simulated};  // a process each
            return simulate(plan, costs, {.iterations = 120});
          };
          const Plan part = part_of(world.plan, 0);
          const Simulation one = run(part, 1), all = run(world.plan, hosts);
          CHECK(one.steady.iteration_ns == doctest::Approx(all.steady.iteration_ns).epsilon(1e-9));
          // Without links the world is as fast as its hosts; with them it is not.
          Costs free = costs_of_plan(part, learners, profile, {{0, 1e18}, {0, 1e18}});
          free.threads = {64, 64};
          CHECK(one.steady.iteration_ns > 1.01 * simulate(part, free, {.iterations = 120}).steady.iteration_ns);
        }
      }
    }
  }
}

TEST_CASE("collectives between hosts take what both links do, and those of a host its own") {
  const BenchPlace place;
  place.folder.write("g.onnxtxt", with_synchronize());
  const Profile profile = profile_of(planned(place, "cuda:0", 1), usual);
  const WorldLinks links = {{5e-6, 1e9}, {1e-4, 1e8}};
  const PlannedCell world = planned(place, "cuda:0-1", 1, "", 8, 4);
  const Plan part = part_of(world.plan, 0);
  const Costs costs = costs_of_plan(part, 1, profile, links);
  int within = 0, between = 0;
  for (const TaskId t : part.tasks.ids()) {
    const Task& task = part.tasks[t];
    if (task.kind != Task::Kind::Collective) continue;
    const bool own = !part.lanes[task.lane].spans.empty();
    ++(own ? within : between);
    const double seconds = all_reduce_seconds(double(task.reduced_bytes), {own ? 1 : 8, 2}, links);
    CHECK(double(costs.tasks[t].duration.of(0)) == doctest::Approx(seconds * 1e9).epsilon(1e-6));
  }
  CHECK(within > 0);
  CHECK(between > 0);
}

TEST_CASE("a GPU's step that collectives cut takes the time of its nodes, without that between launches") {
  const BenchPlace place;
  const PlannedCell one = planned(place, "cuda:0", 1), two = planned(place, "cuda:0-1", 1);
  // One node takes 500 µs and the others 2; each is timed with 4 more, which a step of them all does not take.
  Profile profile = profile_of(one, usual);
  const std::string slow = profile.trace.launches[size_t(profile.trace.timed[1].launch)];
  double step = 0;
  for (NodeTime& node : profile.trace.timed) {
    const int64_t ns = profile.trace.launches[size_t(node.launch)] == slow ? 500'000 : 2000;
    node.ns = ns + 4000;
    step += double(ns);
  }
  for (TaskSpan& span : profile.trace.tasks) {
    const bool computes = one.plan.tasks[span.task].kind == Task::Kind::Compute;
    if (computes) span.ended = span.started + int64_t(step);
  }
  const Costs costs = costs_of_plan(two.plan, 1, profile, {{0, 1e9}, {0, 1e9}});
  const Replica& learner = two.plan.handles.loops.front().replicas.front();
  REQUIRE(learner.step.size() > 1);
  const Task& first = two.plan.tasks[learner.step.front()];
  CHECK(costs.tasks[learner.step.front()].duration.of(0) ==
        doctest::Approx(500'000 + 2000 * (first.launches - 1)).epsilon(0.001));
  CHECK(costs.collective_share > 0);
  double whole = 0;
  for (const TaskId task : learner.step) whole += double(costs.tasks[task].duration.of(0));
  CHECK(whole == doctest::Approx(step).epsilon(0.01));  // with the update, by the bytes of its parts
}

TEST_CASE("learners of a GPU slow each other down as far as a profile knows, or else share it") {
  const BenchPlace place;
  const PlannedCell one = planned(place, "cuda:0", 1), two = planned(place, "cuda:0", 2),
                    four = planned(place, "cuda:0", 4);
  const auto slowest = [&](const Profile& profile) {
    const Costs costs = costs_of_plan(four.plan, 4, profile, {});
    return double(costs.tasks[four.plan.handles.loops.front().replicas.front().step.front()].duration.of(0));
  };
  CHECK(slowest(profile_of(one, usual)) == doctest::Approx(4e6).epsilon(0.2));  // the step of one has its update, too
  Profile pair = profile_of(two, usual);
  pair.trace.alone.assign(two.plan.tasks.size(), -1);
  for (const TaskId t : two.plan.tasks.ids()) {
    if (two.plan.tasks[t].kind == Task::Kind::Compute) pair.trace.alone[t] = 800'000;
  }
  CHECK(slowest(pair) == doctest::Approx(1.4e6).epsilon(0.01));  // each of three others adds a fifth
}

TEST_CASE("a profile without iterations is refused") {
  const BenchPlace place;
  const PlannedCell one = planned(place, "cpu:0", 1);
  Profile profile = profile_of(one, usual);
  profile.trace.tasks.clear();
  CHECK_THROWS_WITH_AS(costs_of_plan(one.plan, 1, profile, {}), "the profile has too few iterations", GraphError);
}

TEST_CASE("a profile whose process timed engines is taken once more, for its memory") {
  const BenchPlace place;
  place.write("devices = \"cpu:0\"\nthreads = 1\nstrategy = \"ssgd\"\n[throughput]\n");
  const BenchCells cells = expand(read_bench_file(place.path("b.toml")));
  const PlannedCell one = planned(place, "cpu:0", 1);
  const Profile profile = profile_of(one, usual);
  const int64_t known = 100 << 20, timed = 12 << 20;
  int taken = 0;
  const auto take = [&](const std::string& cell, const Words& words) -> std::string {
    CHECK(cell == cells.cells.front().name);
    TraceFile trace = profile.trace;
    trace.run.timed_engines = taken == 0 ? 7 : 0;
    trace.run.taken_bytes = known + (taken == 0 ? timed : 0);
    ++taken;
    write_trace(trace, *std::next(std::find(words.begin(), words.end(), "--trace")));
    return "";
  };
  Identities identities("");
  Quoter quoter(identities, place.path("profiles"), {}, take);
  CellNeeds needs;
  needs.bytes = planned_bytes(one.plan, 0);
  const Quote quote = quoter.quote(cells.cells.front(), needs, false);
  CHECK(quote.fault == "");
  CHECK(taken == 2);
  CHECK(quote.memory_bytes == known);
  CHECK(quoter.quote(cells.cells.front(), needs, false).memory_bytes == known);
  CHECK(taken == 2);  // it is kept
}

TEST_CASE("cells that differ in the rate share a profile without it, and one that fails says why") {
  const BenchPlace place;
  place.write("devices = \"cpu:0\"\nthreads = 1\nstrategy = \"ssgd\"\ntrain.lr = [0.1, 9.0]\n[throughput]\n");
  const BenchCells cells = expand(read_bench_file(place.path("b.toml")));
  const PlannedCell one = planned(place, "cpu:0", 1);
  const Profile profile = profile_of(one, usual);
  int taken = 0;
  std::string fault;
  const auto take = [&](const std::string&, const Words& words) -> std::string {
    ++taken;
    for (const std::string& word : words) CHECK_MESSAGE(word.find("lr=") == word.npos, word);
    if (fault.empty()) write_trace(profile.trace, *std::next(std::find(words.begin(), words.end(), "--trace")));
    return fault;
  };
  Identities identities("");
  CellNeeds needs;
  needs.bytes = planned_bytes(one.plan, 0);
  REQUIRE(cells.cells.size() == 2);
  const auto faults_in = [&](const char* folder) {
    Quoter quoter(identities, place.path(folder), {}, take);
    std::vector<std::string> faults;
    for (const BenchCell& cell : cells.cells) faults.push_back(quoter.quote(cell, needs, false).fault);
    CHECK(quoter.profile_failed() == !fault.empty());
    return faults;
  };
  CHECK(faults_in("profiles") == std::vector<std::string>(2));
  CHECK(taken == 1);
  fault = "the loss is infinite";
  CHECK(faults_in("others") == std::vector<std::string>(2, "the profile failed: the loss is infinite"));
  CHECK(taken == 2);
}

TEST_CASE("CPU devices are predicted no faster than the cores that they share allow") {
  const BenchPlace place;
  place.write("devices = \"cpu:0-1\"\nthreads = 2\nstrategy = \"ssgd\"\n[throughput]\n");
  const BenchCells cells = expand(read_bench_file(place.path("b.toml")));
  Profile profile = profile_of(planned(place, "cpu:0", 1), usual);
  CHECK_FALSE(core_seconds_of_image(profile).has_value());
  profile.trace.run.batch = 16;
  const auto quoted = [&](double in_use) {
    profile.trace.sampling = {100, "", {1, 2, 3}, {{"CPU in use", kNone, "cores", 8, {in_use, in_use, in_use}}}};
    const auto take = [&](const std::string&, const Words& words) -> std::string {
      write_trace(profile.trace, *std::next(std::find(words.begin(), words.end(), "--trace")));
      return "";
    };
    Identities identities("");
    return Quoter(identities, place.path(fmt::format("profiles{}", in_use)), {}, take)
        .quote(cells.cells.front(), {}, false);
  };
  const auto cores = double(usable_cores().size());
  const Quote idle = quoted(0.01), busy = quoted(10 * cores);
  CHECK(idle.fault == "");
  CHECK(busy.fault == "");
  CHECK_FALSE(idle.limit.starts_with("Cores: "));
  CHECK(busy.limit.starts_with("Cores: an image takes "));
  CHECK(busy.images_per_second == doctest::Approx(cores / core_seconds_of_image(profile).value()));
  CHECK(busy.images_per_second < idle.images_per_second);
  CHECK(busy.efficiency < 0.5);
}

TEST_CASE("quotes of training runs alone are compared with rates that validations count in") {
  const BenchPlace place;
  const std::string head = "batch = 16\ndevices = \"cpu:0\"\n", accuracy = "[accuracy]\nseeds = [1]\n";
  const auto row = [&](const std::string& text) {
    place.write(text);
    const BenchFile file = read_bench_file(place.path("b.toml"));
    const BenchCells cells = expand(file);
    CellSummary summary;
    summary.cell = &cells.cells.front();
    summary.run_rates = {80};
    const Quote quote = {
        .cell = summary.cell->id, .images_per_second = 100, .run_seconds = 600, .run_images_per_second = 80};
    const ResultTable table = quote_table(file, {summary}, {quote});
    const bool shares = !table.notes.empty() && table.notes.back().starts_with("CPU devices");
    return fmt::format("{}: {}, {}; {}: {}{}", table.columns.at(1).name, table.rows.at(0).at(1).text,
                       table.rows.at(0).at(4).text, table.columns.at(8).name, table.rows.at(0).at(8).text,
                       shares ? "; " + table.notes.back() : "");
  };
  CHECK(row("batch = 16\ndevices = \"cpu:0-1\"\n" + accuracy) ==
        "images/s of a run: 80.0, +0.0 %; min a run: 10.0; CPU devices of a machine share its cores, which is "
        "predicted, and its memory, which is not");
  CHECK(row(head + accuracy) == "images/s of a run: 80.0, +0.0 %; min a run: 10.0");
  CHECK(row(head + "[throughput]\n" + accuracy) == "images/s: 100.0, -; min a run: 10.0");
}

TEST_CASE("quotes come back from their file, and a file that holds none is refused") {
  const TestFolder folder;
  const std::string path = (folder / "quotes.json").string();
  CHECK(read_quotes(path).empty());
  write_quotes(path, {{"0123", "45", "a CPU", "5 us, 1 GB/s", 12.5, 0.9, 1 << 20, 60, 11, "Bound by", ""},
                      {.cell = "67", .fault = "why"}});
  const std::vector<Quote> quotes = read_quotes(path);
  REQUIRE(quotes.size() == 2);
  CHECK(quotes[0].images_per_second == 12.5);
  CHECK(quotes[0].efficiency == 0.9);
  CHECK(quotes[0].run_seconds == 60);
  CHECK(quotes[0].run_images_per_second == 11);
  CHECK(quotes[0].limit == "Bound by");
  CHECK(quotes[1].fault == "why");
  folder.write("quotes.json", std::string("{\"quotes\": 3}"));
  CHECK_THROWS_AS(read_quotes(path), RunError);
}

TEST_CASE("cells are quoted before they run, and measured next to it afterwards" * doctest::test_suite("alone")) {
  const BenchPlace place;
  place.write(
      "batch = 16\nlearners = [1, 2]\ndevices = [\"cpu:0\", \"cuda:63\"]\nthreads = 1\ntrain.epochs = 2\n"
      "[throughput]\nrepetitions = 1\nwindows = 3\nwindow = \"200ms\"\nwarmup = \"100ms\"\n"
      "[accuracy]\nseeds = [1]\n"
      "[price]\ncurrency = \"EUR\"\nsource = \"here\"\ndate = 2026-01-01\nper_hour = \"3.6\"\n"
      "[[exclude]]\nwhen = \"devices == 'cuda:63' and learners == 2\"\nreason = \"one is enough\"\n");
  REQUIRE(place.run("r.jsonl", {"--quote"}) == kDone);
  const std::string quoted = place.text("out");
  INFO(quoted);
  CHECK(quoted.find("Predicted") != quoted.npos);
  CHECK(quoted.find("cuda:63 is not in this machine") != quoted.npos);
  CHECK_FALSE(fs::exists(place.path("r.jsonl")));  // nothing was measured
  const std::vector<Quote> quotes = read_quotes(place.path("r/quotes.json"));
  REQUIRE(quotes.size() == 3);
  CHECK(quotes[0].images_per_second > 0);
  CHECK(quotes[0].memory_bytes > 0);
  // 512 samples in each of two epochs, and validations of 100, which have no backward pass.
  CHECK(quotes[0].run_seconds > 1024 / quotes[0].images_per_second);
  CHECK(quotes[0].run_seconds < 1224 / quotes[0].images_per_second);
  CHECK(place.text("errors").find("learners 1, devices cpu:0: some seconds of training on one device") !=
        std::string::npos);

  REQUIRE(place.run("r.jsonl", {"--quote"}) == kDone);  // profiles are kept
  CHECK(place.text("errors").empty());
  REQUIRE(place.run("r.jsonl", {"--set", "devices=cpu:0"}) == kDone);
  const std::string measured = place.text("out");
  INFO(measured);
  CHECK(measured.find("Predicted") != measured.npos);
  CHECK(measured.find(" of 2 cells within 5 % of the images/s that were measured, 2 of 2 within 2 % of the memory") !=
        measured.npos);
}

TEST_CASE("worlds are quoted with their efficiency, what bounds them, and what is assumed of links" *
          doctest::test_suite("alone")) {
  const BenchPlace place;
  place.write("batch = 16\nhosts = [1, 2, 32]\ndevices = \"cpu:0\"\nthreads = 1\n");
  REQUIRE(place.run("r.jsonl", {"--quote"}) == kDone);
  std::vector<Quote> quotes = read_quotes(place.path("r/quotes.json"));
  REQUIRE(quotes.size() == 3);
  CHECK(quotes[0].images_per_second > 0);
  CHECK(quotes[1].fault.find("[links] between = \"10us,400Gbit/s\"") != std::string::npos);

  REQUIRE(place.run("r.jsonl", {"--quote", "--set", "links.between=1us,10GB/s"}) == kDone);
  INFO(place.text("out"));
  CHECK(place.text("errors").empty());  // the profile of one host is that of all
  CHECK(place.text("out").find("links between hosts 1 us, 10 GB/s: a message takes") != std::string::npos);
  const std::vector<Quote> fast = read_quotes(place.path("r/quotes.json"));
  REQUIRE(place.run("r.jsonl", {"--quote", "--set", "links.between=20ms,1MB/s"}) == kDone);
  const std::vector<Quote> slow = read_quotes(place.path("r/quotes.json"));
  REQUIRE(fast.size() == 3);
  REQUIRE(slow.size() == 3);
  CHECK(fast[0].efficiency == 0);
  for (const size_t world : {1, 2}) {
    CHECK(fast[world].efficiency > 0);
    CHECK(fast[world].efficiency < 1.1);  // a step is measured, its parts add up to its mean
    CHECK(slow[world].efficiency < 0.5 * fast[world].efficiency);
    CHECK(slow[world].limit.starts_with("Each host: Bound by averaging"));
  }
  CHECK(fast[2].images_per_second ==
        doctest::Approx(32 * fast[2].efficiency * fast[0].images_per_second).epsilon(1e-6));

  CHECK(place.run("r.jsonl", {"--quote", "--set", "links.between=fast"}) == 2);
  CHECK(place.text("errors").find("between 'fast': expected a latency") != std::string::npos);
}

}  // namespace quote_test
