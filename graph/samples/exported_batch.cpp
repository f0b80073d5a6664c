// SPDX-License-Identifier: Apache-2.0
#include "graph/samples/exported_batch.h"

#include <fmt/format.h>

#include "base/number.h"

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
  file.remove_suffix(kAfter.size());
  return read_number<int64_t>(file.substr(at + kBefore.size())).value_or(0);
}

}  // namespace arbalest
