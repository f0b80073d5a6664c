// SPDX-License-Identifier: Apache-2.0
#include "tools/view/columns.h"

#include <zlib.h>

#include "base/error.h"
#include "tools/page/html_page.h"

namespace arbalest {

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
