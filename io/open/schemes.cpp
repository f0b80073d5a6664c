// SPDX-License-Identifier: Apache-2.0
#include "io/open/schemes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <mutex>

#include "base/error.h"
#include "io/photos/schemes.h"
#include "io/sources/schemes.h"

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

}  // namespace

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

SourceScheme find_scheme(const std::string& text, const std::string& name) {
  return schemes().find(text, name);
}

}  // namespace arbalest
