// SPDX-License-Identifier: Apache-2.0

// Attention over the pixels of an image begins with making one axis of them: (N,C,H,W) becomes (N,C,L). Norms of
// groups, convolutions of one pixel and elementwise operators treat all pixels alike. If such operators come after the
// pixels are one axis, they come before it here, so that place_layouts finds them among those of images.

#include <algorithm>
#include <optional>

#include "graph/layouts.h"
#include "ops/norm/group_norm.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class LateMerges {
 public:
  explicit LateMerges(Graph& graph) : graph_(graph), rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) take(n);
    for (NodeId n = rewriter_.ids().last; n-- > 0;) take(n);  // what the image after a sum is made of
    rewriter_.finish();
    // Readers of a result that was made channels-last read a Reshape's now.
    for (const NodeId n : graph_.nodes.ids()) infer(graph_, n);
  }

 private:
  void take(NodeId id) {
    if (const auto image = image_for(id)) move_before_merge(id, *image);
  }

  const Node& node(NodeId id) const { return rewriter_.node(id); }
  const Shape& shape(ValueId value) const { return rewriter_.shape(value); }

  // The image whose pixels the value has as one axis; kNone: none.
  ValueId image_of(ValueId value) const {
    const NodeId merge = value == kNone ? kNone : rewriter_.value(value).producer;
    return rewriter_.reshapes(merge) && merges_pixels(shape(node(merge).input()), shape(value)) ? node(merge).input()
                                                                                                : kNone;
  }

  // The shape of the image that alone reads the value, apart from nodes that follow from types; none: other nodes do.
  std::optional<Shape> image_after(ValueId value) const {
    std::optional<Shape> found;
    for (const NodeId reader : rewriter_.readers(value)) {
      if (reader != kNone && node(reader).op->content) continue;
      if (found || !rewriter_.reshapes(reader) || !merges_pixels(shape(node(reader).output()), shape(value)))
        return std::nullopt;
      found = shape(node(reader).output());
    }
    return found;
  }

  // Whether all pixels of a result (N,C,L) meet the same numbers of the operand.
  bool is_for_all_pixels(ValueId operand) const {
    return operand == kNone || shape(operand).empty() || (shape(operand).size() <= 3 && shape(operand).back() == 1);
  }

  bool is_pointwise(NodeId id) const {
    const auto all = [&](const char* name, int64_t value) {
      const std::vector<int64_t> values = ints_attribute(node(id), name);
      return std::all_of(values.begin(), values.end(), [&](int64_t each) { return each == value; });
    };
    return rewriter_.is(id, op::Conv) && shape(node(id).input(ConvInput::W)).back() == 1 && all("strides", 1) &&
           all("pads", 0);
  }

  bool is_elementwise(NodeId id) const {
    const Node& found = node(id);
    return found.op->element && !found.op->layout && found.outputs.size() == 1 && !found.op->attribute_spec("shape");
  }

  // The shape (N,C,…) of the image that the node may make in place of (N,C,L); none: it does not treat all pixels
  // alike, or nothing is won by it.
  std::optional<Shape> image_for(NodeId id) const {
    const ValueId y = node(id).output();
    if (y == kNone || shape(y).size() != 3) return std::nullopt;
    const ValueId image = image_of(node(id).input());
    if (rewriter_.is(id, kNormalizeGroups) || is_pointwise(id)) {
      for (size_t i = 1; i < node(id).outputs.size(); ++i) {
        if (node(id).outputs[i] != kNone && !rewriter_.readers(node(id).outputs[i]).empty()) return std::nullopt;
      }
      return image != kNone     ? std::optional(image_like(shape(image), y))
             : is_pointwise(id) ? image_after(y)
                                : std::nullopt;
    }
    if (!is_elementwise(id)) return std::nullopt;
    std::optional<Shape> found;
    bool all = true;  // operands are made of images
    for (const ValueId operand : node(id).inputs) {
      if (operand == kNone || (shape(operand) != shape(y) && is_for_all_pixels(operand))) continue;
      if (shape(operand) != shape(y)) return std::nullopt;
      const ValueId from = image_of(operand);
      all = all && from != kNone;
      if (from == kNone) continue;
      if (found && *found != shape(from)) return std::nullopt;
      found = shape(from);
    }
    if (!found) return std::nullopt;
    return all || image_after(y) == found ? found : std::nullopt;
  }

  // With the channels of `merged`.
  Shape image_like(Shape image, ValueId merged) const {
    image[1] = shape(merged)[1];
    return image;
  }

  // Makes an image of (N,C,L), or of what all pixels meet, (N,C,1) or (C,1), what those of the image meet.
  ValueId as_image(NodeId before, ValueId value, const Shape& image, bool pixels) {
    if (const ValueId from = image_of(value); pixels && from != kNone) return from;
    const size_t rank = shape(value).size();
    if (rank < 2) return value;
    Shape made(image.size() - (3 - rank), 1);
    std::fill_n(made.begin(), rank - 1, 0);  // as they are
    if (pixels) std::copy(image.begin() + 2, image.end(), made.begin() + 2);
    return rewriter_.add_before(before, op::Reshape, rewriter_.value(value).name + ".image", {value},
                                {{"shape", made}});
  }

  void move_before_merge(NodeId id, const Shape& image) {
    const ValueId y = node(id).output();
    const Shape merged = shape(y);
    std::vector<ValueId> inputs = node(id).inputs;
    if (rewriter_.is(id, op::Conv)) {
      const size_t axes = image.size() - 2;
      Shape filter = shape(inputs[ConvInput::W]);
      filter.resize(image.size(), 1);
      inputs[ConvInput::X] = as_image(id, inputs[ConvInput::X], image, true);
      inputs[ConvInput::W] =
          rewriter_.add_before(id, op::Reshape, rewriter_.value(inputs[ConvInput::W]).name + ".image",
                               {inputs[ConvInput::W]}, {{"shape", filter}});
      Attributes& attributes = rewriter_.attributes(id);
      for (const char* name : {"kernel_shape", "strides", "dilations"}) attributes.set(name, Shape(axes, 1));
      attributes.set("pads", Shape(2 * axes, 0));
    } else {
      for (ValueId& input : inputs) {
        if (input != kNone) input = as_image(id, input, image, shape(input) == merged);
      }
    }
    rewriter_.set_inputs(id, std::move(inputs));
    rewriter_.infer(id);
    const ValueId after =
        rewriter_.add_after(id, op::Reshape, rewriter_.value(y).name + ".merged", {y}, {{"shape", Shape{0, 0, -1}}});
    const NodeId merge = rewriter_.value(after).producer;
    rewriter_.replace_uses(y, after);
    rewriter_.set_input(merge, y);
    part_again(after, image);
  }

  // Readers of the same image, made of the merged value again, read the image itself.
  void part_again(ValueId merged, const Shape& image) {
    const std::vector<NodeId> readers = rewriter_.readers(merged);
    for (const NodeId reader : readers) {
      if (reader == kNone || !rewriter_.reshapes(reader) || shape(node(reader).output()) != image) continue;
      const ValueId apart = node(reader).output();
      rewriter_.replace_uses(apart, image_of(merged));
      rewriter_.remove_unread(reader, apart);
    }
  }

  Graph& graph_;
  Rewriter rewriter_;
};

}  // namespace

void merge_pixels_late(Graph& graph) {
  LateMerges(graph).run();
}

}  // namespace arbalest
