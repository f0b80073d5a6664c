#include "executor/training.h"

#include <fmt/format.h>
#include <tbb/version.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "executor/replica.h"
#include "executor/trace.h"

namespace arbalest {
namespace {

// Found out before training rather than after it.
void check_output_path(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw RunError(fmt::format("{}: cannot be written: there is no folder '{}'", path, folder.string()));
  }
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    throw RunError(fmt::format("{}: cannot be written: it is there and no regular file", path));
  }
  if (access(folder.c_str(), W_OK) != 0) {
    throw RunError(fmt::format("{}: cannot be written: the folder is read-only", path));
  }
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

}  // namespace

Training::Training(Graph graph, const SessionOptions& options, RunObserver& observer)
    : options_(options),
      threads_(options.threads > 0 ? options.threads : int(std::max(1u, std::thread::hardware_concurrency()))),
      prepared_(prepare(std::move(graph), options)),
      plan_(make_plan(prepared_.program, prepared_.request)),
      facts_{options.seed,
             prepared_.rounds,
             int64_t(plan_.devices.size()) * options.learners,
             double(plan_.clocks[0].ticks) / double(prepared_.rounds),
             options.until,
             LearningRate(prepared_.program.train)},
      training_order_(options.seed, prepared_.training->size(), true),
      monitor_(prepared_.program, facts_, observer),
      observer_(observer) {
  check_targets();
  for (const std::string& path : {options.save, options.trace}) check_output_path(path);
  BindOptions bind;
  bind.math = options.precision == Precision::Fp32 ? MathMode::Fp32 : MathMode::Tf32;
  bind.deterministic = options.deterministic;
  bind.workspace_limit = prepared_.request.workspace_limit;
  binding_ = std::make_unique<Binding>(plan_, make_devices(plan_, threads_), bind);
  set_initial_state();
  make_host_tasks();
}

RunFinished Training::run(const std::atomic<bool>& interrupted, double setup_seconds) {
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
  try {
    scheduler_->run(interrupted);
  } catch (...) {
    if (trace) trace->write(options_.trace);  // now it is wanted most
    throw;
  }

  const int64_t iterations = scheduler_->iterations();
  const bool reached = monitor_.all_targets_reached();
  const bool whole = iterations == plan_.clocks[0].ticks;
  RunFinished end = monitor_.finish(iterations, reached ? "until" : whole ? "complete" : "interrupted");
  end.setup_seconds = setup_seconds;
  end.weights = options_.save;
  if (end.weights.empty() && end.reason == "interrupted") {
    end.weights = prepared_.graph.name + ".interrupted.safetensors";  // what was computed is not lost
  }
  if (!end.weights.empty()) save(end);
  if (trace) {
    trace->write(options_.trace);
    end.trace = options_.trace;
  }
  observer_.finished(end);
  return end;
}

void Training::check_targets() const {
  std::vector<std::string> known;
  if (prepared_.program.validation) known = prepared_.program.validation->metrics;
  for (const Target& target : options_.until) {
    if (std::find(known.begin(), known.end(), target.metric) != known.end()) continue;
    throw GraphError(fmt::format("--until '{}': validation has no metric '{}'{}", to_string(target), target.metric,
                                 did_you_mean(target.metric, known)));
  }
}

std::string Training::replica_prefix(int32_t device, int64_t learner) const {
  return fmt::format("{}/learner {}", to_string(plan_.devices[size_t(device)]), learner);
}

void Training::set_initial_state() {
  std::optional<TensorFile> file;
  const ArenaValues& arenas = training().arenas;
  if (!options_.weights.empty()) {
    file = read_safetensors(options_.weights);
    check_tensor_names(*file, options_.weights, training().graph, {arenas.weights, arenas.statistics});
  }
  const StartingState start{options_.seed, file ? &*file : nullptr, options_.weights};
  int64_t learner = 0;
  for (int32_t d = 0; d < int32_t(plan_.devices.size()); ++d) {
    for (int32_t i = 0; i < options_.learners; ++i)
      set_replica_state(*binding_, training(), replica_prefix(d, learner++), *prepared_.training, start);
  }
  if (prepared_.program.validation) {
    set_replica_state(*binding_, *prepared_.program.validation, to_string(plan_.devices[0]) + "/validation",
                      *prepared_.validation, {options_.seed, nullptr, ""});
  }
}

void Training::make_host_tasks() {
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

std::function<void(int64_t)> Training::fill_training(const Task& task) {
  auto filler = std::make_shared<BatchFiller>(*binding_, task, training(), *prepared_.training,
                                              batch_layout(training(), prepared_.request.training_resident));
  return [this, filler, learner = task.learner](int64_t tick) {
    const int64_t epoch = tick / facts_.rounds, round = tick % facts_.rounds;
    StepScalars scalars;
    scalars.seed = facts_.seed;
    scalars.iteration = uint64_t(tick);
    scalars.learning_rate = float(facts_.schedule.rate(double(tick) / double(facts_.rounds), facts_.epochs));
    filler->fill(tick, training_order_, epoch, batch_number(round, learner, facts_.learners), scalars);
  };
}

std::function<void(int64_t)> Training::fill_validation(const Task& task) {
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

const ClockRelation& Training::relation_to(std::string_view coarse) const {
  for (const ClockRelation& relation : plan_.relations) {
    if (relation.fine == 0 && plan_.clocks[size_t(relation.coarse)].name == coarse) return relation;
  }
  throw std::logic_error("the plan has no such clock");
}

std::function<void(int64_t)> Training::report() {
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

std::function<void(int64_t)> Training::end_validation() {
  const BufferId buffer = binding_->find(to_string(plan_.devices[0]) + "/validation/pinned tally");
  TallyReader reader(prepared_.program.validation->metrics.size());
  const ClockRelation relation = relation_to("validation");
  return [this, buffer, reader, relation](int64_t tick) mutable {
    monitor_.validated(relation.last_of(tick) + 1,
                       reader.advance(reinterpret_cast<const double*>(binding_->address(buffer, tick))));
    if (monitor_.all_targets_reached()) scheduler_->stop();
  };
}

void Training::announce(double setup_seconds) {
  RunStarted event;
  event.graph = prepared_.graph.name;
  for (const PlanDevice& device : plan_.devices) event.devices.push_back(to_string(device));
  event.learners = options_.learners;
  event.batch = training().batch;
  event.precision = name_of(options_.precision);
  event.seed = options_.seed;
  event.deterministic = options_.deterministic;
  event.versions = {{"arbalest", ARBALEST_VERSION}, {"tbb", TBB_runtime_version()}};
  for (auto& version : cuda_versions()) event.versions.push_back(std::move(version));
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

void Training::save(const RunFinished& end) {
  TensorFile file;
  file.metadata = {{"graph", prepared_.graph.name},
                   {"iteration", std::to_string(end.iteration)},
                   {"epoch", std::to_string(end.epoch)}};
  append_replica(file, *binding_, training(), replica_prefix(0, 0), 0);
  write_safetensors(end.weights, file);
  CheckpointSaved event{end.weights, end.epoch, end.iteration, 0, monitor_.seconds()};
  for (const NamedTensor& tensor : file.tensors) event.bytes += int64_t(tensor.bytes.size());
  observer_.checkpoint(event);
}

}  // namespace arbalest
