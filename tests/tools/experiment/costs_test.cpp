// SPDX-License-Identifier: Apache-2.0

// Prices of cells on demand and on spot machines, measured and predicted.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/io/test_folder.h"
#include "tools/experiment/answer/costs.h"
#include "tools/experiment/quote/quote.h"

using namespace arbalest;

namespace costs_test {
namespace {

// Two cells, of an hour and of half an hour, for 10 and 28 an hour.
BenchFile priced(const std::string& more) {
  const TestFolder folder;
  return read_bench_file(folder
                             .write("b.toml",
                                    "[settings]\ngraph = \"g\"\nprice = [10, 28]\n[accuracy]\ntargets = [0.5]\n"
                                    "seeds = [1, 2, 3, 4, 5]\n[price]\ncurrency = \"EUR\"\nsource = \"s\"\n"
                                    "date = 2026-01-01\nper_hour = \"price\"\n" +
                                        more)
                             .string());
}

std::vector<TrialResult> runs_of(const BenchCells& cells) {
  std::vector<TrialResult> results;
  for (size_t c = 0; c < cells.cells.size(); ++c) {
    for (int seed = 1; seed <= 5; ++seed) {
      TrialResult& run = results.emplace_back();
      run.cell = cells.cells[c].id;
      run.measure = Measure::Accuracy;
      run.repetition = seed;
      run.curve = {{1, c == 0 ? 3600.0 : 1800.0, 0.6}};
    }
  }
  return results;
}

std::string note_with(const ResultTable& table, const std::string& part) {
  for (const std::string& note : table.notes) {
    if (note.find(part) != note.npos) return note;
  }
  return "";
}

// The text in the row's column of that name.
std::string text_in(const ResultTable& table, size_t row, const std::string& name) {
  for (size_t c = 0; c < table.columns.size(); ++c) {
    if (table.columns[c].name == name) return table.rows.at(row).at(c).text;
  }
  return "no column";
}

}  // namespace

TEST_CASE("spot machines take as long as interruptions leave of an hour, and may be the cheapest way in time") {
  const auto table = [](const char* lost, const char* by) {
    const BenchFile file = priced(fmt::format(
        "by = \"{}\"\n[price.spot]\nper_hour = \"price / 2\"\ninterruptions_per_hour = 1\nlost = \"{}\"\n", by, lost));
    const BenchCells cells = expand(file);
    return cost_table(file, summarize(file, cells, runs_of(cells)));
  };
  const ResultTable quarter = table("15m", "90m");
  CHECK(text_in(quarter, 0, "spot, with what is lost") == "6.667");  // 5 / (1 − 1/4)
  CHECK(text_in(quarter, 0, "s to 0.5 on spot") == "4800");
  CHECK(text_in(quarter, 0, "EUR to 0.5 on spot").starts_with("6.667"));
  CHECK(note_with(quarter, "within") == "cheapest within 90.0 min: price 10 on spot, 6.667 EUR");
  CHECK(note_with(quarter, "cheapest:").starts_with("cheapest: price 10 on spot for 6.667 EUR; less than the next, "));
  CHECK(text_in(quarter, 0, "note") == "on spot no other is both faster and cheaper");
  CHECK(text_in(quarter, 1, "note") ==
        "no other is both faster and cheaper; on spot no other is both faster and cheaper");
  // The 80 minutes of the first on spot machines are too long.
  CHECK(note_with(table("15m", "70m"), "within") == "cheapest within 70.0 min: price 28 on spot, 9.333 EUR");
  CHECK(text_in(table("55m", "2h"), 0, "spot, with what is lost") == "60.0");  // twelve times as long
}

TEST_CASE("interruptions that leave nothing of an hour are refused") {
  const auto spot = [](const char* lost) {
    return priced(fmt::format("[price.spot]\nper_hour = \"1\"\ninterruptions_per_hour = 2\nlost = \"{}\"\n", lost));
  };
  CHECK(spot("29m").price->lost_seconds == 29 * 60);
  std::string fault;
  try {
    spot("30m");
  } catch (const GraphError& error) {
    fault = error.what();
  }
  CHECK_MESSAGE(fault.ends_with("[price.spot]: interruptions lose 3600 s of each hour, so that work never ends; "
                                "expected less than 3600 s"),
                fault);
}

TEST_CASE("quotes have the prices of spot machines, and the cheapest way in time") {
  const BenchFile file =
      priced("by = \"90m\"\n[price.spot]\nper_hour = \"price / 2\"\ninterruptions_per_hour = 1\nlost = \"15m\"\n");
  const BenchCells cells = expand(file);
  std::vector<Quote> quotes(2);
  for (size_t c = 0; c < 2; ++c) {
    quotes[c].cell = cells.cells[c].id;
    quotes[c].run_seconds = c == 0 ? 3600 : 1800;
  }
  const ResultTable table = quote_table(file, summarize(file, cells, {}), quotes);
  CHECK(text_in(table, 0, "EUR a run") == "10.0");
  CHECK(text_in(table, 0, "min a run on spot") == "80.0");
  CHECK(text_in(table, 0, "EUR a run on spot") == "6.667");
  CHECK(note_with(table, "within") ==
        "predicted for whole runs: cheapest within 90.0 min: price 10 on spot, 6.667 EUR");
}

}  // namespace costs_test
