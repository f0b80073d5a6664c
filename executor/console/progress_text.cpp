// SPDX-License-Identifier: Apache-2.0
#include "executor/console/progress_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "executor/console/terminal.h"

namespace arbalest {
namespace {

constexpr size_t kNarrowestBar = 6, kWidestBar = 30;  // columns, its ends included

struct Part {
  std::string text;
  int importance = 0;  // the least goes first
};

std::string join(const std::vector<Part>& parts) {
  std::string line;
  for (const Part& part : parts) line += (line.empty() ? "" : "  ") + part.text;
  return line;
}

// "[====>     ]"
std::string bar(double share, size_t width) {
  const size_t inner = width - 2, done = std::min(inner, size_t(share * double(inner)));
  const bool whole = done == inner;
  return '[' + std::string(done, '=') + (whole ? "" : ">") + std::string(whole ? 0 : inner - done - 1, ' ') + ']';
}

}  // namespace

// The sign of NaN has no meaning. A loss that grows without bound does not fill the line.
std::string measured(double value) {
  constexpr double kLong = 1e6, kSmall = 1e-3;
  if (std::isnan(value)) return "nan";
  if (value != 0 && std::abs(value) < kSmall) return fmt::format("{:.3g}", value);
  return std::abs(value) < kLong ? fmt::format("{:.4f}", value) : fmt::format("{:.4e}", value);
}

std::string updates_skipped(int64_t count) {
  return fmt::format("{} update{} skipped", count, count == 1 ? "" : "s");
}

std::string short_count(double value) {
  if (!(value >= 0)) return "?";
  if (value < 1e3) return fmt::format("{:.0f}", value);
  if (value < 1e6) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.2f}M", value / 1e6);
}

std::string clock_time(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "?";
  const auto whole = std::llround(seconds);
  const auto hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest) : fmt::format("{}:{:02}", minutes, rest);
}

std::string progress_text(const RunStarted& run, const RunProgress& progress, const ProgressLayout& layout) {
  const size_t width = layout.width;
  const std::string validating =
      layout.validated < 0
          ? ""
          : fmt::format("{} {:2.0f} %", layout.recalibrates ? "recalibrating" : "validating", 100 * layout.validated);
  if (progress.iteration == 0) return std::string(first_columns(validating, width));  // nothing else is known yet
  std::vector<Part> parts;
  const int64_t per_epoch = run.iterations_per_epoch;
  const int64_t epochs = run.epochs > 0 ? run.epochs : per_epoch > 0 ? (run.iterations + per_epoch - 1) / per_epoch : 0;
  parts.push_back(
      {epochs > 0 ? fmt::format("epoch {}/{}", progress.epoch, epochs) : fmt::format("epoch {}", progress.epoch), 9});
  const double within = std::clamp(progress.epochs - double(progress.epoch - 1) + 1e-11, 0.0, 1.0);
  if (progress.epochs > 0) {
    if (layout.bar) parts.push_back({bar(within, kNarrowestBar), 2});
    parts.push_back({fmt::format("{:2} %", int(within * 100)), 4});
  }
  const std::string loss = run.trained.empty() ? "loss" : printable(run.trained);
  parts.push_back({loss + " " + (progress.loss_undefined ? "undefined" : measured(progress.loss)), 8});
  for (const auto& [name, value] : progress.metrics) {
    parts.push_back({fmt::format("{} {}", printable(name), std::isnan(value) ? "undefined" : measured(value)), 3});
  }
  parts.push_back({fmt::format("lr {:.3g}", progress.learning_rate), 1});
  parts.push_back({short_count(progress.images_per_second) + " images/s", 6});
  if (progress.skipped_updates > 0) parts.push_back({updates_skipped(progress.skipped_updates), 7});
  if (progress.input.bound()) parts.push_back({kInputBound, 6});
  if (!validating.empty()) parts.push_back({validating, 7});
  if (run.iterations > progress.iteration && progress.iteration > 0) {
    const double each = progress.seconds / double(progress.iteration);
    parts.push_back({"ETA " + clock_time(each * double(run.iterations - progress.iteration)), 5});
  }
  while (parts.size() > 1 && columns_of(join(parts)) > width) {
    const auto least = [](const Part& a, const Part& b) { return a.importance < b.importance; };
    parts.erase(std::min_element(parts.begin(), parts.end(), least));
  }
  const size_t taken = columns_of(join(parts));
  for (Part& part : parts) {
    if (part.text[0] == '[') part.text = bar(within, std::min(kNarrowestBar + width - taken, kWidestBar));
  }
  return std::string(first_columns(join(parts), width));
}

}  // namespace arbalest
