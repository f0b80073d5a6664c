// SPDX-License-Identifier: Apache-2.0
#include "io/photos/held_out.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/checked.h"
#include "base/random.h"

namespace arbalest {

HeldOut held_out_option(const SourceSpec& spec) {
  HeldOut part;
  part.fraction = spec.fraction("test", part.fraction);
  part.seed = uint64_t(spec.integer("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  return part;
}

std::vector<bool> hold_out_groups(const HeldOut& part, const std::vector<int64_t>& sizes,
                                  const std::function<std::string_view(size_t)>& name) {
  struct Ranked {
    uint64_t rank;
    size_t group;
    bool operator<(const Ranked& other) const { return rank != other.rank ? rank < other.rank : group < other.group; }
  };
  std::vector<Ranked> order(sizes.size());
  for (size_t g = 0; g < sizes.size(); ++g) {
    const Random4 draw = philox(random_key(part.seed, hash_name(name(g))), 0, 0);
    order[g] = {uint64_t(draw.word[0]) << 32 | draw.word[1], g};
  }
  std::sort(order.begin(), order.end());

  const int64_t samples = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const int64_t wanted = std::max<int64_t>(1, whole_part(part.fraction * double(samples) + 0.5));
  std::vector<bool> held(sizes.size());
  int64_t have = 0;
  for (size_t i = 0; i + 1 < order.size() && have < wanted; ++i) {  // the last one is never held out
    held[order[i].group] = true;
    have += sizes[order[i].group];
  }
  return held;
}

std::vector<bool> hold_out(const HeldOut& part, size_t count, const std::function<std::string_view(size_t)>& name) {
  return hold_out_groups(part, std::vector<int64_t>(count, 1), name);
}

}  // namespace arbalest
