#include "graph/exported_batch.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

namespace arbalest {
namespace {

constexpr std::string_view kBefore = " (exported for batches of ", kAfter = ")";

}  // namespace

std::string exported_file(const std::string& file, int64_t batch) {
  return fmt::format("{}{}{}{}", file, kBefore, batch, kAfter);
}

int64_t exported_batch(const Position& where) {
  const size_t at = where.file.rfind(kBefore);
  if (at == std::string::npos || !where.file.ends_with(kAfter)) return 0;
  const char* const last = where.file.data() + where.file.size() - kAfter.size();
  int64_t batch = 0;
  const auto [end, error] = std::from_chars(where.file.data() + at + kBefore.size(), last, batch);
  return error == std::errc() && end == last ? batch : 0;
}

}  // namespace arbalest
