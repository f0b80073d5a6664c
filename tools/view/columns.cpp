#include "tools/view/columns.h"

#include <zlib.h>

#include "graph/error.h"

namespace arbalest {

std::string base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const auto byte = [&](size_t i) { return at + i < bytes.size() ? uint32_t(uint8_t(bytes[at + i])) : 0; };
    const uint32_t three = byte(0) << 16 | byte(1) << 8 | byte(2);
    text += kDigits[three >> 18];
    text += kDigits[three >> 12 & 63];
    text += at + 1 < bytes.size() ? kDigits[three >> 6 & 63] : '=';
    text += at + 2 < bytes.size() ? kDigits[three & 63] : '=';
  }
  return text;
}

std::string Column::encoded() const {
  constexpr int kLevel = 6;
  uLongf size = compressBound(uLong(bytes_.size()));
  std::string deflated(size, '\0');
  const auto* from = reinterpret_cast<const Bytef*>(bytes_.data());
  if (compress2(reinterpret_cast<Bytef*>(deflated.data()), &size, from, uLong(bytes_.size()), kLevel) != Z_OK) {
    throw RunError("zlib: no memory to compress a column");
  }
  deflated.resize(size);
  return base64(deflated);
}

}  // namespace arbalest
