#pragma once
// A part of a split. Internal to io.

#include <memory>

#include "io/sources/source.h"

namespace arbalest {

// `limit` samples of a split in the split's order, or all where there are no more: the first ones of a permutation that
// is always the same, so that classes are about as frequent as in the split, and a smaller limit's are among a larger
// one's. Where neighbours are best read together (Source::block()), neighbours are drawn.
std::unique_ptr<Source> limited_source(std::unique_ptr<Source> source, int64_t limit);

}  // namespace arbalest
