// SPDX-License-Identifier: Apache-2.0
#include "ops/optim/update.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_groups(const InferContext& context, const UpdateOperands& place, const TensorType& gradients) {
  const Node& node = context.node();
  const int64_t blocks = (gradients.elements() + kParameterAlignment - 1) / kParameterAlignment;
  expect_input(context, place.groups(), {DataType::Uint8, {blocks}},
               fmt::format("the group of {} elements each", kParameterAlignment));
  const GroupNumbers groups(node);
  if (groups.decays.empty() || groups.decays.size() > kMostGroups) {
    context.fail(fmt::format("attribute 'decays' has {} numbers; expected 1 to {}", groups.decays.size(), kMostGroups));
  }
  if (groups.rate_factors.size() != groups.decays.size()) {
    context.fail(fmt::format("attribute 'rate_factors' has {} numbers; expected {}, as 'decays' has",
                             groups.rate_factors.size(), groups.decays.size()));
  }
}

void infer_tensors(const InferContext& context, const UpdateOperands& place) {
  const TensorType& tensors = context.input(place.tensors());
  if (tensors.dtype == DataType::Int32 && tensors.shape.size() == 2 && tensors.shape[0] > 0 && tensors.shape[1] == 2) {
    return;
  }
  context.fail(
      fmt::format("input 'tensors' is {}; expected int32[T,2]: where each parameter begins, and 1 where norms "
                  "leave its rate alone",
                  to_string(tensors)));
}

void infer_update(InferContext& context) {
  const UpdateOperands place(*context.node().op->optimizer);
  TensorType gradients = floating_input(context, 0, {1});
  expect_input(context, 0, {master_type(gradients.dtype), gradients.shape}, "since updates are in full precision");
  // More may follow the gradients of all weights.
  const TensorType& weights = context.input(place.kWeights);
  if (weights.shape.size() == 1 && weights.shape[0] < gradients.shape[0]) gradients.shape = weights.shape;
  const bool per_tensor = context.node().op->optimizer->per_tensor;
  if (per_tensor) infer_tensors(context, place);
  if (context.node().op->optimizer->matrices) {
    const size_t extents = ints_attribute(context.node(), "matrices").size();
    const auto expected = size_t(context.input(place.tensors()).shape[0]) * 3;
    if (extents != expected) {
      context.fail(
          fmt::format("attribute 'matrices' has {} numbers; expected three for each of {} parameters: rows, columns, "
                      "and 1 if columns are put out",
                      extents, expected / 3));
    }
  }
  for (size_t i = 1; i <= place.averaged(); ++i) {
    const bool flat = context.has_input(i) && !(per_tensor && i == place.tensors());
    if (flat) expect_input(context, i, gradients, "the type of 'gradients'");
  }
  if (context.has_input(place.clip())) expect_input(context, place.clip(), {gradients.dtype, {1}}, "one factor");
  if (context.has_input(place.groups())) infer_groups(context, place, gradients);
  const std::vector<ValueId>& outputs = context.node().outputs;
  const bool restarts = outputs.size() > place.restarted() && outputs[place.restarted()] != kNone;
  if (restarts && !(context.has_input(place.average()) && context.has_input(place.averaged()))) {
    context.fail("output 'restarted' needs the inputs 'average' and 'averaged'");
  }
  for (size_t i = 0; i < context.output_count(); ++i) {
    context.set_output(i, {i == place.lowered() ? DataType::Bfloat16 : gradients.dtype, gradients.shape});
  }
}

// A matrix of so many elements, as near to a square as can be and not wider; a vector if the number is prime.
std::vector<int64_t> matrix_of(int64_t count) {
  auto rows = int64_t(std::sqrt(double(count)));
  while (count % rows != 0) --rows;
  return {count / rows, rows, 0};
}

// Samples of one rule.
class Samples {
 public:
  Samples(const OptimizerSpec& optimizer, const std::vector<double>& slot_lows, std::string rule, Attributes attributes)
      : place_(optimizer),
        per_tensor_(optimizer.per_tensor),
        matrices_(optimizer.matrices),
        slot_lows_(slot_lows),
        rule_(std::move(rule)),
        attributes_(std::move(attributes)) {}

  // Adds a sample with all inputs up to `inputs` and outputs up to `outputs`, exclusive.
  Sample& add(const std::string& name, int64_t count, size_t inputs, size_t outputs, StepScalars scalars = {}) {
    Sample sample{.name = fmt::format("{}, {}", rule_, name),
                  .inputs = std::vector<Sample::Input>(inputs, {{DataType::Float32, {count}}}),
                  .output_count = int(outputs),
                  .attributes = attributes_,
                  .tolerance = outputs > place_.lowered() ? 4e-3 : 1e-6};
    for (size_t k = 0; k < slot_lows_.size(); ++k) sample.inputs[place_.kFirstSlot + k].low = slot_lows_[k];
    // One parameter from block 0 on, whose rate depends on its norms; the vectors of optimisers have several.
    if (per_tensor_) sample.inputs[place_.tensors()] = {{DataType::Int32, {1, 2}}, 0, 0, false};
    if (matrices_) sample.attributes.set("matrices", matrix_of(count));
    if (inputs > place_.clip()) sample.inputs[place_.clip()] = {{DataType::Float32, {1}}, 0.2, 0.8};
    if (inputs > place_.groups()) {
      const std::vector<double> decays = {0.01, 0, 0.5}, rate_factors = {1, 10, 0.1};
      const int64_t blocks = (count + kParameterAlignment - 1) / kParameterAlignment;
      // A matrix is of one group.
      const double last = double(decays.size()) - 1, first = matrices_ ? last : 0;
      sample.inputs[place_.groups()] = {{DataType::Uint8, {blocks}}, first, last};
      sample.attributes.set("decays", decays);
      sample.attributes.set("rate_factors", rate_factors);
    }
    scalars.learning_rate = 0.1f;
    sample.scalars = scalars;
    return samples_.emplace_back(std::move(sample));
  }

  // Inputs [first, end) are infinite: the kernel must not read them, as others may be writing there.
  static void unread(Sample& sample, size_t first, size_t end) {
    for (size_t i = first; i < end; ++i) {
      if (!is_floating(sample.inputs[i].type.dtype)) continue;  // `tensors`
      sample.inputs[i].low = sample.inputs[i].high = std::numeric_limits<double>::infinity();
    }
  }

  std::vector<Sample> all() && {
    const size_t plain = place_.average(), corrected = place_.averaged(), restarting = place_.clip();
    const size_t master = place_.lowered(), lowered = place_.restarted(), restarted = place_.outputs();
    add("few elements", 7, plain, master);
    add("more behind the gradients", 1024, plain, master).inputs[0].type.shape[0] += kParameterAlignment;
    add("a large model", 100003, plain, master, {.updates = 3});
    add("with bfloat16 weights", 1001, plain, lowered, {.updates = 1});
    add("after many updates", 1000, plain, master, {.updates = 100000});
    add("towards an average", 1003, corrected, master, {.correction = 0.25f});
    add("towards an average, bfloat16", 4096, restarting, lowered, {.correction = 0.5f});
    unread(add("no correction now", 1001, restarting, master), place_.average(), restarting);
    unread(add("restart", 1003, restarting, lowered, {.correction = 0.5f, .restart = 1}), 0, place_.averaged());
    unread(add("restart, average too", 1024, restarting, restarted, {.restart = 1}), 0, place_.averaged());
    unread(add("clipped", 1001, place_.groups(), master, {.updates = 2}), place_.average(), place_.clip());
    add("clipped, towards an average", 4096, place_.groups(), lowered, {.correction = 0.5f});
    Sample& skipped = add("skipped, towards an average", 4096, place_.groups(), lowered, {.correction = 0.5f});
    unread(skipped, 0, 1);
    Sample& idle_too = add("skipped", 1001, place_.groups(), master, {.updates = 2});
    for (Sample* each : {&skipped, &idle_too}) {
      each->inputs[place_.clip()].low = each->inputs[place_.clip()].high = -1;
      each->in_place = true;
    }
    unread(add("groups", 1001, place_.inputs(), master, {.updates = 2}), place_.average(), place_.clip());
    add("groups, towards an average", 100003, place_.inputs(), lowered, {.correction = 0.5f});
    // An output that stays as it was is defined in place only.
    add("no restart now", 1001, restarting, restarted, {.correction = 0.25f}).in_place = true;
    Sample& idle = add("no update", 1001, restarting, master, {.restart = 1, .update = 0});
    unread(idle, 0, 1);
    idle.in_place = true;
    return std::move(samples_);
  }

 private:
  UpdateOperands place_;
  bool per_tensor_, matrices_;
  const std::vector<double>& slot_lows_;
  std::string rule_;
  Attributes attributes_;
  std::vector<Sample> samples_;
};

std::vector<AttributeSpec> attributes_of_all_rules() {
  return {float_spec("weight_decay", 0.0, "as in Train"),
          floats_spec("decays", {}, "with 'groups': the weight decay of each group, instead of weight_decay"),
          floats_spec("rate_factors", {}, "with 'groups': the factor of the learning rate of each group")};
}

}  // namespace

void check_at_least(const Node& node, std::string_view attribute, double least) {
  const double value = float_attribute(node, attribute);
  if (!(value >= least) || !std::isfinite(value)) {
    fail(node, fmt::format("attribute '{}' is {}; expected a number of at least {}", attribute, value, least));
  }
}

void check_below(const Node& node, std::string_view attribute, double limit) {
  const double value = float_attribute(node, attribute);
  if (!(value < limit)) {
    fail(node, fmt::format("attribute '{}' is {}; expected less than {}", attribute, value, limit));
  }
}

void check_at_most(const Node& node, std::string_view attribute, double most) {
  const double value = float_attribute(node, attribute);
  if (!(value <= most)) {
    fail(node, fmt::format("attribute '{}' is {}; expected at most {}", attribute, value, most));
  }
}

void check_above_0(const Node& node, std::string_view attribute) {
  positive_float(node, attribute);
}

void check_share(const Node& node, std::string_view attribute) {
  check_at_least(node, attribute, 0);
  check_below(node, attribute, 1);
}

void check_momentum(const Node& train) {
  check_share(train, "momentum");
  if (flag_attribute(train, "nesterov") && float_attribute(train, "momentum") == 0) {
    fail(train, "attribute 'nesterov' is 1, which needs a 'momentum' above 0");
  }
}

void check_moments(const Node& train) {
  check_share(train, "beta1");
  check_share(train, "beta2");
  check_above_0(train, "epsilon");
}

GroupNumbers::GroupNumbers(const Node& update)
    : decays(floats_attribute(update, "decays")), rate_factors(floats_attribute(update, "rate_factors")) {}

Op update_op(std::string name, std::string doc, OptimizerSpec optimizer, std::vector<AttributeSpec> rule_attributes) {
  using enum OperandSpec::Arity;
  const UpdateOperands place(optimizer);
  Op op{.domain = "arbalest", .name = std::move(name), .doc = std::move(doc)};
  op.inputs = {{.name = "gradients"}, {.name = "weights"}};
  op.outputs = {{.name = "new_weights"}};
  op.aliases = {{int(place.kNewWeights), int(place.kWeights)}};
  for (size_t k = 0; k < optimizer.slots.size(); ++k) {
    op.inputs.push_back({.name = optimizer.slots[k]});
    op.outputs.push_back({.name = "new_" + optimizer.slots[k]});
    op.aliases.emplace_back(int(place.kFirstNewSlot + k), int(place.kFirstSlot + k));
  }
  if (optimizer.per_tensor) op.inputs.push_back({.name = "tensors"});
  for (const char* input : {"average", "averaged", "clip", "groups"}) {
    op.inputs.push_back({.name = input, .arity = Optional});
  }
  op.outputs.push_back({.name = "lowered_weights", .arity = Optional});
  op.outputs.push_back({.name = "restarted", .arity = Optional});
  op.aliases.emplace_back(int(place.restarted()), int(place.average()));
  for (const AttributeSpec& spec : rule_attributes) optimizer.attributes.push_back(spec.name);
  op.attributes = std::move(rule_attributes);
  if (optimizer.matrices) {
    op.attributes.push_back(ints_spec(
        "matrices", {}, "of each parameter, in the order of 'tensors': rows, columns, and 1 if columns are put out"));
  }
  for (AttributeSpec& spec : attributes_of_all_rules()) op.attributes.push_back(std::move(spec));
  op.internal = true;
  op.side_effect = true;
  op.infer = infer_update;
  op.optimizer = std::move(optimizer);
  return op;
}

std::vector<Sample> update_samples(const OptimizerSpec& optimizer,
                                   const std::vector<std::pair<std::string, Attributes>>& rules,
                                   const std::vector<double>& slot_lows) {
  std::vector<Sample> all;
  for (const auto& [name, attributes] : rules) {
    for (Sample& sample : Samples(optimizer, slot_lows, name, attributes).all()) all.push_back(std::move(sample));
  }
  return all;
}

}  // namespace arbalest
