// SPDX-License-Identifier: Apache-2.0

// Train: an optimiser and the schedule of its rate; the passes turn it into an update rule on flat arenas.

#include "ops/optim/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/checked.h"
#include "base/setting.h"
#include "ops/definition.h"
#include "ops/optim/update.h"

namespace arbalest {
namespace {

const std::vector<std::string> kSchedules = {"constant", "step",       "multistep",   "cosine",
                                             "linear",   "polynomial", "exponential", "onecycle"};

void check_choice(const Node& node, std::string_view attribute, const std::vector<std::string>& choices) {
  const std::string value = string_attribute(node, attribute);
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  std::string list;
  for (const std::string& choice : choices) list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", choice);
  fail(node,
       fmt::format("attribute '{}' is \"{}\"; expected {}{}", attribute, value, list, did_you_mean(value, choices)));
}

// In the order in which they were registered.
std::vector<const Op*> optimizers(const std::vector<std::reference_wrapper<const Op>>& ops) {
  std::vector<const Op*> all;
  for (const Op& op : ops) {
    if (op.optimizer) all.push_back(&op);
  }
  return all;
}

// Names of the optimisers that have the attribute as their own.
std::vector<std::string> readers_of(const std::string& attribute, const std::vector<const Op*>& optimizers) {
  std::vector<std::string> readers;
  for (const Op* op : optimizers) {
    const std::vector<std::string>& own = op->optimizer->attributes;
    if (std::find(own.begin(), own.end(), attribute) != own.end()) readers.push_back(op->optimizer->name);
  }
  return readers;
}

// "adamw, lamb or lars".
std::string in_words(const std::vector<std::string>& names, const char* last) {
  std::string words;
  for (size_t i = 0; i < names.size(); ++i) {
    words += i == 0 ? "" : i + 1 < names.size() ? ", " : last;
    words += names[i];
  }
  return words;
}

// Checks the optimizer's attributes. One that only other optimizers read fails, because it would have no effect.
void check_rule(const Node& node, const OpRegistry& registry) {
  std::vector<std::string> names;
  const std::vector<const Op*> rules = optimizers(registry.all());
  for (const Op* op : rules) names.push_back(op->optimizer->name);
  check_choice(node, "optimizer", names);
  const std::string chosen = string_attribute(node, "optimizer");
  const Op& rule = *registry.find_optimizer(chosen);
  for (const AttributeSpec& spec : node.op->attributes) {
    refuse_unread(node, spec, "optimizer", chosen, readers_of(spec.name, rules));
  }
  if (rule.optimizer->check) rule.optimizer->check(node);
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

// An attribute that only some schedules read has no effect with the others.
struct ScheduleAttribute {
  const char* name;
  std::vector<std::string_view> schedules;
};
const std::vector<ScheduleAttribute> kScheduleAttributes = {
    {"milestones", {"multistep"}},
    {"step_size", {"step"}},
    {"gamma", {"step", "multistep", "exponential"}},
    {"lr_end", {"cosine", "linear", "polynomial"}},
    {"power", {"polynomial"}},
    {"rise", {"onecycle"}},
    {"start_divisor", {"onecycle"}},
    {"end_divisor", {"onecycle"}},
    {"anneal", {"onecycle"}},
};

void check_schedule_attributes(const Node& node) {
  const std::string schedule = string_attribute(node, "schedule");
  for (const ScheduleAttribute& attribute : kScheduleAttributes) {
    const auto& all = attribute.schedules;
    if (std::find(all.begin(), all.end(), schedule) != all.end()) continue;
    const AttributeSpec& spec = *node.op->attribute_spec(attribute.name);
    if (!is_given(node, spec)) continue;
    fail(node, fmt::format("attribute '{}' has no effect with schedule \"{}\"; expected \"{}\", or {} to take it out",
                           attribute.name, schedule, fmt::join(all, "\" or \""), to_string(*spec.fallback)));
  }
}

// It rises and falls by itself, to a fraction of where it began.
void check_onecycle(const Node& node) {
  for (const char* other : {"warmup", "warmup_from"}) {
    if (float_attribute(node, other) == 0) continue;
    fail(node, fmt::format("attribute '{}' is {}; schedule \"onecycle\" starts from lr / start_divisor", other,
                           float_attribute(node, other)));
  }
}

void check_schedule(const Node& node) {
  check_choice(node, "schedule", kSchedules);
  check_at_most(node, "gamma", 1);
  check_at_most(node, "warmup_from", 1);
  check_above_0(node, "power");
  check_at_least(node, "start_divisor", 1);
  check_at_least(node, "end_divisor", 1);
  check_at_least(node, "rise", 0);
  check_at_most(node, "rise", 1);
  check_choice(node, "anneal", {"cosine", "linear"});
  if (!(float_attribute(node, "step_size") > 0)) {
    fail(node,
         fmt::format("attribute 'step_size' is {}; expected more than 0 epochs", float_attribute(node, "step_size")));
  }
  const std::vector<double> milestones = floats_attribute(node, "milestones");
  if (!std::is_sorted(milestones.begin(), milestones.end())) fail(node, "attribute 'milestones' does not increase");
  if (!milestones.empty() && !(milestones.front() > 0)) {
    fail(node, fmt::format("attribute 'milestones' begins with {}; expected more than 0 epochs", milestones.front()));
  }
  const std::string schedule = string_attribute(node, "schedule");
  check_schedule_attributes(node);
  if (milestones.empty() && schedule == "multistep") {
    fail(node, "schedule \"multistep\" needs 'milestones', the epochs at which the rate is multiplied by gamma");
  }
  if (schedule == "exponential") check_above_0(node, "gamma");
  if (schedule == "onecycle") check_onecycle(node);
}

void infer_train(InferContext& context) {
  const Node& node = context.node();
  const TensorType& loss = floating_input(context, 0);
  expect_input(context, 0, {loss.dtype, {}}, "a scalar");
  for (const char* name :
       {"lr", "weight_decay", "gamma", "warmup", "warmup_from", "epochs", "lr_end", "clip_norm", "ema"}) {
    check_at_least(node, name, 0);
  }
  check_below(node, "ema", 1);
  check_rule(node, *context.graph().registry);
  check_groups(node);
  check_schedule(node);
  constexpr int64_t kMost = 1'000'000;
  if (int_attribute_from(node, "accumulate", 1) > kMost) {
    fail(node, fmt::format("attribute 'accumulate' is {}; expected at most {} batches",
                           int_attribute(node, "accumulate"), kMost));
  }
  context.set_output(0, {DataType::Token, {}});
}

// Those of Train that are of no optimiser.
std::vector<AttributeSpec> common_attributes(const std::vector<std::string>& optimizers) {
  return {
      string_spec("optimizer", "sgd", in_words(optimizers, " or ")),
      required_spec("lr", AttributeKind::Float, "the learning rate that the schedule starts from"),
      float_spec("weight_decay", 0.0,
                 "times the weights: added to the gradient, but by adamw, lamb and muon to the direction"),
      int_spec("decay_norms", 1, "0: no weight decay of parameters of one dimension: biases, and scales of norms"),
      strings_spec("no_decay", {}, "names of parameters without weight decay; * stands for any characters"),
      strings_spec("frozen", {},
                   "names of parameters and statistics that stay as they are; * stands for any characters. A batch "
                   "norm without anything to train runs by its running statistics"),
      strings_spec("rate_patterns", {}, "names of parameters with a rate of their own; the first that fits counts"),
      floats_spec("rate_factors", {}, "for each of rate_patterns: times the rate"),
      float_spec("clip_norm", 0.0,
                 "gradients whose norm over all parameters is greater are scaled down to it; 0: none are"),
      string_spec("schedule", "constant",
                  "constant, step, multistep, cosine, linear, polynomial, exponential or onecycle"),
      floats_spec("milestones", {}, "multistep: the epochs at which the rate is multiplied by gamma"),
      float_spec("step_size", 30.0, "step: epochs between multiplications by gamma"),
      float_spec("gamma", 0.1, "step and multistep: the factor; exponential: that of each epoch"),
      float_spec("power", 1.0, "polynomial: of what is left of the schedule's length"),
      float_spec("rise", 0.3, "onecycle: the part of its length in which the rate rises to lr"),
      float_spec("start_divisor", 25.0, "onecycle: lr over it is the first rate"),
      float_spec("end_divisor", 1e4, "onecycle: the first rate over it is the last"),
      string_spec("anneal", "cosine", "onecycle: how it rises and falls, cosine or linear"),
      float_spec("warmup", 0.0, "epochs of linear growth from warmup_from * lr to lr"),
      float_spec("warmup_from", 0.0,
                 "the fraction of lr that the warm-up starts from; 0: the first update changes nothing"),
      float_spec("epochs", 0.0,
                 fmt::format("the run's length, a whole number, unless {} or {} says otherwise; 0: one epoch. Also "
                             "where cosine, linear, polynomial and onecycle reach their last rate; 0: at the run's end",
                             name_of(SettingKey::Epochs), name_of(SettingKey::Iterations))),
      float_spec("lr_end", 0.0, "cosine, linear and polynomial: the last rate"),
      int_spec("accumulate", 1, "batches whose mean gradient makes one update"),
      float_spec("ema", 0.0,
                 "what is validated and saved is an exponential moving average of the weights, of which so much stays "
                 "with every update, below 1; 0: the weights themselves")};
}

// Adds the attributes of an optimiser that are its own and not there yet. `place`: of the next one.
void add_own_attributes(const Op& rule, const std::vector<const Op*>& rules, std::vector<AttributeSpec>& attributes,
                        size_t& place) {
  for (const std::string& name : rule.optimizer->attributes) {
    const AttributeSpec* own = rule.attribute_spec(name);
    if (!own || !own->fallback) {
      throw GraphError(
          fmt::format("optimizer '{}': its operator has no attribute '{}' with a default", rule.optimizer->name, name));
    }
    const auto known =
        std::find_if(attributes.begin(), attributes.end(), [&](const auto& a) { return a.name == name; });
    if (known == attributes.end()) {
      const std::string doc = in_words(readers_of(name, rules), " and ") + ": " + own->doc;
      attributes.insert(attributes.begin() + int64_t(place++), {name, own->kind, own->fallback, doc, own->choices});
    } else if (known->kind != own->kind || known->fallback != own->fallback || readers_of(name, rules).size() == 1) {
      throw GraphError(
          fmt::format("optimizer '{}': arbalest.Train has another attribute '{}'", rule.optimizer->name, name));
    }
  }
}

}  // namespace

std::vector<AttributeSpec> train_attributes(const std::vector<std::reference_wrapper<const Op>>& ops) {
  const std::vector<const Op*> rules = optimizers(ops);
  std::vector<std::string> names;
  for (const Op* rule : rules) names.push_back(rule->optimizer->name);
  std::vector<AttributeSpec> attributes = common_attributes(names);
  size_t place = 2;  // after the optimiser and the rate
  for (const Op* rule : rules) {
    if (std::count(names.begin(), names.end(), rule->optimizer->name) > 1) {
      throw GraphError(fmt::format("optimizer '{}' is registered already", rule->optimizer->name));
    }
    add_own_attributes(*rule, rules, attributes, place);
  }
  return attributes;
}

LearningRate::LearningRate(const Node& train)
    : rate_(float_attribute(train, "lr")),
      end_(float_attribute(train, "lr_end")),
      gamma_(float_attribute(train, "gamma")),
      step_size_(float_attribute(train, "step_size")),
      power_(float_attribute(train, "power")),
      rise_(float_attribute(train, "rise")),
      start_divisor_(float_attribute(train, "start_divisor")),
      end_divisor_(float_attribute(train, "end_divisor")),
      anneals_linearly_(string_attribute(train, "anneal") == "linear"),
      warmup_(float_attribute(train, "warmup")),
      warmup_from_(float_attribute(train, "warmup_from")),
      epochs_(float_attribute(train, "epochs")),
      milestones_(floats_attribute(train, "milestones")) {
  const std::string name = string_attribute(train, "schedule");
  if (name == "step") schedule_ = Schedule::Step;
  if (name == "multistep") schedule_ = Schedule::Multistep;
  if (name == "cosine") schedule_ = Schedule::Cosine;
  if (name == "linear") schedule_ = Schedule::Linear;
  if (name == "polynomial") schedule_ = Schedule::Polynomial;
  if (name == "exponential") schedule_ = Schedule::Exponential;
  if (name == "onecycle") schedule_ = Schedule::OneCycle;
}

double LearningRate::rate(double epochs_seen, double total_epochs) const {
  if (epochs_seen < warmup_) return rate_ * (warmup_from_ + (1 - warmup_from_) * epochs_seen / warmup_);
  // The fraction of the schedule's length that has passed after the warm-up, 0 to 1.
  const double length = (epochs_ > 0 ? epochs_ : total_epochs) - warmup_;
  const double passed = length > 0 ? std::clamp((epochs_seen - warmup_) / length, 0.0, 1.0) : 1.0;
  switch (schedule_) {
    case Schedule::Constant: break;
    case Schedule::Step: return rate_ * std::pow(gamma_, double(whole_part(epochs_seen / step_size_)));
    case Schedule::Multistep: {
      double value = rate_;
      for (const double milestone : milestones_) value *= milestone <= epochs_seen ? gamma_ : 1;
      return value;
    }
    case Schedule::Cosine: return end_ + (rate_ - end_) * (1 + std::cos(std::numbers::pi * passed)) / 2;
    case Schedule::Linear: return rate_ + (end_ - rate_) * passed;
    case Schedule::Polynomial: return end_ + (rate_ - end_) * std::pow(1 - passed, power_);
    case Schedule::Exponential: return rate_ * std::pow(gamma_, epochs_seen - warmup_);
    case Schedule::OneCycle: return one_cycle(passed);
  }
  return rate_;
}

double LearningRate::one_cycle(double passed) const {
  const double start = rate_ / start_divisor_, end = start / end_divisor_;
  const auto anneal = [&](double from, double to, double part) {
    return anneals_linearly_ ? from + (to - from) * part
                             : to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
  };
  if (passed < rise_) return anneal(start, rate_, passed / rise_);
  return anneal(rate_, end, rise_ < 1 ? (passed - rise_) / (1 - rise_) : 0.0);
}

int64_t LearningRate::drops(double epochs_seen) const {
  if (!drops_in_steps() || epochs_seen < warmup_) return 0;
  if (schedule_ == Schedule::Step) return whole_part(epochs_seen / step_size_);
  return std::count_if(milestones_.begin(), milestones_.end(), [&](double at) { return at <= epochs_seen; });
}

// Its attributes follow once all optimisers are known: see ops/index.cpp.in.
void register_optim_train(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Train",
                .doc = "trains every parameter that the loss depends on",
                .inputs = {{.name = "loss"}},
                .outputs = {{.name = "trained"}},
                .side_effect = true,
                .infer = infer_train});
}

}  // namespace arbalest
