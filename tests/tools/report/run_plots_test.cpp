// SPDX-License-Identifier: Apache-2.0

// Plots of runs and of sweeps, as pictures.

#include "tools/report/run_plots.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "tests/executor/fixture.h"
#include "tests/io/test_folder.h"

using namespace arbalest;
using test::contains;

namespace run_plots_test {
namespace {

template <typename Number>
std::string cell(int devices, int learners, Number rate) {
  return fmt::format(R"({{"event":"cell","graph":"net <1>","precision":"fp32","device_count":{},"learners":{},)"
                     R"("images_per_second":{},"images_per_second_min":{},"images_per_second_max":{}}})"
                     "\n",
                     devices, learners, rate, rate * 0.9, rate * 1.1);
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("throughput is plotted over devices, a line for each number of learners, or over learners") {
  const TestFolder folder;
  const auto many = folder.write("many.jsonl", cell(1, 1, 100) + cell(1, 2, 150) + cell(4, 1, 380) + cell(2, 1, 190) +
                                                   cell(2, 2, 300) + R"({"event":"cell","error":"no memory"})" + "\n");
  const LinePlot over_devices = scaling_plot({many});
  REQUIRE(over_devices.lines.size() == 4);
  CHECK(over_devices.lines[0].name == "1 learner on each");
  CHECK(over_devices.lines[1].name == "2 learners on each");
  REQUIRE(over_devices.lines[0].points.size() == 3);
  CHECK(over_devices.lines[0].points[1].x == 2);
  CHECK(over_devices.lines[0].points[1].y == 190);
  CHECK(over_devices.lines[0].points[2].low == doctest::Approx(342));
  CHECK(over_devices.lines[2].dashed);
  CHECK(over_devices.lines[2].points[1].y == 400);
  CHECK(over_devices.x_ticks == std::vector<double>{1, 2, 4});

  const auto one = folder.write("one.jsonl", cell(1, 1, 100) + cell(1, 4, 250));
  const auto other = folder.write("other.jsonl", cell(1, 1, 90) + cell(1, 4, 200));
  const LinePlot over_learners = scaling_plot({one, other});
  REQUIRE(over_learners.lines.size() == 2);
  CHECK(over_learners.lines[1].name == "other");
  CHECK(over_learners.x_label == "learners on a device");

  const auto refusal = [&](const std::string& text) {
    const auto file = folder.write("bad.jsonl", text);
    return test::message_of([&] { scaling_plot({file}); });
  };
  CHECK(contains(refusal("{\"event\":\"start\"}\n"), "bad.jsonl:1:1: expected a line of bench scaling --json"));
  CHECK(contains(refusal(cell(1, 1, 5) + "{\"event\":\"cell\"}\n"), "bad.jsonl:2:1: "));
  CHECK(contains(refusal("{\"event\":\"cell\",\"error\":\"x\"}\n"), "holds no cell that was measured"));
  for (const char* count : {"1e300", "-1", "0", "2.5", "18446744073709551615", "\"2\"", "null"}) {
    CAPTURE(count);
    CHECK(contains(refusal(fmt::format("{{\"event\":\"cell\",\"device_count\":{}}}\n", count)),
                   "bad.jsonl:1:1: 'device_count': found "));
  }
}

TEST_CASE("a metric of validations is plotted over seconds, and targets where they are") {
  const TestFolder folder;
  const std::string text =
      R"({"event":"start","graph":"g"})"
      "\n"
      R"({"event":"validation","epoch":1,"iteration":10,"seconds":2.5,"loss":0.5,"accuracy":0.9})"
      "\n"
      R"({"event":"validation","epoch":2,"iteration":20,"seconds":5,"loss":0.4,"accuracy":0.95})"
      "\n"
      R"({"event":"end","reason":"until","epoch":2,"iteration":20,"images":640,"seconds":5,"setup_seconds":0.1,"images_per_second":128,"targets":[{"target":"accuracy >= 0.94","seconds":5}]})"
      "\n";
  const auto log = folder.write("a.jsonl", text);
  const std::vector<RunLog> runs = read_run_logs(log, "a");
  const LinePlot plot = accuracy_plot(runs);
  CHECK(plot.title == "g: accuracy over time");
  CHECK(plot.y_label == "validation accuracy");
  REQUIRE(plot.lines.size() == 2);
  CHECK(plot.lines[0].name == "a; accuracy >= 0.94 after 5.0 s");
  REQUIRE(plot.lines[0].points.size() == 2);
  CHECK(plot.lines[0].points[0].x == 2.5);
  CHECK(plot.lines[0].points[1].y == 0.95);
  CHECK(plot.lines[1].dashed);
  CHECK(plot.lines[1].points[1].y == 0.94);
  const auto none = folder.write("none.jsonl", std::string("{\"event\":\"start\",\"graph\":\"g\"}\n"));
  CHECK(contains(test::message_of([&] { accuracy_plot(read_run_logs(none, "none")); }), "no run has a validation"));
}

TEST_CASE("a picture has every point, round numbers on its axes, and no markup of names") {
  LinePlot plot{"a </svg> & b", "x", "y", {}, {}, true};
  plot.lines.push_back({"<script>", {{1, 10, 9, 11}, {2, 20, 20, 20}, {3, 35, 30, 40}}});
  plot.lines.push_back({"", {{1, 10, 10, 10}, {3, 30, 30, 30}}, true});
  const std::string svg = svg_of(plot);
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(count(svg, "<circle ") == 3);
  CHECK(count(svg, "stroke-dasharray") == 1);
  CHECK(contains(svg, "a &lt;/svg&gt; &amp; b"));
  CHECK(contains(svg, "&lt;script&gt;"));
  for (const char* tick : {">0<", ">10<", ">20<", ">30<", ">40<"}) CHECK(contains(svg, tick));
  plot.lines = {{"", {{0, 1.5e6, 1.5e6, 1.5e6}}}};
  CHECK(contains(svg_of(plot), ">1.0M<"));
}

}  // namespace run_plots_test
