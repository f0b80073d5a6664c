// SPDX-License-Identifier: Apache-2.0
#pragma once
// Plots as pictures of their own (SVG), for documents that cannot hold a page.

#include <optional>
#include <string>
#include <vector>

namespace arbalest {

struct PlotPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  // how far y spreads; both y: not at all
};

struct PlotLine {
  std::string name;  // "": not in the legend
  std::vector<PlotPoint> points;
  bool dashed = false;       // thin, without marks: what is meant to be compared with
  bool named_there = false;  // at its first point if all such names have room, otherwise by a number and the legend
};

struct LinePlot {
  std::string title, x_label, y_label;
  std::vector<PlotLine> lines;
  std::vector<double> x_ticks;  // empty: round numbers
  bool from_zero = false;       // whether the y axis begins there
};

// Names may hold anything. Throws std::logic_error if no line has a point.
std::string svg_of(const LinePlot& plot);

// A number with the range that it may lie in, in a row of its own.
struct PlotRow {
  std::string name, text;  // to the left and to the right of it
  double value = 0, low = 0, high = 0;
};

// Rows on one horizontal axis, which begins at 0 unless there are negative numbers.
struct RowPlot {
  std::string title;
  std::vector<PlotRow> rows;
  std::optional<double> mark = {};  // a dashed line there, as at 1 for ratios
};

// Names may hold anything. Throws std::logic_error if there are no rows.
std::string svg_of(const RowPlot& plot);

}  // namespace arbalest
