// SPDX-License-Identifier: Apache-2.0
#include "executor/session/session.h"

#include <fmt/format.h>
#include <limits>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/setting.h"
#include "executor/devices/device.h"
#include "executor/run/binding.h"
#include "executor/session/option_ranges.h"
#include "executor/session/reading.h"
#include "executor/session/shared_resources.h"
#include "graph/measures.h"
#include "graph/op.h"
#include "io/open/open_source.h"
#include "io/sources/data_order.h"
#include "io/sources/passed_over.h"
#include "ops/check/lints.h"
#include "ops/data/mixing.h"
#include "ops/loss/operands.h"
#include "ops/names.h"
#include "ops/optim/train.h"
#include "passes/samples_apart.h"

namespace arbalest {
namespace {

// Opens a split: the source that the program passed or, without one, the split of Prefetch's source that `node` names.
std::shared_ptr<const Source> open_split(const std::shared_ptr<const Source>& given, const Node& prefetch,
                                         const Node& node, const SessionOptions& options) {
  const std::string text = string_attribute(prefetch, "source"), split = string_attribute(node, "split");
  const uint64_t seed = options.numerics.seed;
  const auto open = [&] {
    const TimedLook slow =
        warn_if_slow(fmt::format("opening '{}', split '{}',", text, split), options.execution.read_timeout);
    std::shared_ptr<const Source> source = given;
    if (!source) source = open_source(text, split, seed);
    check_source(*source);
    warn_of_passed_over(fmt::format("{} {}", text, split), source->passed_over());
    if (options.execution.skip_bad == 0) source->check_files();
    return source;
  };
  if (!options.shared || given) return open();
  const bool seeded = follows_seed(text);
  return options.shared->source(fmt::format("{}\n{}\n{}", text, split, seeded ? std::to_string(seed) : ""), open);
}

// Errors of a source are those of the node that names it.
template <typename Open>
void open_for(const Node& prefetch, const Open& open) {
  try {
    open();
  } catch (const GraphError& error) {
    fail(prefetch, error.what());
  } catch (const RunError& error) {
    throw RunError(fmt::format("node '{}' (arbalest.Prefetch): {}", prefetch.name, error.what()));
  }
}

// Opens what Prefetch and Validate name, and tells Prefetch the fields of a sample.
void open_sources(Prepared& prepared, const SessionOptions& options) {
  Node* prefetch = prepared.graph.find_op(op::Prefetch);
  if (!prefetch) return;  // make_program says so
  open_for(*prefetch, [&] {
    prepared.training = open_split(options.sources.training, *prefetch, *prefetch, options);
    if (const Node* validate = prepared.graph.find_op(op::Validate)) {
      prepared.validation = open_split(options.sources.validation, *prefetch, *validate, options);
    }
  });
  const std::vector<Field> fields = prepared.training->fields();
  if (prepared.validation && prepared.validation->fields() != fields) {
    fail(*prefetch, fmt::format("the training split has the fields {}; the validation split {}", to_string(fields),
                                to_string(prepared.validation->fields())));
  }
  set_fields(*prefetch, fields);
}

// The field that a value of the graph is, unchanged; nullptr if it is none.
const Field* field_of(const Graph& graph, const std::vector<Field>& fields, ValueId value) {
  const NodeId producer = graph.values[value].producer;
  if (producer == kNone || !graph.nodes[producer].is(op::Prefetch)) return nullptr;
  const Node& prefetch = graph.nodes[producer];
  const auto output = std::find(prefetch.outputs.begin(), prefetch.outputs.end(), value) - prefetch.outputs.begin();
  return &fields[size_t(fields_of_outputs(graph, prefetch, fields)[size_t(output)])];
}

// A label beyond the logits would make the loss NaN; logits that no label asks for are probably not meant.
void check_classes(Prepared& prepared) {
  const std::shared_ptr<const Source>& source = prepared.training ? prepared.training : prepared.validation;
  if (!source) return;
  const std::vector<Field> fields = source->fields();
  for (const Node& node : prepared.graph.nodes) {
    const bool mixes = node.is(op::MixImages);
    if (!mixes && !is_loss_of_classes(*node.op)) continue;
    const ValueId rows = mixes ? node.outputs.at(MixImagesOutput::Rows) : node.inputs[LossInput::X];
    const int64_t numbers = prepared.graph.values[rows].type.shape.back();
    const Field* label = field_of(prepared.graph, fields,
                                  node.inputs[mixes ? size_t{MixImagesInput::Label} : size_t{LossInput::Target}]);
    if (label && numbers < label->classes) {
      fail(node, fmt::format("{} {} for {} classes of field '{}' of '{}'", numbers, mixes ? "numbers" : "logits",
                             label->classes, label->name, source->describe()));
    }
    if (label && label->classes > 0 && numbers > label->classes && prepared.training) {
      prepared.notes.push_back(fmt::format("node '{}': {} {} for {} classes of '{}': those from {} on never occur",
                                           node.name, numbers, mixes ? "numbers" : "logits", label->classes,
                                           string_attribute(*prepared.graph.find_op(op::Prefetch), "source"),
                                           label->classes));
    }
  }
}

// Samples of a batch, in training and, if the graph is validated, in validation.
std::vector<int64_t> batches_of(const Graph& graph) {
  std::vector<int64_t> batches;
  if (const Node* prefetch = graph.find_op(op::Prefetch)) batches.push_back(int_attribute(*prefetch, "batch"));
  const Node* validate = graph.find_op(op::Validate);
  if (validate && int_attribute(*validate, "batch") > 0) batches.push_back(int_attribute(*validate, "batch"));
  return batches;
}

const Node* require_op(const Graph& graph, std::string_view op) {
  const Node* found = graph.find_op(op);
  if (!found) throw GraphError(fmt::format("graph '{}' has no {} node; training needs one", graph.name, op));
  return found;
}

std::vector<PlanDevice> devices_of(const SessionOptions& options) {
  return options.learners.devices.empty() ? default_devices() : options.learners.devices;
}

// The GPU that passes and limits are for.
DeviceModel gpu_of(const SessionOptions& options) {
  if (options.execution.gpu) return *options.execution.gpu;
  const PlanDevice first = devices_of(options).front();
  const DeviceModel here = first.kind == PlanDevice::Kind::Cuda ? cuda_device_model(first.index) : DeviceModel();
  return here.name.empty() ? device_model(kUsualDevice) : here;
}

// How kernels compute, as passes have to know it, and which passes there are.
ProgramOptions passes_for(const SessionOptions& options) {
  const std::vector<PlanDevice> devices = devices_of(options);
  ProgramOptions passes;
  passes.bf16 = options.numerics.precision == Precision::Bf16;
  passes.generated_kernels = std::all_of(
      devices.begin(), devices.end(), [](const PlanDevice& device) { return device.kind == PlanDevice::Kind::Cuda; });
  passes.fused_kernels = passes.bf16 && passes.generated_kernels;
  // The same bits each time include those of other numbers of learners.
  const int64_t at_once = options.shared ? options.shared->at_once() : 1;
  const int64_t learners = options.learners.per_device * at_once;  // 0: found while training
  passes.aside = options.numerics.deterministic || (learners > 0 && has_few_learners(learners));
  passes.device = gpu_of(options);
  passes.without = options.numerics.without;
  passes.check = options.execution.check_passes;
  return passes;
}

// Number of operations that take as long as moving one byte on the devices at hand.
double operations_per_byte(const SessionOptions& options) {
  if (devices_of(options).front().kind == PlanDevice::Kind::Cpu) return 10;
  const DeviceModel gpu = gpu_of(options);
  switch (options.numerics.precision) {
    case Precision::Fp32: return gpu.fp32_per_second / gpu.bytes_per_second;
    case Precision::Tf32: return gpu.tf32_per_second / gpu.bytes_per_second;
    case Precision::Bf16: return gpu.bf16_per_second / gpu.bytes_per_second;
  }
  return 0;
}

// The passes for the request's devices and strategy.
void make_program_for(Prepared& prepared, const SessionOptions& options,
                      const std::function<void(std::string_view, const Graph&)>& after) {
  const PlanRequest& request = prepared.request;
  ProgramOptions passes = passes_for(options);
  passes.learners = options.numerics.deterministic ? 1 : request.learners * request.at_once;
  passes.skips = options.divergence.then == OnDivergence::Skip;
  const StrategySpec& strategy = strategy_spec(request.strategy.name);
  passes.sums = strategy.sums_gradients;
  passes.averaging = strategy.corrects;
  passes.alone = strategy.alone;
  const LearningRate rate(*require_op(prepared.graph, op::Train));
  passes.restarts = strategy.restarts && (options.rules.plateau > 0 || rate.drops_in_steps());
  passes.validators = validator_count(request);
  passes.validation_samples = prepared.validation ? prepared.validation->size() : 0;
  passes.after = after;
  prepared.program = make_program(prepared.graph, passes);
}

void fit_to_limit(Prepared& prepared, int64_t workspace, const SessionOptions& options) {
  prepared.recomputation = {};
  if (options.execution.memory_limit == 0) return;
  prepared.recomputation = fit_memory(
      prepared.program, prepared.request,
      {options.execution.memory_limit, workspace, operations_per_byte(options), options.execution.check_passes});
}

// Each learner's share of --batch-total.
void divide_batch(Graph& graph, const SessionOptions& options) {
  if (options.learners.per_device == 0)
    throw GraphError(fmt::format("{} needs a number of learners, and {} is auto", name_of(SettingKey::BatchTotal),
                                 name_of(SettingKey::Learners)));
  const int64_t learners = int64_t(devices_of(options).size()) * options.learners.per_device;
  if (options.learners.batch_total % learners != 0) {
    throw GraphError(fmt::format("{}: expected a multiple of the {} learners",
                                 set_to(SettingKey::BatchTotal, std::to_string(options.learners.batch_total)),
                                 learners));
  }
  if (Node* prefetch = graph.find_op(op::Prefetch)) {
    prefetch->attributes.set("batch", options.learners.batch_total / learners);
  }
}

int64_t epochs_of(const SessionOptions& options, const Node& train) {
  if (options.length.epochs) return *options.length.epochs;
  const double written = float_attribute(train, "epochs");
  if (written > 1e9) fail(train, fmt::format("attribute 'epochs' is {}, expected at most 1e9", written));
  if (written != std::floor(written) && !options.length.iterations)
    fail(train, fmt::format("attribute 'epochs' is {}, expected a whole number", written));
  return written > 0 ? int64_t(std::ceil(written)) : 1;
}

// Adds a note if a schedule that lowers the learning rate raises it.
void note_rate(Prepared& prepared) {
  const Node& train = *require_op(prepared.graph, op::Train);
  const double first = float_attribute(train, "lr"), last = float_attribute(train, "lr_end");
  if (last <= first) return;
  prepared.notes.push_back(
      fmt::format("node '{}' ({}): the learning rate rises from lr = {:g} to lr_end = {:g} in the course of the run",
                  train.name, train.op->qualified_name(), first, last));
}

// About how long host nodes take for a sample, in µs of a thread.
double preparation_time(const Graph& graph) {
  constexpr double kOfPhoto = 1000;
  return kOfPhoto * double(std::count_if(graph.nodes.begin(), graph.nodes.end(),
                                         [](const Node& node) { return bool(node.op->prepare); }));
}

BatchOrigin origin_of(const Source& source, bool keeps_samples) {
  if (keeps_samples) return BatchOrigin::Samples;
  return source.resident() ? BatchOrigin::Resident : BatchOrigin::Host;
}

// `keeps_samples`: they stay on the devices, if Prefetch's `cache` says so.
void describe_sources(Prepared& prepared, bool keeps_samples) {
  PlanRequest& request = prepared.request;
  const Node* prefetch = prepared.graph.find_op(op::Prefetch);
  keeps_samples = keeps_samples && prefetch && string_attribute(*prefetch, "cache") == "device";
  const double preparing = preparation_time(prepared.graph);
  if (prepared.training) {
    request.training_samples = prepared.training->size();
    request.training_batches = origin_of(*prepared.training, keeps_samples);
    request.training_fill_time = prepared.training->microseconds_per_sample() + preparing;
  }
  if (!prepared.validation) return;
  request.validation_samples = prepared.validation->size();
  request.validation_batches = origin_of(*prepared.validation, keeps_samples);
  request.validation_fill_time = prepared.validation->microseconds_per_sample() + preparing;
}

// The graph's Validate node; one that measures the loss if there is none.
Node& validate_of(Graph& graph) {
  if (Node* validate = graph.find_op(op::Validate)) return *validate;
  const Node train = *require_op(graph, op::Train);
  const NodeId id = graph.add_node(graph.op(op::Validate), "evaluate", {train.outputs.at(0), train.inputs.at(0)}, 1);
  return graph.nodes[id];
}

// Gives the values a node each that nothing else reads, so that passes leave them as they are. Returns the names of
// these.
std::vector<std::string> hand_out(Graph& graph, const std::vector<std::string>& values) {
  std::vector<std::string> names;
  for (const std::string& name : values) {
    const ValueId value = graph.find_value(name);
    if (value == kNone) {
      std::vector<std::string> known;
      for (const Value& each : graph.values) known.push_back(each.name);
      throw GraphError(fmt::format("graph '{}' has no value '{}'{}", graph.name, name, did_you_mean(name, known)));
    }
    const NodeId node = graph.add_node(graph.op(op::Identity), "output of " + name, {value}, 1);
    names.push_back(graph.values[graph.nodes[node].outputs[0]].name);
  }
  return names;
}

}  // namespace

Precision parse_precision(std::string_view text) {
  for (const Precision precision : {Precision::Fp32, Precision::Tf32, Precision::Bf16}) {
    if (text == name_of(precision)) return precision;
  }
  const std::vector<std::string> names = {"fp32", "tf32", "bf16"};
  throw GraphError(
      fmt::format("unknown precision '{}'; expected fp32, tf32 or bf16{}", text, did_you_mean(text, names)));
}

RateScaling parse_rate_scaling(std::string_view text) {
  const std::vector<std::string> names = {"none", "linear", "sqrt"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return RateScaling(i);
  }
  throw GraphError(fmt::format("unknown scaling '{}' of the learning rate; expected none, linear or sqrt{}", text,
                               did_you_mean(text, names)));
}

OnLost parse_on_lost(std::string_view text) {
  const std::vector<std::string> names = {"end", "continue"};
  if (text == names[0]) return OnLost::End;
  if (text == names[1]) return OnLost::Continue;
  throw GraphError(fmt::format("found '{}'; expected end or continue{}", text, did_you_mean(text, names)));
}

OnDivergence parse_on_divergence(std::string_view text) {
  const std::vector<std::string> names = {"stop", "rollback", "skip"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return OnDivergence(i);
  }
  throw GraphError(fmt::format("found '{}'; expected stop, rollback or skip{}", text, did_you_mean(text, names)));
}

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::Fp32: return "fp32";
    case Precision::Tf32: return "tf32";
    case Precision::Bf16: return "bf16";
  }
  return "?";
}

std::vector<PlanDevice> default_devices() {
  return {{cuda_device_count() > 0 ? PlanDevice::Kind::Cuda : PlanDevice::Kind::Cpu, 0}};
}

Prepared prepare(Graph graph, const SessionOptions& options,
                 const std::function<void(std::string_view, const Graph&)>& after) {
  check_ranges(options);
  Prepared prepared;
  prepared.graph = std::move(graph);
  prepared.bad = make_bad_samples(options);
  prepared.watch = std::make_shared<ReadWatch>(options.execution.read_timeout);
  if (options.learners.batch_total > 0) divide_batch(prepared.graph, options);
  if (options.rules.recalibrate > 0) {
    Node* validate = prepared.graph.find_op(op::Validate);
    if (!validate) throw GraphError(name_of(SettingKey::Recalibrate) + " needs a graph that validates");
    validate->attributes.set("recalibrate", options.rules.recalibrate);
  }
  open_sources(prepared, options);
  verify_called(prepared.graph);
  prepared.notes = lint(prepared.graph);
  check_classes(prepared);
  check_samples_apart(prepared.graph, batches_of(prepared.graph));
  set_learners(prepared, std::max(1, options.learners.per_device), options, 0, after);
  note_padding(prepared, options.execution.skip_bad);
  note_batches(prepared);
  note_draws(prepared);
  note_rate(prepared);
  add_caches(prepared, options.shared.get());
  return prepared;
}

Prepared prepare_inference(Graph graph, const SessionOptions& options, const InferenceRequest& asked) {
  check_ranges(options);
  Prepared prepared;
  prepared.graph = std::move(graph);
  prepared.bad = make_bad_samples(options);
  prepared.watch = std::make_shared<ReadWatch>(options.execution.read_timeout);
  Node& validate = validate_of(prepared.graph);
  const Node& prefetch = *require_op(prepared.graph, op::Prefetch);
  if (!asked.split.empty()) validate.attributes.set("split", asked.split);
  if (asked.batch > 0) validate.attributes.set("batch", asked.batch);
  validate.attributes.set("recalibrate", int64_t{0});
  open_for(prefetch,
           [&] { prepared.validation = open_split(options.sources.validation, prefetch, validate, options); });
  set_fields(*prepared.graph.find_op(op::Prefetch), prepared.validation->fields());
  ProgramOptions passes = passes_for(options);
  passes.outputs = hand_out(prepared.graph, asked.outputs);
  verify_called(prepared.graph);
  check_classes(prepared);
  check_samples_apart(prepared.graph, {batches_of(prepared.graph).back()});

  PlanRequest& request = prepared.request;
  request.devices = devices_of(options);
  request.host_threads = thread_count(options);
  describe_sources(prepared, false);
  passes.measures = !asked.endless;
  passes.trains = false;
  passes.validators = int64_t(request.devices.size());
  passes.validation_samples = request.validation_samples;
  prepared.program = make_program(prepared.graph, passes);
  if (passes.measures) {
    note_padding(prepared, options.execution.skip_bad);
    note_batches(prepared);
  }
  note_draws(prepared);
  request.endless = asked.endless;
  if (asked.endless) {
    request.validation_fill_time = 0;  // a batch is not divided
    request.validation_batches = BatchOrigin::Host;
  }
  return prepared;
}

BindOptions bind_options(const Prepared& prepared, const SessionOptions& options) {
  BindOptions bind;
  bind.math = options.numerics.precision == Precision::Fp32 ? MathMode::Fp32 : MathMode::Tf32;
  bind.deterministic = options.numerics.deterministic;
  bind.nvtx = options.execution.nvtx;
  bind.workspace_limit = prepared.request.workspace_limit;
  bind.threads = thread_count(options);
  if (prepared.stores.kept_arenas) bind.kept = prepared.stores.kept_arenas;
  bind.ranks = options.ranks;
  if (options.shared) bind.at_once = options.shared->at_once();
  return bind;
}

int thread_count(int asked) {
  return asked > 0 ? asked : std::max(1, int(std::thread::hardware_concurrency()));
}

int thread_count(const SessionOptions& options) {
  return thread_count(options.execution.threads);
}

double rate_scale(RateScaling scaling, int64_t learners) {
  switch (scaling) {
    case RateScaling::None: break;
    case RateScaling::Linear: return double(learners);
    case RateScaling::Sqrt: return std::sqrt(double(learners));
  }
  return 1;
}

void set_learners(Prepared& prepared, int32_t learners, const SessionOptions& options, int64_t epoch,
                  const std::function<void(std::string_view, const Graph&)>& after) {
  PlanRequest& request = prepared.request;
  request = {};
  request.devices = devices_of(options);
  request.learners = learners;
  if (options.shared) request.at_once = options.shared->at_once();
  const int64_t all = int64_t(request.devices.size()) * learners;
  require_op(prepared.graph, op::Train);
  prepared.strategies = strategy_phases(prepared.graph, options.learners.strategy, all);
  for (const StrategyPhase& phase : prepared.strategies) {
    const std::string& strategy = phase.strategy.name;
    if (options.learners.rate_scaling == RateScaling::None || all == 1 || !strategy_spec(strategy).alone) continue;
    throw GraphError(fmt::format("{} follows the learners that train one model; with strategy {} each trains its own",
                                 name_of(SettingKey::ScaleLr), strategy));
  }
  request.strategy = phase_at(prepared.strategies, epoch).phase.strategy;
  make_program_for(prepared, options, after);

  request.epochs = epochs_of(options, prepared.program.train);
  request.iterations = options.length.iterations.value_or(0);
  request.report_every = options.divergence.find ? 1 : options.execution.report_every;
  request.host_threads = thread_count(options);
  describe_sources(prepared, true);
  request.rounds =
      rounds_of(request.training_samples, all, prepared.program.training().batch, prepared.program.accumulate);
  const bool saves_validated =
      !options.rules.targets.empty() || options.rules.patience > 0 || prepared.program.find(LoopRole::Recalibrate);
  request.awaits_collectives = options.on_lost == OnLost::Continue;
  request.keep_validated = !options.files.save_best.empty() || (!options.files.save.empty() && saves_validated);
  // A run that a validation may end keeps as close to it, so that a checkpoint of its end has no validation behind it.
  const bool may_end = !options.rules.targets.empty() || options.rules.patience > 0;
  request.follows_validation = may_end || options.rules.plateau > 0;
  prepared.total_epochs = options.length.schedule_epochs ? double(*options.length.schedule_epochs)
                          : request.iterations > 0       ? double(request.iterations) / double(request.rounds)
                                                         : double(request.epochs);
  prepared.strategies = grown(prepared.strategies, {.schedule = LearningRate(prepared.program.train),
                                                    .scale = rate_scale(options.learners.rate_scaling, all),
                                                    .epochs = prepared.total_epochs,
                                                    .updates = request.rounds / prepared.program.accumulate});
  const PhaseAt now = phase_at(prepared.strategies, epoch);
  request.strategy = now.phase.strategy;
  request.strategy_until = now.until;
  fit_to_limit(prepared, 0, options);
  if (after) after("recompute", prepared.program.training().graph);
}

void leave_for_workspace(Prepared& prepared, int64_t bytes, const SessionOptions& options) {
  make_program_for(prepared, options, {});
  fit_to_limit(prepared, bytes, options);
}

double host_patience(const ExecutionOptions& options) {
  constexpr double kOfDevices = 10, kOfReads = 2;
  if (options.read_timeout == 0) return std::numeric_limits<double>::infinity();
  return std::max(kOfDevices * options.device_timeout, kOfReads * options.read_timeout);
}

}  // namespace arbalest
