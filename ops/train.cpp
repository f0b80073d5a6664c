// Train: stochastic gradient descent with its schedules; the passes turn it into Sgd on flat arenas.

#include "ops/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

const std::vector<std::string> kSchedules = {"constant", "step", "multistep", "cosine", "linear"};
const std::vector<std::string> kOptimizers = {"sgd"};

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

void infer_train(InferContext& context) {
  const Node& node = context.node();
  const TensorType& loss = floating_input(context, 0);
  expect_input(context, 0, {loss.dtype, {}}, "a scalar");
  check_choice(node, "optimizer", kOptimizers);
  check_choice(node, "schedule", kSchedules);
  for (const char* name : {"lr", "momentum", "weight_decay", "gamma", "warmup", "warmup_from", "epochs", "lr_end"}) {
    check_at_least(node, name, 0);
  }
  if (flag_attribute(node, "nesterov") && float_attribute(node, "momentum") == 0) {
    fail(node, "attribute 'nesterov' is 1, which needs a 'momentum' above 0");
  }
  if (!(float_attribute(node, "step_size") > 0)) {
    fail(node,
         fmt::format("attribute 'step_size' is {}; expected more than 0 epochs", float_attribute(node, "step_size")));
  }
  constexpr int64_t kMost = 1'000'000;
  if (int_attribute_from(node, "accumulate", 1) > kMost) {
    fail(node, fmt::format("attribute 'accumulate' is {}; expected at most {} batches",
                           int_attribute(node, "accumulate"), kMost));
  }
  const std::vector<double> milestones = floats_attribute(node, "milestones");
  if (!std::is_sorted(milestones.begin(), milestones.end())) fail(node, "attribute 'milestones' does not increase");
  context.set_output(0, {DataType::Token, {}});
}

std::vector<AttributeSpec> train_attributes() {
  return {string_spec("optimizer", "sgd", "sgd"),
          required_spec("lr", AttributeKind::Float, "the learning rate that the schedule starts from"),
          float_spec("momentum", 0.0, "share of the last step's direction that stays"),
          int_spec("nesterov", 0, "1: Nesterov's momentum"),
          float_spec("weight_decay", 0.0, "added to the gradient, times the weights"),
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

// v ← mv + (g + λw);  w ← w − γv, or with Nesterov's momentum w − γ(g + λw + mv).
template <typename T>
struct SgdRule {
  T momentum, decay;
  bool nesterov;

  void operator()(T rate, T gradient, T& w, T& v) const {
    const T g = gradient + decay * w;
    v = momentum * v + g;
    w -= rate * (nesterov ? g + momentum * v : v);
  }
};

// (P) each; null where left out.
template <typename T>
struct SgdArrays {
  const T *gradients, *weights, *velocity, *average, *averaged;
  T *new_weights, *new_velocity;
  bfloat16* lowered;
  T* restarted;
};

template <typename T>
void restart(SgdArrays<T> a, int64_t begin, int64_t end) {
  std::copy(a.averaged + begin, a.averaged + end, a.new_weights + begin);
  std::fill(a.new_velocity + begin, a.new_velocity + end, T(0));
  if (a.restarted) std::copy(a.averaged + begin, a.averaged + end, a.restarted + begin);
}

template <typename T>
void step(SgdRule<T> rule, SgdArrays<T> a, T rate, T correction, int64_t begin, int64_t end) {
  const auto plain = [&](int64_t i) {
    T w = a.weights[i], v = a.velocity[i];
    rule(rate, a.gradients[i], w, v);
    a.new_velocity[i] = v;
    return w;
  };
  if (correction == 0) {
    ARBALEST_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) a.new_weights[i] = plain(i);
  } else {
    ARBALEST_INDEPENDENT
    for (int64_t i = begin; i < end; ++i) {
      const T pull = correction * (a.weights[i] - a.average[i]);
      a.new_weights[i] = plain(i) - pull;
    }
  }
}

template <typename T>
std::unique_ptr<Kernel> sgd_kernel(const KernelRequest& request) {
  const int64_t count = request.inputs[0].elements();
  const SgdRule<T> rule{T(float_attribute(request.node, "momentum")), T(float_attribute(request.node, "weight_decay")),
                        int_attribute(request.node, "nesterov") != 0};
  const bool has_average = request.has_input(3), has_averaged = request.has_input(4);
  const bool lower = request.has_output(2), restarts = request.has_output(3);
  return make_kernel([=](const KernelContext& context) {
    const StepScalars& scalars = *context.scalars;
    if (scalars.update == 0) return;
    const SgdArrays<T> a{.gradients = input<T>(context, 0),
                         .weights = input<T>(context, 1),
                         .velocity = input<T>(context, 2),
                         .average = has_average ? input<T>(context, 3) : nullptr,
                         .averaged = has_averaged ? input<T>(context, 4) : nullptr,
                         .new_weights = output<T>(context, 0),
                         .new_velocity = output<T>(context, 1),
                         .lowered = lower ? output<bfloat16>(context, 2) : nullptr,
                         .restarted = restarts ? output<T>(context, 3) : nullptr};
    const T rate = T(scalars.learning_rate), correction = has_average ? T(scalars.correction) : T(0);
    const bool again = scalars.restart != 0 && has_averaged;
    parallel_for(count, 2, [=](int64_t begin, int64_t end) {
      again ? restart(a, begin, end) : step(rule, a, rate, correction, begin, end);
      if (!a.lowered) return;
      for (int64_t i = begin; i < end; ++i) a.lowered[i] = bfloat16(float(a.new_weights[i]));
    });
  });
}

std::unique_ptr<Kernel> sgd_cpu(const KernelRequest& request) {
  return request.inputs[0].dtype == DataType::Float64 ? sgd_kernel<double>(request) : sgd_kernel<float>(request);
}

void infer_sgd(InferContext& context) {
  const TensorType gradients = floating_input(context, 0, {1});
  expect_input(context, 0, {master_type(gradients.dtype), gradients.shape}, "since updates are in full precision");
  for (size_t i = 1; i < 5; ++i) {
    if (context.has_input(i)) expect_input(context, i, gradients, "the type of 'gradients'");
  }
  const std::vector<ValueId>& outputs = context.node().outputs;
  if (outputs.size() > 3 && outputs[3] != kNone && !(context.has_input(3) && context.has_input(4))) {
    context.fail("output 'restarted' needs the inputs 'average' and 'averaged'");
  }
  context.set_output(0, gradients);
  context.set_output(1, gradients);
  context.set_output(2, {DataType::Bfloat16, gradients.shape});
  context.set_output(3, gradients);
}

std::vector<Sample> sgd_samples() {
  const auto sample = [](std::string name, int64_t count, double momentum, int64_t nesterov, double decay,
                         int outputs) {
    return Sample{.name = std::move(name),
                  .inputs = std::vector<Sample::Input>(3, {{DataType::Float32, {count}}}),
                  .output_count = outputs,
                  .attributes = {{"momentum", momentum}, {"nesterov", nesterov}, {"weight_decay", decay}},
                  .tolerance = outputs >= 3 ? 4e-3 : 1e-6,
                  .scalars = {.learning_rate = 0.1f}};
  };
  // With the average before and after the averaging. The inputs from `unread` on, `unread_count` of them, are infinite:
  // the kernel must not read them, as others may be writing there.
  const auto averaging = [&](std::string name, int64_t count, int inputs, int outputs, StepScalars scalars,
                             size_t unread = 0, size_t unread_count = 0) {
    Sample made = sample(std::move(name), count, 0.9, 1, 1e-4, outputs);
    made.inputs.resize(size_t(inputs), made.inputs[0]);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < unread_count; ++i) made.inputs[unread + i].low = made.inputs[unread + i].high = kInfinity;
    scalars.learning_rate = 0.1f;
    made.scalars = scalars;
    return made;
  };
  std::vector<Sample> samples = {sample("plain", 7, 0, 0, 0, 2),
                                 sample("momentum", 1000, 0.9, 0, 1e-4, 2),
                                 sample("nesterov", 100003, 0.9, 1, 5e-4, 2),
                                 sample("with bfloat16 weights", 1001, 0.9, 0, 1e-4, 3),
                                 averaging("towards an average", 1003, 4, 2, {.correction = 0.25f}),
                                 averaging("towards an average, bfloat16", 4096, 5, 3, {.correction = 0.5f}),
                                 averaging("no correction now", 1001, 5, 2, {}, 3, 2),
                                 averaging("restart", 1003, 5, 3, {.correction = 0.5f, .restart = 1}, 0, 4),
                                 averaging("restart, average too", 1024, 5, 4, {.restart = 1}, 0, 4)};
  // What stays as it was is defined in place only.
  samples.push_back(averaging("no restart now", 1001, 5, 4, {.correction = 0.25f}));
  samples.back().in_place = true;
  samples.push_back(averaging("no update", 1001, 5, 2, {.restart = 1, .update = 0}, 0, 1));
  samples.back().in_place = true;
  return samples;
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

void register_train(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Train",
                .doc = "trains every parameter that the loss depends on",
                .inputs = {{.name = "loss"}},
                .outputs = {{.name = "trained"}},
                .attributes = train_attributes(),
                .side_effect = true,
                .infer = infer_train});
  registry.add({.domain = "arbalest",
                .name = "Sgd",
                .doc = "one step of gradient descent on flat arrays, with the step's learning rate",
                .inputs = {{.name = "gradients"},
                           {.name = "weights"},
                           {.name = "velocity"},
                           {.name = "average", .arity = OperandSpec::Optional},
                           {.name = "averaged", .arity = OperandSpec::Optional}},
                .outputs = {{.name = "new_weights"},
                            {.name = "new_velocity"},
                            {.name = "lowered_weights", .arity = OperandSpec::Optional},
                            {.name = "restarted", .arity = OperandSpec::Optional}},
                .attributes = {float_spec("momentum", 0.0, "as in Train"), int_spec("nesterov", 0, "as in Train"),
                               float_spec("weight_decay", 0.0, "as in Train")},
                .internal = true,
                .side_effect = true,
                .infer = infer_sgd,
                .cost = elementwise_cost(6),
                .samples = sgd_samples,
                .aliases = {{0, 1}, {1, 2}, {3, 3}},
                .cpu = sgd_cpu});
}

}  // namespace arbalest
