// SPDX-License-Identifier: Apache-2.0
#include "executor/training/training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/version.h>

#include <algorithm>
#include <future>
#include <utility>

#include "base/process.h"
#include "base/setting.h"
#include "base/version.h"
#include "executor/run/binding.h"
#include "executor/segment/whole_state.h"
#include "executor/session/shared_resources.h"
#include "executor/training/changes.h"
#include "executor/training/other_ranks.h"
#include "executor/training/run_beginning.h"
#include "executor/weights/class_names.h"
#include "executor/world/part.h"
#include "graph/measures.h"

namespace arbalest {

namespace {

// Nobody will tell of a validation that was under way.
void leave_out_validation(HeldBack& held) {
  std::erase_if(held.lines, [](const auto& line) { return line.second.ended && !line.second.validation; });
  for (auto& [epoch, line] : held.lines) {
    if (line.end) line.end->validates = line.validation.has_value();
  }
}

}  // namespace

Training::Training(Graph graph, const SessionOptions& options, EventQueue& events)
    : options_(options),
      files_(options_, prepared_, events),
      prepared_(prepare(std::move(graph), options_)),
      observer_(events),
      monitor_(prepared_.program, options_.rules, events, prepared_.training->class_names()),
      made_{options.shared ? options.shared->devices() : make_device_cache(), 0, {}},
      others_{RanksOfRun(options_)},
      trace_(options_) {
  const bool tunes = options.learners.per_device == 0;
  if (tunes && options.numerics.deterministic) {
    throw GraphError(fmt::format("{} depends on measured times; {} excludes it", name_of(SettingKey::LearnersAuto),
                                 name_of(SettingKey::Deterministic)));
  }
  if (tunes) search_ = std::make_unique<LearnerSearch>(options_, prepared_, monitor_, events);
  if (saves_by_metric(options_.files)) monitor_.require_better(name_of(SettingKey::SaveBest));
  files_.check_names();
  divergence_.emplace(options_, tunes);
  prepared_.bad->tell([this](const std::string& place, const std::string& fault) {
    observer_.on(SampleSkipped{place, fault});
  });
  checkpoints_.emplace(options_, prepared_, monitor_, events, started_);
  change_rate();
  if (options.ranks) check_world(*options.ranks, prepared_, options, checkpoints_->identity());
  others_.ranks.begin();
  check_later_strategies();
  begin_whole();
  if (others_.ranks.returns()) {
    come_back();
    return;
  }
  if (options.checkpoints.from) {
    resume(*options.checkpoints.from);
    trace_.segment_begins(SegmentBegin::Resumed);
    return;
  }
  start();
}

Training::~Training() = default;

// The identity is that of the run as it was started: what changes on the way makes no other run of it.
void Training::change_rate() {
  if (checkpoints_->changes().empty()) return;
  apply_changes(prepared_.graph, checkpoints_->changes());
  verify(prepared_.graph);
  set_learners(prepared_, prepared_.request.learners, options_);
}

// Refuses now what the plans of later strategies would refuse in the midst of the run.
void Training::check_later_strategies() const {
  for (size_t p = 1; p < prepared_.strategies.size(); ++p) {
    const StrategyPhase &before = prepared_.strategies[p - 1], &phase = prepared_.strategies[p];
    StrategyOptions grew = before.strategy;
    grew.every = phase.strategy.every;
    if (phase.strategy == grew) continue;  // another period alone
    Prepared later = prepared_;
    set_learners(later, prepared_.request.learners, options_, phase.from);
    make_plan(later.program, later.request);
  }
}

SegmentOptions Training::segment_options() {
  SegmentOptions options;
  options.ranks = options_.ranks;
  options.outlives_divergence = divergence_->outlives();
  options.on_samples = [this](const SamplesKept& event) { observer_.on(event); };
  if (search_ && !search_->done()) {
    options.on_report = [this](const RunPosition& at, double seconds) {
      return search_->observe(at, seconds, segment_->reports().last_input());
    };
  }
  options.on_process_ends = [this](const std::string& message) {
    constexpr auto kLongest = std::chrono::seconds(5);  // of observers, to take note of it
    observer_.on(RunFailed{message, -1, segment_ ? segment_->iterations() : 0, seconds()});
    observer_.wait_for(observer_.handed_on(), kLongest);
  };
  if (!prepared_.request.keep_validated || !writes()) return options;
  options.on_validated = [this](const Monitor::Verdict& verdict, const ModelState& model, const RunPosition& at) {
    files_.keep(verdict, {model, at}, monitor_);
  };
  return options;
}

// Makes the segment. The workspace that kernels need is known only once they are made. If plan and workspace together
// exceed a memory limit, the plan is made again for the memory that the workspace leaves.
void Training::make_segment(const Cursor& from) {
  const auto alone = while_set_up();
  ++made_.segments;
  segment_ = std::make_unique<Segment>(prepared_, options_, from, monitor_, segment_options(), made_.cache);
  const int64_t limit = options_.execution.memory_limit;
  while (limit > 0 && segment_->peak_bytes() > limit) {
    const int64_t workspace = segment_->workspace_bytes();
    segment_.reset();
    leave_for_workspace(prepared_, workspace, options_);
    segment_ = std::make_unique<Segment>(prepared_, options_, from, monitor_, segment_options(), made_.cache);
  }
  checkpoints_->set_layout(prepared_.program.training());
}

// While what it returns lives, no other run of the process is set up.
std::unique_lock<std::mutex> Training::while_set_up() const {
  return options_.shared ? std::unique_lock(options_.shared->set_up()) : std::unique_lock<std::mutex>();
}

// Before another segment is made, which needs its memory. A trace is of one segment.
void Training::drop_segment(SegmentBegin why) {
  trace_.drop();
  trace_.segment_begins(why);
  segment_.reset();
}

void Training::start() {
  std::optional<WeightsFile> file;
  const ArenaValues& arenas = prepared_.program.training().arenas;
  if (!options_.files.weights.empty()) {
    file.emplace(options_.files.weights, options_.files.weights_map, options_.files.fresh);
    NamedPaths shards;
    for (const std::string& shard : file->shards()) shards.emplace_back(name_of(SettingKey::Weights), shard);
    check_inputs_kept(shards, {{name_of(SettingKey::Save), options_.files.save},
                               {name_of(SettingKey::SaveBest), options_.files.save_best}});
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
  check_rules(prepared_, options_, segment_->plan());
  InitialValues initial = values.get();
  if (options_.ranks && file) check_alike(*options_.ranks, {{"weights", sum_of(initial)}});
  segment_->start_from(std::move(initial));
}

void Training::resume(const CheckpointFile& file) {
  Checkpoint checkpoint = file.checkpoint;
  const RunIdentity& here = checkpoints_->identity();
  const bool others = checkpoint.identity.settings != here.settings && !search_ && !checkpoint.tuner;
  check_same_run(file, here, prepared_.graph, others);
  try {
    monitor_.restore(checkpoint.monitor);
    if (others) {
      go_on_with_others(checkpoint, file);
    } else {
      if (search_) search_->restore(*checkpoint.tuner);
      Cursor from = checkpoint.segment.from;
      if (from.iteration > 0 || checkpoint.segment.learners != prepared_.request.learners) {
        request_rest(checkpoint.segment.learners, from);
        prepared_.total_epochs = checkpoint.total_epochs;
      }
      make_segment(from);
      checkpoints_->layout().decode(file, checkpoint, needs_of(checkpoint));
      segment_->start_from(checkpoint.segment);
      const auto& validations = segment_->clock().times().validations;
      const PlanPosition& at = checkpoint.segment.at;
      // The end of the run before was being validated, and a longer run is not validated there.
      const bool goes_on = validations && validations->of(at.iterations) > at.validations;
      if (checkpoint.segment.validating && !goes_on) leave_out_validation(checkpoint.held);
    }
    observer_.hold_back(checkpoint.held);
  } catch (const LacksMemory&) {
    throw;  // the checkpoint is not to blame
  } catch (const RunError& error) {
    throw RunError(fmt::format("{}: {}", file.path, error.what()));
  }
  if (checkpoint.keeps_validated) files_.set_validated({std::move(checkpoint.validated), checkpoint.validated_at});
  checkpoints_->set_latest(file.path);
}

// The part of a checkpoint of as many learners that this rank goes on from. If learners are on other hosts than before,
// their averages have to meet, for which all are needed.
CheckpointNeeds Training::needs_of(const Checkpoint& checkpoint) const {
  if (!options_.ranks) return {};
  const PlanHandles& handles = segment_->plan().handles;
  const std::vector<PlanDevice>& devices = prepared_.request.devices;
  const std::vector<LearnerState>& learners = checkpoint.segment.state.learners;
  const std::vector<Replica>& own = handles.loops.front().replicas;
  const int64_t each = prepared_.request.learners;
  if (learners.size() > devices.size() * size_t(each)) return {};
  const auto host_of = [&](int64_t learner) {
    return handles.by_hosts == kNone ? 0 : devices[size_t(learner / each)].host_number;
  };
  for (size_t learner = 0; learner < learners.size(); ++learner) {
    if (learners[learner].host != host_of(int64_t(learner))) return {};
  }
  CheckpointNeeds needs = {false, own.front().learner, int64_t(own.size()), {}};
  for (const Replica& replica : own) needs.hosts.insert(host_of(replica.learner));
  return needs;
}

// With another number of learners or devices the plan is another one: a segment of its own follows, as when the tuner
// changes the number.
void Training::go_on_with_others(Checkpoint& checkpoint, const CheckpointFile& file) {
  Cursor from = checkpoint.next;
  PlanRequest rest = whole_;
  if (!take_rest(rest, from, prepared_.program)) {
    throw GraphError(fmt::format("{}: nothing is left to train with another number of learners", file.path));
  }
  from = checkpoint.next;
  const auto before = int64_t(checkpoint.segment.state.learners.size());
  request_rest(prepared_.request.learners, from);
  make_segment(from);
  checkpoints_->layout().decode(file, checkpoint);
  const int64_t learners = segment_->clock().times().learners;
  segment_->start_from(
      with_learners(checkpoint.segment.state, 1, size_t(learners), checkpoint.strategy, prepared_.request.strategy));
  leave_out_validation(checkpoint.held);
  if (!writes()) return;
  warn(fmt::format(
      "the checkpoint is of {} learner{}, and the run goes on with {}: those that were there keep their weights "
      "and the optimiser's state, others start from the shared model{}",
      before, before == 1 ? "" : "s", learners,
      checkpoint.segment.validating ? "; the validation that was under way is left out" : ""));
}

// The signal that asked this process to end, or that another rank was asked. A rank whose console is silent tells.
std::string Training::who_interrupted(const std::stop_token& stop) const {
  const auto& by = options_.execution.interrupted_by;
  const std::string signal = by ? by() : "";
  const Ranks* ranks = options_.ranks.get();
  if (!ranks) return signal;
  if (!signal.empty() && !ranks->first())
    warn(fmt::format("{} was interrupted by {}", ranks->name(ranks->rank()), signal));
  return signal.empty() && !stop.stop_requested() ? "another rank" : signal;
}

RunFinished Training::run(const std::stop_token& stop, double setup_seconds) {
  announce(setup_seconds);
  monitor_.begin();
  RunFinished end;
  try {
    const bool over = is_over();
    ended_.complete = segment_->at_end() && nothing_left();
    if (!over && !ended_.complete) {
      const auto began = std::chrono::steady_clock::now();
      const auto alone = while_set_up();
      segment_->bring_samples(stop);
      setup_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      monitor_.begin();  // anew: nothing has been trained so far
    }
    const bool stops = !others_.came_back && anywhere(stop.stop_requested());
    const bool trains = !stops && !over && !ended_.complete;  // otherwise nothing is left
    if (trains) run_segments(stop);
    end = monitor_.finish(segment_->position(), monitor_.seconds(), why_ended());
    if (end.reason == RunEnd::Interrupted) end.interrupted_by = who_interrupted(stop);
    end.setup_seconds = setup_seconds;
    end.input = segment_->reports().input();
    // Before a trace's nodes are timed, one launch after the other: that takes launch memory, which quotes would count.
    end.taken_bytes = segment_->taken_bytes();
    end.best_error = files_.best_error();
    if (end.best_epoch > 0 && end.best_error.empty()) end.best_weights = options_.files.save_best;
    end.learners = prepared_.request.learners;
    end.tuning = search_ && !search_->done();
    end_with(end, trains && !ended_.stopped);
  } catch (...) {
    trace_.write_failed();
    throw;
  }
  observer_.on(end);
  return end;
}

// Writes what a run leaves. If a rank is lost meanwhile, rank 0 goes on alone: it has the model that all share.
void Training::end_with(RunFinished& end, bool takes_checkpoint) {
  bool given_up = false;  // the last checkpoint, with a rank that is lost
  try {
    checkpoints_->finish(parts(), end, takes_checkpoint);
    given_up = takes_checkpoint && options_.ranks && options_.ranks->lost() && !end.checkpoint_error.empty();
    if (given_up) throw RunError(end.checkpoint_error);
    save_last(end);
    trace_.finish(*segment_, end);
  } catch (const RunError& error) {
    if (!goes_on_without_lost(options_, error)) throw;
    warn(fmt::format("{}; the run was over, and what is saved is made of rank 0's learners{}", error.what(),
                     takes_checkpoint ? ", and its last checkpoint may be missing" : ""));
    if (!writes()) return;
    options_.ranks = nullptr;
    checkpoints_->finish(parts(), end, false);
    if (end.weights.empty()) save_last(end);
    trace_.finish(*segment_, end);
    const auto kept = given_up ? checkpoints_in(options_.checkpoints.folder) : std::vector<std::filesystem::path>();
    if (kept.empty()) return;
    end.checkpoint = kept.front().string();  // the one before is there
    end.checkpoint_error.clear();
  }
}

// Rank 0 saves. The others hand it their parts of the model if it asks for them.
void Training::save_last(RunFinished& end) {
  bool asked = false;
  const auto last = [&] {
    asked = anywhere(true);
    return ModelAt{segment_->model(), segment_->position()};
  };
  if (writes()) files_.save_last(end, last);
  if (!asked && anywhere(false)) segment_->model();
}

bool Training::is_over() const {
  return monitor_.all_targets_reached() || monitor_.out_of_patience();
}

RunEnd Training::why_ended() const {
  if (monitor_.all_targets_reached()) return RunEnd::Until;
  if (monitor_.out_of_patience()) return RunEnd::Patience;
  return ended_.stopped.value_or(ended_.complete ? RunEnd::Complete : RunEnd::Interrupted);
}

bool Training::time_is_up() const {
  return options_.length.seconds > 0 && checkpoints_->seconds() >= options_.length.seconds;
}

SegmentRests Training::rests(const std::stop_token& stop) {
  const int64_t next = checkpoints_->plan_next(*segment_);
  divergence_->begin(*segment_);
  return {.rest = [this, &stop] { return rest(stop); },
          .first = divergence_->finds() ? segment_->iterations() + 1 : next,
          .due =
              [this] {
                return time_is_up() || checkpoints_->wants_rest() || segment_->reports().diverged() ||
                       checkpoints_->found_not_finite() || (options_.ranks && segment_is_over()) ||
                       (others_.ranks.awaited() && !others_.too_late);
              }};
}

// Nothing of the plan is under way. A segment whose loss is not finite ends here.
std::optional<int64_t> Training::rest(const std::stop_token& stop) {
  if (!divergence_->is_finite(*segment_, *checkpoints_) || segment_is_over()) return std::nullopt;
  const bool stops = anywhere(stop.stop_requested());
  if (stops || anywhere(time_is_up())) {
    ended_.stopped = stops ? RunEnd::Interrupted : RunEnd::TimeLimit;
    checkpoints_->take(parts(), RunEnd::Unknown);
    return std::nullopt;
  }
  if (anywhere(checkpoints_->wants(segment_->iterations()))) checkpoints_->take(parts(), RunEnd::Unknown);
  others_.take_back = options_.on_lost == OnLost::Continue && anywhere(takes_back());
  if (others_.take_back) return std::nullopt;
  checkpoints_->plan_next(*segment_);
  const int64_t next = checkpoints_->next();
  return divergence_->finds() ? std::min(segment_->iterations() + 1, next) : next;
}

// True if the segment, which stands still, is followed by none.
bool Training::nothing_left() const {
  const bool one_of_several =
      search_ || prepared_.strategies.size() > 1 || segment_->clock().times().from.iteration > 0;
  if (!one_of_several) return segment_->complete();
  PlanRequest rest = whole_;
  Cursor from = segment_->cursor();
  return !take_rest(rest, from, prepared_.program);
}

// One segment after the other: until the epochs are over, or validation or the user ends the run.
void Training::run_segments(const std::stop_token& stop) {
  for (bool over = false; !over;) {
    std::optional<std::string> lost;
    try {
      over = run_segment(stop);
    } catch (const RunError& error) {
      if (!goes_on_without_lost(options_, error) || (!segment_ && !made_.left)) throw;
      lost = error.what();
    }
    if (lost) go_on_without_lost(*lost);
  }
}

// Runs the segment and makes the next. Returns true if there is none.
bool Training::run_segment(const std::stop_token& stop) {
  if (!segment_->at_end()) trace_.run(*segment_, prepared_, stop, rests(stop));
  const bool takes_back = std::exchange(others_.take_back, false);
  if (segment_->complete()) checkpoints_->wait();  // it may have found what is not finite
  if (!divergence_->is_finite(*segment_, *checkpoints_)) {
    roll_back(divergence_->located(*segment_->reports().diverged(), *segment_));
    return false;
  }
  if (ended_.stopped || is_over()) return true;
  ended_.complete = nothing_left();
  const bool changes = search_ && search_->learners() != prepared_.request.learners;
  const bool stops = anywhere(stop.stop_requested());
  if (!ended_.complete && !stops && takes_back) {
    take_back();
    return false;
  }
  if (ended_.complete || stops || (!changes && !segment_->complete())) return true;
  const bool due = !search_ && checkpoints_->wants(segment_->iterations());
  if (anywhere(due)) checkpoints_->take(parts(), RunEnd::Unknown);
  next_segment();
  return false;
}

void Training::go_on_without_lost(const std::string& why) {
  checkpoints_->wait_after_loss();
  LeftState mine = segment_ ? segment_->left() : std::move(*made_.left);
  if (segment_) mine.segment = made_.segments;
  made_.left.reset();
  drop_segment(SegmentBegin::RanksLost);
  meet_again(mine, why);
}

// At rank 0: true if ranks that have come back are to be taken in at this rest.
bool Training::takes_back() {
  if (!others_.ranks.awaited() || others_.too_late) return false;
  PlanRequest rest = whole_;
  rest.devices = others_.ranks.devices();
  Cursor from = segment_->cursor();
  const bool ends_epoch = from.batch > 0 && rounds_left(rest, from, prepared_.program) == 0;
  if (ends_epoch && rounds_left(whole_, from, prepared_.program) > 0) return false;  // those that are there finish it
  others_.too_late = !take_rest(rest, from, prepared_.program);
  return !others_.too_late;
}

// At a rest, for which ranks that have come back wait.
void Training::take_back() {
  checkpoints_->wait();
  LeftState mine = segment_->left();
  mine.segment = made_.segments;
  drop_segment(SegmentBegin::PlannedAnew);
  meet_again(mine, "");
}

// Begins at the point at which the others come to rest.
void Training::come_back() {
  const std::vector<PlanDevice>& devices = options_.learners.devices;
  const auto own = std::count_if(devices.begin(), devices.end(),
                                 [&](const PlanDevice& device) { return device.rank == options_.ranks->rank(); });
  LeftState mine;
  mine.segment = -1;
  mine.fresh = own * prepared_.request.learners;
  others_.came_back = true;
  trace_.segment_begins(SegmentBegin::PlannedAnew);
  meet_again(mine, "");
}

// The learners of the ranks that are there go on under a plan of their own. Those of ranks that have come back start
// from the shared model.
void Training::meet_again(const LeftState& mine, const std::string& why) {
  const double began = seconds();
  RanksChanged event;
  event.reason = why;
  for (bool made = false; !made;) {
    const RanksOfRun::Change change = others_.ranks.meet(options_, why.empty());  // throws if nobody can go on
    event.lost.insert(event.lost.end(), change.lost.begin(), change.lost.end());
    event.returned.insert(event.returned.end(), change.returned.begin(), change.returned.end());
    try {
      const LeftState all = exchanged(*options_.ranks, mine);
      made_.segments = all.segment;  // the same on every rank
      const MonitorState state = monitor_of_first(*options_.ranks, monitor_);
      if (!writes()) {
        monitor_.restore(state);
        monitor_.begin();
      }
      if (options_.ranks->size() == 1) options_.ranks = nullptr;
      make_segment_of_left(all);
      event.left_out = 0;
      for (const int64_t iterations : all.iterations) event.left_out += all.next.iteration - iterations;
      made = true;
    } catch (const RunError& error) {
      if (!goes_on_without_lost(options_, error)) throw;
      if (event.reason.empty()) event.reason = error.what();
      segment_.reset();
    }
  }
  if (!writes()) return;                                        // who has come back is known to rank 0
  std::erase_if(event.returned, [&](const std::string& name) {  // lost again meanwhile
    return std::find(event.lost.begin(), event.lost.end(), name) != event.lost.end();
  });
  if (event.lost.empty() && event.returned.empty()) return;
  if (event.reason.empty()) {
    event.reason = event.lost.empty() ? fmt::format("{} came back", fmt::join(event.returned, ", "))
                                      : fmt::format("{} is lost", fmt::join(event.lost, ", "));
  }
  event.learners = segment_->clock().times().learners;
  for (const PlanDevice& device : prepared_.request.devices) event.devices.push_back(to_string(device));
  const RunPosition at = segment_->position();
  event.epoch = at.epoch;
  event.iteration = at.iteration;
  event.seconds = seconds();
  event.paused = event.seconds - began;
  observer_.on(event);
}

void Training::make_segment_of_left(const LeftState& left) {
  PlanRequest rest = whole_;
  rest.devices = options_.learners.devices;
  Cursor from = left.next;
  if (!take_rest(rest, from, prepared_.program)) {
    throw TaskError("ranks were lost when nothing was left to train, but before the last validation had ended",
                    left.next.iteration);
  }
  from = left.next;
  request_rest(prepared_.request.learners, from);
  make_segment(from);
  segment_->start_from(with_learners(left.run, left.sources, left.strategy, prepared_.request.strategy));
  checkpoints_->set_identity(prepared_, monitor_);
  HeldBack held = observer_.held_back();
  leave_out_validation(held);
  observer_.hold_back(std::move(held));
}

// Makes of the request for the whole run the one for its first segment.
void Training::begin_whole() {
  whole_ = prepared_.request;
  Cursor begin;
  take_rest(prepared_.request, begin, prepared_.program);
}

// Makes the request for what is left of the run with so many learners per device.
void Training::request_rest(int32_t learners, Cursor& from) {
  set_learners(prepared_, learners, options_, from.epoch);
  PlanRequest& request = prepared_.request;
  whole_ = request;
  if (request.iterations > 0 && !options_.length.schedule_epochs) {
    const double seen =
        epochs_seen(from.epoch, from.batch, prepared_.program.training().batch, request.training_samples);
    prepared_.total_epochs = seen + double(request.iterations - from.iteration) / double(request.rounds);
  }
  const int64_t epoch = from.epoch;
  if (!take_rest(request, from, prepared_.program)) throw std::logic_error("nothing is left to train");
  // The rest of the epoch was too little, and another strategy holds in the next.
  if (from.epoch >= whole_.strategy_until && from.epoch > epoch) request_rest(learners, from);
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
    if (search_) wanted.learners = search_->learners();
    const bool too_little = ended.batch > 0 && rounds_left(wanted, ended, prepared_.program) == 0;
    const bool finish = too_little && rounds_left(before, ended, prepared_.program) > 0;
    Cursor from = ended;
    checkpoints_->wait();
    if (options_.on_lost == OnLost::Continue && segment_) {
      made_.left = segment_->left();
      made_.left->segment = made_.segments;
    }
    drop_segment(search_ ? SegmentBegin::Tuned : SegmentBegin::PlannedAnew);
    try {
      request_rest(finish ? before.learners : wanted.learners, from);
      make_segment(from);
      segment_->start_from(with_learners(state, before.devices.size(), size_t(prepared_.request.learners),
                                         before.strategy, prepared_.request.strategy));
      made_.left.reset();
      return;
    } catch (const RunError& error) {
      if (options_.ranks && !dynamic_cast<const AgreedError*>(&error)) throw;  // the others know nothing of it
      give_up_learners(error.what(), ended);
    } catch (const LimitTooLow& error) {
      give_up_learners(error.brief, ended);
    }
  }
}

// While an exception is handled, which is thrown again if the number of learners is not the tuner's to choose.
void Training::give_up_learners(const std::string& why, const Cursor& at) {
  if (!search_ || search_->done()) throw;
  const double epochs = epochs_seen(at.epoch, at.batch, prepared_.program.training().batch, prepared_.training->size());
  search_->cannot(why, {at.epoch + 1, at.iteration, at.images, epochs});
}

// Goes back to a checkpoint, and goes on from there with a lower rate.
void Training::roll_back(const Diverged& error) {
  const DivergenceOptions& options = options_.divergence;
  if (options.then != OnDivergence::Rollback) throw Diverged(error);
  checkpoints_->go_back();
  const MonitorState from = monitor_.state();
  const auto file = divergence_->checkpoint_for(error, from.rollbacks);
  drop_segment(SegmentBegin::GoneBack);
  set_learners(prepared_, search_ ? file->checkpoint.segment.learners : options_.learners.per_device, options_);
  begin_whole();
  files_.set_validated({});
  resume(*file);
  monitor_.roll_back(from, options.rate_factor);
  const RunPosition& at = file->checkpoint.position;
  if (writes()) remove_after(options_.checkpoints.folder, at.iteration);
  observer_.on(RolledBack{error.what(), error.iteration, file->path, at.epoch, at.iteration, from.rollbacks + 1,
                          options.most_rollbacks, from.rollback_factor * options.rate_factor, from.seconds});
  // In the file's place: a run that is killed before the next one goes on with the lower rate too.
  checkpoints_->take(parts(), RunEnd::Unknown);
}

// The models of the devices of all ranks, in their order.
std::vector<std::string> Training::models_of_all() const {
  const std::vector<std::string> own = device_models(segment_->plan().devices);
  if (!options_.ranks || others_.came_back) return own;
  PartWriter mine;
  for (const std::string& model : own) mine.array(model);
  std::vector<std::string> all;
  for (const std::string& part : options_.ranks->exchange("models", std::move(mine.bytes))) {
    for (PartReader reader(part); !reader.at_end();) all.push_back(reader.text());
  }
  return all;
}

void Training::announce(double setup_seconds) {
  const PlanRequest& request = prepared_.request;
  RunStarted event;
  event.graph = prepared_.graph.name;
  for (const PlanDevice& device : request.devices) event.devices.push_back(to_string(device));
  event.models = models_of_all();
  event.learners = request.learners;
  event.strategy = to_string(prepared_.strategies);
  event.batch = prepared_.program.training().batch;
  event.precision = name_of(options_.numerics.precision);
  event.seed = options_.numerics.seed;
  event.deterministic = options_.numerics.deterministic;
  event.versions = {{"arbalest", ARBALEST_VERSION}, {"tbb", TBB_runtime_version()}};
  for (auto& version : library_versions()) event.versions.push_back(std::move(version));
  event.parameters = parameter_count(prepared_.program.training().graph);
  event.planned_peak_bytes = segment_->peak_bytes();
  event.recomputation = prepared_.recomputation;
  const SegmentTimes& times = segment_->clock().times();
  event.iterations_per_epoch = whole_.rounds;
  event.samples_per_epoch = whole_.rounds * times.learners * event.batch;
  if (whole_.iterations == 0) event.epochs = whole_.epochs;
  const int64_t after = whole_.epochs - times.from.epoch - (times.iterations + times.rounds - 1) / times.rounds;
  event.iterations =
      whole_.iterations > 0 ? whole_.iterations : times.from.iteration + times.iterations + after * whole_.rounds;
  for (const Field& field : prepared_.training->fields()) event.classes = std::max(event.classes, field.classes);
  event.class_names = prepared_.training->class_names();
  event.validates = prepared_.validation != nullptr;
  event.best_metric = monitor_.best_metric();
  if (const Loop* validation = prepared_.program.find(LoopRole::Validate)) {
    const std::string& trained = prepared_.program.training().metrics.front().name;
    const auto& metrics = validation->metrics;
    const bool other = std::any_of(metrics.begin(), metrics.end(), [](const auto& m) { return m.name == "loss"; });
    if (other && trained != "loss") event.trained = trained;
  }
  if (const auto better = monitor_.better()) event.better = name_of(*better);
  event.setup_seconds = setup_seconds;
  if (const auto& from = options_.checkpoints.from) {
    event.resumed = from->path;
    event.resumed_iteration = from->checkpoint.position.iteration;
    event.resumed_seconds = from->checkpoint.monitor.seconds;
  }
  event.changes = checkpoints_->changes();
  event.note = notes_on({prepared_, options_, event.changes, (segment_->at_end() && nothing_left()) || is_over()});
  observer_.on(event);
}

}  // namespace arbalest
