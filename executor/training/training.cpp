// SPDX-License-Identifier: Apache-2.0
#include "executor/training/training.h"

#include <fmt/format.h>
#include <tbb/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <future>

#include "base/checked.h"
#include "base/plain_message.h"
#include "base/version.h"
#include "executor/devices/sampler.h"
#include "executor/run/task_error.h"
#include "executor/session/initial_values.h"
#include "executor/session/reading.h"
#include "executor/trace/trace_recorder.h"
#include "executor/training/utc_time.h"
#include "executor/weights/class_names.h"
#include "graph/measures.h"
#include "io/formats/safetensors.h"

namespace arbalest {
namespace {

// Refuses outputs that cannot be written, and those that would destroy each other or what is read. Weights may be saved
// over those that the run starts from.
std::vector<OutputLock> hold_files(const FileOptions& files) {
  const NamedPaths saved = {{"--save", files.save}, {"--save-best", files.save_best}};
  NamedPaths written = saved;
  written.emplace_back("--trace", files.trace);
  check_inputs_kept({{"--weights", files.weights}}, {{"--trace", files.trace}});
  check_inputs_kept({{"--weights-map", files.weights_map}}, written);
  check_kind_kept("--trace", files.trace, OutputKind::Trace);
  for (const auto& [option, path] : saved) {
    check_weights_name(option, path);
    if (!same_file(path, files.weights)) check_kind_kept(option, path, OutputKind::Weights);
  }
  return hold_outputs(written);
}

}  // namespace

Training::Training(Graph graph, const SessionOptions& options, EventQueue& events)
    : options_(options),
      outputs_(hold_files(options.files)),
      prepared_(prepare(std::move(graph), options)),
      observer_(events) {
  traced_.started = utc_time(std::time(nullptr));
  const Program& program = prepared_.program;
  monitor_ = std::make_unique<Monitor>(program, options.rules, observer_, prepared_.training->class_names());
  if (options.learners.per_device == 0 && options.numerics.deterministic) {
    throw GraphError("--learners auto depends on measured times; --deterministic excludes it");
  }
  if (options.learners.per_device == 0) {
    const PlanRequest& request = prepared_.request;
    const int64_t most = request.training_samples / (int64_t(request.devices.size()) * program.training().batch *
                                                     program.accumulate);  // that an epoch has batches for
    LearnerTuner::Options tuning = options.learners.tuning;
    tuning.most_learners = int32_t(std::min<int64_t>(tuning.most_learners, most));
    tuner_ = std::make_unique<LearnerTuner>(tuning);
  }
  if (!options.files.save_best.empty()) monitor_->require_better("--save-best");
  check_names();
  check_divergence();
  prepared_.bad->tell([this](const std::string& place, const std::string& fault) {
    observer_.skipped({place, fault});
  });
  begin_checkpoints();
  change_rate();
  whole_ = prepared_.request;
  if (options.checkpoints.from) {
    resume(*options.checkpoints.from);
    traced_.begins = "resumed";
    return;
  }
  start();
}

Training::~Training() = default;

// Refuses names that no file of weights can hold, before anything is trained.
void Training::check_names() const {
  for (const Value& value : prepared_.program.training().graph.values) {
    const bool saved = value.role == Role::Parameter || value.role == Role::Frozen || value.role == Role::State;
    if (!saved || is_utf8(value.name)) continue;
    throw GraphError(fmt::format("'{}' has a name that is not UTF-8, which files of weights need", value.name));
  }
}

// Refuses options that act on validations if the run makes none.
void Training::check_rules() const {
  const ValidationRules& rules = options_.rules;
  const char* option = !rules.targets.empty()              ? "--until"
                       : rules.patience > 0                ? "--patience"
                       : rules.plateau > 0                 ? "--plateau"
                       : !options_.files.save_best.empty() ? "--save-best"
                                                           : nullptr;
  if (!option || segment_->validates() || (tuner_ && prepared_.program.find(LoopRole::Validate))) return;
  if (!prepared_.program.find(LoopRole::Validate))
    throw GraphError(fmt::format("{} needs a graph that validates", option));
  throw GraphError(fmt::format("{} needs a validation, and the run ends before its first: {} iterations, {} an epoch",
                               option, prepared_.request.iterations, prepared_.request.rounds));
}

// Makes the segment. The workspace that kernels need is known only once they are made. If plan and workspace together
// exceed a memory limit, the plan is made again for the memory that the workspace leaves.
void Training::make_segment(const Cursor& from) {
  segment_ = std::make_unique<Segment>(prepared_, options_, from, *monitor_, cache_);
  const int64_t limit = options_.execution.memory_limit;
  for (int64_t workspace = 0; limit > 0 && segment_->peak_bytes() > limit;) {
    workspace = segment_->workspace_bytes();
    segment_.reset();
    leave_for_workspace(prepared_, workspace, options_);
    segment_ = std::make_unique<Segment>(prepared_, options_, from, *monitor_, cache_);
  }
  if (tuner_ && !tuner_->done()) {
    segment_->on_report = [this](const RunPosition& at) { observe(at); };
  }
  segment_->on_samples = [this](const SamplesKept& event) { observer_.kept(event); };
  segment_->outlives_divergence = options_.divergence.then == OnDivergence::Rollback || options_.divergence.find;
  segment_->on_process_ends([this](const std::string& message) {
    constexpr auto kLongest = std::chrono::seconds(5);  // of observers, to take note of it
    observer_.failed({message, -1, segment_->iterations(), seconds()});
    observer_.wait_for(observer_.handed_on(), kLongest);
  });
  layout_ = std::make_shared<CheckpointLayout>(prepared_.program.training());
  if (!prepared_.request.keep_validated) return;
  segment_->on_validated = [this](const Monitor::Verdict& verdict, const ModelState& model, const RunPosition& at) {
    keep(verdict, model, at);
  };
}

void Training::start() {
  std::optional<WeightsFile> file;
  const ArenaValues& arenas = prepared_.program.training().arenas;
  if (!options_.files.weights.empty()) {
    file.emplace(options_.files.weights, options_.files.weights_map, options_.files.fresh);
    NamedPaths shards;
    for (const std::string& shard : file->shards()) shards.emplace_back("--weights", shard);
    check_inputs_kept(shards, {{"--save", options_.files.save}, {"--save-best", options_.files.save_best}});
    const std::string other = other_classes(file->class_names(), prepared_.training->class_names());
    if (!other.empty() && options_.files.fresh.empty()) {
      prepared_.notes.push_back(fmt::format("{}: was trained on other classes: {}", file->path(), other));
    }
    check_weights(*file, prepared_.program.training().graph, {arenas.weights, arenas.statistics, arenas.frozen});
  }
  // Drawn while kernels are made, except with a memory limit, for which the program may change meanwhile, and on CPUs,
  // whose free memory is looked at meanwhile.
  const std::vector<PlanDevice>& devices = prepared_.request.devices;
  const bool gpus = std::all_of(devices.begin(), devices.end(),
                                [](const PlanDevice& device) { return device.kind == PlanDevice::Kind::Cuda; });
  const auto drawn =
      gpus && options_.execution.memory_limit == 0 ? std::launch::async | std::launch::deferred : std::launch::deferred;
  std::future<InitialValues> values =
      std::async(drawn, [&] { return initial_values(prepared_, options_, file ? &*file : nullptr); });
  make_segment({});
  check_rules();
  segment_->start_from(values.get());
}

RunFinished Training::run(const std::atomic<bool>& interrupted, double setup_seconds) {
  announce(setup_seconds);
  monitor_->begin();
  RunFinished end;
  try {
    const bool over = is_over();
    complete_ = segment_->at_end();
    if (!over && !complete_) {
      setup_seconds += bring_samples(interrupted);
      monitor_->begin();  // anew: nothing has been trained so far
    }
    trained_ = !interrupted.load() && !over && !complete_;
    if (trained_) run_segments(interrupted);
    end = monitor_->finish(segment_->position(), monitor_->seconds(), why_ended());
    const auto& by = options_.execution.interrupted_by;
    if (end.reason == "interrupted" && by) end.interrupted_by = by();
    end.setup_seconds = setup_seconds;
    end.input = segment_->input();
    end.best_error = best_error_;
    if (end.best_epoch > 0 && best_error_.empty()) end.best_weights = options_.files.save_best;
    end.learners = prepared_.request.learners;
    end.tuning = tuner_ && !tuner_->done();
    end_checkpoints(end);
    save_last(end);
  } catch (...) {
    write_trace_of_failure();
    throw;
  }
  if (trace_ && end.iteration > 0) {
    time_what_ran();
    traced_.ended = end.reason;
    traced_.message = end.interrupted_by;
    traced_.ended_after = end.iteration;
    try {
      write_trace();
    } catch (const std::exception& error) {
      end.trace_error = plain_message(error);
      warn(end.trace_error);
    }
    end.trace = trace_written_;
  }
  observer_.finished(end);
  return end;
}

// Returns how many seconds it took.
double Training::bring_samples(const std::atomic<bool>& interrupted) {
  const auto began = std::chrono::steady_clock::now();
  segment_->bring_samples(interrupted);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Saves the model at the end of the run, if --save asks for it or an interrupt ended the run.
void Training::save_last(RunFinished& end) {
  const bool interrupted = end.reason == "interrupted" || end.reason == "time limit";
  if (interrupted && end.iteration == 0) return;  // nothing was trained: an earlier run's file is worth more
  std::string path = options_.files.save;
  const bool kept = !end.checkpoint.empty() && end.checkpoint_error.empty();
  const bool unasked = path.empty() && interrupted && !kept;
  const std::string name = file_name_of(prepared_.graph.name) + ".interrupted.safetensors";
  const FreePath free = unasked ? free_path(name) : FreePath();  // an earlier run's file stays
  if (unasked) path = free.path.empty() ? name : free.path;
  if (path.empty()) return;
  // If a validation ended the run, the model that it measured is saved, not the one some iterations later. If
  // validation recalibrates, its model of the last iteration is saved, because it has the better statistics.
  const bool recalibrated = prepared_.program.find(LoopRole::Recalibrate) && validated_.at.iteration == end.iteration;
  const bool validated = end.reason == "until" || end.reason == "patience" || recalibrated;
  if (validated && !validated_.model.weights.empty()) {
    save_somewhere(path, validated_, end);
  } else {
    save_somewhere(path, {segment_->model(), segment_->position()}, end);
  }
}

// A model that has been trained is not lost because its file cannot be written.
void Training::save_somewhere(const std::string& path, const Snapshot& last, RunFinished& end) {
  check_finite(last.model, last.at.iteration, path);
  end.weights = path;
  try {
    return save(path, last.model, last.at, end.seconds);
  } catch (const RunError& error) {
    for (const auto& [other, held] : other_places(path)) {
      try {
        save(other, last.model, last.at, end.seconds);
      } catch (const RunError&) {
        continue;
      }
      warn(fmt::format("{}; the model is in '{}'", error.what(), other));
      end.weights = other;
      if (!options_.files.save.empty()) end.weights_error = error.what();
      return;
    }
    throw;
  }
}

// A failure here only leaves the times out: the rest of the trace is of use without them.
void Training::time_what_ran() {
  try {
    segment_->time_alone(*trace_);
    segment_->time_nodes(*trace_);
  } catch (const RunError& error) {
    warn(fmt::format("how long tasks or layers take alone is not in the trace: {}", error.what()));
  }
}

void Training::write_trace() {
  trace_->set_run(traced_);
  trace_->write(options_.files.trace);
  trace_written_ = options_.files.trace;
}

// The trace of a run that fails is written too: called while its exception is handled. If writing fails as well, it
// is a warning: the run's own error is the one that is reported.
void Training::write_trace_of_failure() noexcept {
  if (!trace_) return;
  try {
    traced_.ended = "failed";
    try {
      throw;
    } catch (const std::exception& error) {
      const auto* task = dynamic_cast<const TaskError*>(&error);
      traced_.ended_after = task ? task->iteration : -1;
      traced_.message = plain_message(error);
      std::replace(traced_.message.begin(), traced_.message.end(), '\n', ' ');
    }
    write_trace();
  } catch (const std::exception& error) {
    warn(error.what());
  }
}

bool Training::is_over() const {
  return monitor_->all_targets_reached() || monitor_->out_of_patience();
}

std::string Training::why_ended() const {
  if (monitor_->all_targets_reached()) return "until";
  if (monitor_->out_of_patience()) return "patience";
  if (!stopped_.empty()) return stopped_;
  return complete_ ? "complete" : "interrupted";
}

// In the trace: of which run it is, and which part of it the segment is.
void Training::describe_run() {
  traced_.strategy = prepared_.request.strategy.name;
  traced_.learners = prepared_.request.learners;
  traced_.iterations = segment_->position().iteration;
  traced_.first = segment_->from().iteration;
  traced_.command = options_.command;
  traced_.source = string_attribute(*prepared_.graph.find_op("arbalest.Prefetch"), "source");
  traced_.precision = name_of(options_.numerics.precision);
  traced_.batch = prepared_.program.training().batch;
  traced_.models = device_models();
}

void Training::run_segment(const std::atomic<bool>& interrupted) {
  std::optional<Sampler> sampler;
  if (!options_.files.trace.empty()) {
    trace_ = std::make_unique<TraceRecorder>(segment_->plan());
    describe_run();
    const std::chrono::milliseconds interval(options_.execution.sample_ms);
    if (interval.count() > 0) sampler.emplace(segment_->plan().devices, interval, *trace_);
  }
  segment_->run(interrupted, trace_.get());
}

// One segment after the other: until the epochs are over, or validation or the user ends the run.
void Training::run_segments(const std::atomic<bool>& interrupted) {
  for (;;) {
    let_segment_rest(interrupted);
    run_segment(interrupted);
    if (writer_ && segment_->complete()) writer_->wait();  // it may have found what is not finite
    if (const bool finite = is_finite(); !finite) {
      roll_back(located(*segment_->diverged()));
      continue;
    }
    if (!stopped_.empty()) return;
    if (is_over()) return;
    PlanRequest rest = whole_;
    Cursor from = segment_->cursor();
    const bool one_of_several = tuner_ || segment_->from().iteration > 0;
    complete_ = one_of_several ? !take_rest(rest, from, prepared_.program) : segment_->complete();
    const bool changes = tuner_ && tuner_->learners() != prepared_.request.learners;
    if (complete_ || interrupted.load() || (!changes && !segment_->complete())) return;
    next_segment();
  }
}

// Makes the request for what is left of the run with so many learners per device.
void Training::request_rest(int32_t learners, Cursor& from) {
  set_learners(prepared_, learners, options_);
  PlanRequest& request = prepared_.request;
  whole_ = request;
  if (request.iterations > 0) {
    const double seen =
        epochs_seen(from.epoch, from.batch, prepared_.program.training().batch, request.training_samples);
    prepared_.total_epochs = seen + double(request.iterations - from.iteration) / double(request.rounds);
  }
  if (!take_rest(request, from, prepared_.program)) throw std::logic_error("nothing is left to train");
}

// Makes a segment for what is left, with the tuner's number of learners, if there is one, or, if that cannot be
// had, with the number before. If too little of an epoch is left for a round of more learners, the learners of the
// segment before end it.
void Training::next_segment() {
  const RunState state = segment_->state();
  const Cursor ended = segment_->cursor();
  const PlanRequest before = whole_;
  for (;;) {
    PlanRequest wanted = before;
    if (tuner_) wanted.learners = tuner_->learners();
    const bool too_little = ended.batch > 0 && rounds_left(wanted, ended, prepared_.program) == 0;
    const bool finish = too_little && rounds_left(before, ended, prepared_.program) > 0;
    Cursor from = ended;
    if (writer_) writer_->wait();
    trace_.reset();  // it is of the segment
    traced_.begins = tuner_ ? "tuned" : "planned anew";
    segment_.reset();  // its memory is needed
    try {
      request_rest(finish ? before.learners : wanted.learners, from);
      make_segment(from);
      segment_->start_from(with_learners(state, before.devices.size(), size_t(prepared_.request.learners),
                                         before.strategy, prepared_.request.strategy));
      return;
    } catch (const RunError& error) {
      give_up_learners(error.what(), ended);
    } catch (const LimitTooLow& error) {
      give_up_learners(error.brief, ended);
    }
  }
}

// While an exception is handled, which is thrown again if the number of learners is not the tuner's to choose.
void Training::give_up_learners(const std::string& why, const Cursor& at) {
  if (!tuner_ || tuner_->done()) throw;
  const double epochs = epochs_seen(at.epoch, at.batch, prepared_.program.training().batch, prepared_.training->size());
  tell(tuner_->cannot(why), {at.epoch + 1, at.iteration, at.images, epochs});
}

void Training::tell(const LearnerTuner::Decision& decision, const RunPosition& at) {
  Tuned event;
  event.learners = decision.measured;
  event.next = decision.next;
  event.images_per_second = decision.images_per_second;
  event.reason = decision.reason + (waits_for_input_ ? "; training waits for its input" : "");
  event.strategy = strategy_for(prepared_.graph, options_, decision.next).name;
  event.epoch = at.epoch;
  event.iteration = at.iteration;
  const int64_t samples = prepared_.training->size(), batch = prepared_.program.training().batch;
  const int64_t devices = int64_t(prepared_.request.devices.size());
  event.iterations_per_epoch = rounds_of(samples, devices * decision.next, batch, prepared_.program.accumulate);
  const double left = prepared_.total_epochs - at.epochs;
  event.iterations =
      options_.length.iterations.value_or(at.iteration + whole_part(left * double(event.iterations_per_epoch)));
  event.seconds = monitor_->seconds();
  observer_.tuned(event);
}

// The tuner looks at every report; if it wants another number of learners, the segment ends.
void Training::observe(const RunPosition& at) {
  waits_for_input_ = segment_->last_input().bound();
  const int32_t before = tuner_->learners();
  if (before != prepared_.request.learners) return;  // what comes after the decision
  const auto decision = tuner_->observe(monitor_->seconds(), at.images);
  if (!decision) return;
  tell(*decision, at);
  if (tuner_->learners() != before) segment_->stop();
}

void Training::keep(const Monitor::Verdict& verdict, const ModelState& model, const RunPosition& at) {
  validated_ = {model, at};
  if (options_.files.save_best.empty()) return;
  if (!verdict.best) {
    if (monitor_->best_iteration() == 0) {
      best_error_ =
          fmt::format("{}: '{}' was undefined in every validation", options_.files.save_best, monitor_->best_metric());
    }
    return;
  }
  try {
    check_finite(model, at.iteration, options_.files.save_best);
    save(options_.files.save_best, model, at, monitor_->seconds());
    best_error_.clear();
  } catch (const RunError& error) {  // the disk may have room again by the next
    best_error_ = error.what();
    warn(fmt::format("{}; training goes on", best_error_));
  }
}

std::vector<std::string> Training::device_models() const {
  std::vector<std::string> models;
  for (const PlanDevice& device : prepared_.request.devices) {
    models.push_back(device.kind == PlanDevice::Kind::Cuda ? cuda_device_model(device.index) : cpu_model());
  }
  return models;
}

void Training::announce(double setup_seconds) {
  const PlanRequest& request = prepared_.request;
  RunStarted event;
  event.graph = prepared_.graph.name;
  for (const PlanDevice& device : request.devices) event.devices.push_back(to_string(device));
  event.models = device_models();
  event.learners = request.learners;
  event.strategy = request.strategy.name;
  event.batch = prepared_.program.training().batch;
  event.precision = name_of(options_.numerics.precision);
  event.seed = options_.numerics.seed;
  event.deterministic = options_.numerics.deterministic;
  event.versions = {{"arbalest", ARBALEST_VERSION}, {"tbb", TBB_runtime_version()}};
  for (auto& version : library_versions()) event.versions.push_back(std::move(version));
  event.parameters = parameter_count(prepared_.program.training().graph);
  event.planned_peak_bytes = segment_->peak_bytes();
  event.recomputation = prepared_.recomputation;
  event.iterations_per_epoch = request.rounds;
  event.samples_per_epoch = request.rounds * segment_->learners() * event.batch;
  event.iterations = segment_->from().iteration + segment_->plan().clocks[0].ticks;
  for (const Field& field : prepared_.training->fields()) event.classes = std::max(event.classes, field.classes);
  event.class_names = prepared_.training->class_names();
  event.validates = prepared_.validation != nullptr;
  event.best_metric = monitor_->best_metric();
  if (const auto better = monitor_->better()) event.better = name_of(*better);
  event.setup_seconds = setup_seconds;
  if (const auto& from = options_.checkpoints.from) {
    event.resumed = from->path;
    event.resumed_iteration = from->checkpoint.position.iteration;
    event.resumed_seconds = from->checkpoint.monitor.seconds;
  }
  event.note = note();
  event.changes = changes_;
  observer_.started(event);
}

// Throws RunError if a number of the model is infinite or not a number: such a file is of no use, and may replace a
// good one.
void Training::check_finite(const ModelState& model, int64_t iteration, const std::string& path) {
  for (const std::vector<std::byte>* content : {&model.weights, &model.statistics}) {
    if (all_finite(DataType::Float32, *content)) continue;
    throw RunError(
        fmt::format("{}: not written: the weights are no longer finite after iteration {}; try a lower learning rate",
                    path, iteration));
  }
}

void Training::save(const std::string& path, const ModelState& model, const RunPosition& at, double seconds) {
  const Loop& loop = prepared_.program.training();
  TensorFile file;
  file.metadata = {{"graph", prepared_.graph.name},
                   {"iteration", std::to_string(at.iteration)},
                   {"epoch", std::to_string(at.epoch)}};
  put_class_names(file.metadata, prepared_.training->class_names());
  if (options_.files.overrides) put_overrides(file.metadata, *options_.files.overrides);
  put_skip_bad(file.metadata, options_.execution.skip_bad);
  append_tensors(file, loop.graph, loop.arenas.weights, model.weights);
  if (loop.arenas.statistics != kNone) append_tensors(file, loop.graph, loop.arenas.statistics, model.statistics);
  if (loop.arenas.frozen != kNone) append_tensors(file, loop.graph, loop.arenas.frozen, model.frozen);
  write_safetensors(path, file);
  CheckpointSaved event{path, at.epoch, at.iteration, 0, seconds};
  for (const NamedTensor& tensor : file.tensors) event.bytes += int64_t(tensor.bytes.size());
  observer_.checkpoint(event);
}

}  // namespace arbalest
