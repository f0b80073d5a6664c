// SPDX-License-Identifier: Apache-2.0

// Results of benches: lines that are kept, what is made of a trial's output, summaries and comparisons.

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "tests/io/test_folder.h"
#include "tools/experiment/compare.h"
#include "tools/experiment/summary.h"
#include "tools/experiment/trials.h"

using namespace arbalest;

namespace bench_results_test {
namespace {

TrialResult throughput(const std::string& cell, int64_t repetition, double rate) {
  TrialResult result;
  result.key = cell + std::to_string(repetition);
  result.cell = result.name = cell;
  result.settings = {{"batch", "8"}};
  result.repetition = repetition;
  result.identity = {"g", "o", "b", "d"};
  result.images_per_second = rate;
  result.windows = {rate - 1, rate + 1};
  return result;
}

TrialResult training(const std::string& cell, int64_t seed, double seconds, double last) {
  TrialResult result = throughput(cell, seed, 100);
  result.key += "a";
  result.measure = Measure::Accuracy;
  result.seconds = seconds;
  result.setup_seconds = 0.5;
  result.curve = {{1, seconds / 2, last / 2}, {2, seconds, last}};
  return result;
}

std::vector<TrialResult> five(const std::string& cell, double rate) {
  std::vector<TrialResult> all;
  for (int i = 0; i < 5; ++i) all.push_back(throughput(cell, i, rate + i));
  return all;
}

BenchFile file_of(const std::string& text) {
  const TestFolder folder;
  return read_bench_file(folder.write("b.toml", text).string());
}

}  // namespace

TEST_CASE("results are read back as they were written, the last of a key counts, and a cut line is left out") {
  const TestFolder folder;
  const std::string path = (folder / "r.jsonl").string();
  CHECK(read_results(path).trials.empty());
  {
    ResultsFile file(path);
    file.add(throughput("a", 0, 10));
    file.add(training("a", 3, 4, 0.9));
    TrialResult failed = throughput("b", 0, 0);
    failed.error = "no \"memory\"";
    file.add(failed);
    file.add(throughput("a", 0, 20));
    CHECK_THROWS_AS(ResultsFile{path}, RunError);  // it is held
  }
  std::ofstream(path, std::ios::app) << "{\"event\":\"trial\",\"key\":\"cu";
  const std::vector<TrialResult> read = read_results(path).trials;
  REQUIRE(read.size() == 3);
  CHECK(read[0].measure == Measure::Accuracy);
  CHECK(read[0].curve.size() == 2);
  CHECK(read[0].curve[1].value == 0.9);
  CHECK(read[0].repetition == 3);
  CHECK(read[1].error == "no \"memory\"");
  CHECK(read[2].images_per_second == 20);
  CHECK(read[2].windows == std::vector<double>{19, 21});
  CHECK(read[2].identity == Identity{"g", "o", "b", "d"});
  {
    ResultsFile again(path);
    again.add(throughput("c", 0, 1));
  }
  CHECK(read_results(path).trials.size() == 4);
  CHECK(read_text(path).find("cu{") == std::string::npos);

  std::ofstream(path) << "{\"event\":\"start\"}\n";
  CHECK_THROWS_WITH_AS(read_results(path), (path + ":1: is no line of a bench's results").c_str(), RunError);
  std::ofstream(path) << "{\"event\":\"trial\"}\nnothing\n";
  CHECK_THROWS_AS(read_results(path), RunError);
}

TEST_CASE("a trial's output becomes its result, or an error that says what is missing") {
  TrialResult result;
  read_throughput(
      "a "
      "line\n{\"event\":\"cell\",\"images_per_second\":5.5,\"window_images_per_second\":[5,6],\"planned_peak_bytes\":7,"
      "\"setup_seconds\":0.1,\"warmup_seconds\":2}\n",
      result);
  CHECK(result.images_per_second == 5.5);
  CHECK(result.warmup_seconds == 2);
  CHECK(result.peak_bytes == 7);
  TrialResult failed;
  read_throughput("{\"event\":\"cell\",\"error\":\"too large\"}\n", failed);
  CHECK(failed.error == "too large");
  CHECK_THROWS_AS(read_throughput("nothing\n", failed), RunError);

  const std::string log =
      "{\"event\":\"start\",\"setup_seconds\":0.5,\"planned_peak_bytes\":9}\n"
      "{\"event\":\"validation\",\"epoch\":1,\"seconds\":2,\"accuracy\":0.7}\n"
      "{\"event\":\"resume\",\"setup_seconds\":3}\n"
      "{\"event\":\"validation\",\"epoch\":2,\"seconds\":4,\"accuracy\":0.9}\n";
  AccuracyRule rule;
  TrialResult run;
  CHECK_THROWS_WITH_AS(read_training(log, rule, run), "its log has no end", RunError);
  run = {};
  run.joules = 5;
  read_training(log + "{\"event\":\"end\",\"seconds\":4.5,\"epoch\":2,\"images_per_second\":50}\n", rule, run);
  CHECK(run.curve.size() == 2);
  CHECK(run.joules == 0);           // a part of it was not counted
  CHECK(run.setup_seconds == 0.5);  // not that of the run that went on
  CHECK(time_to(run, 0.7, false) == 2.5);
  CHECK(time_to(run, 0.9, false) == 4.5);
  CHECK(std::isinf(time_to(run, 0.91, false)));
  CHECK(time_to(run, 0.8, true) == 2.5);
  rule.metric = "auc";
  run = {};
  CHECK_THROWS_WITH_AS(read_training(log + "{\"event\":\"end\"}\n", rule, run), "its log has no validation with 'auc'",
                       RunError);

  TrialResult peer;
  read_peer("hello\n{\"img_s\": 12}\n", 3, peer);
  CHECK(peer.images_per_second == 12);
  TrialResult trained;
  trained.measure = Measure::Accuracy;
  read_peer("{\"time_to\":{\"0.9\":7,\"0.8\":5,\"0.95\":null},\"final\":0.92}\n", 11, trained);
  CHECK(time_to(trained, 0.8, false) == 5);
  CHECK(time_to(trained, 0.9, false) == 7);
  CHECK(std::isinf(time_to(trained, 0.95, false)));
  CHECK_THROWS_WITH_AS(read_peer("{}\n", 1, trained), "no line of its output is a JSON object with \"final\"",
                       RunError);
}

TEST_CASE("trials are interleaved: all cells of one repetition, in an order that differs between repetitions") {
  const BenchFile file =
      file_of("[settings]\ngraph = \"g\"\nlearners = [1, 2, 3, 4, 5, 6]\n[throughput]\nrepetitions = 4\n[accuracy]\n");
  const BenchCells cells = expand(file);
  const auto identity = [](const BenchCell& cell, const auto&) { return Identity{"g", cell.name, "b", "d"}; };
  const std::vector<Trial> trials = trials_of(file, cells, identity);
  REQUIRE(trials.size() == 6 * (4 + 3));
  std::vector<std::string> orders;
  for (size_t i = 0; i < 24; ++i) {
    CHECK(trials[i].measure == Measure::Throughput);
    CHECK(trials[i].repetition == int64_t(i / 6));
    if (i % 6 == 0) orders.emplace_back();
    orders.back() += trials[i].cell->name;
  }
  CHECK((orders[0] != orders[1] || orders[1] != orders[2] || orders[2] != orders[3]));
  CHECK(trials[24].measure == Measure::Accuracy);
  CHECK(trials[24].words.back() == "1");  // --seed
  const std::vector<Trial> again = trials_of(file, cells, identity);
  for (size_t i = 0; i < trials.size(); ++i) CHECK(again[i].key == trials[i].key);
  const auto other = [](const BenchCell& cell, const auto&) { return Identity{"g", cell.name, "other build", "d"}; };
  CHECK(trials_of(file, cells, other)[0].key != trials[0].key);
}

TEST_CASE("cells are compared with the one that differs in one setting alone, and priced") {
  const BenchFile file = file_of(
      "[settings]\ngraph = \"g\"\nbatch = [8, 16]\ndevices = [\"cpu:0\", \"cpu:0-1\"]\n[throughput]\n[accuracy]\n"
      "targets = [0.5, 0.8]\n[compare]\nby = \"devices\"\nagainst = \"cpu:0\"\n[price]\ncurrency = \"EUR\"\n"
      "source = \"s\"\ndate = 2026-01-01\nper_hour = \"3.6 * device_count\"\nby = \"20s\"\n"
      "[price.spot]\nper_hour = \"1.8 * device_count\"\ninterruptions_per_hour = 0.5\nlost = \"12m\"\n");
  const BenchCells cells = expand(file);
  REQUIRE(cells.cells.size() == 4);
  std::vector<TrialResult> results;
  const auto add = [&](size_t cell, double rate, double seconds, double last) {
    for (int i = 0; i < 5; ++i) {
      results.push_back(throughput(cells.cells[cell].id, i, rate + i));
      results.push_back(training(cells.cells[cell].id, i, seconds + 0.1 * i, last));
      if (cell == 0) results.back().joules = 7200 + i;
    }
  };
  add(0, 100, 20, 0.9);
  add(1, 180, 12, 0.85);
  add(2, 150, 10, 0.6);  // never gets to 0.8
  results.push_back(throughput(cells.cells[3].id, 0, 0));
  results.back().error = "does not fit";
  const std::vector<CellSummary> all = summarize(file, cells, results);
  CHECK(all[0].baseline == nullptr);
  CHECK(all[1].baseline == &all[0]);
  CHECK(all[3].baseline == &all[2]);
  CHECK(std::isinf(all[2].times[1][0]));
  CHECK(all[2].times[0][0] == doctest::Approx(10.5));

  const std::vector<ResultTable> tables = tables_of(file, all);
  REQUIRE(tables.size() == 3);
  const std::string text = print_tables(tables, TableFormat::Text);
  INFO(text);
  const auto has = [&](const char* part) { CHECK_MESSAGE(text.find(part) != text.npos, part); };
  has("against devices cpu:0");
  has("1.784 (1.748–1.822) faster");
  has("89.2 (87.4–91.1) %");  // of twice
  has("does not fit");
  has("Wh a run");
  has("2.001 (2.000–2.001)");
  has("not reached, 0 of 5");
  has("12.7 (12.5–12.9); mean 12.7, 5 of 5");
  has("cheapest within 20.0 s: batch 8, devices cpu:0-1, 0.025 EUR");
  has("1.980");  // 1.8 · (1 + 0.5 / h · 0.2 h)
  CHECK(tables[0].rows[1][2].number == doctest::Approx(182.0 / 102));
}

TEST_CASE("cells are compared with another program's side of the same cell") {
  const BenchFile file = file_of(
      "[settings]\ngraph = \"g\"\nbatch = [8, 16]\n[throughput]\n[peer.other]\ncommand = \"o {batch}\"\n[compare]\n"
      "by = \"peer\"\nagainst = \"other\"\n");
  const BenchCells cells = expand(file);
  std::vector<TrialResult> results;
  for (size_t c = 0; c < 4; ++c) {
    for (const TrialResult& each : five(cells.cells[c].id, 100.0 * double(c + 1))) results.push_back(each);
  }
  const std::vector<CellSummary> all = summarize(file, cells, results);
  REQUIRE(all.size() == 4);
  CHECK(all[0].baseline == &all[1]);
  CHECK(all[1].baseline == nullptr);
  CHECK(all[2].baseline == &all[3]);
  const std::vector<ResultTable> tables = tables_of(file, all);
  CHECK(tables.at(0).rows.at(0).at(2).text.find(" slower") != std::string::npos);
  CHECK(tables.at(0).rows.at(2).at(2).number == doctest::Approx(302.0 / 402));
}

TEST_CASE("worse results fail a comparison, as far as they are surely worse and beyond the threshold") {
  std::vector<TrialResult> before = five("a", 100), after = five("a", 80);
  CHECK(compare(before, before, 0).worse == 0);
  CHECK(compare(before, after, 0).worse == 1);
  CHECK(compare(before, after, 0.3).worse == 0);
  CHECK(compare(after, before, 0).worse == 0);
  CHECK(compare(before, {after[0], after[1]}, 0).worse == 0);  // two are too few to be sure
  CHECK(compare(before, five("b", 100), 0).missing == 1);
  std::vector<TrialResult> slow, quick;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(training("a", i, 20 + 0.1 * i, 0.9));
    quick.push_back(training("a", i, 10 + 0.1 * i, 0.9));
  }
  CHECK(compare(quick, slow, 0.1).worse == 1);
  CHECK(compare(slow, quick, 0.1).worse == 0);
  for (TrialResult& run : slow) run.error = "failed";
  CHECK(compare(quick, slow, 0.1).missing == 2);
}

}  // namespace bench_results_test
