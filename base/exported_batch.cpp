// SPDX-License-Identifier: Apache-2.0
#include "base/exported_batch.h"

#include <fmt/format.h>

#include <charconv>

namespace arbalest {
namespace {

constexpr std::string_view kBefore = " (exported for batches of ", kAfter = ")";

}  // namespace

std::string exported_file(const std::string& file, int64_t batch) {
  return fmt::format("{}{}{}{}", file, kBefore, batch, kAfter);
}

int64_t exported_batch(std::string_view file) {
  const size_t at = file.rfind(kBefore);
  if (at == std::string_view::npos || !file.ends_with(kAfter)) return 0;
  const char* const last = file.data() + file.size() - kAfter.size();
  int64_t batch = 0;
  const auto [end, error] = std::from_chars(file.data() + at + kBefore.size(), last, batch);
  return error == std::errc() && end == last ? batch : 0;
}

}  // namespace arbalest
