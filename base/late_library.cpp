// SPDX-License-Identifier: Apache-2.0
#include "base/late_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace arbalest {

void* LateLibrary::address(const char* function) {
  const std::lock_guard lock(opening_);
  const std::string file = fmt::format("lib{}.so.{}", name_, version_);
  if (handle_ == nullptr) handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) throw RunError(fmt::format("a library cannot be opened: {}", dlerror()));
  void* found = dlsym(handle_, function);
  if (found == nullptr) throw RunError(fmt::format("{} has no function {}", file, function));
  return found;
}

}  // namespace arbalest
