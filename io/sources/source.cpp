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
#include <stdexcept>

#include "base/error.h"
#include "base/files/file.h"
#include "base/number.h"
#include "io/formats/safetensors.h"
#include "io/sources/schemes.h"

namespace arbalest {

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

std::filesystem::path find_split_file(const std::string& what, std::span<const std::filesystem::path> folders,
                                      std::span<const std::string> names) {
  try {
    return find_file(what, folders, names);
  } catch (const RunError& error) {
    throw MissingSplit(error.what());
  }
}

}  // namespace arbalest
