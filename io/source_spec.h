#pragma once
// The parts of a source's spec, "scheme:path?key=value&key=value", and what the schemes open. Internal to io.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/source.h"

namespace arbalest {

enum class Split : uint8_t { Train, Test };

struct SourceSpec {
  std::string text;    // as written
  std::string scheme;  // "mnist"
  std::string path;    // between ':' and '?'
  std::vector<std::pair<std::string, std::string>> options;
  Split split = Split::Train;
  uint64_t seed = 0;

  std::string label() const { return text + (split == Split::Train ? " train" : " test"); }

  const std::string* find(const std::string& key) const;
  // The option as an integer in [least, most]; `otherwise` where it was left out. Throws GraphError.
  int64_t integer(const std::string& key, int64_t otherwise, int64_t least, int64_t most) const;
  // The option as CHANNELSxHEIGHTxWIDTH. Throws GraphError.
  SampleShape shape(const std::string& key, SampleShape otherwise) const;
};

// One function a scheme; each is in the file named after it.
std::unique_ptr<Source> open_mnist(const SourceSpec& spec);
std::unique_ptr<Source> open_cifar10(const SourceSpec& spec);
std::unique_ptr<Source> open_synthetic(const SourceSpec& spec);
std::unique_ptr<Source> open_glyphs(const SourceSpec& spec);

}  // namespace arbalest
