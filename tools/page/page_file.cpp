// SPDX-License-Identifier: Apache-2.0
#include "tools/page/page_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files/atomic_file.h"

namespace arbalest {

std::string name_without(const std::string& path, std::initializer_list<std::string_view> endings) {
  std::string name = std::filesystem::path(path).filename().string();
  for (const std::string_view ending : endings) {
    if (name.ends_with(ending) && name.size() > ending.size()) name.resize(name.size() - ending.size());
  }
  return name;
}

std::vector<std::string> names_apart(const std::vector<std::string>& paths,
                                     const std::function<std::string(const std::string&)>& name_of) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    const auto same = [&](const std::string& other) { return &other != &path && name_of(other) == name_of(path); };
    names.push_back(std::any_of(paths.begin(), paths.end(), same) ? path : name_of(path));
  }
  return names;
}

void write_page(const std::string& file, const std::string& page) {
  AtomicFile written(file);
  written.write(page);
  written.commit();
  fmt::print("{}: {:.1f} MB; open it in a browser\n", printable(file), double(page.size()) / 1e6);
}

}  // namespace arbalest
