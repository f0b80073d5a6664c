// SPDX-License-Identifier: Apache-2.0

// Nodes that only move elements become how regions read and write. Inputs that slices, splits and transpositions make
// are read where these would copy from; results that a concatenation joins are written where it would copy them to.

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ops/math/strided.h"
#include "ops/regions/region.h"
#include "ops/shape/copy.h"
#include "passes/fuse/memory_homes.h"
#include "passes/fuse/strided_view.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

constexpr int64_t kShortest = 32;      // bytes that lie together, so that memory is read by whole sectors
constexpr int64_t kSmall = 256 << 10;  // bytes of a value that stays near a GPU's processors

class RegionMoves {
 public:
  explicit RegionMoves(Graph& graph) : graph_(graph), rewriter_(graph), memory_(graph) {}

  void run() {
    for (NodeId n = rewriter_.ids().last; n-- > 0;) {
      if (moves(n)) read_through(n);
    }
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::Concat)) write_through(n);
    }
    for (const auto& [id, region] : regions_) {
      rewriter_.become(id, op::Region, rewriter_.node(id).inputs, rewriter_.node(id).outputs,
                       region_attributes(region.program, region.space, region.types));
    }
    rewriter_.finish();
  }

 private:
  struct Region {
    RegionProgram program;
    TensorType space;
    std::vector<DataType> types;  // of the outputs' elements
    std::vector<ValueId> read;    // by input: what the region read at first
  };
  // An input of a region, and what it read at first.
  struct Use {
    NodeId region;
    size_t input;
    ValueId value;
  };

  const TensorType& type(ValueId value) const { return rewriter_.value(value).type; }

  // A node whose outputs are copies of elements of its first input.
  bool moves(NodeId n) const {
    const Node& node = rewriter_.node(n);
    return leads_through(graph_, node) && !shows(n) && node.input() != kNone && type(node.input()).elements() > 0;
  }
  // A node that moves nothing.
  bool shows(NodeId n) const {
    const Node& node = rewriter_.node(n);
    return is_view(node) && leads_through(graph_, node) && type(node.input()).lies_as(Layout::RowMajor);
  }

  // The region that the node is, or may become; nothing: neither.
  std::optional<Region> region_of(NodeId n) const {
    if (const auto known = regions_.find(n); known != regions_.end()) return known->second;
    const Node& node = rewriter_.node(n);
    if (node.is(op::Region)) {
      Region region{region_program(node, *graph_.registry), stated_type(node, DataType::Float32), {}, node.inputs};
      for (const ValueId output : node.outputs) region.types.push_back(type(output).dtype);
      return region;
    }
    if (!is_region_step(graph_, node)) return std::nullopt;
    RegionProgram program = one_step(node);
    const auto inputs = node.inputs.begin();
    return Region{
        program, type(node.output()), {type(node.output()).dtype}, {inputs, inputs + std::ptrdiff_t(program.inputs)}};
  }

  // Adds the places at which regions read the value, by itself or otherwise shown; false if anything else reads it.
  bool find_uses(ValueId value, std::vector<Use>& uses) const {
    const std::set<NodeId> readers(rewriter_.readers(value).begin(), rewriter_.readers(value).end());
    for (const NodeId reader : readers) {
      if (reader == kNone) return false;
      if (passed_.contains(reader)) continue;
      const std::optional<Region> region = region_of(reader);
      if (!region) {
        if (!shows(reader) || !find_uses(rewriter_.output(reader), uses)) return false;
        continue;
      }
      const std::vector<ValueId>& inputs = rewriter_.node(reader).inputs;
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] != value) continue;
        if (i >= region->program.inputs || is_view_at_first(*region, i, value)) return false;
        uses.push_back({reader, i, region->read[i]});
      }
    }
    return true;
  }

  // Whether the region, which reads the value as it did at first, reads a part of it.
  static bool is_view_at_first(const Region& region, size_t input, ValueId value) {
    const std::vector<RegionView>& views = region.program.views;
    return region.read[input] == value &&
           std::any_of(views.begin(), views.end(), [&](const RegionView& view) { return view.input == input; });
  }

  // How a use's elements are found in `base`; nothing if they are not, or badly.
  std::optional<RegionView> view_of(const Use& use, const TensorType& space, ValueId base) const {
    const std::optional<StridedView> found = view_in(graph_, use.value, base);
    const size_t rank = space.shape.size();
    if (!found || found->strides.size() > rank) return std::nullopt;
    RegionView view{use.input, found->first, Shape(rank - found->strides.size(), 0)};
    view.strides.insert(view.strides.end(), found->strides.begin(), found->strides.end());
    for (size_t axis = 0; axis < rank; ++axis) {
      const size_t back = rank - axis;
      const Shape& own = rewriter_.shape(use.value);
      if (view.strides[axis] < 0) return std::nullopt;
      if (back > own.size() || own[own.size() - back] == 1) view.strides[axis] = 0;
    }
    const bool near = type(use.value).bytes() <= kSmall || is_long(space, view.strides, type(base).dtype);
    return near ? std::optional(std::move(view)) : std::nullopt;
  }
  // Whether elements that are neighbours in the space lie together in long enough runs, or are the same.
  static bool is_long(const TensorType& space, const Shape& strides, DataType dtype) {
    if (space.shape.empty()) return true;
    const std::vector<int64_t> own = memory_strides(space);
    size_t innermost = innermost_axis(space);  // with neighbours
    for (size_t axis = 0; axis < own.size() && space.shape[innermost] == 1; ++axis) {
      if (space.shape[axis] != 1 && own[axis] == 1) innermost = axis;
    }
    if (strides[innermost] == 0) return true;
    if (strides[innermost] != 1) return false;
    int64_t run = space.shape[innermost];
    for (bool grows = true; grows;) {  // axes that lie around the run on both sides
      grows = false;
      for (size_t axis = 0; axis < strides.size() && !grows; ++axis) {
        grows = space.shape[axis] > 1 && own[axis] == run && strides[axis] == run;
        if (grows) run *= space.shape[axis];
      }
    }
    return run * int64_t(size_of(dtype)) >= kShortest;
  }

  // Regions read the node's input in place of its outputs, if nothing else reads these.
  void read_through(NodeId n) {
    const Node& node = rewriter_.node(n);
    const ValueId base = node.input();
    std::vector<Use> uses;
    for (const ValueId output : node.outputs) {
      if (output != kNone && !find_uses(output, uses)) return;
    }
    if (uses.empty()) return;
    NodeId last = n;
    for (const Use& use : uses) last = std::max(last, use.region);
    const bool keeps = 2 * bytes_moved(base) >= type(base).bytes() || is_kept_until(base, n, last);
    if (!keeps || !memory_.is_whole_until(base, rewriter_.value(base).producer, last)) return;
    std::map<NodeId, Region> changed;
    for (const Use& use : uses) {
      Region& region = changed.try_emplace(use.region, *region_of(use.region)).first->second;
      std::optional<RegionView> view = view_of(use, region.space, base);
      if (!view) return;
      std::vector<RegionView>& views = region.program.views;
      std::erase_if(views, [&](const RegionView& each) { return each.input == use.input; });
      views.push_back(std::move(*view));
    }
    passed_.insert(n);
    for (const Use& use : uses) rewriter_.set_input(use.region, use.input, base);
    for (auto& [id, region] : changed) {
      std::vector<ValueId> inputs = rewriter_.node(id).inputs;
      inputs.resize(region.program.inputs);
      rewriter_.set_inputs(id, std::move(inputs));
      regions_[id] = std::move(region);
    }
  }
  // The bytes of parts of the value: those that nodes copy, and those that regions read in place.
  int64_t bytes_moved(ValueId base) const {
    std::set<ValueId> parts;
    const std::set<NodeId> readers(rewriter_.readers(base).begin(), rewriter_.readers(base).end());
    for (const NodeId reader : readers) {
      if (reader == kNone || passed_.contains(reader)) continue;
      const std::vector<ValueId>& inputs = rewriter_.node(reader).inputs;
      const auto region = regions_.find(reader);
      for (size_t i = 0; region != regions_.end() && i < inputs.size(); ++i) {
        if (inputs[i] == base && region->second.read[i] != base) parts.insert(region->second.read[i]);
      }
      if (region == regions_.end() && moves(reader)) {
        for (const ValueId output : rewriter_.node(reader).outputs) parts.insert(output);
      }
    }
    int64_t bytes = 0;
    for (const ValueId part : parts) bytes += part == kNone ? 0 : type(part).bytes();
    return bytes;
  }
  // Whether memory holds the value until then in any case.
  bool is_kept_until(ValueId value, NodeId mover, NodeId last) const {
    if (rewriter_.value(memory_.home(value)).role != Role::Activation) return true;
    const std::vector<NodeId>& readers = rewriter_.readers(value);
    return std::any_of(readers.begin(), readers.end(), [&](NodeId reader) {
      return reader == kNone || (reader != mover && reader >= last && !passed_.contains(reader));
    });
  }

  // The region that makes all inputs of the concatenation writes them to their places there.
  void write_through(NodeId n) {
    const Node& concat = rewriter_.node(n);
    const NodeId producer = rewriter_.value(concat.input()).producer;
    std::optional<Region> region = producer == kNone ? std::nullopt : region_of(producer);
    if (!region || concat.inputs.size() < 2) return;
    RegionProgram& program = region->program;
    const ValueId whole = concat.output();
    const TensorType& space = region->space;
    const size_t axis = axis_of(concat, space.shape.size());
    std::vector<ValueId> outputs = rewriter_.node(producer).outputs;
    const std::vector<RegionProgram::Target> targets = program.targets();
    std::vector<size_t> results;  // the results that the concatenation has
    for (const ValueId input : concat.inputs) {
      const auto output = std::find(outputs.begin(), outputs.end(), input);
      if (output == outputs.end()) return;
      const auto place = size_t(output - outputs.begin());
      const auto target =
          std::find_if(targets.begin(), targets.end(), [&](auto& each) { return each.output == place; });
      if (target == targets.end() || target->concat) return;
      if (type(input).dtype != type(whole).dtype) return;
      results.push_back(size_t(target - targets.begin()));
    }
    Shape wanted = space.shape;
    wanted[axis] *= int64_t(results.size());
    const TensorType made{type(whole).dtype, wanted, space.layout};
    const bool is_near = made.bytes() <= kSmall || is_long(space, memory_strides(made), made.dtype);
    if (made != type(whole) || !is_near) return;
    add_concat(producer, *region, outputs, results, axis, whole);
  }
  void add_concat(NodeId producer, Region& region, const std::vector<ValueId>& outputs,
                  const std::vector<size_t>& results, size_t axis, ValueId whole) {
    RegionProgram& program = region.program;
    const std::vector<RegionProgram::Target> targets = program.targets();
    // The concatenation comes first, then the results that others read as well, as they were.
    const NodeId concat = rewriter_.value(whole).producer;
    const auto is_left_out = [&](size_t r) {
      const ValueId value = outputs[targets[r].output];
      const std::vector<NodeId>& readers = rewriter_.readers(value);
      return std::find(results.begin(), results.end(), r) != results.end() &&
             rewriter_.value(value).view.base == kNone &&
             std::all_of(readers.begin(), readers.end(), [&](NodeId reader) { return reader == concat; });
    };
    std::vector<size_t> steps;
    std::vector<ValueId> made = {whole};
    std::vector<DataType> types = {type(whole).dtype};
    std::vector<RegionConcat> concats = {{0, axis, results.size()}};
    for (const size_t r : results) steps.push_back(program.results[r]);
    for (size_t r = 0; r < targets.size(); ++r) {
      if (is_left_out(r)) continue;
      steps.push_back(program.results[r]);
      if (targets[r].part > 0) continue;
      if (targets[r].concat) concats.push_back({made.size(), targets[r].concat->axis, targets[r].concat->parts});
      made.push_back(outputs[targets[r].output]);
      types.push_back(region.types[targets[r].output]);
    }
    for (size_t k = program.result_outputs(); k < outputs.size(); ++k) {
      made.push_back(outputs[k]);
      types.push_back(region.types[k]);
    }
    // A result that stays, too, would be in memory twice until the concatenation is read.
    const bool stays = steps.size() > program.results.size();
    const bool is_later = rewriter_.node(concat).stage != rewriter_.node(producer).stage;
    if (steps.size() > RegionProgram::kMostOutputs || (stays && is_later)) return;
    program.results = std::move(steps);
    program.concats = std::move(concats);
    region.types = std::move(types);
    rewriter_.remove(concat);
    rewriter_.set_outputs(producer, std::move(made));
    regions_[producer] = std::move(region);
  }

  Graph& graph_;
  Rewriter rewriter_;
  MemoryHomes memory_;
  std::map<NodeId, Region> regions_;  // those that have changed
  std::set<NodeId> passed_;           // nodes that regions read through
};

}  // namespace

void fuse_region_moves(Graph& graph) {
  RegionMoves(graph).run();
}

}  // namespace arbalest
