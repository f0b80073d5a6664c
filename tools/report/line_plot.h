// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plot of lines as a picture of its own (SVG), for documents that cannot hold a page.

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
  bool dashed = false;  // thin, without marks: what is meant to be compared with
};

struct LinePlot {
  std::string title, x_label, y_label;
  std::vector<PlotLine> lines;
  std::vector<double> x_ticks;  // empty: round numbers
  bool from_zero = false;       // whether the y axis begins there
};

// Names may hold anything. Throws std::logic_error if no line has a point.
std::string svg_of(const LinePlot& plot);

}  // namespace arbalest
