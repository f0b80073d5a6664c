// SPDX-License-Identifier: Apache-2.0

// Results of benches: lines that are kept, what is made of a trial's output, summaries and comparisons.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "tests/io/test_folder.h"
#include "tools/experiment/answer/compare.h"
#include "tools/experiment/answer/summary.h"
#include "tools/experiment/trials/trials.h"

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
    TrialResult trained = training("a", 3, 4, 0.9);
    trained.late_batches = 0;
    trained.gpu_busy = 0.5;
    file.add(trained);
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
  CHECK(read[0].late_batches == 0);  // known
  CHECK(read[0].gpu_busy == 0.5);
  CHECK(read[2].late_batches == -1);
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
  CHECK_THROWS_WITH_AS(read_results(path),
                       (path + ":1: event: expected trial; the file holds no results of a bench").c_str(), RunError);
  std::ofstream(path) << "{\"event\":\"trial\"}\nnothing\n";
  CHECK_THROWS_AS(read_results(path), RunError);
  const auto check_fault = [&](TrialResult result, const char* from, const char* to, const char* what) {
    std::string line = line_of(result);
    const size_t at = line.find(from);
    REQUIRE(at != line.npos);
    std::ofstream(path) << line_of(throughput("a", 0, 1)) << line.replace(at, std::string(from).size(), to);
    const Results left = read_results(path);
    CHECK(left.trials.size() == 1);
    CHECK(left.faults == std::vector<std::string>{path + ":2: " + what});
  };
  TrialResult empty = training("a", 1, 4, 0.9);
  empty.curve.clear();
  check_fault(empty, "", "", "curve: found no validations, expected one or more");
  check_fault(throughput("a", 0, 1), "\"measure\":\"throughput\"", "\"measure\":\"speed\"",
              "measure: found 'speed', expected throughput or accuracy");
  check_fault(throughput("a", 0, 1), "\"key\":\"a0\"", "\"key\":7", "type must be string, but is number");
  check_fault(throughput("a", 0, 1), "{\"event\"", "x{\"event\"",
              "no JSON: column 1: syntax error while parsing value - invalid literal; last read: 'x'");
}

TEST_CASE("a trial of another program that is that of several cells is kept for each") {
  const TestFolder folder;
  ResultsFile file((folder / "r.jsonl").string());
  TrialResult shared = throughput("a", 0, 10);
  file.add(shared);
  shared.cell = "b";
  file.add(shared);
  file.add(shared);
  CHECK(file.trials().size() == 2);
  CHECK(read_results((folder / "r.jsonl").string()).trials.size() == 2);
}

TEST_CASE("a trial's output becomes its result, or an error that says what is missing") {
  TrialResult result;
  read_throughput(
      "a "
      "line\n{\"event\":\"cell\",\"images_per_second\":5.5,\"window_images_per_second\":[5,6],\"planned_peak_bytes\":7,"
      "\"taken_bytes\":11,\"setup_seconds\":0.1,\"warmup_seconds\":2,\"joules_per_image\":0.25,"
      "\"late_batches\":0.5,\"gpu_busy\":0.75,\"held_back\":[\"cuda:0: hot\"]}\n",
      result);
  CHECK(result.late_batches == 0.5);
  CHECK(result.gpu_busy == 0.75);
  CHECK(result.state.at("faults") == std::vector<std::string>{"cuda:0: hot"});
  CHECK(result.images_per_second == 5.5);
  CHECK(result.joules_per_image == 0.25);
  CHECK(result.taken_bytes == 11);
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
  read_training(
      log + "{\"event\":\"end\",\"seconds\":4.5,\"epoch\":2,\"images_per_second\":50,\"late_batches\":0.25}\n", rule,
      run);
  CHECK(run.late_batches == 0.25);
  CHECK(run.curve.size() == 2);
  CHECK(run.joules == 0);           // a part of it was not counted
  CHECK(run.setup_seconds == 0.5);  // not that of the run that went on
  CHECK(time_to(run, 0.7, false) == 2.5);
  CHECK(time_to(run, 0.9, false) == 4.5);
  CHECK(std::isinf(time_to(run, 0.91, false)));
  CHECK(time_to(run, 0.8, true) == 2.5);
  CHECK(epochs_to(run, 0.7, false) == 1);
  CHECK(epochs_to(run, 0.9, false) == 2);
  CHECK(std::isinf(epochs_to(run, 0.91, false)));
  const std::string head =
      "{\"event\":\"start\",\"setup_seconds\":0.5}\n{\"event\":\"kept\",\"seconds\":2}\n"
      "{\"event\":\"kept\",\"seconds\":1}\n";
  const std::string tail =
      "{\"event\":\"validation\",\"epoch\":1,\"seconds\":4,\"accuracy\":0.9}\n"
      "{\"event\":\"end\",\"setup_seconds\":3.75}\n";
  run = {};
  read_training(head + tail, rule, run);
  CHECK(run.setup_seconds == 3.75);  // the end knows all of it
  run = {};
  read_training(head + "{\"event\":\"resume\",\"setup_seconds\":9}\n{\"event\":\"kept\",\"seconds\":7}\n" + tail, rule,
                run);
  CHECK(run.setup_seconds == 3.5);  // reading data again for a run that goes on is no part of it
  CHECK_THROWS_WITH_AS(read_training(head + tail + "{\"event\":\"resume\"}\n", rule, run), "its log has no end",
                       RunError);

  rule.metric = "auc";
  run = {};
  CHECK_THROWS_WITH_AS(read_training(log + "{\"event\":\"end\"}\n", rule, run), "its log has no validation with 'auc'",
                       RunError);

  TrialResult peer;
  read_peer("hello\n{\"img_s\": 12}\n", 3, {}, peer);
  CHECK(peer.images_per_second == 12);
  TrialResult trained;
  trained.measure = Measure::Accuracy;
  const std::optional<AccuracyRule> rules = AccuracyRule{.targets = {0.8, 0.9}};
  read_peer("{\"time_to\":{\"0.9\":7,\"0.8\":5,\"0.95\":null},\"final\":0.92}\n", 11, rules, trained);
  CHECK(time_to(trained, 0.8, false) == 5);
  CHECK(time_to(trained, 0.9, false) == 7);
  CHECK(std::isinf(time_to(trained, 0.95, false)));
  CHECK(trained.seconds == 11);  // of the process, as it says nothing else
  for (const char* told : {"", ",\"seconds\":9"}) {
    TrialResult quick;  // the process ran elsewhere, and its own clock says more than that here
    quick.measure = Measure::Accuracy;
    read_peer(fmt::format("{{\"time_to\":{{\"0.8\":3.1}},\"final\":0.85{}}}\n", told), 0.02, rules, quick);
    CHECK(quick.curve.back().seconds == (*told ? 9 : 3.1));
  }
  CHECK_THROWS_WITH_AS(read_peer("{\"time_to\":{\"0.8\":5},\"final\":0.95}\n", 11, rules, trained),
                       "ends at 0.95 and does not say when it met 0.9; expected \"time_to\": {\"0.9\": SECONDS}",
                       RunError);
  CHECK_THROWS_WITH_AS(read_peer("{\"time_to\":{\"90 %\":5},\"final\":0.5}\n", 11, rules, trained),
                       "\"time_to\": found '90 %', expected a number, as in \"0.99\"", RunError);
  CHECK_THROWS_WITH_AS(read_peer("{}\n", 1, rules, trained),
                       "no line of its output is a JSON object with a number \"final\"; the last one is '{}'",
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
  BenchFile loss = file;
  loss.accuracy->metric = "loss";
  const std::vector<Trial> others = trials_of(loss, cells, identity);
  CHECK(others[0].key == trials[0].key);
  const auto has_key = [&](const std::string& key) {
    return std::any_of(others.begin(), others.end(), [&](const Trial& trial) { return trial.key == key; });
  };
  CHECK_FALSE(has_key(trials[24].key));  // its curve is of another metric
}

TEST_CASE("runs that fail count as those that never get there, and leave no claim") {
  const BenchFile file = file_of(
      "[settings]\ngraph = \"g\"\nbatch = [8, 16]\n[accuracy]\ntargets = [0.5]\nseeds = [1, 2, 3, 4, 5]\n"
      "claim = 0.4\n");
  const BenchCells cells = expand(file);
  std::vector<TrialResult> results;
  for (size_t c = 0; c < 2; ++c) {
    for (int i = 0; i < 5; ++i) results.push_back(training(cells.cells[c].id, i, 20 + i, 0.9 + 0.01 * i));
  }
  results[9].error = "the loss is not finite";
  const std::vector<CellSummary> all = summarize(file, cells, results);
  CHECK(all[0].failed == 0);
  CHECK(all[1].failed == 1);
  CHECK(std::isinf(all[1].times[0][4]));
  const ResultTable table = tables_of(file, all).at(0);
  const auto column = [&](const std::string& name) {
    for (size_t c = 0; c < table.columns.size(); ++c) {
      if (table.columns[c].name == name) return c;
    }
    FAIL("no column " << name);
    return size_t{0};
  };
  CHECK(table.rows[1][column("s to 0.5")].text.ends_with(", 4 of 5"));
  CHECK(table.rows[0][column("p if the mean were 0.4")].text.ends_with(" holds"));
  CHECK(table.rows[1][column("p if the mean were 0.4")].text == "-");
}

TEST_CASE("CSV has how many runs got to a target, and outliers of times stand in the note") {
  const BenchFile file =
      file_of("[settings]\ngraph = \"g\"\nbatch = [8, 16, 32]\n[accuracy]\ntargets = [0.5]\nseeds = [1, 2, 3, 4, 5]\n");
  const BenchCells cells = expand(file);
  std::vector<TrialResult> results;
  for (int seed = 1; seed <= 5; ++seed) {
    results.push_back(training(cells.cells[0].id, seed, seed < 5 ? 20 + seed : 90, 0.6));
    results.push_back(training(cells.cells[1].id, seed, 20 + seed, seed < 4 ? 0.6 : 0.4));
  }
  results.push_back(training(cells.cells[2].id, 1, 20, 0.4));
  const ResultTable table = tables_of(file, summarize(file, cells, results)).at(0);
  CHECK(table.rows.at(0).back().text == "s to 0.5: 1 outlier");
  CHECK(table.rows.at(1).back().text.empty());  // the column says how many did not get there
  const std::string csv = print_tables({table}, TableFormat::Csv);
  INFO(csv);
  CHECK(csv.starts_with("table,cell,s to 0.5,s to 0.5 low,s to 0.5 high,s to 0.5 mean,s to 0.5 reached,s to 0.5 of,"));
  CHECK(csv.find(",batch 8,23.5,21.5,90.5,23.5,5,5,") != csv.npos);
  CHECK(csv.find(",batch 16,23.5,,,,3,5,") != csv.npos);
  CHECK(csv.find(",batch 32,,,,,0,1,") != csv.npos);
}

TEST_CASE("memory stands in the table of training runs if no throughput is measured") {
  for (const char* more : {"", "[throughput]\n"}) {
    const BenchFile file = file_of(std::string("[settings]\ngraph = \"g\"\n[accuracy]\nseeds = [1]\n") + more);
    const BenchCells cells = expand(file);
    TrialResult run = training(cells.cells[0].id, 1, 20, 0.9);
    run.peak_bytes = 3 << 20;
    run.taken_bytes = 5 << 20;
    const ResultTable table = tables_of(file, summarize(file, cells, {run})).back();
    for (const auto& [name, text] :
         {std::pair("planned memory", std::string("3 MiB")), std::pair("taken of the GPU", std::string("5 MiB"))}) {
      const auto column = std::find_if(table.columns.begin(), table.columns.end(),
                                       [&](const TableColumn& each) { return each.name == name; });
      CHECK((column != table.columns.end()) == (*more == 0));
      if (column != table.columns.end()) CHECK(table.rows.at(0).at(column - table.columns.begin()).text == text);
    }
  }
}

TEST_CASE("repetitions that had not settled are counted under the table") {
  const BenchFile file = file_of("[settings]\ngraph = \"g\"\n[throughput]\n");
  const BenchCells cells = expand(file);
  std::vector<TrialResult> results = five(cells.cells[0].id, 100);
  read_throughput(
      "{\"event\":\"cell\",\"images_per_second\":5.5,\"window_images_per_second\":[5,6],\"planned_peak_bytes\":7,"
      "\"setup_seconds\":0.1,\"warmup_seconds\":2,\"settled\":false}\n",
      results[0]);
  const TestFolder folder;
  const std::string path = folder.write("r.jsonl", line_of(results[0]) + line_of(results[1])).string();
  const std::vector<ResultTable> tables = tables_of(file, summarize(file, cells, read_results(path).trials));
  CHECK(tables.at(0).notes.back() == "repetitions that had not settled when they were measured: 1");
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
      if (cell == 1) results.back().joules_per_image = 1.5 + 0.25 * i;
      if (cell == 1) results.back().late_batches = 0.01 * i;
      if (cell == 1) results.back().gpu_busy = 0.9 + 0.01 * i;
      results.push_back(training(cells.cells[cell].id, i, seconds + 0.1 * i, last));
      if (cell == 0) results.back().joules = 7200 + i;
      if (cell == 0) results.back().late_batches = 0.125;
      if (cell == 0) results.back().command_seconds = 30 + 0.5 * i;
      if (cell == 2) results.back().setup_seconds = 0.45 + 0.01 * i;
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
  CHECK(all[2].times[0][0] == doctest::Approx(10.45));
  CHECK(all[2].epochs[0] == std::vector<double>(5, 2));
  CHECK(std::isinf(all[2].epochs[1][0]));

  const std::vector<ResultTable> tables = tables_of(file, all);
  REQUIRE(tables.size() == 3);
  const std::string text = print_tables(tables, TableFormat::Text);
  INFO(text);
  const auto has = [&](const char* part) { CHECK_MESSAGE(text.find(part) != text.npos, part); };
  has("against devices cpu:0");
  has("1.784 (1.748–1.822) faster");
  has("89.2 (87.4–91.1) %");  // of twice
  has("does not fit");
  has("J an image");
  has("2.000 (1.500–2.500)");
  has("late batches");
  has("2.0 (0.0–4.0) %");
  has("GPU busy");
  has("92.0 (90.0–94.0) %");
  has("12.5 (12.5–12.5) %");  // of training runs
  has("epochs to 0.5");
  has("2.000 (2.000–2.000)");
  has("Wh a run");
  has("2.001 (2.000–2.001)");
  has("0.470 (0.450–0.490)");  // set-up, in the times as well
  has("whole command, s");
  has("31.0 (30.0–32.0)");
  has("not reached, 0 of 5");
  has("12.7 (12.5–12.9); mean 12.7, 5 of 5");
  has("cheapest within 20.0 s: batch 8, devices cpu:0-1 on spot, 0.0141 EUR");
  has("cheapest: batch 8, devices cpu:0 on spot for 0.0115 EUR; less than the next, batch 8, devices cpu:0-1 on spot");
  has("2.000 ");  // 1.8 / (1 − 0.5 / h · 0.2 h)
  CHECK(tables[0].rows[1][2].number == doctest::Approx(182.0 / 102));
}

TEST_CASE("efficiency says whether the images of a step stay the same, or those of a learner") {
  const auto column = [](const std::string& settings) {
    const BenchFile file = file_of("[settings]\ngraph = \"g\"\ndevices = [\"cpu:0\", \"cpu:0-1\"]\n" + settings +
                                   "[throughput]\n[compare]\nby = \"devices\"\nagainst = \"cpu:0\"\n");
    const BenchCells cells = expand(file);
    std::vector<TrialResult> results;
    for (const BenchCell& cell : cells.cells) results.push_back(throughput(cell.id, 0, 100));
    return tables_of(file, summarize(file, cells, results)).at(0).columns.at(3).name;
  };
  CHECK(column("batch = 8\n") == "weak efficiency");
  CHECK(column("") == "weak efficiency");
  CHECK(column("batch_total = 8\n") == "strong efficiency");
  CHECK(column("[derived]\nbatch = \"64 / device_count\"\n") == "strong efficiency");
  CHECK(column("[derived]\nbatch = \"24 - 8 * device_count\"\nlearners = \"device_count\"\n") == "efficiency");

  const BenchFile file = file_of(
      "[settings]\ngraph = \"g\"\n[[together]]\ndevices = [\"cpu:0\", \"cpu:0-1\", \"cpu:0,cpu:1\"]\n"
      "batch = [8, 8, 4]\n[throughput]\n[compare]\nby = \"devices\"\nagainst = \"cpu:0\"\n");
  const BenchCells cells = expand(file);
  std::vector<TrialResult> results;
  for (size_t c = 0; c < 3; ++c) results.push_back(throughput(cells.cells[c].id, 0, 100 + 40 * double(c)));
  const ResultTable table = tables_of(file, summarize(file, cells, results)).at(0);
  CHECK(table.columns.at(3).name == "weak efficiency");
  CHECK(table.columns.at(4).name == "strong efficiency");
  CHECK(table.rows.at(1).at(3).text == "70.0 %");
  CHECK(table.rows.at(1).at(4).text == "-");
  CHECK(table.rows.at(2).at(3).text == "-");
  CHECK(table.rows.at(2).at(4).text == "90.0 %");
}

TEST_CASE("costs say of each cell why it has none, and price the last target that a cell meets") {
  const BenchFile file = file_of(
      "[settings]\ngraph = \"g\"\nbatch = [8, 16, 32, 64]\n[accuracy]\ntargets = [0.5, 0.99]\nseeds = [1, 2, 3, 4, 5]\n"
      "[price]\ncurrency = \"EUR\"\nsource = \"s\"\ndate = 2026-01-01\nper_hour = \"3600\"\n");
  const BenchCells cells = expand(file);
  std::vector<TrialResult> results;
  for (int seed = 1; seed <= 5; ++seed) results.push_back(training(cells.cells[0].id, seed, 10 + seed, 0.6));
  results.push_back(training(cells.cells[1].id, 1, 10, 0.4));
  results.push_back(training(cells.cells[2].id, 1, 10, 0.4));
  results.back().error = "the loss is not finite";
  const ResultTable costs = tables_of(file, summarize(file, cells, results)).back();
  REQUIRE(costs.columns.at(3).name == "EUR to 0.5");
  CHECK(costs.rows.at(0).at(3).interval.has_value());
  CHECK(costs.rows.at(0).back().text == "no other is both faster and cheaper");
  CHECK(costs.rows.at(1).back().text == "not reached");
  CHECK(costs.rows.at(2).back().text == "the loss is not finite");
  CHECK(costs.rows.at(3).back().text == "not measured yet");
  CHECK(costs.notes.at(0) == "no cell gets to 0.99");
  CHECK(tables_of(file, summarize(file, cells, {})).back().notes.size() == 1);  // nothing is known yet
}

TEST_CASE(
    "a cost says how many runs got to the target, and the cheapest is sure only if runs differ by more than luck") {
  const BenchFile file = file_of(
      "[settings]\ngraph = \"g\"\nbatch = [8, 16]\n[accuracy]\ntargets = [0.5]\nseeds = [1, 2, 3, 4, 5]\n"
      "[price]\ncurrency = \"EUR\"\nsource = \"s\"\ndate = 2026-01-01\nper_hour = \"3600\"\n");
  const BenchCells cells = expand(file);
  std::vector<TrialResult> results;
  for (int seed = 1; seed <= 5; ++seed) {
    results.push_back(training(cells.cells[0].id, seed, 10 + seed, seed < 5 ? 0.6 : 0.4));
    results.push_back(training(cells.cells[1].id, seed, 9 + seed, 0.6));
  }
  const ResultTable costs = tables_of(file, summarize(file, cells, results)).back();
  CHECK(costs.rows.at(0).back().text == "4 of 5 runs got there");
  CHECK(costs.rows.at(1).back().text == "no other is both faster and cheaper");
  CHECK(costs.notes.at(0).starts_with("cheapest: batch 16 for 12.5 EUR; not known to be less than the next, batch 8"));
}

TEST_CASE("times are read in the unit that fits them") {
  CHECK(shown_time(0.25) == "0.250 s");
  CHECK(shown_time(119) == "119.0 s");
  CHECK(shown_time(600) == "10.0 min");
  CHECK(shown_time(9000) == "2.500 h");
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
  CHECK(all[1].epochs.empty());  // another program does not say
  const std::vector<ResultTable> tables = tables_of(file, all);
  CHECK(tables.at(0).rows.at(0).at(2).text.find(" slower") != std::string::npos);
  CHECK(tables.at(0).rows.at(2).at(2).number == doctest::Approx(302.0 / 402));
}

TEST_CASE("worse results fail a comparison, as far as they are surely worse and beyond the threshold") {
  std::vector<TrialResult> before = five("a", 100), after = five("a", 80);
  after.push_back(throughput("a", 5, 85));  // five are left when one crashes
  CHECK(compare(before, before, 0).worse == 0);
  CHECK(compare(before, after, 0).worse == 1);
  CHECK(compare(before, after, 0.3).worse == 0);
  const std::vector<TrialResult> near = {throughput("a", 0, 90), throughput("a", 1, 92), throughput("a", 2, 94),
                                         throughput("a", 3, 99), throughput("a", 4, 99.5)};
  std::vector<TrialResult> even = five("a", 100);
  for (TrialResult& trial : even) trial.images_per_second = 100;
  const auto verdict = [&](double threshold) { return compare(even, near, threshold).table.rows.at(0).back().text; };
  CHECK(verdict(0.05) == "worse, not surely beyond the threshold");  // 0.94 (0.90–0.995)
  CHECK(compare(even, near, 0.05).worse == 0);
  CHECK(verdict(0.07) == "worse, within the threshold");
  CHECK(verdict(0.004) == "worse");
  CHECK(compare(after, before, 0).worse == 0);
  const ResultComparison few = compare(before, {after[0], after[1]}, 0);  // two are too few to be sure
  CHECK(few.worse == 0);
  CHECK(few.judged == 0);
  CHECK(few.table.rows.at(0).back().text == "unclear: 2 of 5 repetitions");
  CHECK(few.table.notes.at(0).starts_with("1 of 1 rows cannot be judged: an interval takes 5 repetitions"));
  CHECK(compare(before, before, 0).judged == 1);
  CHECK(compare(before, five("b", 100), 0).missing == 1);
  CHECK(compare(before, five("b", 100), 0).judged == 1);
  const std::vector<TrialResult> reached = {training("a", 1, 10, 0.9)}, lost = {training("a", 1, 10, 0.6)};
  CHECK(compare(reached, lost, 0).worse == 0);  // one run tells nothing of times
  CHECK(compare(reached, lost, 0, {0.8}).worse == 1);
  CHECK(compare(lost, reached, 0, {0.8}).worse == 0);
  std::vector<TrialResult> rebuilt = before;  // a file with the results of two builds: the last line's count
  for (TrialResult trial : after) {
    trial.identity.build = "another";
    trial.key += "another";
    rebuilt.push_back(std::move(trial));
  }
  CHECK(compare(before, rebuilt, 0).worse == 1);
  CHECK(compare(rebuilt, after, 0).worse == 0);
  CHECK(compare(before, rebuilt, 0).table.notes.size() == 1);  // another build is what is compared
  for (TrialResult& trial : rebuilt) trial.identity.devices = "another";
  CHECK(compare(before, rebuilt, 0).table.notes.at(0) == "the devices of 1 cell are not the same before and after");
  rebuilt.back().error = "crashed";
  CHECK(compare(before, rebuilt, 0).worse == 1);
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
