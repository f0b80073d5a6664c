#include "executor/session.h"

#include <fmt/format.h>
#include <tbb/version.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "executor/binding.h"
#include "executor/host_tasks.h"
#include "executor/scheduler.h"
#include "executor/state.h"
#include "executor/trace.h"
#include "graph/op.h"
#include "io/data_order.h"
#include "ops/train.h"

namespace arbalest {
namespace {

Node* find_op(Graph& graph, std::string_view op) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                  [&](const Node& node) { return node.op->qualified_name() == op; });
  return found == graph.nodes.end() ? nullptr : &*found;
}

// Opens what Prefetch and Validate name, and tells Prefetch the shape of a sample.
void open_sources(Prepared& prepared, uint64_t seed) {
  Node* prefetch = find_op(prepared.graph, "arbalest.Prefetch");
  if (!prefetch) return;  // make_program says so
  const std::string spec = string_attribute(*prefetch, "source");
  try {
    prepared.training = open_source(spec, string_attribute(*prefetch, "split"), seed);
    if (Node* validate = find_op(prepared.graph, "arbalest.Validate")) {
      prepared.validation = open_source(spec, string_attribute(*validate, "split"), seed);
    }
  } catch (const GraphError& error) {
    fail(*prefetch, error.what());
  } catch (const RunError& error) {
    throw RunError(fmt::format("node '{}' (arbalest.Prefetch): {}", prefetch->name, error.what()));
  }
  const SampleShape shape = prepared.training->sample_shape();
  if (prepared.validation && prepared.validation->sample_shape() != shape) {
    fail(*prefetch, fmt::format("the training split holds samples of {}, the validation split of {}", to_string(shape),
                                to_string(prepared.validation->sample_shape())));
  }
  prefetch->attributes.set("sample_shape", std::vector<int64_t>{shape.channels, shape.height, shape.width});
}

int64_t epochs_of(const SessionOptions& options, const Node& train) {
  if (options.epochs) return *options.epochs;
  const auto written = int64_t(float_attribute(train, "epochs"));
  return written > 0 ? written : 1;
}

std::vector<std::unique_ptr<Device>> make_devices(const Plan& plan, int threads) {
  const auto progress = make_cpu_progress(plan.tasks.size());
  const auto events = make_cuda_events(plan.tasks.size());
  const auto cpus = std::count_if(plan.devices.begin(), plan.devices.end(),
                                  [](const PlanDevice& d) { return d.kind == PlanDevice::Kind::Cpu; });
  std::vector<std::unique_ptr<Device>> devices;
  for (const PlanDevice& device : plan.devices) {
    devices.push_back(device.kind == PlanDevice::Kind::Cpu
                          ? make_cpu_device(device.index, std::max(1, threads / int(cpus)), progress)
                          : make_cuda_device(device.index, events));
  }
  return devices;
}

// One run: the plan bound, state in place, host tasks ready.
class Training {
 public:
  Training(Graph graph, const SessionOptions& options, RunObserver& observer)
      : options_(options),
        threads_(options.threads > 0 ? options.threads : int(std::max(1u, std::thread::hardware_concurrency()))),
        prepared_(prepare(std::move(graph), options)),
        plan_(make_plan(prepared_.program, prepared_.request)),
        facts_{options.seed, prepared_.rounds, int64_t(plan_.devices.size()) * options.learners,
               double(plan_.clocks[0].ticks) / double(prepared_.rounds), options.until},
        training_order_(options.seed, prepared_.training->size(), true),
        monitor_(prepared_.program, facts_, observer),
        observer_(observer) {
    check_targets();
    BindOptions bind;
    bind.math = options.precision == Precision::Fp32 ? MathMode::Fp32 : MathMode::Tf32;
    bind.deterministic = options.deterministic;
    bind.workspace_limit = prepared_.request.workspace_limit;
    binding_ = std::make_unique<Binding>(plan_, make_devices(plan_, threads_), bind);
    set_initial_state();
    make_host_tasks();
  }

  RunFinished run(const std::atomic<bool>& interrupted, double setup_seconds) {
    announce(setup_seconds);
    std::unique_ptr<TraceRecorder> trace;
    if (!options_.trace.empty()) trace = std::make_unique<TraceRecorder>(plan_);
    SchedulerOptions scheduling;
    scheduling.threads = threads_;
    scheduling.trace = trace.get();
    scheduling.stalled = [](const std::string& report) {
      fmt::print(stderr, "nothing has completed for a while; waiting:\n{}", report);
    };
    scheduler_ = std::make_unique<Scheduler>(*binding_, std::move(host_), scheduling);
    monitor_.begin();
    scheduler_->run(interrupted);

    const int64_t iterations = scheduler_->iterations();
    const bool reached = monitor_.all_targets_reached();
    const bool whole = iterations == plan_.clocks[0].ticks;
    RunFinished end = monitor_.finish(iterations, reached ? "until" : whole ? "complete" : "interrupted");
    end.setup_seconds = setup_seconds;
    if (!options_.save.empty()) {
      save(end);
      end.weights = options_.save;
    }
    if (trace) {
      trace->write(options_.trace);
      end.trace = options_.trace;
    }
    observer_.finished(end);
    return end;
  }

  double seconds() const { return monitor_.seconds(); }

 private:
  const Loop& training() const { return prepared_.program.training; }

  void check_targets() const {
    std::vector<std::string> known;
    if (prepared_.program.validation) known = prepared_.program.validation->metrics;
    for (const Target& target : options_.until) {
      if (std::find(known.begin(), known.end(), target.metric) != known.end()) continue;
      throw GraphError(fmt::format("--until '{}': validation has no metric '{}'{}", to_string(target), target.metric,
                                   did_you_mean(target.metric, known)));
    }
  }

  void upload(const Operand& to, const std::vector<std::byte>& content) {
    const Arena& arena = plan_.arenas[size_t(plan_.buffers[size_t(to.buffer)].arena)];
    binding_->device(arena.device).upload(binding_->address(to, 0), content.data(), int64_t(content.size()));
  }

  std::string replica_prefix(int32_t device, int64_t learner) const {
    return fmt::format("{}/learner {}", to_string(plan_.devices[size_t(device)]), learner);
  }

  // Every replica starts the same; validation's weights come with each snapshot.
  void set_initial_state() {
    std::optional<TensorFile> file;
    const ArenaValues& arenas = training().arenas;
    if (!options_.weights.empty()) {
      file = read_safetensors(options_.weights);
      check_tensor_names(*file, options_.weights, training().graph, {arenas.weights, arenas.statistics});
    }
    int64_t learner = 0;
    for (int32_t d = 0; d < int32_t(plan_.devices.size()); ++d) {
      for (int32_t i = 0; i < options_.learners; ++i)
        set_state(training(), replica_prefix(d, learner++), file, *prepared_.training);
    }
    if (prepared_.program.validation) {
      set_state(*prepared_.program.validation, to_string(plan_.devices[0]) + "/validation", std::nullopt,
                *prepared_.validation);
    }
  }

  void set_state(const Loop& loop, const std::string& prefix, const std::optional<TensorFile>& file,
                 const Source& source) {
    const Graph& graph = loop.graph;
    std::vector<std::byte> weights;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const Value& value = graph.values[v];
      if (value.view.base != kNone || value.role == Role::Activation) continue;
      const BufferId buffer = binding_->find(fmt::format("{}/{}", prefix, value.name));
      if (buffer == kNone) continue;
      const auto id = ValueId(v);
      std::vector<std::byte> content;
      if (value.role == Role::Input) {
        content = noise(loop, id, source);
      } else if (id == loop.arenas.weights_lowered) {
        continue;  // below, from the master weights
      } else {
        content = initial_content(graph, id, options_.seed);
        if (file) adopt_tensors(*file, options_.weights, graph, id, content);
        if (id == loop.arenas.weights) weights = content;
      }
      upload({buffer, 0, 0}, content);
    }
    if (loop.arenas.weights_lowered == kNone) return;
    const std::string name = graph.values[size_t(loop.arenas.weights_lowered)].name;
    const BufferId lowered = binding_->find(fmt::format("{}/{}", prefix, name));
    if (lowered != kNone) upload({lowered, 0, 0}, lowered_content(weights));  // kNone: a run too short to validate
  }

  // What a resident source's batch holds, once and for all.
  std::vector<std::byte> noise(const Loop& loop, ValueId input, const Source& source) const {
    std::vector<int64_t> samples(size_t(loop.batch));
    for (size_t i = 0; i < samples.size(); ++i) samples[i] = int64_t(i) % source.size();
    std::vector<uint8_t> images(size_t(loop.batch * source.sample_shape().bytes()));
    std::vector<int32_t> labels(size_t(loop.batch));
    source.fill(samples, images.data(), labels.data());
    std::vector<std::byte> content(size_t(loop.graph.values[size_t(input)].type.bytes()));
    const void* from = input == loop.image ? static_cast<const void*>(images.data()) : labels.data();
    std::memcpy(content.data(), from, content.size());
    return content;
  }

  void make_host_tasks() {
    host_.resize(plan_.tasks.size());
    for (TaskId id = 0; id < TaskId(plan_.tasks.size()); ++id) {
      const Task& task = plan_.tasks[size_t(id)];
      switch (task.kind) {
        case Task::Kind::Fill:
          host_[size_t(id)] = task.learner == kNone ? fill_validation(task) : fill_training(task);
          break;
        case Task::Kind::Report: host_[size_t(id)] = report(); break;
        case Task::Kind::ValidationBegin: host_[size_t(id)] = [](int64_t) {}; break;
        case Task::Kind::ValidationEnd: host_[size_t(id)] = end_validation(); break;
        default: break;
      }
    }
  }

  std::function<void(int64_t)> fill_training(const Task& task) {
    auto filler = std::make_shared<BatchFiller>(*binding_, task, training(), *prepared_.training,
                                                batch_layout(training(), prepared_.request.training_resident));
    return [this, filler, learner = task.learner](int64_t tick) {
      const int64_t epoch = tick / facts_.rounds, round = tick % facts_.rounds;
      StepScalars scalars;
      scalars.seed = facts_.seed;
      scalars.iteration = uint64_t(tick);
      scalars.learning_rate =
          float(learning_rate(prepared_.program.train, double(tick) / double(facts_.rounds), facts_.epochs));
      filler->fill(tick, training_order_, epoch, batch_number(round, learner, facts_.learners), scalars);
    };
  }

  std::function<void(int64_t)> fill_validation(const Task& task) {
    const Loop& loop = *prepared_.program.validation;
    auto filler = std::make_shared<BatchFiller>(*binding_, task, loop, *prepared_.validation,
                                                batch_layout(loop, prepared_.request.validation_resident));
    const DataOrder order(facts_.seed, prepared_.validation->size(), false);
    const int64_t batches = validation_batches(prepared_.validation->size(), loop.batch);
    return [this, filler, order, batches](int64_t tick) {
      StepScalars scalars;
      scalars.seed = facts_.seed;
      scalars.iteration = uint64_t(tick);
      filler->fill(tick, order, tick / batches, tick % batches, scalars);
    };
  }

  const ClockRelation& relation_to(std::string_view coarse) const {
    for (const ClockRelation& relation : plan_.relations) {
      if (relation.fine == 0 && plan_.clocks[size_t(relation.coarse)].name == coarse) return relation;
    }
    throw std::logic_error("the plan has no such clock");
  }

  std::function<void(int64_t)> report() {
    std::vector<std::pair<BufferId, TallyReader>> readers;
    int64_t learner = 0;
    for (int32_t d = 0; d < int32_t(plan_.devices.size()); ++d) {
      for (int32_t i = 0; i < options_.learners; ++i) {
        readers.emplace_back(binding_->find(replica_prefix(d, learner++) + "/pinned tally"), TallyReader(1));
      }
    }
    const ClockRelation relation = relation_to("report");
    return [this, readers, relation](int64_t tick) mutable {
      std::vector<double> sums(2, 0);
      for (auto& [buffer, reader] : readers) {
        const auto since = reader.advance(reinterpret_cast<const double*>(binding_->address(buffer, tick)));
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += since[i];
      }
      monitor_.report(relation.last_of(tick) + 1, sums);
    };
  }

  std::function<void(int64_t)> end_validation() {
    const BufferId buffer = binding_->find(to_string(plan_.devices[0]) + "/validation/pinned tally");
    TallyReader reader(prepared_.program.validation->metrics.size());
    const ClockRelation relation = relation_to("validation");
    return [this, buffer, reader, relation](int64_t tick) mutable {
      monitor_.validated(relation.last_of(tick) + 1,
                         reader.advance(reinterpret_cast<const double*>(binding_->address(buffer, tick))));
      if (monitor_.all_targets_reached()) scheduler_->stop();
    };
  }

  void announce(double setup_seconds) {
    RunStarted event;
    event.graph = prepared_.graph.name;
    for (const PlanDevice& device : plan_.devices) event.devices.push_back(to_string(device));
    event.learners = options_.learners;
    event.batch = training().batch;
    event.precision = name_of(options_.precision);
    event.seed = options_.seed;
    event.deterministic = options_.deterministic;
    event.versions = {{"arbalest", ARBALEST_VERSION}, {"tbb", TBB_runtime_version()}};
    event.parameters = parameter_count(training().graph);
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      event.planned_peak_bytes = std::max(event.planned_peak_bytes, binding_->peak_bytes(int32_t(d)));
    }
    event.iterations_per_epoch = facts_.rounds;
    event.samples_per_epoch = facts_.rounds * facts_.learners * training().batch;
    event.iterations = plan_.clocks[0].ticks;
    event.setup_seconds = setup_seconds;
    observer_.started(event);
  }

  void save(const RunFinished& end) {
    const ArenaValues& arenas = training().arenas;
    TensorFile file;
    file.metadata = {{"graph", prepared_.graph.name},
                     {"iteration", std::to_string(end.iteration)},
                     {"epoch", std::to_string(end.epoch)}};
    for (const ValueId base : {arenas.weights, arenas.statistics}) {
      if (base == kNone) continue;
      const Value& value = training().graph.values[size_t(base)];
      std::vector<std::byte> content(size_t(value.type.bytes()));
      const BufferId buffer = binding_->find(fmt::format("{}/{}", replica_prefix(0, 0), value.name));
      binding_->device(0).download(content.data(), binding_->address(buffer, 0), int64_t(content.size()));
      append_tensors(file, training().graph, base, content);
    }
    write_safetensors(options_.save, file);
    CheckpointSaved event{options_.save, end.epoch, end.iteration, 0, monitor_.seconds()};
    for (const NamedTensor& tensor : file.tensors) event.bytes += int64_t(tensor.bytes.size());
    observer_.checkpoint(event);
  }

  const SessionOptions& options_;
  const int threads_;
  Prepared prepared_;
  Plan plan_;
  RunFacts facts_;
  DataOrder training_order_;
  Monitor monitor_;
  RunObserver& observer_;
  std::unique_ptr<Binding> binding_;
  Scheduler::HostFunctions host_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace

Precision parse_precision(std::string_view text) {
  for (const Precision precision : {Precision::Fp32, Precision::Tf32, Precision::Bf16}) {
    if (text == name_of(precision)) return precision;
  }
  throw GraphError(fmt::format("unknown precision '{}'; expected fp32, tf32 or bf16", text));
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
  Prepared prepared;
  prepared.graph = std::move(graph);
  open_sources(prepared, options.seed);
  verify(prepared.graph);
  ProgramOptions passes;
  passes.bf16 = options.precision == Precision::Bf16;
  passes.after = after;
  prepared.program = make_program(prepared.graph, passes);

  PlanRequest& request = prepared.request;
  request.devices = options.devices.empty() ? default_devices() : options.devices;
  request.learners = options.learners;
  request.epochs = epochs_of(options, prepared.program.train);
  request.iterations = options.iterations.value_or(0);
  request.report_every = options.report_every;
  request.training_samples = prepared.training->size();
  request.training_resident = prepared.training->resident();
  if (prepared.validation) {
    request.validation_samples = prepared.validation->size();
    request.validation_resident = prepared.validation->resident();
  }
  const int64_t learners = int64_t(request.devices.size()) * request.learners;
  prepared.rounds = rounds_per_epoch(request.training_samples, learners, prepared.program.training.batch);
  return prepared;
}

RunFinished train(Graph graph, const SessionOptions& options, RunObserver& observer,
                  const std::atomic<bool>& interrupted) {
  const auto began = std::chrono::steady_clock::now();
  std::unique_ptr<Training> training;
  try {
    training = std::make_unique<Training>(std::move(graph), options, observer);
    return training->run(interrupted, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  } catch (const std::exception& error) {
    observer.failed({error.what(), -1, -1, training ? training->seconds() : 0});
    throw;
  }
}

}  // namespace arbalest
