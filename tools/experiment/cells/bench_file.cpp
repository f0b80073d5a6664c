// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/cells/bench_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <toml++/toml.h>
#include <algorithm>
#include <functional>
#include <set>
#include <sstream>
#include <string_view>
#include <type_traits>

#include "base/files/file.h"
#include "tools/command/duration.h"
#include "tools/experiment/cells/cells.h"
#include "tools/experiment/cells/expression.h"
#include "tools/experiment/cells/settings.h"

namespace arbalest {
namespace {

const std::vector<std::string> kSections = {"title",    "settings", "together", "derived", "exclude", "throughput",
                                            "accuracy", "compare",  "price",    "links",   "peer",    "slurm"};

std::string kind_of(const toml::node& node) {
  std::ostringstream kind;
  kind << node.type();
  return "a TOML " + kind.str();
}

// A file's text and place names, for errors.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  Position where(const toml::node& node) const {
    return {path_, int(node.source().begin.line), int(node.source().begin.column)};
  }
  [[noreturn]] void fail(const toml::node& node, const std::string& what) const {
    const Position place = where(node);
    if (place.line > 0) throw GraphError(place, what);
    throw GraphError("--set: " + what);
  }

  // The text of a setting's value, as a command line has it.
  std::string text(const toml::node& node, const std::string& name) const {
    if (const auto value = node.value_exact<std::string>()) return *value;
    if (const auto value = node.value_exact<int64_t>()) return std::to_string(*value);
    if (const auto value = node.value_exact<double>()) return text_of(*value);
    if (const auto value = node.value_exact<bool>()) return *value ? "true" : "false";
    if (const toml::array* list = node.as_array()) {
      std::vector<std::string> items;
      for (const toml::node& item : *list) items.push_back(text(item, name));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
    fail(node, fmt::format("{}: found {}, expected a number, a text, true or false", name, kind_of(node)));
  }

  const toml::table& table(const toml::node& node, const std::string& name) const {
    if (const toml::table* table = node.as_table()) return *table;
    fail(node, fmt::format("'{0}': found {1}, expected a table, [{0}]", name, kind_of(node)));
  }
  const toml::array& tables(const toml::node& node, const std::string& name) const {
    const toml::array* list = node.as_array();
    if (list && list->is_array_of_tables()) return *list;
    fail(node, fmt::format("'{0}': found {1}, expected tables, [[{0}]]", name, kind_of(node)));
  }

 private:
  std::string path_;
};

// The keys of a table with what reads them; others are refused with the nearest.
class Keys {
 public:
  Keys(const Reader& reader, const toml::table& table, std::string section)
      : reader_(reader), table_(table), section_(std::move(section)) {}

  Keys& text(const std::string& key, std::string& value, bool needed = false) {
    return with(key, needed, [this, key, &value](const toml::node& node) {
      const auto date = node.value_exact<toml::date>();
      std::ostringstream written;
      if (date) written << *date;
      value = date ? written.str() : reader_.text(node, key);
      if (value.empty()) reader_.fail(node, fmt::format("{}: found an empty text", key));
    });
  }
  Keys& whole(const std::string& key, int64_t& value, int64_t least, int64_t most = INT32_MAX) {
    return with(key, false, [this, key, &value, least, most](const toml::node& node) {
      const auto number = node.value_exact<int64_t>();
      if (!number || *number < least || *number > most) {
        reader_.fail(node, fmt::format("{}: found {}, expected a whole number from {} to {}", key,
                                       reader_.text(node, key), least, most));
      }
      value = *number;
    });
  }
  Keys& real(const std::string& key, double& value, double least) {
    return with(key, false, [this, key, &value, least](const toml::node& node) { value = real(node, key, least); });
  }
  Keys& seconds(const std::string& key, double& value) {
    return with(key, false, [this, key, &value](const toml::node& node) {
      const auto time = seconds_of(reader_.text(node, key));
      if (!time) {
        reader_.fail(node, fmt::format("{}: found '{}', expected a time: {}", key, reader_.text(node, key), kTimes));
      }
      value = *time;
    });
  }
  Keys& texts(const std::string& key, std::vector<std::string>& values) {
    return with(key, false, [this, key, &values](const toml::node& node) {
      each(node, [&](const toml::node& item) { values.push_back(reader_.text(item, key)); });
    });
  }
  template <typename Number>
  Keys& numbers(const std::string& key, std::vector<Number>& values, double least) {
    return with(key, false, [this, key, &values, least](const toml::node& node) {
      values.clear();
      each(node, [&](const toml::node& item) { values.push_back(number<Number>(item, key, least)); });
      if (values.empty()) reader_.fail(node, fmt::format("{}: the list is empty", key));
      if (std::set<Number>(values.begin(), values.end()).size() < values.size()) {
        reader_.fail(node, fmt::format("{}: a number is named twice", key));
      }
    });
  }
  Keys& with(const std::string& key, bool needed, const std::function<void(const toml::node&)>& read) {
    known_.push_back(key);
    if (const toml::node* node = table_.get(key)) {
      read(*node);
    } else if (needed && missing_.empty()) {
      missing_ = key;
    }
    return *this;
  }
  // Throws GraphError for a key that nothing has read, and otherwise for one that is missing: it may be misspelt.
  void refuse_others() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      reader_.fail(node, fmt::format("{}: unknown key '{}'; expected {}{}", section_, name, fmt::join(known_, ", "),
                                     did_you_mean(name, known_)));
    }
    if (!missing_.empty()) reader_.fail(table_, fmt::format("{}: '{}' is missing", section_, missing_));
  }

 private:
  template <typename Number>
  Number number(const toml::node& node, const std::string& key, double least) const {
    if constexpr (std::is_same_v<Number, double>) return real(node, key, least);
    const auto number = node.value_exact<int64_t>();
    if (number && double(*number) >= least) return Number(*number);
    reader_.fail(node,
                 fmt::format("{}: found {}, expected whole numbers from {} on", key, reader_.text(node, key), least));
  }
  double real(const toml::node& node, const std::string& key, double least) const {
    const auto number = node.is_number() ? node.value<double>() : std::nullopt;
    if (number && *number >= least && *number < 1e18) return *number;
    reader_.fail(node, fmt::format("{}: found {}, expected a number{}", key, reader_.text(node, key),
                                   least > -1e18 ? fmt::format(" from {} on", least) : ""));
  }
  void each(const toml::node& node, const std::function<void(const toml::node&)>& read) const {
    if (const toml::array* list = node.as_array()) {
      for (const toml::node& item : *list) read(item);
    } else {
      read(node);
    }
  }

  const Reader& reader_;
  const toml::table& table_;
  const std::string section_;
  std::vector<std::string> known_;
  std::string missing_;  // the first key that is needed and not there; "": none
};

// Calls `read` with the full name and value of each setting in a table: that of `lr` in `train` is "train.lr".
void each_setting(const Reader& reader, const toml::table& table, const std::string& prefix,
                  const std::function<void(const std::string&, const toml::node&)>& read, int depth = 0) {
  constexpr int kMostDepth = 16;
  if (depth > kMostDepth) {
    reader.fail(table, fmt::format("settings stand in more than {} tables, one in the other", kMostDepth));
  }
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table()) {
      each_setting(reader, *inner, name + ".", read, depth + 1);
    } else {
      read(name, node);
    }
  }
}

void check_setting(const Reader& reader, const std::string& name, const toml::node& node) {
  if (name.find('.') != name.npos) return;  // an attribute, which the graph knows
  const std::vector<std::string>& known = setting_names();
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  if (name == "seed") reader.fail(node, "seed: seeds are repetitions; expected seeds = [1, 2, 3] in [accuracy]");
  reader.fail(node, fmt::format("unknown setting '{}'; expected {}, or NODE.ATTRIBUTE{}", name, fmt::join(known, ", "),
                                did_you_mean(name, known)));
}

// The values of a setting; `list`: it has to be one.
std::vector<std::string> values_of(const Reader& reader, const std::string& name, const toml::node& node) {
  std::vector<std::string> values;
  const toml::array* list = node.as_array();
  if (!list) return {reader.text(node, name)};
  if (list->size() > kMostCells) {
    reader.fail(node, fmt::format("{}: found {} values, and {} are the most", name, list->size(), kMostCells));
  }
  for (const toml::node& item : *list) {
    values.push_back(reader.text(item, name));
    if (std::count(values.begin(), values.end(), values.back()) > 1) {
      const bool attribute = name.find('.') != name.npos && !attribute_of(name).empty();
      reader.fail(item, fmt::format("{}: {} is listed twice{}", name, values.back(),
                                    attribute ? "; an attribute that is a list is a text: \"[1, 2]\"" : ""));
    }
  }
  if (values.empty()) {
    reader.fail(node, fmt::format("{}: the list is empty; for an attribute that is an empty list write \"[]\"", name));
  }
  return values;
}

void read_together(const Reader& reader, const toml::table& table, std::vector<SettingAxis>& axes) {
  SettingAxis axis;
  axis.where = reader.where(table);
  std::string first;
  each_setting(reader, table, "", [&](const std::string& name, const toml::node& node) {
    check_setting(reader, name, node);
    const toml::array* list = node.as_array();
    if (!list) reader.fail(node, fmt::format("[[together]]: {}: found {}, expected a list", name, kind_of(node)));
    if (axis.names.empty()) {
      first = name;
      axis.values.resize(list->size());
    }
    if (list->size() != axis.values.size()) {
      reader.fail(node, fmt::format("[[together]]: {} has {} values and {} has {}; lists that go together are equally "
                                    "long",
                                    name, list->size(), first, axis.values.size()));
    }
    for (size_t place = 0; place < list->size(); ++place) {
      axis.values[place].push_back(reader.text((*list)[place], name));
    }
    axis.names.push_back(name);
  });
  if (axis.values.empty()) reader.fail(table, "[[together]]: has no values");
  axes.push_back(std::move(axis));
}

void read_axes(const Reader& reader, const toml::table& root, BenchFile& file) {
  if (const toml::node* settings = root.get("settings")) {
    each_setting(reader, reader.table(*settings, "settings"), "", [&](const std::string& name, const toml::node& node) {
      check_setting(reader, name, node);
      SettingAxis axis{{name}, {}, reader.where(node)};
      for (std::string& value : values_of(reader, name, node)) axis.values.push_back({std::move(value)});
      file.axes.push_back(std::move(axis));
    });
  }
  if (const toml::node* together = root.get("together")) {
    for (const toml::node& table : reader.tables(*together, "together")) {
      read_together(reader, *table.as_table(), file.axes);
    }
  }
  std::stable_sort(file.axes.begin(), file.axes.end(), [](const SettingAxis& a, const SettingAxis& b) {
    return std::pair(a.where.line, a.where.column) < std::pair(b.where.line, b.where.column);
  });
}

void read_derived(const Reader& reader, const toml::table& root, BenchFile& file) {
  const toml::node* derived = root.get("derived");
  if (!derived) return;
  each_setting(reader, reader.table(*derived, "derived"), "", [&](const std::string& name, const toml::node& node) {
    check_setting(reader, name, node);
    file.derived.push_back({name, reader.text(node, name), reader.where(node)});
  });
}

// Throws GraphError if a setting is stated twice, or the graph is not stated.
void check_stated(const Reader& reader, const toml::table& root, const BenchFile& file) {
  std::set<std::string> names;
  const auto add = [&](const std::string& name, const Position& where) {
    if (!names.insert(name).second) {
      throw GraphError(where, fmt::format("{}: is stated twice, among [settings], [[together]] and [derived]", name));
    }
  };
  for (const SettingAxis& axis : file.axes) {
    for (const std::string& name : axis.names) add(name, axis.where);
  }
  for (const DerivedSetting& derived : file.derived) add(derived.name, derived.where);
  if (!names.contains("graph")) {
    reader.fail(root, "'graph' is missing in [settings]; expected a graph file, or a list of them");
  }
}

void read_measures(const Reader& reader, const toml::table& root, BenchFile& file) {
  if (const toml::node* node = root.get("throughput")) {
    ThroughputRule& rule = file.throughput.emplace();
    Keys(reader, reader.table(*node, "throughput"), "[throughput]")
        .whole("repetitions", rule.repetitions, 1, 1000)
        .whole("windows", rule.windows, 1, 1000)
        .seconds("window", rule.window_seconds)
        .seconds("warmup", rule.warmup_seconds)
        .refuse_others();
  }
  if (const toml::node* node = root.get("accuracy")) {
    AccuracyRule& rule = file.accuracy.emplace();
    std::string better;
    double claim = -1e300;
    Keys keys(reader, reader.table(*node, "accuracy"), "[accuracy]");
    keys.text("metric", rule.metric).text("better", better).numbers("targets", rule.targets, -1e18);
    keys.text("checkpoint_every", rule.checkpoint_every);
    keys.numbers("seeds", rule.seeds, 0).real("claim", claim, -1e18);
    keys.with("mllog", false, [&](const toml::node& entries) {
      rule.mllog.emplace();
      for (const auto& [key, value] : reader.table(entries, "accuracy.mllog")) {
        rule.mllog->push_back(fmt::format("{}={}", key.str(), reader.text(value, std::string(key.str()))));
      }
    });
    keys.refuse_others();
    if (!better.empty() && better != "lower" && better != "higher") {
      reader.fail(*node, fmt::format("[accuracy]: better: found '{}', expected \"higher\" or \"lower\"", better));
    }
    rule.lower = better == "lower";
    if (claim > -1e300) rule.claim = claim;
    std::sort(rule.targets.begin(), rule.targets.end());
    if (rule.lower) std::reverse(rule.targets.begin(), rule.targets.end());
  }
  if (!file.throughput && !file.accuracy) file.throughput.emplace();
}

void read_comparison(const Reader& reader, const toml::node& node, BenchFile& file) {
  CellComparison& comparison = file.comparison.emplace();
  comparison.where = reader.where(node);
  Keys(reader, reader.table(node, "compare"), "[compare]")
      .text("by", comparison.by, true)
      .text("against", comparison.against, true)
      .refuse_others();
  std::vector<std::string> values;
  if (comparison.by == "peer" && !file.peers.empty()) values.emplace_back("arbalest");
  for (const Peer& peer : file.peers) {
    if (comparison.by == "peer") values.push_back(peer.name);
  }
  for (const SettingAxis& axis : file.axes) {
    const auto name = std::find(axis.names.begin(), axis.names.end(), comparison.by);
    if (name == axis.names.end()) continue;
    for (const auto& place : axis.values) values.push_back(place[size_t(name - axis.names.begin())]);
  }
  if (std::find(values.begin(), values.end(), comparison.against) != values.end()) return;
  throw GraphError(comparison.where,
                   values.empty() ? fmt::format("[compare]: '{}' is no setting that the file lists", comparison.by)
                                  : fmt::format("[compare]: against: found {}, expected a value of {}: {}",
                                                comparison.against, comparison.by, fmt::join(values, ", ")));
}

void read_price(const Reader& reader, const toml::node& node, BenchFile& file) {
  BenchPrice& price = file.price.emplace();
  price.where = reader.where(node);
  Keys(reader, reader.table(node, "price"), "[price]")
      .text("currency", price.currency, true)
      .text("source", price.source, true)
      .text("date", price.date, true)
      .text("per_hour", price.per_hour, true)
      .seconds("by", price.by_seconds)
      .with("spot", false,
            [&](const toml::node& spot) {
              Keys(reader, reader.table(spot, "price.spot"), "[price.spot]")
                  .text("per_hour", price.spot_per_hour, true)
                  .real("interruptions_per_hour", price.interruptions_per_hour, 0)
                  .seconds("lost", price.lost_seconds)
                  .refuse_others();
              const double lost = price.interruptions_per_hour * price.lost_seconds;  // of an hour of the clock
              if (lost < 3600) return;
              reader.fail(spot, fmt::format("[price.spot]: interruptions lose {} s of each hour, so that work never "
                                            "ends; expected less than 3600 s",
                                            text_of(lost)));
            })
      .refuse_others();
  constexpr std::string_view kDate = "dddd-dd-dd";
  const bool is_date = std::equal(kDate.begin(), kDate.end(), price.date.begin(), price.date.end(),
                                  [](char d, char c) { return d == 'd' ? c >= '0' && c <= '9' : c == d; });
  if (!is_date) {
    reader.fail(node, fmt::format("[price]: date: found '{}', expected a date, as in 2026-11-01", price.date));
  }
}

void read_links(const Reader& reader, const toml::node& node, BenchFile& file) {
  const auto link = [&](const std::string& key, std::optional<Link>& value) {
    return [&reader, key, &value](const toml::node& text) {
      try {
        value = parse_link(key, reader.text(text, key));
      } catch (const GraphError& error) {
        reader.fail(text, error.what());
      }
    };
  };
  Keys(reader, reader.table(node, "links"), "[links]")
      .with("within", false, link("within", file.links.within))
      .with("between", false, link("between", file.links.between))
      .refuse_others();
}

void read_peers(const Reader& reader, const toml::table& peers, BenchFile& file) {
  for (const auto& [key, node] : peers) {
    Peer peer{.name = std::string(key.str()), .command = "", .when = "", .where = reader.where(node)};
    if (peer.name.empty() || peer.name == "arbalest") {
      reader.fail(node, fmt::format("[peer.\"{}\"]: expected another program's name", peer.name));
    }
    Keys(reader, reader.table(node, "peer." + peer.name), "[peer." + peer.name + "]")
        .text("command", peer.command, true)
        .text("when", peer.when)
        .refuse_others();
    file.peers.push_back(std::move(peer));
  }
}

void read_queue(const Reader& reader, const toml::node& node, BenchFile& file) {
  QueueSettings& queue = file.queue;
  Keys(reader, reader.table(node, "slurm"), "[slurm]")
      .text("account", queue.account)
      .text("partition", queue.partition)
      .text("qos", queue.qos)
      .text("constraint", queue.constraint)
      .text("gres", queue.gres)
      .text("time", queue.time)
      .whole("at_once", queue.at_once, 1)
      .whole("cpus_per_task", queue.cpus_per_task, 1)
      .whole("gpus_per_task", queue.gpus_per_task, 0)
      .whole("signal_seconds", queue.signal_seconds, 10)
      .texts("modules", queue.modules)
      .texts("setup", queue.setup)
      .text("apptainer", queue.apptainer)
      .text("pyxis", queue.pyxis)
      .texts("mounts", queue.mounts)
      .refuse_others();
  if (!queue.apptainer.empty() && !queue.pyxis.empty()) {
    reader.fail(node, "[slurm]: found apptainer and pyxis, expected one of them");
  }
  if (!queue.mounts.empty() && queue.apptainer.empty() && queue.pyxis.empty()) {
    reader.fail(node, "[slurm]: found mounts without an image, expected apptainer or pyxis next to them");
  }
}

// Puts a change into the lists that go together, if one of them is meant; a single value is then that of each place.
bool change_together(toml::table& root, const std::vector<std::string>& path, const toml::node& value) {
  toml::array* groups = root["together"].as_array();
  if (!groups) return false;
  for (toml::node& group : *groups) {
    toml::table* table = group.as_table();
    for (size_t i = 0; table && i + 1 < path.size(); ++i) table = (*table)[path[i]].as_table();
    const toml::array* before = table ? (*table)[path.back()].as_array() : nullptr;
    if (!before) continue;
    toml::array places;
    for (size_t place = 0; !value.is_array() && place < before->size(); ++place) places.push_back(value);
    table->insert_or_assign(path.back(), value.is_array() ? *value.as_array() : places);
    return true;
  }
  return false;
}

// Puts a change of the command line in its place; a setting that the file derives is stated instead.
void apply_change(toml::table& root, const std::string& change) {
  const size_t equals = change.find('=');
  if (equals == 0 || equals == change.npos) {
    throw GraphError(fmt::format("--set '{}': expected NAME=VALUE, as in learners=[1, 2] or train.lr=0.1", change));
  }
  std::vector<std::string> path = {""};
  for (const char c : change.substr(0, equals)) {
    if (c == '.') {
      path.emplace_back();
    } else {
      path.back() += c;
    }
  }
  const std::string value = change.substr(equals + 1);
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
    parsed.insert("value", value);  // a text without quotes
  }
  const bool section = path.size() > 1 && std::find(kSections.begin(), kSections.end(), path[0]) != kSections.end();
  if (!section && change_together(root, path, *parsed.get("value"))) return;
  if (!section) path.insert(path.begin(), "settings");
  toml::table* derived = root["derived"].as_table();
  toml::table* table = &root;
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    toml::node& inner = table->insert(path[i], toml::table()).first->second;
    if (!inner.is_table()) throw GraphError(fmt::format("--set '{}': '{}' is no table", change, path[i]));
    table = inner.as_table();
    if (i > 0 && derived) derived = (*derived)[path[i]].as_table();
  }
  if (!section && derived) derived->erase(path.back());
  table->insert_or_assign(path.back(), *parsed.get("value"));
}

}  // namespace

BenchFile read_bench_file(const std::string& path, const std::vector<std::string>& changes) {
  std::string text;
  try {
    text = read_text(path);
  } catch (const RunError& error) {  // of the command line, as a wrong file is
    throw GraphError(error.what());
  }
  const Reader reader(path);
  toml::table root;
  try {
    root = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    const toml::source_position at = error.source().begin;
    std::string why(error.description());
    if (why.find("could not determine value type") != why.npos) why += "; texts and expressions stand in quotes";
    throw GraphError(Position{path, int(at.line), int(at.column)}, why);
  }
  for (const std::string& change : changes) apply_change(root, change);
  for (const auto& [key, node] : root) {
    const std::string name(key.str());
    if (std::find(kSections.begin(), kSections.end(), name) != kSections.end()) continue;
    reader.fail(node, fmt::format("unknown key '{}'; expected {}{}", name, fmt::join(kSections, ", "),
                                  did_you_mean(name, kSections)));
  }
  BenchFile file;
  file.path = path;
  if (const toml::node* title = root.get("title")) file.title = reader.text(*title, "title");
  read_axes(reader, root, file);
  read_derived(reader, root, file);
  check_stated(reader, root, file);
  if (const toml::node* exclude = root.get("exclude")) {
    for (const toml::node& table : reader.tables(*exclude, "exclude")) {
      Exclusion& exclusion = file.exclusions.emplace_back();
      exclusion.where = reader.where(table);
      Keys(reader, *table.as_table(), "[[exclude]]")
          .text("when", exclusion.when, true)
          .text("reason", exclusion.reason, true)
          .refuse_others();
    }
  }
  read_measures(reader, root, file);
  if (const toml::node* peer = root.get("peer")) read_peers(reader, reader.table(*peer, "peer"), file);
  if (const toml::node* compare = root.get("compare")) read_comparison(reader, *compare, file);
  if (const toml::node* price = root.get("price")) read_price(reader, *price, file);
  if (const toml::node* links = root.get("links")) read_links(reader, *links, file);
  if (const toml::node* slurm = root.get("slurm")) read_queue(reader, *slurm, file);
  return file;
}

}  // namespace arbalest
