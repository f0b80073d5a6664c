// SPDX-License-Identifier: Apache-2.0

// Packs transient memory by lifetime: the largest buffer first, each in the lowest gap among the buffers that are in
// use at the same time.
//
// Positions in the lane's order are the leaves of a binary tree. A lifetime is cut into O(log n) subtrees. Each node of
// the tree knows the memory taken by lifetimes that span the node and by lifetimes within it, as ranges merged if they
// touch. The memory in use during a buffer's lifetime is the union of the ranges known to its subtrees and of those
// that span the nodes above them. So placing a buffer takes the time to look at some ranges, while looking at all
// buffers would take quadratic time in all.

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/checked.h"
#include "executor/plan/make_plan.h"

namespace arbalest {
namespace {

// Most ranges that are looked at for one buffer before it is placed above everything that is in use with it. Only a
// graph made to cost time has thousands of gaps that are all too small.
constexpr int kMostRanges = 1 << 12;

// Memory that is taken: disjoint ranges in order, which do not touch.
class Ranges {
 public:
  struct Range {
    int64_t begin, end;
  };

  void add(Range added) {
    const auto first = std::lower_bound(ranges_.begin(), ranges_.end(), added.begin,
                                        [](const Range& range, int64_t begin) { return range.end < begin; });
    auto last = first;
    for (; last != ranges_.end() && last->begin <= added.end; ++last) {
      added = {std::min(added.begin, last->begin), std::max(added.end, last->end)};
    }
    if (first == last) {
      ranges_.insert(first, added);
    } else {
      *first = added;
      ranges_.erase(first + 1, last);
    }
  }
  const std::vector<Range>& all() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// The union of several lists.
class Union {
 public:
  void add(const Ranges& ranges) {
    if (ranges.all().empty()) return;
    top_ = std::max(top_, ranges.all().back().end);
    lists_.push_back({ranges.all().data(), ranges.all().data() + ranges.all().size()});
  }

  // The lowest gap of this size; above all ranges if it is not found soon.
  int64_t gap(int64_t size) {
    int64_t offset = 0;
    int seen = 0;
    for (size_t fits = 0, at = 0; fits < lists_.size(); ++fits, ++at) {  // `fits`: lists in turn that leave the gap
      List& list = lists_[at % lists_.size()];
      if (list.next != list.end && list.next->end <= offset) list.next = beyond(list, offset);
      for (; list.next != list.end && list.next->begin < offset + size; ++list.next) {
        offset = list.next->end;
        fits = 0;
        if (++seen > kMostRanges) return top_;
      }
    }
    return offset;
  }

 private:
  struct List {
    const Ranges::Range *next, *end;
  };
  static const Ranges::Range* beyond(const List& list, int64_t offset) {
    return std::upper_bound(list.next, list.end, offset, [](int64_t at, const Ranges::Range& r) { return at < r.end; });
  }

  std::vector<List> lists_;
  int64_t top_ = 0;
};

class LifetimeTree {
 public:
  explicit LifetimeTree(int32_t last) {  // the last position of all lifetimes
    leaves_ = std::bit_ceil(size_t(last) + 1);
    spanning_.resize(2 * leaves_);
    within_.resize(2 * leaves_);
  }

  Union taken_during(const Lifetime& life) const {
    Union taken;
    visit(
        life, [&](size_t node) { taken.add(within_[node]); }, [&](size_t node) { taken.add(spanning_[node]); });
    return taken;
  }

  void add(const Lifetime& life, Ranges::Range memory) {
    const auto within = [&](size_t node) { within_[node].add(memory); };
    visit(
        life, [&](size_t node) { spanning_[node].add(memory), within(node); }, within);
  }

 private:
  // Calls `part` for each node whose positions the lifetime takes together, `above` for each node above one of these.
  void visit(const Lifetime& life, auto&& part, auto&& above) const {
    size_t begin = size_t(life.first) + leaves_, end = size_t(life.last) + leaves_ + 1;
    const size_t first = begin, last = end - 1;
    for (; begin < end; begin /= 2, end /= 2) {
      if (begin % 2 == 1) part(begin++);
      if (end % 2 == 1) part(--end);
    }
    // All nodes above a part are above the first position or above the last one, and take more than the lifetime's.
    const auto inside = [&](size_t node, size_t depth) {
      return (node << depth) >= first && ((node + 1) << depth) - 1 <= last;
    };
    size_t left = first, right = last;
    for (size_t depth = 0; left >= 1; left /= 2, right /= 2, ++depth) {
      if (!inside(left, depth)) above(left);
      if (left != right && !inside(right, depth)) above(right);
    }
  }

  size_t leaves_ = 1;
  std::vector<Ranges> spanning_;  // of lifetimes that have this node as a part; the tree's root is 1
  std::vector<Ranges> within_;    // of lifetimes with a part in this subtree
};

int32_t last_position(const std::vector<Lifetime>& lifetimes) {
  int32_t last = 0;
  for (const Lifetime& life : lifetimes) last = std::max(last, life.last);
  return last;
}

std::vector<size_t> largest_first(const std::vector<Lifetime>& lifetimes) {
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  return order;
}

}  // namespace

Packing pack(const std::vector<Lifetime>& lifetimes) {
  Packing packing;
  packing.offsets.assign(lifetimes.size(), 0);
  LifetimeTree placed(last_position(lifetimes));
  for (const size_t item : largest_first(lifetimes)) {
    const Lifetime& life = lifetimes[item];
    if (life.bytes == 0) break;  // and all that follow
    const int64_t size = aligned(life.bytes), offset = placed.taken_during(life).gap(size);
    const int64_t end = memory_sum(offset, size, "the activations of a replica");
    packing.offsets[item] = offset;
    packing.bytes = std::max(packing.bytes, end);
    placed.add(life, {offset, end});
  }
  return packing;
}

std::vector<int64_t> pack_into_gaps(const std::vector<Lifetime>& placed, const std::vector<int64_t>& offsets,
                                    const std::vector<Lifetime>& added, int64_t limit) {
  LifetimeTree taken(std::max(last_position(placed), last_position(added)));
  for (size_t i = 0; i < placed.size(); ++i) {
    if (placed[i].bytes > 0) taken.add(placed[i], {offsets[i], offsets[i] + aligned(placed[i].bytes)});
  }
  std::vector<int64_t> found(added.size(), -1);
  for (const size_t item : largest_first(added)) {
    const Lifetime& life = added[item];
    if (life.bytes > limit) continue;
    const int64_t size = aligned(life.bytes), offset = taken.taken_during(life).gap(size);
    if (offset > limit - life.bytes) continue;
    found[item] = offset;
    taken.add(life, {offset, offset + size});
  }
  return found;
}

}  // namespace arbalest
