// SPDX-License-Identifier: Apache-2.0
#pragma once
// Division of a data set that comes without splits. Internal to io.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "io/sources/source.h"

namespace arbalest {

// The part of a data set that is kept from training.
struct HeldOut {
  double fraction = 0.2;
  uint64_t seed = 0;  // separate, so that the run's seed leaves the splits as they are
};

// The values of the options `test` and `seed`. Throws GraphError unless 0 < test < 1.
HeldOut held_out_option(const SourceSpec& spec);

// The samples among `count` that are held out: fraction · count of them, rounded. If there are two or more samples, at
// least one is held out and at least one is not. Chosen are those whose names come first by a hash of name and seed, so
// that a sample added to a data set moves few of the others.
std::vector<bool> hold_out(const HeldOut& part, size_t count, const std::function<std::string_view(size_t)>& name);

// The same for groups that stay together, of sizes[g] samples each: holds out groups until their samples reach that
// number.
std::vector<bool> hold_out_groups(const HeldOut& part, const std::vector<int64_t>& sizes,
                                  const std::function<std::string_view(size_t)>& name);

}  // namespace arbalest
