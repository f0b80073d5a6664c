// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/cells/cells.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "base/random.h"
#include "base/shell_word.h"
#include "tools/experiment/cells/expression.h"

namespace arbalest {
namespace {

std::vector<std::string> names_of(const Settings& settings) {
  std::vector<std::string> names = {"device_count"};
  for (const auto& [name, value] : settings) names.push_back(name);
  return names;
}

ExpressionValue value_in(const Settings& settings, const std::string& name) {
  if (name == "device_count") return double(device_count(settings));
  const auto found = settings.find(name);
  if (found != settings.end()) return value_of_text(found->second);
  const std::vector<std::string> names = names_of(settings);
  throw GraphError(fmt::format("'{}' is no setting here; expected one of {}{}", name, fmt::join(names, ", "),
                               did_you_mean(name, names)));
}

// Adds the place to an expression's error.
template <typename Evaluate>
auto at(const Position& where, const Evaluate& evaluate) {
  try {
    return evaluate();
  } catch (const GraphError& error) {
    if (error.place().line > 0) throw;
    throw GraphError(where, error.what());
  }
}

// Derives settings in whatever order they need each other.
void derive(const std::vector<DerivedSetting>& all, Settings& settings) {
  std::vector<const DerivedSetting*> waiting;
  for (const DerivedSetting& each : all) waiting.push_back(&each);
  const auto waits_for = [&](const std::string& name) {
    return std::any_of(waiting.begin(), waiting.end(), [&](const auto* each) { return each->name == name; });
  };
  while (!waiting.empty()) {
    const auto known = std::find_if(waiting.begin(), waiting.end(), [&](const DerivedSetting* each) {
      bool ready = true;
      const ExpressionValue value = at(each->where, [&] {
        return evaluate(each->expression, [&](const std::string& name) -> ExpressionValue {
          if (!waits_for(name)) return value_in(settings, name);
          ready = false;
          return 1.0;
        });
      });
      if (!ready) return false;
      const double* number = std::get_if<double>(&value);
      if (number && !std::isfinite(*number)) {
        throw GraphError(each->where, fmt::format("[derived]: {}: found {}, expected a finite number", each->name,
                                                  text_of(*number)));
      }
      settings[each->name] = number ? text_of(*number) : std::get<std::string>(value);
      return true;
    });
    if (known == waiting.end()) {
      throw GraphError(waiting.front()->where, fmt::format("[derived]: {} follows from itself", waiting.front()->name));
    }
    waiting.erase(known);
  }
}

bool holds(const std::string& condition, const Settings& settings, const Position& where) {
  return number_of(condition, settings, where) != 0;
}

// "batch 64, learners 2"; of a path its file.
std::string name_of(const std::vector<std::string>& varied, const Settings& settings) {
  std::vector<std::string> parts;
  for (const std::string& name : varied) {
    const std::string& value = settings.at(name);
    const bool path = name == "graph" || name == "weights" || name == "model";
    parts.push_back(name + " " + (path ? std::filesystem::path(value).stem().string() : value));
  }
  if (parts.empty()) return std::filesystem::path(settings.at("graph")).stem().string();
  return fmt::format("{}", fmt::join(parts, ", "));
}

// The names of an axis that tell its places apart. Of lists that go together, attributes of nodes are left out first,
// then the longest texts, and graphs last; words for other programs count where nothing else tells. A machine is a name
// by itself, and a price none.
std::vector<std::string> telling_names(const SettingAxis& axis) {
  std::vector<size_t> columns, words;
  for (size_t n = 0; n < axis.names.size(); ++n) {
    const bool word = axis.names[n].starts_with("peer.") || axis.names[n] == "price";
    (word ? words : columns).push_back(n);
  }
  const auto length = [&](size_t n) {
    constexpr size_t kLonger = 1 << 20;  // than any text
    size_t most = axis.names[n].find('.') == std::string::npos ? 0 : kLonger;
    for (const auto& place : axis.values) most = std::max(most, place[n].size());
    return axis.names[n] == "graph" ? 0 : most;
  };
  const auto distinct = [&](const std::vector<size_t>& kept) {
    std::set<std::vector<std::string>> seen;
    for (const auto& place : axis.values) {
      std::vector<std::string> texts;
      for (const size_t n : kept) texts.push_back(place[n]);
      seen.insert(std::move(texts));
    }
    return seen.size() == axis.values.size();
  };
  const auto machine = std::find(axis.names.begin(), axis.names.end(), "machine");
  if (machine != axis.names.end() && distinct({size_t(machine - axis.names.begin())})) return {"machine"};
  for (const size_t word : words) {
    if (columns.empty() || !distinct(columns)) columns.push_back(word);
  }
  std::vector<size_t> candidates = columns;
  std::stable_sort(candidates.begin(), candidates.end(), [&](size_t a, size_t b) { return length(a) > length(b); });
  for (const size_t candidate : candidates) {
    std::vector<size_t> fewer = columns;
    std::erase(fewer, candidate);
    if (!fewer.empty() && distinct(fewer)) columns = std::move(fewer);
  }
  std::vector<std::string> names;
  for (const size_t n : columns) names.push_back(axis.names[n]);
  return names;
}

// A path that the file states is relative to the file's folder.
std::string from_folder_of(const std::string& file, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  return (folder / path).lexically_normal().string();
}

std::string id_of(const Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += fmt::format("{}={}\n", name, value);
  return hash_of(text);
}

// Throws GraphError for a cell that cannot be measured or priced as the file asks.
void check_cell(const BenchFile& file, const BenchCell& cell) {
  const auto fail = [&](const Position& where, const std::string& what) {
    throw GraphError(where, fmt::format("{}: {}", cell.name, what));
  };
  try {
    hosts_in(cell.settings);
    if (cell.settings.contains("batch_total")) images_per_step(cell.settings);
  } catch (const GraphError& error) {
    fail(Position{file.path, 0, 0}, error.what());
  }
  if (!file.price) return;
  for (const std::string& price : {file.price->per_hour, file.price->spot_per_hour}) {
    const double money = price.empty() ? 1 : number_of(price, cell.settings, file.price->where);
    if (money <= 0) {
      fail(file.price->where, fmt::format("per_hour: found {}, expected more than 0", text_of(money)));
    }
  }
}

// Adds a cell with its sides of other programs.
void add(const BenchFile& file, BenchCell cell, BenchCells& all) {
  derive(file.derived, cell.settings);
  cell.name = name_of(all.varied, cell.settings);
  for (const Exclusion& exclusion : file.exclusions) {
    if (!holds(exclusion.when, cell.settings, exclusion.where)) continue;
    std::erase(all.idle, exclusion.where);
    all.excluded.push_back({cell.name, exclusion.reason});
    return;
  }
  check_cell(file, cell);
  cell.id = id_of(cell.settings);
  for (const char* path : {"graph", "weights", "model"}) {
    const auto found = cell.settings.find(path);
    if (found == cell.settings.end()) continue;
    const size_t begin = std::string_view(path) == "model" ? found->second.find('=') + 1 : 0;  // of [NAME=]FILE
    found->second.replace(begin, found->second.npos, from_folder_of(file.path, found->second.substr(begin)));
  }
  all.cells.push_back(cell);
  for (const Peer& peer : file.peers) {
    if (!peer.when.empty() && !holds(peer.when, cell.settings, peer.where)) continue;
    BenchCell side = cell;
    side.peer = side.settings["peer"] = peer.name;
    side.name = cell.name + ", " + peer.name;
    side.id = hash_of(cell.id + peer.name);
    all.cells.push_back(std::move(side));
  }
}

// Whether a cell's name has all of these parts, with ", " between them: those of "batch 32, devices cuda:0" are
// "batch 32" and "devices cuda:0".
bool has_parts(const std::string& name, const std::string& parts) {
  constexpr std::string_view kBetween = ", ";
  const std::string all = fmt::format("{}{}{}", kBetween, name, kBetween);
  for (size_t at = 0; at <= parts.size();) {
    const size_t end = std::min(parts.find(kBetween, at), parts.size());
    const std::string part = parts.substr(at, end - at);
    if (part.empty() || all.find(fmt::format("{}{}{}", kBetween, part, kBetween)) == all.npos) return false;
    at = end + kBetween.size();
  }
  return true;
}

}  // namespace

BenchCells expand(const BenchFile& file) {
  BenchCells all;
  size_t count = 1;
  for (const SettingAxis& axis : file.axes) {
    count *= axis.values.size();
    if (count > kMostCells) {
      throw GraphError(
          axis.where, fmt::format("the lists up to here make {} combinations, and {} are the most", count, kMostCells));
    }
    if (axis.values.size() == 1) continue;
    for (std::string& name : telling_names(axis)) all.varied.push_back(std::move(name));
  }
  const size_t repeats =
      (file.throughput ? size_t(file.throughput->repetitions) : 0) + (file.accuracy ? file.accuracy->seeds.size() : 0);
  for (const Exclusion& exclusion : file.exclusions) all.idle.push_back(exclusion.where);
  for (size_t k = 0; k < count; ++k) {
    BenchCell cell;
    cell.place.resize(file.axes.size());
    size_t rest = k;
    for (size_t a = file.axes.size(); a-- > 0;) {
      const SettingAxis& axis = file.axes[a];
      cell.place[a] = rest % axis.values.size();
      rest /= axis.values.size();
      for (size_t n = 0; n < axis.names.size(); ++n) cell.settings[axis.names[n]] = axis.values[cell.place[a]][n];
    }
    add(file, std::move(cell), all);
    if (all.cells.size() * repeats > kMostTrials) {
      throw GraphError(Position{file.path, 0, 0},
                       fmt::format("the cells, with the sides of other programs, take more than {} trials, {} each",
                                   kMostTrials, repeats));
    }
  }
  std::set<std::string> ids;
  for (const BenchCell& cell : all.cells) {
    if (ids.insert(cell.id).second) continue;
    throw GraphError(Position{file.path, 0, 0}, fmt::format("two combinations are the same: {}", cell.name));
  }
  if (all.cells.empty()) {
    throw GraphError(Position{file.path, 0, 0}, fmt::format("all {} combinations are excluded", count));
  }
  return all;
}

double number_of(const std::string& expression, const Settings& settings, const Position& where) {
  return at(where,
            [&] { return number_of(expression, [&](const std::string& name) { return value_in(settings, name); }); });
}

std::string hash_of(const std::string& text) {
  // Names that differ at their end alone have hashes that are nearly the same; a random number from one is not.
  const Random4 random = philox(hash_name(text), 0, 0);
  return fmt::format("{:08x}{:08x}", random.word[0], random.word[1]);
}

std::string fill_in(const std::string& command, const Settings& settings, const Position& where) {
  const auto in_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; };
  std::string filled;
  for (size_t i = 0; i < command.size(); ++i) {
    filled += command[i];
    if (command[i] != '{' || (i > 0 && command[i - 1] == '$')) continue;  // ${NAME} is the shell's
    size_t end = i + 1;
    while (end < command.size() && in_name(static_cast<unsigned char>(command[end]))) ++end;
    const std::string name = command.substr(i + 1, end - i - 1);
    const bool names = !name.empty() && name[0] != '.' && std::isdigit(static_cast<unsigned char>(name[0])) == 0;
    if (!names || end == command.size() || command[end] != '}') continue;  // other braces are the command's own
    const auto found = settings.find(name);
    filled.pop_back();
    filled += found != settings.end()
                  ? shell_word(found->second)
                  : text_of(at(where, [&] { return std::get<double>(value_in(settings, name)); }));  // device_count
    i = end;
  }
  return filled;
}

void keep_cells(BenchCells& cells, const std::vector<std::string>& asked, const std::string& file) {
  if (asked.empty()) return;
  const auto is_meant = [](const BenchCell& cell, const std::string& text) {
    return (!text.empty() && cell.id.starts_with(text)) || has_parts(cell.name, text);
  };
  for (const std::string& text : asked) {
    const bool known = std::any_of(cells.cells.begin(), cells.cells.end(),
                                   [&](const BenchCell& cell) { return is_meant(cell, text); });
    if (!known) {
      throw GraphError(fmt::format("--cell {}: {} has no such cell; --dry-run lists them", text, file));
    }
  }
  std::erase_if(cells.cells, [&](const BenchCell& cell) {
    return std::none_of(asked.begin(), asked.end(), [&](const std::string& text) { return is_meant(cell, text); });
  });
}

}  // namespace arbalest
