// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operators that put elements elsewhere and compute nothing. Each is a list of boxes that are copied from an input into
// an output, on every device, whatever the element type and the memory layouts.

#include <cstring>
#include <vector>

#include "graph/op.h"
#include "ops/math/strided.h"

namespace arbalest {

// A box of elements with steps of its own in either tensor, in elements; a step of the source may be 0 or negative.
struct BoxCopy {
  Strided walk;              // tensor 0: the destination; tensor 1: the source
  int64_t to = 0, from = 0;  // offsets of the first element
  int64_t count = 0;
  size_t output = 0, input = 0;

  BoxCopy(const Shape& box, std::vector<int64_t> to_steps, int64_t to_first, std::vector<int64_t> from_steps,
          int64_t from_first)
      : walk(box, {std::move(to_steps), std::move(from_steps)}),
        to(to_first),
        from(from_first),
        count(element_count(box)) {}
  // All that is walked through.
  explicit BoxCopy(const Strided& all) : walk(all), count(1) {
    for (int axis = 0; axis < walk.rank; ++axis) count *= walk.extent[axis];
  }
  // The same in words of `width` elements; if that does not fit, as it is.
  bool fits(int64_t width) const;
  BoxCopy in_words(int64_t width) const;
};

// Pieces of other tensors that passes put together in one copy at most, and that GPUs copy by rows in one launch.
inline constexpr size_t kMostPieces = 16;

struct Copying {
  std::vector<BoxCopy> boxes;
  bool fills = false;  // output 0 with `fill` before anything is copied
  uint64_t fill = 0;   // an element's bits, in the lowest bytes
};

// Its kernel on a CUDA device.
std::unique_ptr<Kernel> copy_cuda(const KernelRequest& request, const Copying& copying);

using CopyRule = Copying (*)(const KernelRequest&);

Copying copies_of_concat(const KernelRequest& request);
Copying copies_of_split(const KernelRequest& request);
Copying copies_of_slice(const KernelRequest& request);
Copying copies_of_slice_gradient(const KernelRequest& request);
Copying copies_of_pad(const KernelRequest& request);
Copying copies_of_expand(const KernelRequest& request);
Copying copies_of_tile(const KernelRequest& request);
Copying copies_of_assembly(const KernelRequest& request);
Copying copies_of_interleave(const KernelRequest& request);
Copying copies_of_depth_to_space(const KernelRequest& request);
Copying copies_of_space_to_depth(const KernelRequest& request);

struct CopyOperator {
  const char* name;
  CopyRule rule;
};
inline constexpr CopyOperator kCopyOperators[] = {{"Concat", copies_of_concat},
                                                  {"DepthToSpace", copies_of_depth_to_space},
                                                  {"Expand", copies_of_expand},
                                                  {"Pad", copies_of_pad},
                                                  {"Slice", copies_of_slice},
                                                  {"SpaceToDepth", copies_of_space_to_depth},
                                                  {"Split", copies_of_split},
                                                  {"Tile", copies_of_tile},
                                                  {"arbalest.Assemble", copies_of_assembly},
                                                  {"arbalest.Interleave", copies_of_interleave},
                                                  {"arbalest.DepthToSpaceGrad", copies_of_space_to_depth},
                                                  {"arbalest.SliceGrad", copies_of_slice_gradient}};

// The operators' records, without kernels.
void add_concat_and_split(OpRegistry& registry);
void add_slice(OpRegistry& registry);
void add_assemble(OpRegistry& registry);
void add_interleave(OpRegistry& registry);
void add_pad(OpRegistry& registry);
void add_expand_and_tile(OpRegistry& registry);
void add_depth_to_space(OpRegistry& registry);

// Fails if input 0 has too many axes to be walked through.
void check_rank(const InferContext& context);
// The axis that the attribute `axis` names, of a tensor of that rank; a negative one counts from the end.
size_t axis_of(const Node& node, size_t rank);
// The same for input 0, with a check.
size_t axis_of(const InferContext& context);

// The attributes of internal operators that say what their output is: `shape` and `layout`.
std::vector<AttributeSpec> type_specs();
void set_type(Attributes& attributes, const TensorType& type);
TensorType stated_type(const Node& node, DataType dtype);

}  // namespace arbalest
