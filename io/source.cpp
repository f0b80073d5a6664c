#include "io/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "graph/error.h"
#include "io/source_spec.h"

namespace arbalest {

namespace {

struct Scheme {
  std::string name;
  bool needs_path;
  std::vector<std::string> options;
  std::unique_ptr<Source> (*open)(const SourceSpec&);
};

const std::vector<Scheme>& schemes() {
  static const std::vector<Scheme> all = {
      {"mnist", true, {}, open_mnist},
      {"cifar10", true, {}, open_cifar10},
      {"synthetic", false, {"shape", "classes", "size", "test", "delay"}, open_synthetic},
      {"glyphs", false, {"train", "test", "size"}, open_glyphs},
  };
  return all;
}

const Scheme& find_scheme(const std::string& text, const std::string& name) {
  std::vector<std::string> names;
  for (const Scheme& scheme : schemes()) {
    if (scheme.name == name) return scheme;
    names.push_back(scheme.name);
  }
  throw GraphError(fmt::format("source '{}': unknown scheme '{}', expected {} and a colon{}", text, name,
                               fmt::join(names, ", "), did_you_mean(name, names)));
}

Split parse_split(const std::string& text, const std::string& split) {
  if (split == "train") return Split::Train;
  if (split == "test") return Split::Test;
  const std::vector<std::string> names = {"train", "test"};
  throw GraphError(fmt::format("source '{}': unknown split '{}', expected train or test{}", text, split,
                               did_you_mean(split, names)));
}

void parse_options(SourceSpec& spec, std::string_view rest, const Scheme& scheme) {
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0)
      throw GraphError(fmt::format("source '{}': found option '{}', expected key=value", spec.text, item));
    const std::string key(item.substr(0, equals));
    if (std::find(scheme.options.begin(), scheme.options.end(), key) == scheme.options.end()) {
      const std::string expected = scheme.options.empty() ? "none" : fmt::format("{}", fmt::join(scheme.options, ", "));
      throw GraphError(fmt::format("source '{}': unknown option '{}', expected {}{}", spec.text, key, expected,
                                   did_you_mean(key, scheme.options)));
    }
    if (spec.find(key)) throw GraphError(fmt::format("source '{}': option '{}' is given twice", spec.text, key));
    spec.options.emplace_back(key, item.substr(equals + 1));
  }
}

bool parse_integer(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string to_string(const SampleShape& shape) {
  return fmt::format("{}x{}x{}", shape.channels, shape.height, shape.width);
}

const std::string* SourceSpec::find(const std::string& key) const {
  for (const auto& [name, value] : options)
    if (name == key) return &value;
  return nullptr;
}

int64_t SourceSpec::integer(const std::string& key, int64_t otherwise, int64_t least, int64_t most) const {
  const std::string* value = find(key);
  if (!value) return otherwise;
  int64_t number = 0;
  if (!parse_integer(*value, number) || number < least || number > most)
    throw GraphError(fmt::format("source '{}': option '{}' is '{}', expected an integer from {} to {}", text, key,
                                 *value, least, most));
  return number;
}

SampleShape SourceSpec::shape(const std::string& key, SampleShape otherwise) const {
  const std::string* value = find(key);
  if (!value) return otherwise;
  constexpr int64_t kMost = 65536;
  int64_t extents[3] = {};
  std::string_view rest = *value;
  bool good = std::count(rest.begin(), rest.end(), 'x') == 2;
  for (int64_t& extent : extents) {
    const std::string_view part = rest.substr(0, rest.find('x'));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    good = good && parse_integer(part, extent) && extent >= 1 && extent <= kMost;
  }
  if (!good)
    throw GraphError(fmt::format("source '{}': option '{}' is '{}', expected CHANNELSxHEIGHTxWIDTH, each from 1 to {}",
                                 text, key, *value, kMost));
  return {extents[0], extents[1], extents[2]};
}

std::unique_ptr<Source> open_source(const std::string& text, const std::string& split, uint64_t seed) {
  SourceSpec spec;
  spec.text = text;
  spec.seed = seed;
  const size_t colon = text.find(':');
  spec.scheme = text.substr(0, colon);
  const Scheme& scheme = find_scheme(text, spec.scheme);
  if (colon == std::string::npos)
    throw GraphError(fmt::format("source '{}': expected a colon after the scheme: '{}:{}'", text, scheme.name,
                                 scheme.needs_path ? "DIR" : ""));
  spec.split = parse_split(text, split);
  const size_t question = text.find('?', colon);
  spec.path = text.substr(colon + 1, question == std::string::npos ? question : question - colon - 1);
  if (scheme.needs_path && spec.path.empty())
    throw GraphError(fmt::format("source '{}': found no folder, expected '{}:DIR'", text, scheme.name));
  if (!scheme.needs_path && !spec.path.empty())
    throw GraphError(
        fmt::format("source '{}': found '{}' after the colon, expected nothing or '?key=value&...'", text, spec.path));
  if (question != std::string::npos) parse_options(spec, std::string_view(text).substr(question + 1), scheme);
  return scheme.open(spec);
}

}  // namespace arbalest
