#include "executor/training.h"

#include <fmt/format.h>
#include <tbb/version.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

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

}  // namespace

Training::Training(Graph graph, const SessionOptions& options, RunObserver& observer)
    : options_(options), prepared_(prepare(std::move(graph), options)), observer_(observer) {
  const Program& program = prepared_.program;
  monitor_ = std::make_unique<Monitor>(program.validation ? program.validation->metrics : std::vector<std::string>{},
                                       program.training.metrics.front(), options.rules, observer);
  if (!options.save_best.empty() && !program.validation) throw GraphError("--save-best needs a graph that validates");
  for (const std::string& path : {options.save, options.save_best, options.trace}) check_output_path(path);
  make_segment({});
  start();
}

Training::~Training() = default;

void Training::make_segment(const Cursor& from) {
  segment_ = std::make_unique<Segment>(prepared_, options_, from, *monitor_);
  if (!prepared_.request.keep_validated) return;
  segment_->on_validated = [this](const Monitor::Verdict& verdict, const Model& model, const RunPosition& at) {
    keep(verdict, model, at);
  };
}

void Training::start() {
  std::optional<TensorFile> file;
  const ArenaValues& arenas = prepared_.program.training.arenas;
  if (!options_.weights.empty()) {
    file = read_safetensors(options_.weights);
    check_tensor_names(*file, options_.weights, prepared_.program.training.graph, {arenas.weights, arenas.statistics});
  }
  segment_->start_from_initializers(file ? &*file : nullptr, options_.weights);
}

RunFinished Training::run(const std::atomic<bool>& interrupted, double setup_seconds) {
  announce(setup_seconds);
  std::unique_ptr<TraceRecorder> trace;
  if (!options_.trace.empty()) trace = std::make_unique<TraceRecorder>(segment_->plan());
  monitor_->begin();
  try {
    run_segments(interrupted, trace.get());
  } catch (...) {
    if (trace) trace->write(options_.trace);  // now it is wanted most
    throw;
  }

  const bool reached = monitor_->all_targets_reached(), stale = monitor_->out_of_patience();
  const std::string reason = reached                 ? "until"
                             : stale                 ? "patience"
                             : segment_->complete() ? "complete"
                                                     : "interrupted";
  RunFinished end = monitor_->finish(segment_->position(), reason);
  end.setup_seconds = setup_seconds;
  end.weights = options_.save;
  if (end.weights.empty() && end.reason == "interrupted") {
    end.weights = prepared_.graph.name + ".interrupted.safetensors";  // what was computed is not lost
  }
  // What reached the targets is the model that was validated, not the one some iterations later.
  const bool validated = reached && !validated_.weights.empty();
  if (!end.weights.empty() && validated) save(end.weights, validated_, validated_at_);
  if (!end.weights.empty() && !validated) save(end.weights, segment_->model(), segment_->position());
  if (trace) {
    trace->write(options_.trace);
    end.trace = options_.trace;
  }
  observer_.finished(end);
  return end;
}

void Training::run_segments(const std::atomic<bool>& interrupted, TraceRecorder* trace) {
  segment_->run(interrupted, trace);
}

void Training::keep(const Monitor::Verdict& verdict, const Model& model, const RunPosition& at) {
  if (verdict.best && !options_.save_best.empty()) save(options_.save_best, model, at);
  validated_ = model;
  validated_at_ = at;
}

void Training::announce(double setup_seconds) {
  const PlanRequest& request = prepared_.request;
  RunStarted event;
  event.graph = prepared_.graph.name;
  for (const PlanDevice& device : request.devices) event.devices.push_back(to_string(device));
  event.learners = request.learners;
  event.strategy = name_of(request.strategy.kind);
  event.batch = prepared_.program.training.batch;
  event.precision = name_of(options_.precision);
  event.seed = options_.seed;
  event.deterministic = options_.deterministic;
  event.versions = {{"arbalest", ARBALEST_VERSION}, {"tbb", TBB_runtime_version()}};
  for (auto& version : cuda_versions()) event.versions.push_back(std::move(version));
  event.parameters = parameter_count(prepared_.program.training.graph);
  event.planned_peak_bytes = segment_->peak_bytes();
  event.iterations_per_epoch = request.rounds;
  event.samples_per_epoch = request.rounds * segment_->learners() * event.batch;
  event.iterations = segment_->plan().clocks[0].ticks;
  event.setup_seconds = setup_seconds;
  observer_.started(event);
}

void Training::save(const std::string& path, const Model& model, const RunPosition& at) {
  const Loop& loop = prepared_.program.training;
  TensorFile file;
  file.metadata = {{"graph", prepared_.graph.name},
                   {"iteration", std::to_string(at.iteration)},
                   {"epoch", std::to_string(at.epoch)}};
  append_tensors(file, loop.graph, loop.arenas.weights, model.weights);
  if (loop.arenas.statistics != kNone) append_tensors(file, loop.graph, loop.arenas.statistics, model.statistics);
  write_safetensors(path, file);
  CheckpointSaved event{path, at.epoch, at.iteration, 0, monitor_->seconds()};
  for (const NamedTensor& tensor : file.tensors) event.bytes += int64_t(tensor.bytes.size());
  observer_.checkpoint(event);
}

}  // namespace arbalest
