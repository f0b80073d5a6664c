// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/cells/written_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/number.h"

namespace arbalest {
namespace {

// A number as it is, and anything else in quotes, in which TOML and JSON escape alike.
std::string toml_value(const std::string& value) {
  return read_number<int64_t>(value) ? value : nlohmann::json(value).dump();
}

std::string toml_value(const std::vector<std::string>& values) {
  if (values.size() == 1) return toml_value(values.front());
  std::vector<std::string> texts;
  for (const std::string& value : values) texts.push_back(toml_value(value));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

}  // namespace

std::string text_of(const WrittenBench& bench, const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path graph = fs::path(bench.graph).is_absolute()
                             ? fs::path(bench.graph)
                             : fs::absolute(bench.graph)
                                   .lexically_normal()
                                   .lexically_relative(fs::absolute(path).lexically_normal().parent_path());
  std::string text = fmt::format("[settings]\ngraph = {}\n", toml_value(graph.string()));
  for (const WrittenSetting& setting : bench.settings) {
    text += fmt::format("{} = {}\n", setting.name, toml_value(setting.values));
  }
  text += fmt::format("\n[throughput]\nrepetitions = {}\nwindows = {}\nwindow = \"{:g}s\"\nwarmup = \"{:g}s\"\n",
                      bench.rule.repetitions, bench.rule.windows, bench.rule.window_seconds, bench.rule.warmup_seconds);
  const auto list = std::find_if(bench.settings.begin(), bench.settings.end(),
                                 [](const WrittenSetting& setting) { return setting.values.size() > 1; });
  if (list == bench.settings.end()) return text;
  return text + fmt::format("\n[compare]\nby = \"{}\"\nagainst = {}\n", list->name, toml_value(list->values.front()));
}

}  // namespace arbalest
