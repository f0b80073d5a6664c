// SPDX-License-Identifier: Apache-2.0
#include "io/sources/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>

#include "base/error.h"
#include "base/files/file.h"
#include "base/number.h"
#include "io/formats/safetensors.h"
#include "io/sources/schemes.h"
#include "io/sources/split_part.h"

namespace arbalest {

namespace {

std::unique_ptr<Source> open_memory(const SourceSpec& spec) {
  throw GraphError(fmt::format("source '{}' is what a program passes to the run, and none was passed for split '{}'",
                               spec.text, spec.split));
}

// A path without its scheme, as the source that it probably is; "" if that is unknown.
std::string meant_by_path(const std::string& text) {
  const std::filesystem::path path = text.substr(0, text.find('?'));
  std::error_code error;
  if (path.extension() == ".csv") return "csv:" + text;
  if (path.extension() == ".tar") return "tar:" + text;
  if (!std::filesystem::is_directory(path, error)) return "";
  for (const std::filesystem::path& folder : {path, path / "train"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::string file = entry.path().filename().string();
      if (file.starts_with("train-images")) return "mnist:" + text;
      if (file == "data_batch_1.bin" || file == "cifar-10-batches-bin") return "cifar10:" + text;
      if (file == "train.safetensors") return "tensors:" + text;
      if (file.ends_with(".npy")) return "npy:" + text;
      if (file.ends_with(".tar")) return "tar:" + (path / "{split}-*.tar").string();
    }
  }
  return "folder:" + text;
}

DescribedScheme memory_scheme() {
  return described({.name = "memory", .open = open_memory}, {.text = "what a C++ program passes to the run",
                                                             .more = "See DataSources in executor/session/session.h."});
}

// Known schemes, those of the library first.
class Schemes {
 public:
  void add(DescribedScheme added) {
    const std::scoped_lock lock(mutex_);
    const std::string& name = added.scheme.name;
    const auto taken = std::find_if(all_.begin(), all_.end(), [&](const auto& s) { return s.scheme.name == name; });
    if (taken != all_.end()) throw GraphError(fmt::format("the scheme '{}' of a source is taken", name));
    all_.push_back(std::move(added));
  }

  std::vector<DescribedScheme> all() const {
    const std::scoped_lock lock(mutex_);
    return all_;
  }

  SourceScheme find(const std::string& text, const std::string& name) const {
    const std::scoped_lock lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [scheme, doc] : all_) {
      if (scheme.name == name) return scheme;
      names.push_back(scheme.name);
    }
    const std::string meant = text.find(':') == text.npos ? meant_by_path(text) : "";
    throw GraphError(
        fmt::format("source '{}': unknown scheme '{}', expected {} and a colon{}", text, name, fmt::join(names, ", "),
                    meant.empty() ? did_you_mean(name, names) : fmt::format("; did you mean '{}'?", meant)));
  }

 private:
  mutable std::mutex mutex_;
  std::vector<DescribedScheme> all_ = {glyphs_scheme(),  mnist_scheme(),     cifar10_scheme(), cifar100_scheme(),
                                       folder_scheme(),  csv_scheme(),       tar_scheme(),     npy_scheme(),
                                       tensors_scheme(), synthetic_scheme(), memory_scheme()};
};

Schemes& schemes() {
  static Schemes all;
  return all;
}

void check_split(const SourceSpec& spec, const SourceScheme& scheme) {
  if (std::find(scheme.splits.begin(), scheme.splits.end(), spec.split) != scheme.splits.end()) return;
  throw GraphError(fmt::format("source '{}': unknown split '{}', expected {}{}", spec.text, spec.split,
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

double Source::microseconds_per_sample() const {
  constexpr double kBytesPerMicrosecond = 4000;  // of one thread that copies
  constexpr double kToRead = 50;                 // µs: a file
  double microseconds = 0;
  for (const Field& field : fields()) {
    microseconds += field.dtype == DataType::String ? kToRead : double(field.sample().bytes()) / kBytesPerMicrosecond;
  }
  return microseconds;
}

void Source::read(int64_t /*index*/, size_t field, std::vector<std::byte>& /*bytes*/) const {
  throw std::logic_error(fmt::format("{}: field {} is read, and the source reads none", describe(), field));
}

std::string dimensions(const Shape& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

const std::string* SourceSpec::find(const std::string& key) const {
  for (const auto& [name, value] : options)
    if (name == key) return &value;
  return nullptr;
}

int64_t SourceSpec::integer(const std::string& key, int64_t otherwise, int64_t least, int64_t most) const {
  const std::string* value = find(key);
  if (!value) return otherwise;
  const auto number = read_number<int64_t>(*value);
  if (!number || *number < least || *number > most)
    throw GraphError(fmt::format("source '{}': option '{}' is '{}', expected an integer from {} to {}", text, key,
                                 *value, least, most));
  return *number;
}

double SourceSpec::fraction(const std::string& key, double otherwise) const {
  const std::string* value = find(key);
  if (!value) return otherwise;
  const auto number = read_number<double>(*value);
  if (!number || !(*number > 0 && *number < 1)) {
    throw GraphError(
        fmt::format("source '{}': option '{}' is '{}', expected a number between 0 and 1", text, key, *value));
  }
  return *number;
}

Shape SourceSpec::image_shape(const std::string& key, Shape otherwise) const {
  const std::string* value = find(key);
  if (!value) return otherwise;
  constexpr int64_t kMost = 65536;
  Shape extents(3);
  std::string_view rest = *value;
  bool good = std::count(rest.begin(), rest.end(), 'x') == 2;
  for (int64_t& extent : extents) {
    const std::string_view part = rest.substr(0, rest.find('x'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    extent = read_number<int64_t>(part).value_or(0);
    good = good && extent >= 1 && extent <= kMost;
  }
  if (!good)
    throw GraphError(fmt::format("source '{}': option '{}' is '{}', expected CHANNELSxHEIGHTxWIDTH, each from 1 to {}",
                                 text, key, *value, kMost));
  return extents;
}

// The library's sources that are read from files are the same for any seed.
DescribedScheme described(SourceScheme scheme, SourceDoc doc) {
  scheme.follows_seed = !scheme.needs_path;
  for (const SourceOption& option : doc.options) scheme.options.push_back(option.name);
  return {std::move(scheme), std::move(doc)};
}

void register_source(SourceScheme scheme) {
  register_described({std::move(scheme), {}});
}

void register_described(DescribedScheme added) {
  const SourceScheme& scheme = added.scheme;
  const auto fits = [](char c) { return std::isalnum(uint8_t(c)) || c == '_' || c == '-' || c == '.'; };
  if (scheme.name.empty() || !std::all_of(scheme.name.begin(), scheme.name.end(), fits)) {
    throw GraphError(
        fmt::format("the scheme of a source is '{}', expected letters, digits, '_', '-' and '.'", scheme.name));
  }
  if (!scheme.open)
    throw GraphError(fmt::format("the scheme '{}' of a source has no function to open it", scheme.name));
  schemes().add(std::move(added));
}

std::vector<DescribedScheme> source_schemes() {
  return schemes().all();
}

namespace {

// Bytes of names that are no UTF-8 are replaced in files of weights and in predictions, where names have to differ.
void check_class_names(const std::vector<std::string>& names, const std::string& what) {
  std::map<std::string, size_t> shown;
  for (size_t c = 0; c < names.size(); ++c) {
    const auto [known, added] = shown.emplace(as_utf8(names[c]), c);
    if (added || names[c] == names[known->second]) continue;
    throw GraphError(
        fmt::format("{}: classes {} and {} are called '{}' and '{}', which is the same with bytes that are no UTF-8 "
                    "replaced; expected names in UTF-8",
                    what, known->second, c, printable(names[known->second]), printable(names[c])));
  }
}

}  // namespace

void check_source(const Source& source) {
  const std::string what = source.describe();
  check_fields(source.fields(), what);
  const double microseconds = source.microseconds_per_sample();
  if (!(microseconds >= 0 && std::isfinite(microseconds))) {
    throw GraphError(fmt::format("{} takes {} µs per sample, expected 0 or more", what, microseconds));
  }
  if (source.size() < 1) throw GraphError(fmt::format("{} has {} samples, expected at least one", what, source.size()));
  check_class_names(source.class_names(), what);
}

std::unique_ptr<Source> open_source(const std::string& text, const std::string& split, uint64_t seed) {
  SourceSpec spec;
  spec.text = text;
  spec.seed = seed;
  spec.split = split;
  const size_t colon = text.find(':');
  spec.scheme = text.substr(0, colon);
  const SourceScheme scheme = schemes().find(text, spec.scheme);
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
  return schemes().find(text, text.substr(0, text.find(':'))).follows_seed;
}

std::filesystem::path find_split_file(const std::string& what, std::span<const std::filesystem::path> folders,
                                      std::span<const std::string> names) {
  try {
    return find_file(what, folders, names);
  } catch (const RunError& error) {
    throw MissingSplit(error.what());
  }
}

}  // namespace arbalest
