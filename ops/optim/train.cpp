// Train: an optimiser and the schedule of its rate; the passes turn it into an update rule on flat arenas.

#include "ops/optim/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/definition.h"

namespace arbalest {
namespace {

const std::vector<std::string> kSchedules = {"constant", "step", "multistep", "cosine", "linear"};

void check_choice(const Node& node, std::string_view attribute, const std::vector<std::string>& choices) {
  const std::string value = string_attribute(node, attribute);
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  std::string list;
  for (const std::string& choice : choices) list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", choice);
  fail(node,
       fmt::format("attribute '{}' is \"{}\"; expected {}{}", attribute, value, list, did_you_mean(value, choices)));
}

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

std::vector<const Op*> optimizers() {
  std::vector<const Op*> all;
  for (const Op& op : builtin_ops().all()) {
    if (op.optimizer) all.push_back(&op);
  }
  return all;
}

// Whether the node gives the attribute another value than the default.
bool is_given(const Node& node, const AttributeSpec& spec) {
  const Attribute* value = node.attributes.find(spec.name);
  return value && spec.fallback && convert(*value, spec.kind) != spec.fallback;
}

// What only other optimisers read has no effect.
void check_rule(const Node& node) {
  std::vector<std::string> names;
  for (const Op* op : optimizers()) names.push_back(op->optimizer->name);
  check_choice(node, "optimizer", names);
  const std::string chosen = string_attribute(node, "optimizer");
  const Op& rule = *builtin_ops().find_optimizer(chosen);
  for (const Op* other : optimizers()) {
    for (const AttributeSpec& spec : other->attributes) {
      const AttributeSpec* ours = node.op->attribute_spec(spec.name);
      if (!ours || rule.attribute_spec(spec.name) || !is_given(node, *ours)) continue;
      fail(node, fmt::format("attribute '{}' belongs to optimizer \"{}\"; \"{}\" has none", spec.name,
                             other->optimizer->name, chosen));
    }
  }
  check_below(node, "momentum", 1);
  if (flag_attribute(node, "nesterov") && float_attribute(node, "momentum") == 0) {
    fail(node, "attribute 'nesterov' is 1, which needs a 'momentum' above 0");
  }
  check_below(node, "beta1", 1);
  check_below(node, "beta2", 1);
  if (!(float_attribute(node, "epsilon") > 0)) {
    fail(node, fmt::format("attribute 'epsilon' is {}; expected more than 0", float_attribute(node, "epsilon")));
  }
}

void check_groups(const Node& node) {
  flag_attribute(node, "decay_norms");
  const size_t patterns = strings_attribute(node, "rate_patterns").size();
  const std::vector<double> factors = floats_attribute(node, "rate_factors");
  if (factors.size() != patterns) {
    fail(node, fmt::format("attribute 'rate_factors' has {} numbers; expected one for each of {} 'rate_patterns'",
                           factors.size(), patterns));
  }
  for (const double factor : factors) {
    if (factor > 0 && std::isfinite(factor)) continue;
    fail(node, fmt::format("attribute 'rate_factors' holds {}; expected more than 0 ('frozen' takes the names of "
                           "parameters that stay as they are)",
                           factor));
  }
}

void check_schedule(const Node& node) {
  check_choice(node, "schedule", kSchedules);
  check_at_most(node, "gamma", 1);
  check_at_most(node, "warmup_from", 1);
  if (!(float_attribute(node, "step_size") > 0)) {
    fail(node,
         fmt::format("attribute 'step_size' is {}; expected more than 0 epochs", float_attribute(node, "step_size")));
  }
  const std::vector<double> milestones = floats_attribute(node, "milestones");
  if (!std::is_sorted(milestones.begin(), milestones.end())) fail(node, "attribute 'milestones' does not increase");
  const std::string schedule = string_attribute(node, "schedule");
  if (!milestones.empty() && schedule != "multistep") {
    fail(node,
         fmt::format("attribute 'milestones' has no effect with schedule \"{}\"; expected \"multistep\"", schedule));
  }
  if (milestones.empty() && schedule == "multistep") {
    fail(node, "schedule \"multistep\" needs 'milestones', the epochs at which the rate is multiplied by gamma");
  }
}

void infer_train(InferContext& context) {
  const Node& node = context.node();
  const TensorType& loss = floating_input(context, 0);
  expect_input(context, 0, {loss.dtype, {}}, "a scalar");
  for (const char* name : {"lr", "momentum", "beta1", "beta2", "epsilon", "weight_decay", "gamma", "warmup",
                           "warmup_from", "epochs", "lr_end", "clip_norm"}) {
    check_at_least(node, name, 0);
  }
  check_rule(node);
  check_groups(node);
  check_schedule(node);
  constexpr int64_t kMost = 1'000'000;
  if (int_attribute_from(node, "accumulate", 1) > kMost) {
    fail(node, fmt::format("attribute 'accumulate' is {}; expected at most {} batches",
                           int_attribute(node, "accumulate"), kMost));
  }
  context.set_output(0, {DataType::Token, {}});
}

std::vector<AttributeSpec> train_attributes() {
  return {
      string_spec("optimizer", "sgd", "sgd or adamw"),
      required_spec("lr", AttributeKind::Float, "the learning rate that the schedule starts from"),
      float_spec("momentum", 0.0, "sgd: share of the last step's direction that stays, below 1"),
      int_spec("nesterov", 0, "sgd: 1: Nesterov's momentum"),
      float_spec("beta1", 0.9, "adamw: share of the mean of gradients that stays, below 1"),
      float_spec("beta2", 0.999, "adamw: share of the mean of squared gradients that stays, below 1"),
      float_spec("epsilon", 1e-8, "adamw: added to the root of the mean of squared gradients"),
      float_spec("weight_decay", 0.0,
                 "times the weights: sgd adds it to the gradient, adamw takes it, times the rate, from the weights"),
      int_spec("decay_norms", 1, "0: no weight decay of parameters of one dimension: biases, and scales of norms"),
      strings_spec("no_decay", {}, "names of parameters without weight decay; * stands for any characters"),
      strings_spec("frozen", {},
                   "names of parameters and statistics that stay as they are; * stands for any characters. A batch "
                   "norm without anything to train runs by its running statistics"),
      strings_spec("rate_patterns", {}, "names of parameters with a rate of their own; the first that fits counts"),
      floats_spec("rate_factors", {}, "for each of rate_patterns: times the rate"),
      float_spec("clip_norm", 0.0,
                 "gradients whose norm over all parameters is greater are scaled down to it; 0: none are"),
      string_spec("schedule", "constant", "constant, step, multistep, cosine or linear"),
      floats_spec("milestones", {}, "multistep: the epochs at which the rate is multiplied by gamma"),
      float_spec("step_size", 30.0, "step: epochs between multiplications by gamma"),
      float_spec("gamma", 0.1, "step and multistep: the factor"),
      float_spec("warmup", 0.0, "epochs of linear growth from warmup_from * lr to lr"),
      float_spec("warmup_from", 0.0, "the fraction of lr at the start of the warm-up"),
      float_spec("epochs", 0.0, "cosine and linear: when lr_end is reached; 0: at the end of the run"),
      float_spec("lr_end", 0.0, "cosine and linear: the last rate"),
      int_spec("accumulate", 1, "batches whose mean gradient makes one update")};
}

}  // namespace

LearningRate::LearningRate(const Node& train)
    : rate_(float_attribute(train, "lr")),
      end_(float_attribute(train, "lr_end")),
      gamma_(float_attribute(train, "gamma")),
      step_size_(float_attribute(train, "step_size")),
      warmup_(float_attribute(train, "warmup")),
      warmup_from_(float_attribute(train, "warmup_from")),
      epochs_(float_attribute(train, "epochs")),
      milestones_(floats_attribute(train, "milestones")) {
  const std::string name = string_attribute(train, "schedule");
  if (name == "step") schedule_ = Schedule::Step;
  if (name == "multistep") schedule_ = Schedule::Multistep;
  if (name == "cosine") schedule_ = Schedule::Cosine;
  if (name == "linear") schedule_ = Schedule::Linear;
}

double LearningRate::rate(double epochs_seen, double total_epochs) const {
  if (epochs_seen < warmup_) return rate_ * (warmup_from_ + (1 - warmup_from_) * epochs_seen / warmup_);
  // The fraction of the schedule's length that has passed after the warm-up, 0 to 1.
  const double length = (epochs_ > 0 ? epochs_ : total_epochs) - warmup_;
  const double passed = length > 0 ? std::clamp((epochs_seen - warmup_) / length, 0.0, 1.0) : 1.0;
  switch (schedule_) {
    case Schedule::Constant: break;
    case Schedule::Step: return rate_ * std::pow(gamma_, std::floor(epochs_seen / step_size_));
    case Schedule::Multistep: {
      double value = rate_;
      for (const double milestone : milestones_) value *= milestone <= epochs_seen ? gamma_ : 1;
      return value;
    }
    case Schedule::Cosine: return end_ + (rate_ - end_) * (1 + std::cos(std::numbers::pi * passed)) / 2;
    case Schedule::Linear: return rate_ + (end_ - rate_) * passed;
  }
  return rate_;
}

int64_t LearningRate::drops(double epochs_seen) const {
  if (epochs_seen < warmup_) return 0;
  if (schedule_ == Schedule::Step) return int64_t(std::floor(epochs_seen / step_size_));
  if (schedule_ != Schedule::Multistep) return 0;
  return std::count_if(milestones_.begin(), milestones_.end(), [&](double at) { return at <= epochs_seen; });
}

void register_optim_train(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Train",
                .doc = "trains every parameter that the loss depends on",
                .inputs = {{.name = "loss"}},
                .outputs = {{.name = "trained"}},
                .attributes = train_attributes(),
                .side_effect = true,
                .infer = infer_train});
}

}  // namespace arbalest
