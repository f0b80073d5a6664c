// SPDX-License-Identifier: Apache-2.0
#pragma once
// Elements that are moved and not computed with are words of their size: one kernel serves all types of that size.

#include <cstdint>
#include <memory>

#include "graph/kernel.h"
#include "graph/types.h"

namespace arbalest {

// f(Word{}) with the unsigned integer that is as large as an element of `type`.
template <typename F>
std::unique_ptr<Kernel> with_word(DataType type, const F& f) {
  switch (size_of(type)) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}

}  // namespace arbalest
