// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/cells/settings.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/number.h"

#include "executor/plan/device_list.h"

namespace arbalest {
namespace {

enum class Kind : uint8_t { Graph, Attribute, Option, Flag, Seen };  // Seen: by the bench alone

struct Rule {
  std::string_view name, word;
  Kind kind = Kind::Option;
  bool training = false;  // a run's alone
};

constexpr std::array kRules = {
    Rule{"graph", "", Kind::Graph},
    Rule{"data", "prefetch.source", Kind::Attribute},
    Rule{"batch", "prefetch.batch", Kind::Attribute},
    Rule{"batch_total", "--batch-total", Kind::Option, true},
    Rule{"devices", "--devices"},
    Rule{"hosts", "", Kind::Seen},
    Rule{"machine", "", Kind::Seen},
    Rule{"price", "", Kind::Seen},
    Rule{"learners", "--learners"},
    Rule{"strategy", "--strategy"},
    Rule{"precision", "--precision"},
    Rule{"epochs", "--epochs", Kind::Option, true},
    Rule{"iterations", "--iterations", Kind::Option, true},
    Rule{"lr_scaling", "--scale-lr", Kind::Option, true},
    Rule{"recalibrate", "--recalibrate", Kind::Option, true},
    Rule{"weights", "--weights", Kind::Option, true},
    Rule{"threads", "--threads"},
    Rule{"memory_limit", "--memory-limit"},
    Rule{"deterministic", "--deterministic", Kind::Flag},
    Rule{"without", "--without"},
    Rule{"model", "--model"},
    Rule{"peer", "", Kind::Seen},
};

const Rule* rule_of(const std::string& name) {
  const auto found = std::find_if(kRules.begin(), kRules.end(), [&](const Rule& rule) { return rule.name == name; });
  return found == kRules.end() ? nullptr : &*found;
}

int64_t count_in(const Settings& settings, const char* name) {
  const std::string text = setting_of(settings, name);
  constexpr int64_t kMost = 1 << 30;
  const auto count = read_number<int64_t>(text);
  if (!count || *count < 1 || *count > kMost) {
    throw GraphError(fmt::format("{}: found '{}', expected a whole number from 1 to {}", name, printable(text), kMost));
  }
  return *count;
}

}  // namespace

const std::vector<std::string>& setting_names() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const Rule& rule : kRules) {
      if (rule.name != "peer") names.emplace_back(rule.name);
    }
    return names;
  }();
  return all;
}

std::string setting_stated_by(const std::string& word) {
  const auto states = [&](const Rule& rule) { return !rule.word.empty() && rule.word == word; };
  const auto found = std::find_if(kRules.begin(), kRules.end(), states);
  return found == kRules.end() ? "" : std::string(found->name);
}

std::string attribute_of(const std::string& setting) {
  if (setting.starts_with("peer.")) return "";
  const Rule* rule = rule_of(setting);
  if (!rule) return setting;
  return rule->kind == Kind::Attribute ? std::string(rule->word) : "";
}

std::vector<std::string> words_of(const Settings& settings, bool training) {
  std::vector<std::string> words;
  for (const auto& [name, value] : settings) {
    if (const std::string attribute = attribute_of(name); !attribute.empty()) {
      words.insert(words.end(), {"--set", attribute + "=" + value});
      continue;
    }
    const Rule* rule = rule_of(name);  // nullptr: a word for other programs
    if (!rule || (rule->training && !training) || rule->kind == Kind::Seen) continue;
    switch (rule->kind) {
      case Kind::Graph: words.insert(words.begin(), value); break;
      case Kind::Flag:
        if (value == "true") words.emplace_back(rule->word);
        break;
      default: words.insert(words.end(), {std::string(rule->word), value});
    }
  }
  if (!training && settings.contains("batch_total")) {
    const int64_t each = images_per_step(settings) / learner_count(settings);
    words.insert(words.end(), {"--set", fmt::format("prefetch.batch={}", each)});
  }
  if (!training && settings.contains("devices")) {  // all of the devices, not also some of them
    words.insert(words.end(), {"--device-counts", std::to_string(device_count(settings) * hosts_in(settings))});
  }
  return words;
}

std::string setting_of(const Settings& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "" : found->second;
}

int hosts_in(const Settings& settings) {
  return settings.contains("hosts") ? int(count_in(settings, "hosts")) : 1;
}

int device_count(const Settings& settings) {
  const std::string devices = setting_of(settings, "devices");
  if (devices.empty() || devices == "auto") return 1;
  return int(parse_devices(devices, [] { return std::vector<PlanDevice>(1); }).size());
}

int64_t learner_count(const Settings& settings) {
  const int64_t each = settings.contains("learners") ? count_in(settings, "learners") : 1;
  return each * device_count(settings) * hosts_in(settings);
}

int64_t images_per_step(const Settings& settings) {
  if (!settings.contains("batch_total")) {
    return settings.contains("batch") ? count_in(settings, "batch") * learner_count(settings) : 0;
  }
  const int64_t total = count_in(settings, "batch_total"), learners = learner_count(settings);
  if (total % learners != 0) {
    throw GraphError(fmt::format("batch_total: found {}, expected a multiple of the {} learners", total, learners));
  }
  return total;
}

}  // namespace arbalest
