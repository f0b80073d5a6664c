// SPDX-License-Identifier: Apache-2.0
#include "tools/report/line_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "base/error.h"
#include "tools/page/html_page.h"

namespace arbalest {
namespace {

constexpr double kWidth = 720, kHeight = 400;                       // of the picture
constexpr double kLeft = 78, kRight = 24, kTop = 44, kBottom = 52;  // margins
constexpr double kLegendRow = 18, kLegendLeft = kLeft + 30;
constexpr std::array<const char*, 6> kColours = {"#2f6fde", "#d9691e", "#1c8052", "#8a4fd0", "#c0392b", "#687084"};
constexpr std::array<const char*, 4> kDashes = {"", R"( stroke-dasharray="8 3")", R"( stroke-dasharray="2 3")",
                                                R"( stroke-dasharray="10 3 2 3")"};

// The smallest of 1, 2, 5 times a power of ten that is at least `least`.
double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

// "1.2M", "40k", "0.98", in one unit for an axis that goes up to `most`, with the digits that its step needs.
std::string amount(double value, double step, double most) {
  const auto [unit, name] = most >= 1e10  ? std::pair(1e9, "G")
                            : most >= 1e6 ? std::pair(1e6, "M")
                            : most >= 1e4 ? std::pair(1e3, "k")
                                          : std::pair(1.0, "");
  const int decimals = std::max(0, int(std::ceil(-std::log10(step / unit) - 1e-9)));
  return fmt::format("{:.{}f}{}", value / unit, decimals, value == 0 ? "" : name);
}

struct Axis {
  double from = 0, to = 1, step = 1;
  std::vector<double> ticks;

  Axis(double least, double most, int parts) {
    step = round_step(std::max(most - least, 1e-9 * std::max(1.0, std::abs(most))) / parts);
    from = std::floor(least / step + 1e-9) * step;
    to = std::ceil(most / step - 1e-9) * step;
    if (to <= from) to = from + step;
    for (int i = 0; from + i * step <= to + step / 1e6; ++i) ticks.push_back(from + i * step);
  }
};

// The beginning of a picture: its size, background and title.
std::string head(double width, double height, double left, const std::string& title) {
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
                     R"(font-family="system-ui, 'DejaVu Sans', sans-serif" font-size="13" fill="#1d2330">)"
                     "\n"
                     R"(<rect width="{0}" height="{1}" fill="#ffffff"/>)"
                     "\n"
                     R"(<text x="{2}" y="24" font-size="16" font-weight="600">{3}</text>)"
                     "\n",
                     width, height, left, escaped(printable(title)));
}

// About as wide as a text is drawn.
double pixels_of(const std::string& text) {
  constexpr double kLetter = 7.2;
  const auto letters = std::count_if(text.begin(), text.end(),
                                     [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; });
  return kLetter * double(letters);
}

struct Pixel {
  double x = 0, y = 0;
};

// A text to the right or left of a point.
struct Label {
  std::string text;  // "": there is none
  Pixel at;
  bool left = false;
};

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;

  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// A place for the text next to the point, within the axes and clear of what is taken, which it is added to.
std::optional<Label> free_place(const std::string& text, const Pixel& point, std::vector<Box>& taken) {
  constexpr double kSize = 11.0 / 13;  // of a label's letters to those that pixels_of() knows
  const double width = pixels_of(text) * kSize;
  for (const double down : {-6.0, 16.0}) {
    for (const bool left : {false, true}) {
      const Label label{text, {point.x + (left ? -7 : 7), point.y + down}, left};
      const double begin = left ? label.at.x - width : label.at.x;
      const Box box{begin, label.at.y - 10, begin + width, label.at.y + 3};
      const bool inside =
          box.left >= kLeft && box.right <= kWidth && box.top >= kTop - 12 && box.bottom <= kHeight - kBottom;
      if (!inside || std::any_of(taken.begin(), taken.end(), [&](const Box& other) { return box.meets(other); })) {
        continue;
      }
      taken.push_back(box);
      return label;
    }
  }
  return std::nullopt;
}

// The names of lines at their first points, by line. If they do not all have room, numbers from 1 on.
std::vector<Label> labels_of(const std::vector<PlotLine>& lines, const std::vector<Pixel>& firsts) {
  std::vector<Box> taken;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].named_there) taken.push_back({firsts[i].x - 4, firsts[i].y - 4, firsts[i].x + 4, firsts[i].y + 4});
  }
  std::vector<Label> labels(lines.size()), numbers(lines.size());
  std::vector<Box> with_names = taken;
  bool room = true;
  int number = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].named_there) continue;
    const std::string text = std::to_string(++number);
    numbers[i] = free_place(text, firsts[i], taken).value_or(Label{text, {firsts[i].x + 7, firsts[i].y - 6}, false});
    const std::optional<Label> label = free_place(printable(lines[i].name), firsts[i], with_names);
    room = room && label;
    if (label) labels[i] = *label;
  }
  return room ? labels : numbers;
}

class Drawing {
 public:
  explicit Drawing(const LinePlot& plot) : plot_(plot), x_(range(true)), y_(range(false)) {
    std::vector<Pixel> firsts;
    for (const PlotLine& line : plot.lines) {
      firsts.push_back(line.points.empty() ? Pixel() : Pixel{x_of(line.points[0].x), y_of(line.points[0].y)});
    }
    labels_ = labels_of(plot.lines, firsts);
  }

  std::string text() {
    double width = kWidth, height = kHeight;
    for (size_t i = 0; i < plot_.lines.size(); ++i) {
      if (legend_name(i).empty()) continue;
      height += kLegendRow + (height == kHeight ? 8 : 0);
      width = std::max(width, kLegendLeft + pixels_of(legend_name(i)) + kRight);
    }
    text_ = head(width, height, kLeft, plot_.title);
    axes();
    for (size_t i = 0; i < plot_.lines.size(); ++i) line(i);
    legend();
    add("</svg>");
    return std::move(text_);
  }

 private:
  // The text of a line in the legend; "": it is not there.
  std::string legend_name(size_t line) const {
    const std::string name = printable(plot_.lines[line].name), &label = labels_[line].text;
    if (!plot_.lines[line].named_there) return name;
    return label == name ? "" : fmt::format("{}: {}", label, name);
  }
  template <typename... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_ += fmt::format(format, std::forward<Arguments>(arguments)...) + '\n';
  }

  Axis range(bool of_x) const {
    double least = INFINITY, most = -INFINITY;
    for (const PlotLine& line : plot_.lines) {
      for (const PlotPoint& point : line.points) {
        least = std::min(least, of_x ? point.x : std::min(point.y, point.low));
        most = std::max(most, of_x ? point.x : std::max(point.y, point.high));
      }
    }
    if (!(least <= most)) throw std::logic_error("a plot without points");
    if (of_x ? plot_.x_ticks.empty() : plot_.from_zero) least = std::min(least, 0.0);
    return Axis(least, most, of_x ? 8 : 6);
  }

  double x_of(double x) const { return kLeft + (x - x_.from) / (x_.to - x_.from) * (kWidth - kLeft - kRight); }
  double y_of(double y) const {
    return kHeight - kBottom - (y - y_.from) / (y_.to - y_.from) * (kHeight - kTop - kBottom);
  }
  static const char* colour(size_t line) { return kColours[line % kColours.size()]; }
  // Lines of one colour have other dashes.
  static const char* dashes(size_t line) { return kDashes[line / kColours.size() % kDashes.size()]; }

  void axes() {
    for (const double tick : y_.ticks) {
      add(R"(<path d="M{} {:.1f}H{}" stroke="#e1e4ea"/>)", kLeft, y_of(tick), kWidth - kRight);
      add(R"(<text x="{}" y="{:.1f}" text-anchor="end" fill="#687084">{}</text>)", kLeft - 8, y_of(tick) + 4,
          amount(tick, y_.step, y_.to));
    }
    for (const double tick : plot_.x_ticks.empty() ? x_.ticks : plot_.x_ticks) {
      add(R"(<text x="{:.1f}" y="{}" text-anchor="middle" fill="#687084">{}</text>)", x_of(tick),
          kHeight - kBottom + 20, plot_.x_ticks.empty() ? amount(tick, x_.step, x_.to) : fmt::format("{:g}", tick));
    }
    add(R"(<text x="{}" y="{}" text-anchor="middle">{}</text>)", (kLeft + kWidth - kRight) / 2, kHeight - kBottom + 42,
        escaped(printable(plot_.x_label)));
    add(R"svg(<text transform="translate(18 {}) rotate(-90)" text-anchor="middle">{}</text>)svg",
        (kTop + kHeight - kBottom) / 2, escaped(printable(plot_.y_label)));
  }

  void line(size_t at) {
    const PlotLine& line = plot_.lines[at];
    const char* const shade = colour(at);
    std::string path;
    for (const PlotPoint& point : line.points) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_of(point.x), y_of(point.y));
    }
    if (line.dashed) {
      add(R"(<path d="{}" fill="none" stroke="#687084" stroke-dasharray="5 4"/>)", path);
      return;
    }
    add(R"(<path d="{}" fill="none" stroke="{}" stroke-width="2" stroke-linejoin="round"{}/>)", path, shade,
        dashes(at));
    for (const PlotPoint& point : line.points) {
      if (point.high > point.low) {
        add(R"(<path d="M{:.1f} {:.1f}V{:.1f}" stroke="{}"/>)", x_of(point.x), y_of(point.low), y_of(point.high),
            shade);
      }
      add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="{}"/>)", x_of(point.x), y_of(point.y), shade);
    }
    const Label& label = labels_[at];
    if (label.text.empty()) return;
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="11">{}</text>)", label.at.x, label.at.y,
        label.left ? "end" : "start", escaped(label.text));
  }

  void legend() {
    double y = kHeight + 10;
    for (size_t i = 0; i < plot_.lines.size(); ++i) {
      const PlotLine& line = plot_.lines[i];
      if (legend_name(i).empty()) continue;
      add(R"(<path d="M{} {}h22" stroke="{}" stroke-width="{}"{}/>)", kLeft, y - 4, line.dashed ? "#687084" : colour(i),
          line.dashed ? 1 : 2, line.dashed ? R"( stroke-dasharray="5 4")" : dashes(i));
      add(R"(<text x="{}" y="{}">{}</text>)", kLegendLeft, y, escaped(legend_name(i)));
      y += kLegendRow;
    }
  }

  const LinePlot& plot_;
  const Axis x_, y_;
  std::vector<Label> labels_;  // by line
  std::string text_;
};

}  // namespace

std::string svg_of(const LinePlot& plot) {
  return Drawing(plot).text();
}

std::string svg_of(const RowPlot& plot) {
  constexpr double kRow = 24, kGap = 12, kWide = 420, kEdge = 16;
  if (plot.rows.empty()) throw std::logic_error("a plot without rows");
  double names = 0, texts = 0, least = 0, most = plot.mark.value_or(0);
  for (const PlotRow& row : plot.rows) {
    names = std::max(names, pixels_of(row.name));
    texts = std::max(texts, pixels_of(row.text));
    least = std::min({least, row.low, row.value});
    most = std::max({most, row.high, row.value});
  }
  if (most == least) most = least + 1;
  const Axis axis(least, most, 6);
  const double left = kEdge + names + kGap, bottom = kTop + kRow * double(plot.rows.size());
  const auto x_of = [&](double value) { return left + (value - axis.from) / (axis.to - axis.from) * kWide; };
  std::string svg = head(left + kWide + kGap + texts + kEdge, bottom + kTop, kEdge, plot.title);
  const auto add = [&svg](const std::string& part) { svg += part + "\n"; };
  for (const double tick : axis.ticks) {
    add(fmt::format(R"(<path d="M{:.1f} {}V{}" stroke="#e1e4ea"/>)", x_of(tick), kTop, bottom));
    add(fmt::format(R"(<text x="{:.1f}" y="{}" text-anchor="middle" fill="#687084">{}</text>)", x_of(tick), bottom + 18,
                    amount(tick, axis.step, axis.to)));
  }
  if (plot.mark) {
    add(fmt::format(R"(<path d="M{:.1f} {}V{}" stroke="{}" stroke-dasharray="3 3"/>)", x_of(*plot.mark), kTop, bottom,
                    kColours[4]));
  }
  for (size_t i = 0; i < plot.rows.size(); ++i) {
    const PlotRow& row = plot.rows[i];
    const double y = kTop + kRow * (double(i) + 0.5);
    add(fmt::format(R"(<text x="{}" y="{}" text-anchor="end">{}</text>)", left - kGap, y + 4.5,
                    escaped(printable(row.name))));
    add(fmt::format(R"(<path d="M{:.1f} {}H{:.1f}" stroke="{}" stroke-width="2"/>)", x_of(row.low), y, x_of(row.high),
                    kColours[0]));
    add(fmt::format(R"(<circle cx="{:.1f}" cy="{}" r="4" fill="{}"/>)", x_of(row.value), y, kColours[0]));
    add(fmt::format(R"(<text x="{}" y="{}" fill="#687084">{}</text>)", left + kWide + kGap, y + 4.5,
                    escaped(printable(row.text))));
  }
  return svg + "</svg>\n";
}

}  // namespace arbalest
