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
  if (options.learners == 0 && options.deterministic) {
    throw GraphError("--learners auto depends on measured times; --deterministic excludes it");
  }
  if (options.learners == 0) {
    const PlanRequest& request = prepared_.request;
    const int64_t most = request.training_samples / (int64_t(request.devices.size()) * program.training.batch *
                                                     program.accumulate);  // that an epoch has batches for
    LearnerTuner::Options tuning;
    tuning.most_learners = int32_t(std::min<int64_t>(tuning.most_learners, most));
    tuner_ = std::make_unique<LearnerTuner>(tuning);
  }
  if (!options.save_best.empty() && !program.validation) throw GraphError("--save-best needs a graph that validates");
  for (const std::string& path : {options.save, options.save_best, options.trace}) check_output_path(path);
  make_segment({});
  start();
}

Training::~Training() = default;

void Training::make_segment(const Cursor& from) {
  segment_ = std::make_unique<Segment>(prepared_, options_, from, *monitor_, cache_);
  if (tuner_ && !tuner_->done()) {
    segment_->on_report = [this](const RunPosition& at) { observe(at); };
  }
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
  monitor_->begin();
  try {
    run_segments(interrupted);
  } catch (...) {
    if (trace_) trace_->write(options_.trace);  // now it is wanted most
    throw;
  }
  const double trained_seconds = monitor_->seconds();
  const RunPosition ended = segment_->position();
  const std::string reason = why_ended();
  RunFinished end = monitor_->finish(ended, trained_seconds, reason);
  end.setup_seconds = setup_seconds;
  end.weights = options_.save;
  if (end.weights.empty() && end.reason == "interrupted") {
    end.weights = prepared_.graph.name + ".interrupted.safetensors";  // what was computed is not lost
  }
  // What ended the run is the model that was validated, not the one some iterations later; and where validation
  // recalibrates, it has the better statistics.
  const bool recalibrated = prepared_.program.recalibration && validated_.at.iteration == ended.iteration;
  const bool validated = reason == "until" || reason == "patience" || recalibrated;
  if (!end.weights.empty() && validated && !validated_.model.weights.empty()) {
    save(end.weights, validated_.model, validated_.at);
  } else if (!end.weights.empty()) {
    save(end.weights, segment_->model(), ended);
  }
  if (trace_) trace_->write(options_.trace);
  end.trace = options_.trace;
  observer_.finished(end);
  return end;
}

std::string Training::why_ended() const {
  if (monitor_->all_targets_reached()) return "until";
  if (monitor_->out_of_patience()) return "patience";
  return complete_ ? "complete" : "interrupted";
}

// One segment after the other: until the epochs are over, or validation or the user ends the run.
void Training::run_segments(const std::atomic<bool>& interrupted) {
  for (;;) {
    if (!options_.trace.empty()) trace_ = std::make_unique<TraceRecorder>(segment_->plan());
    segment_->run(interrupted, trace_.get());
    if (monitor_->all_targets_reached() || monitor_->out_of_patience()) return;
    const bool changes = tuner_ && tuner_->learners() != prepared_.request.learners;
    if (interrupted.load() || (!changes && !segment_->complete())) return;
    complete_ = !tuner_ || !next_segment();
    if (complete_) return;
  }
}

// Sets the request to what is left of the run for so many learners, up to where their plan can go: the rest of an epoch
// by itself, or whole epochs, until validations are in step with the epochs again. False: nothing is left. Throws
// GraphError where the data do not suffice for the learners.
bool Training::request_rest(int32_t learners, Cursor& from) {
  set_learners(prepared_, learners, options_);
  PlanRequest& request = prepared_.request;
  const Program& program = prepared_.program;
  const int64_t all = int64_t(request.devices.size()) * learners;
  const int64_t batches = prepared_.training->size() / program.training.batch;
  const int64_t rounds = (batches - from.batch) / (all * program.accumulate) * program.accumulate;
  if (from.batch > 0 && rounds == 0) {
    ++from.epoch;
    from.batch = 0;
  }
  const int64_t epochs_left = request.epochs - from.epoch, iterations_left = request.iterations - from.iteration;
  if (request.iterations > 0 ? iterations_left <= 0 : epochs_left <= 0) return false;
  if (request.iterations > 0) {
    request.iterations = iterations_left;
    prepared_.total_epochs =
        double(from.epoch) + double(from.batch) / double(batches) + double(iterations_left) / double(request.rounds);
  }
  const int64_t every = program.validate_every, step = every - from.epoch % every;  // epochs to the next validation
  const bool rest = from.batch > 0, in_step = !rest && step == every;
  const bool last = request.iterations > 0 ? iterations_left <= rounds : epochs_left == 1;
  if (rest) request.rounds = rounds;
  if (rest && step > 1 && !last) request.validates = false;
  const int64_t epochs = rest ? 1 : step;
  if (!in_step && request.iterations > 0) request.iterations = std::min(request.iterations, epochs * request.rounds);
  request.epochs = in_step ? epochs_left : std::min(epochs, epochs_left);
  return true;
}

// A segment for what is left, with the tuner's number of learners or, where that cannot be had, with the number before.
// False: nothing is left, and the
// segment that ended stays.
bool Training::next_segment() {
  const ModelState state = segment_->state();
  const Cursor ended = segment_->cursor();
  const PlanRequest before = prepared_.request;
  std::exception_ptr failure;
  for (;;) {
    Cursor from = ended;
    if (!request_rest(tuner_->learners(), from)) {
      if (!segment_) std::rethrow_exception(failure);
      set_learners(prepared_, before.learners, options_);
      prepared_.request = before;
      return false;
    }
    try {
      segment_.reset();  // its memory is needed
      make_segment(from);
      segment_->start_from(with_learners(state, before.devices.size(), size_t(prepared_.request.learners),
                                         before.strategy, prepared_.request.strategy));
      return true;
    } catch (const RunError& error) {
      if (tuner_->done()) throw;
      failure = std::current_exception();
      segment_.reset();
      tell(tuner_->cannot(error.what()), {ended.epoch + 1, ended.iteration, ended.images});
    }
  }
}

void Training::tell(const LearnerTuner::Decision& decision, const RunPosition& at) {
  Tuned event;
  event.learners = decision.measured;
  event.next = decision.next;
  event.images_per_second = decision.images_per_second;
  event.reason = decision.reason;
  event.epoch = at.epoch;
  event.iteration = at.iteration;
  const int64_t samples = prepared_.training->size(), batch = prepared_.program.training.batch;
  const int64_t devices = int64_t(prepared_.request.devices.size());
  event.iterations_per_epoch = rounds_of(samples, devices * decision.next, batch, prepared_.program.accumulate);
  const double left = prepared_.total_epochs - double(at.images) / double(samples);
  event.iterations = at.iteration + int64_t(left * double(event.iterations_per_epoch));
  event.seconds = monitor_->seconds();
  observer_.tuned(event);
}

// The tuner looks at every report; where it wants another number of learners, the segment ends.
void Training::observe(const RunPosition& at) {
  const int32_t before = tuner_->learners();
  const auto decision = tuner_->observe(monitor_->seconds(), at.images);
  if (!decision) return;
  tell(*decision, at);
  if (tuner_->learners() != before) segment_->stop();
}

void Training::keep(const Monitor::Verdict& verdict, const Model& model, const RunPosition& at) {
  if (verdict.best && !options_.save_best.empty()) save(options_.save_best, model, at);
  validated_ = {model, at};
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
