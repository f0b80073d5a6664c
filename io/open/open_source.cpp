// SPDX-License-Identifier: Apache-2.0
#include "io/open/open_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "io/open/schemes.h"
#include "io/sources/split_part.h"

namespace arbalest {

namespace {

void check_split(const SourceSpec& spec, const SourceScheme& scheme) {
  if (std::find(scheme.splits.begin(), scheme.splits.end(), spec.split) != scheme.splits.end()) return;
  throw UnknownSplit(fmt::format("source '{}': unknown split '{}', expected {}{}", spec.text, spec.split,
                                 fmt::join(scheme.splits, " or "), did_you_mean(spec.split, scheme.splits)));
}

// Options of all schemes.
constexpr const char *kLimit = "limit", *kFolds = "folds", *kFold = "fold", *kBy = "by";

void parse_options(SourceSpec& spec, std::string_view rest, const SourceScheme& scheme) {
  std::vector<std::string> known = scheme.options;
  for (const char* option : {kLimit, kFolds, kFold, kBy}) known.emplace_back(option);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0)
      throw GraphError(fmt::format("source '{}': found option '{}', expected key=value", spec.text, item));
    const std::string key(item.substr(0, equals));
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw GraphError(fmt::format("source '{}': unknown option '{}', expected {}{}", spec.text, key,
                                   fmt::join(known, ", "), did_you_mean(key, known)));
    }
    if (spec.find(key)) throw GraphError(fmt::format("source '{}': option '{}' is given twice", spec.text, key));
    spec.options.emplace_back(key, item.substr(equals + 1));
  }
}

// The fold that the options ask for. Validation's split then is the fold itself, of the split that is trained on, which
// is opened in its place.
std::optional<Fold> fold_in(SourceSpec& spec, const SourceScheme& scheme) {
  constexpr int64_t kMost = 1000;
  if (!spec.find(kFolds)) {
    for (const char* option : {kFold, kBy}) {
      if (!spec.find(option)) continue;
      throw GraphError(fmt::format("source '{}': option '{}' needs folds=K&fold=N", spec.text, option));
    }
    return std::nullopt;
  }
  Fold fold;
  fold.folds = spec.integer(kFolds, 0, 2, kMost);
  if (!spec.find(kFold)) {
    throw GraphError(
        fmt::format("source '{}': folds={} needs fold=N, from 1 to {}", spec.text, fold.folds, fold.folds));
  }
  fold.fold = spec.integer(kFold, 0, 1, fold.folds);
  fold.held_out = spec.split != scheme.splits.front();
  if (const std::string* by = spec.find(kBy)) {
    constexpr const char* kGroup = "group";  // of csv: a column that is no field, whose values stay together
    const bool has_groups = std::find(scheme.options.begin(), scheme.options.end(), kGroup) != scheme.options.end();
    if (spec.find(kGroup)) {
      throw GraphError(fmt::format("source '{}': by={} and group={} say the same; expected one of both options",
                                   spec.text, *by, *spec.find(kGroup)));
    }
    if (!has_groups) fold.by = *by;
    if (has_groups) spec.options.emplace_back(kGroup, *by);
  }
  spec.split = scheme.splits.front();
  return fold;
}

}  // namespace

void register_source(SourceScheme scheme) {
  register_described({std::move(scheme), {}});
}

std::unique_ptr<Source> open_source(const std::string& text, const std::string& split, uint64_t seed) {
  SourceSpec spec;
  spec.text = text;
  spec.seed = seed;
  spec.split = split;
  const size_t colon = text.find(':');
  spec.scheme = text.substr(0, colon);
  const SourceScheme scheme = find_scheme(text, spec.scheme);
  if (colon == std::string::npos)
    throw GraphError(fmt::format("source '{}': expected a colon after the scheme: '{}:{}'", text, scheme.name,
                                 scheme.needs_path ? "PATH" : ""));
  check_split(spec, scheme);
  const size_t question = text.find('?', colon);
  spec.path = text.substr(colon + 1, question == std::string::npos ? question : question - colon - 1);
  if (scheme.needs_path && spec.path.empty())
    throw GraphError(
        fmt::format("source '{}': found nothing after the colon, expected a path: '{}:PATH'", text, scheme.name));
  if (!scheme.needs_path && !spec.path.empty())
    throw GraphError(
        fmt::format("source '{}': found '{}' after the colon, expected nothing or '?key=value&...'", text, spec.path));
  if (question != std::string::npos) parse_options(spec, std::string_view(text).substr(question + 1), scheme);
  const int64_t limit = spec.integer(kLimit, 0, 1, std::numeric_limits<int64_t>::max());
  const std::optional<Fold> fold = fold_in(spec, scheme);
  std::unique_ptr<Source> source = scheme.open(spec);
  if (!source) throw GraphError(fmt::format("source '{}': the scheme '{}' opened nothing", text, scheme.name));
  check_source(*source);
  if (spec.find(kLimit)) source = limited_source(std::move(source), limit);
  return fold ? fold_source(std::move(source), *fold) : std::move(source);
}

bool follows_seed(const std::string& text) {
  return find_scheme(text, text.substr(0, text.find(':'))).follows_seed;
}

}  // namespace arbalest
