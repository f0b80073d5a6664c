// SPDX-License-Identifier: Apache-2.0
#include "ops/shape/copy.h"

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/math/elementwise_cpu.h"
#include "ops/words.h"

namespace arbalest {

bool BoxCopy::fits(int64_t width) const {
  if (walk.inner() % width != 0 || to % width != 0 || from % width != 0) return false;
  for (size_t tensor = 0; tensor < 2; ++tensor) {
    if (walk.inner_stride(tensor) != 1) return false;
    for (int axis = 0; axis + 1 < walk.rank; ++axis) {
      if (walk.stride[tensor][axis] % width != 0) return false;
    }
  }
  return true;
}

BoxCopy BoxCopy::in_words(int64_t width) const {
  BoxCopy words = *this;
  words.walk.set_extent(walk.rank - 1, walk.inner() / width);
  for (size_t tensor = 0; tensor < 2; ++tensor) {
    for (int axis = 0; axis + 1 < walk.rank; ++axis) words.walk.stride[tensor][axis] /= width;
  }
  words.to /= width;
  words.from /= width;
  words.count /= width;
  return words;
}

void check_rank(const InferContext& context) {
  const TensorType& x = context.input(0);
  if (x.shape.size() <= Strided::kMaxRank) return;
  context.fail(
      fmt::format("{} is {}; expected a rank of at most {}", input_name(context, 0), to_string(x), Strided::kMaxRank));
}

size_t axis_of(const Node& node, size_t rank) {
  return normalized_axis(int_attribute(node, "axis"), rank);
}

size_t axis_of(const InferContext& context) {
  check_rank(context);
  const TensorType& x = context.input(0);
  const int64_t rank = int64_t(x.shape.size()), axis = int_attribute(context.node(), "axis");
  if (axis < -rank || axis >= rank) {
    context.fail(fmt::format("attribute 'axis' is {}; expected {} to {} for {}, {}", axis, -rank, rank - 1,
                             input_name(context, 0), to_string(x)));
  }
  return axis_of(context.node(), x.shape.size());
}

std::vector<AttributeSpec> type_specs() {
  return {required_spec("shape", AttributeKind::Ints, "of the output"),
          string_spec("layout", "row_major", "of the output")};
}

void set_type(Attributes& attributes, const TensorType& type) {
  attributes.set("shape", type.shape);
  attributes.set("layout", std::string(name_of(type.layout)));
}

TensorType stated_type(const Node& node, DataType dtype) {
  const bool last = string_attribute(node, "layout") == name_of(Layout::ChannelsLast);
  return TensorType{dtype, ints_attribute(node, "shape")}.in(last ? Layout::ChannelsLast : Layout::RowMajor);
}

namespace {

template <typename Word>
void copy_box(const BoxCopy& box, const Word* from, Word* to) {
  const Strided& walk = box.walk;
  const int64_t to_step = walk.inner_stride(0), from_step = walk.inner_stride(1);
  parallel_for(box.count, 1, [=, &walk](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t run = std::min(end - begin, walk.inner() - begin % walk.inner());
      Word* target = to + offset_of(walk, 0, begin);
      const Word* source = from + offset_of(walk, 1, begin);
      if (to_step == 1 && from_step == 1) {
        std::memcpy(target, source, size_t(run) * sizeof(Word));
      } else {
        for (int64_t i = 0; i < run; ++i) target[i * to_step] = source[i * from_step];
      }
      begin += run;
    }
  });
}

template <typename Word>
std::unique_ptr<Kernel> copying_kernel(Copying copying, int64_t elements) {
  return make_kernel([copying = std::move(copying), elements](const KernelContext& c) {
    if (copying.fills) std::fill_n(output<Word>(c, 0), elements, static_cast<Word>(copying.fill));
    for (const BoxCopy& box : copying.boxes) {
      if (box.count == 0 || !c.outputs[box.output]) continue;
      copy_box(box, input<Word>(c, box.input) + box.from, output<Word>(c, box.output) + box.to);
    }
  });
}

std::unique_ptr<Kernel> copy_cpu(const KernelRequest& request, CopyRule rule) {
  const TensorType& type = request.inputs[0];
  const int64_t elements = request.outputs[0].elements();
  return with_word(type.dtype, [&](auto word) { return copying_kernel<decltype(word)>(rule(request), elements); });
}

}  // namespace

void register_shape_copy(OpRegistry& registry) {
  add_concat_and_split(registry);
  add_slice(registry);
  add_assemble(registry);
  add_interleave(registry);
  add_pad(registry);
  add_expand_and_tile(registry);
  add_depth_to_space(registry);
  for (const CopyOperator& op : kCopyOperators) {
    registry.find(op.name)->cpu = [rule = op.rule](const KernelRequest& request) { return copy_cpu(request, rule); };
  }
}

}  // namespace arbalest
