// SPDX-License-Identifier: Apache-2.0

// Plots of a bench: which columns of a table become a picture, and what it shows.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tools/experiment/answer/bench_plots.h"

using namespace arbalest;

namespace bench_plots_test {
namespace {

std::vector<std::string> files_of(const std::vector<BenchPlot>& plots) {
  std::vector<std::string> files;
  for (const BenchPlot& plot : plots) files.push_back(plot.file);
  return files;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("columns of numbers are rows with their intervals, and missing numbers have none") {
  const ResultTable table{
      "Throughput",
      {{"cell", false}, {"images/s", true, true}, {"late batches", true}, {"runs"}, {"note", false}},
      {{{"one"}, {"5 (4–7)", 5, Confidence{4, 7}}, {"2", 2}, {"3", 3}, {""}},
       {{"two"}, {"-"}, {"-"}, {"3", 3}, {""}},
       {{"three"}, {"9", 9}, {"inf", INFINITY}, {"3", 3}, {""}}},
      {}};
  const std::vector<BenchPlot> plots = bench_plots({table, table});
  // A number alone is no plot, and neither are counts; two tables of one title have files of their own.
  CHECK(files_of(plots) == std::vector<std::string>{"throughput-images-s.svg", "throughput-images-s-2.svg"});
  const std::string& svg = plots[0].svg;
  CHECK(count(svg, "<circle ") == 2);
  for (const char* text : {">one<", ">three<", ">5 (4–7)<", ">images/s<", ">0<"}) {
    CHECK_MESSAGE(svg.find(text) != svg.npos, text);
  }
  CHECK(svg.find(">two<") == svg.npos);
  CHECK(count(svg, "stroke-dasharray") == 0);
}

TEST_CASE("ratios have a line at 1, and names are no markup") {
  const ResultTable table{
      "T", {{"cell", false}, {"against <b>", true, true}}, {{{"a </svg>"}, {"0.5", 0.5}}, {{"b"}, {"0.6", 0.6}}}, {}};
  const std::string svg = bench_plots({table}).at(0).svg;
  CHECK(count(svg, "stroke-dasharray") == 1);
  CHECK(svg.find("a &lt;/svg&gt;") != svg.npos);
  CHECK(svg.find(">against &lt;b&gt;<") != svg.npos);
}

TEST_CASE("one ratio or efficiency, as of two GPUs against one, is a plot with a line at its baseline") {
  const ResultTable table{
      "T",
      {{"cell", false}, {"images/s"}, {"against one", true, true}, {"weak efficiency", true, true}, {"late batches"}},
      {{{"one"}, {"5", 5}, {"-"}, {"-"}, {"-"}}, {{"two"}, {"9", 9}, {"1.8", 1.8}, {"90 %", 90}, {"1", 1}}},
      {}};
  const std::vector<BenchPlot> plots = bench_plots({table});
  CHECK(files_of(plots) == std::vector<std::string>{"t-images-s.svg", "t-against-one.svg", "t-weak-efficiency.svg"});
  for (size_t i = 1; i < 3; ++i) CHECK(count(plots.at(i).svg, "stroke-dasharray") == 1);
}

TEST_CASE("names that have no room at their points are numbers with a legend, and lines of one colour differ") {
  ResultTable cost{
      "Cost", {{"cell", false}, {"s to 0.9"}, {"EUR to 0.9"}, {"s to 0.9 on spot"}, {"EUR to 0.9 on spot"}}, {}, {}};
  for (int i = 0; i < 16; ++i) {
    const double at = 100 + i;
    cost.rows.push_back({{"a cell with a long name, batch " + std::to_string(i)},
                         {"t", at},
                         {"m", 50 - at / 10},
                         {"t", at + 1},
                         {"m", 40 - at / 10}});
  }
  const std::string many = bench_plots({cost}).at(0).svg;
  CHECK(count(many, "<circle ") == 32);
  CHECK(many.find(">32: a cell with a long name, batch 15 on spot<") != many.npos);
  CHECK(many.find(">32<") != many.npos);
  CHECK(many.find("y=\"986\">no other") != many.npos);  // a legend of 33 rows
  cost.rows.resize(1);
  const std::string few = bench_plots({cost}).at(0).svg;
  CHECK(few.find(">a cell with a long name, batch 0 on spot<") != few.npos);

  ResultTable times{"Time", {{"cell", false}, {"s to 0.8"}, {"s to 0.9"}}, {}, {}};
  for (int i = 0; i < 16; ++i) times.rows.push_back({{"c" + std::to_string(i)}, {"", 1.0 + i}, {"", 2.0 + i}});
  const std::string lines = bench_plots({times}).at(0).svg;
  CHECK(count(lines, "stroke=\"#2f6fde\" stroke-width=\"2\"") == 6);  // 0, 6 and 12, in the plot and in the legend
  CHECK(count(lines, "stroke-dasharray=\"8 3\"") == 12);
  CHECK(count(lines, "stroke-dasharray=\"2 3\"") == 8);
}

TEST_CASE("times and epochs against targets are lines of the cells that met two targets") {
  const ResultTable table{
      "Time",
      {{"cell", false}, {"s to 0.8"}, {"epochs to 0.8"}, {"s to 0.9"}, {"epochs to 0.9"}, {"final"}},
      {{{"one"}, {"3", 3}, {"1", 1}, {"5", 5}, {"2", 2}, {"-"}},
       {{"two"}, {"2", 2}, {"1", 1}, {"not reached", INFINITY}, {"not reached", INFINITY}, {"-"}}},
      {}};
  const std::vector<BenchPlot> plots = bench_plots({table});
  CHECK(files_of(plots) == std::vector<std::string>{"time-seconds-to-each-target.svg", "time-epochs-to-each-target.svg",
                                                    "time-s-to-0.8.svg", "time-epochs-to-0.8.svg"});
  CHECK(count(plots[0].svg, "<circle ") == 2);
  for (const char* text : {">one<", ">0.8<", ">0.9<"})
    CHECK_MESSAGE(plots[0].svg.find(text) != std::string::npos, text);
  CHECK(plots[0].svg.find(">two<") == std::string::npos);
}

TEST_CASE("prices against times have a line through the cells that no other is better than in both") {
  ResultTable cost{"Cost",
                   {{"cell", false}, {"s to 0.9"}, {"EUR to 0.9"}},
                   {{{"fast"}, {"1", 1}, {"9", 9}},
                    {{"cheap"}, {"5", 5}, {"2", 2}},
                    {{"neither"}, {"6", 6}, {"3", 3}},
                    {{"none"}, {"-"}, {"-"}}},
                   {}};
  const std::string svg = bench_plots({cost}).at(0).svg;
  CHECK(count(svg, "<circle ") == 3);
  const size_t line = svg.rfind(" fill=\"none\"", svg.find("stroke-dasharray"));
  const size_t begin = svg.rfind("<path d=\"", line);
  CHECK(count(svg.substr(begin, line - begin), "L") == 1);  // from fast to cheap
  for (const char* text : {">fast<", ">cheap<", ">neither<"}) CHECK_MESSAGE(svg.find(text) != svg.npos, text);
  cost.rows.resize(1);
  CHECK(bench_plots({cost}).empty());
}

}  // namespace bench_plots_test
