// SPDX-License-Identifier: Apache-2.0

// How a run takes checkpoints, and how it goes on from one.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/plain_message.h"
#include "base/shell_word.h"
#include "executor/training/changes.h"
#include "executor/training/training.h"
#include "graph/op.h"

namespace arbalest {
namespace {

// Settings that may change from a checkpoint to the run that goes on.
constexpr const char *kDevices = "devices", *kLearners = "learners";

constexpr int64_t kNoRest = SchedulerOptions::kNoRest;

// Shortens long lists to their beginning, their length and a checksum.
std::string shortened(const std::string& text) {
  constexpr size_t kLongest = 300;
  if (text.size() <= kLongest) return text;
  const auto sum = crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
  return fmt::format("{}... ({} bytes, sum {:08x})", text.substr(0, kLongest / 2), text.size(), sum);
}

std::string line_of(const Graph& graph, const Node& node) {
  const auto names = [&](const std::vector<ValueId>& values) {
    std::vector<std::string> found;
    for (const ValueId value : values) found.push_back(value == kNone ? "" : graph.values[size_t(value)].name);
    return fmt::format("{}", fmt::join(found, ", "));
  };
  std::string line = fmt::format("{}: {} = {} (", node.name, names(node.outputs), node.op->qualified_name());
  line += names(node.inputs) + ")";
  for (const NamedAttribute& attribute : node.attributes) {
    line += fmt::format(" {}={}", attribute.name, shortened(to_string(attribute.value)));
  }
  return line;
}

// The line of a value in the identity: name, type, shape, and its initialiser or the checksum of its initial data.
std::string line_of(const Value& value) {
  const Initializer& initializer = value.initializer;
  std::string start = fmt::format("{} {}", int(initializer.kind), initializer.a);
  if (initializer.data) {
    const auto* bytes = reinterpret_cast<const Bytef*>(initializer.data->data());
    start = fmt::format("sum {:08x}", crc32_z(0, bytes, initializer.data->size()));
  }
  return fmt::format("{}: {}{}, {}", value.name, name_of(value.type.dtype), to_string(value.type.shape), start);
}

// How the numbers of a schedule that are others in the graph take effect nevertheless; "": there are none.
std::string way_to_change(const Graph& graph, const RunIdentity& before, const RunIdentity& here) {
  const auto line_of_train = [](const RunIdentity& identity) {
    const auto found = std::find_if(identity.graph.begin(), identity.graph.end(), [](const std::string& line) {
      return line.find(" = arbalest.Train (") != line.npos;
    });
    return found == identity.graph.end() ? std::string() : *found;
  };
  const std::string was = line_of_train(before), is = line_of_train(here);
  if (was.empty() || is.empty()) return "";
  std::string options;
  for (const std::string& change : changes_between(graph, was, is)) options += " --change " + shell_word(change);
  return options.empty() ? ""
                         : "\n  the learning rate may change on the way: leave the graph as the run began with it, and "
                           "add:" +
                               options;
}

RunIdentity without_learners(RunIdentity identity) {
  std::erase_if(identity.settings,
                [](const auto& setting) { return setting.first == kDevices || setting.first == kLearners; });
  return identity;
}

int64_t bytes_of(const Checkpoint& checkpoint) {
  const RunState& state = checkpoint.segment.state;
  size_t bytes = state.average.size() + state.previous.size() + state.frozen.size() +
                 state.moving_average.weights.size() + checkpoint.validated.weights.size() +
                 checkpoint.segment.model.weights.size();
  for (const LearnerState& learner : state.learners) {
    bytes += learner.weights.size() + learner.statistics.size();
    for (const auto& slot : learner.slots) bytes += slot.size();
  }
  for (const auto& values : checkpoint.segment.kept) {
    for (const auto& value : values) bytes += value.size();
  }
  return int64_t(bytes);
}

}  // namespace

RunIdentity Training::identity() const {
  const PlanRequest& request = prepared_.request;
  RunIdentity identity;
  const auto add = [&](const char* name, auto value) {
    identity.settings.emplace_back(name, fmt::format("{}", value));
  };
  add("training data", prepared_.training->describe());
  add("validation data", prepared_.validation ? prepared_.validation->describe() : "none");
  add("batch", prepared_.program.training().batch);
  add("precision", name_of(options_.numerics.precision));
  add("seed", options_.numerics.seed);
  add("deterministic", options_.numerics.deterministic);
  add(kDevices, fmt::format("{} {}", request.devices.size(),
                            request.devices.front().kind == PlanDevice::Kind::Cpu ? "cpu" : "cuda"));
  add(kLearners, options_.learners.per_device == 0 ? "auto" : std::to_string(options_.learners.per_device));
  add("strategy", options_.learners.strategy.value_or("the graph's"));
  add("scale-lr", int(options_.learners.rate_scaling));
  add("plateau", options_.rules.plateau);
  add("plateau-factor", options_.rules.plateau_factor);
  add("metric", options_.rules.metric.empty() ? "" : monitor_->best_metric());
  if (prepared_.program.skips) add("on-nan", "skip");
  const std::set<std::string>& without = options_.numerics.without;
  if (!without.empty()) add("without", fmt::format("{}", fmt::join(without, ",")));
  identity.class_names = prepared_.training->class_names();
  const Graph& graph = prepared_.graph;
  for (const Node& node : graph.nodes) identity.graph.push_back(line_of(graph, node));
  for (const Value& value : prepared_.program.training().graph.values) {
    const bool starts = value.role == Role::Parameter || value.role == Role::Frozen;
    if (starts && value.view.base != kNone) identity.graph.push_back(line_of(value));
  }
  return identity;
}

double Training::seconds_since_start() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

// Before anything is trained or written: the folder, and whether it is this run's.
void Training::begin_checkpoints() {
  const CheckpointOptions& options = options_.checkpoints;
  if (!options.folder.empty() || options.from) identity_ = identity();
  if (options.folder.empty()) return;
  if (!options.resume) check_has_none(options.folder);
  writer_ = std::make_unique<CheckpointWriter>(
      options.held ? options.held : std::make_shared<const CheckpointFolder>(options.folder), options.keep,
      [this] { return monitor_->best_iteration(); });
}

// The identity is that of the run as it was started: what changes on the way makes no other run of it.
void Training::change_rate() {
  const CheckpointOptions& options = options_.checkpoints;
  changes_ = changes_of(options);
  if (changes_.empty()) return;
  apply_changes(prepared_.graph, changes_);
  verify(prepared_.graph);
  set_learners(prepared_, prepared_.request.learners, options_);
}

void Training::resume(const CheckpointFile& file) {
  Checkpoint checkpoint = file.checkpoint;
  const RunIdentity& before = checkpoint.identity;
  const bool others = before.settings != identity_.settings && !tuner_ && !checkpoint.tuner;
  const auto found =
      differences(others ? without_learners(before) : before, others ? without_learners(identity_) : identity_);
  if (!found.empty()) {
    const std::string way = way_to_change(prepared_.graph, before, identity_);
    throw GraphError(fmt::format(
        "{}: the checkpoint is of another run:\n  {}{}", file.path, fmt::join(found, "\n  "),
        way.empty() ? "\na run goes on with the settings, graph and data of its checkpoint; others need a run of their "
                      "own, with another folder for --checkpoint"
                    : way));
  }
  try {
    monitor_->restore(checkpoint.monitor);
    if (others) {
      go_on_with_others(checkpoint, file);
    } else {
      if (tuner_) tuner_->restore(*checkpoint.tuner);
      Cursor from = checkpoint.segment.from;
      if (from.iteration > 0 || checkpoint.segment.learners != prepared_.request.learners) {
        request_rest(checkpoint.segment.learners, from);
        prepared_.total_epochs = checkpoint.total_epochs;
      }
      make_segment(from);
      layout_->decode(file.tensors, checkpoint);
      segment_->start_from(checkpoint.segment);
    }
    observer_.hold_back(checkpoint.held);
  } catch (const RunError& error) {
    throw RunError(fmt::format("{}: {}", file.path, error.what()));
  }
  if (checkpoint.keeps_validated) validated_ = {std::move(checkpoint.validated), checkpoint.validated_at};
  latest_checkpoint_ = file.path;
}

// With another number of learners or devices the plan is another one: a segment of its own follows, as when the tuner
// changes the number.
void Training::go_on_with_others(Checkpoint& checkpoint, const CheckpointFile& file) {
  Cursor from = checkpoint.next;
  PlanRequest rest = prepared_.request;
  if (!take_rest(rest, from, prepared_.program)) {
    throw GraphError(fmt::format("{}: nothing is left to train with another number of learners", file.path));
  }
  from = checkpoint.next;
  const auto before = int64_t(checkpoint.segment.state.learners.size());
  request_rest(prepared_.request.learners, from);
  make_segment(from);
  layout_->decode(file.tensors, checkpoint);
  segment_->start_from(with_learners(checkpoint.segment.state, 1, size_t(segment_->learners()), checkpoint.strategy,
                                     prepared_.request.strategy));
  // Nobody will tell of a validation that was under way.
  std::erase_if(checkpoint.held.lines, [](const auto& line) { return line.second.ended && !line.second.validation; });
  for (auto& [epoch, line] : checkpoint.held.lines) {
    if (line.end) line.end->validates = line.validation.has_value();
  }
  warn(fmt::format(
      "the checkpoint is of {} learner{}, and the run goes on with {}: those that were there keep their weights "
      "and the optimiser's state, others start from the shared model{}",
      before, before == 1 ? "" : "s", segment_->learners(),
      checkpoint.segment.validating ? "; the validation that was under way is left out" : ""));
}

// The iteration of the segment's plan at which the run rests next for a checkpoint, counted from the segment's start;
// kNoRest if there is none.
int64_t Training::next_checkpoint() const {
  const CheckpointOptions& options = options_.checkpoints;
  if (!writer_) return kNoRest;
  const int64_t done = segment_->iterations();
  const Cursor& from = segment_->from();
  if (options.iterations > 0) {
    const int64_t run = from.iteration + done;
    return done + options.iterations - run % options.iterations;
  }
  if (options.epochs > 0) {
    const int64_t epoch = from.epoch + done / segment_->rounds();
    return (done / segment_->rounds() + options.epochs - epoch % options.epochs) * segment_->rounds();
  }
  return kNoRest;
}

bool Training::checkpoint_due() const {
  if (!writer_) return false;
  const CheckpointOptions& options = options_.checkpoints;
  const bool timed = options.iterations == 0 && options.epochs == 0;
  return overdue_ || (timed && seconds_since_start() - last_checkpoint_ >= options.seconds);
}

void Training::let_segment_rest(const std::atomic<bool>& interrupted) {
  const bool find = options_.divergence.find;
  checkpoint_at_ = next_checkpoint();
  if (find) before_ = segment_->snapshot();
  segment_->on_rest = [this, &interrupted] { return rest(interrupted); };
  segment_->first_rest = find ? segment_->iterations() + 1 : checkpoint_at_;
  segment_->rest_due = [this] {
    return time_is_up() || (checkpoint_due() && !writer_->busy()) || segment_->diverged() ||
           (writer_ && writer_->found_not_finite());
  };
}

// Nothing of the plan is under way. A segment whose loss is not finite ends here. If the disk is still busy with the
// checkpoint before, this one comes later.
std::optional<int64_t> Training::rest(const std::atomic<bool>& interrupted) {
  if (!is_finite()) return std::nullopt;
  if (interrupted.load() || time_is_up()) {
    stopped_ = interrupted.load() ? "interrupted" : "time limit";
    take_checkpoint("");
    return std::nullopt;
  }
  const int64_t done = segment_->iterations();
  if (checkpoint_due() || done >= checkpoint_at_) {
    overdue_ = writer_->busy();
    if (!overdue_) take_checkpoint("");
    checkpoint_at_ = next_checkpoint();
  }
  return options_.divergence.find ? std::min(done + 1, checkpoint_at_) : checkpoint_at_;
}

void Training::take_checkpoint(const std::string& ended) {
  if (!writer_) return;
  const double began = seconds_since_start();
  const RunPosition at = segment_->position();
  Checkpoint taken;
  taken.identity = identity_;
  taken.changes = changes_;
  taken.command = options_.command;
  taken.folder = options_.checkpoints.working_folder;
  taken.strategy = prepared_.request.strategy;
  taken.next = segment_->cursor();
  taken.total_epochs = prepared_.total_epochs;
  taken.position = at;
  taken.ended = ended;
  taken.segment = segment_->snapshot();
  taken.monitor = monitor_->state();
  taken.held = observer_.held_back();
  if (tuner_) taken.tuner = tuner_->state();
  taken.keeps_validated = !validated_.model.weights.empty();
  if (taken.keeps_validated) {
    taken.validated = validated_.model;
    taken.validated_at = validated_.at;
  }
  latest_checkpoint_ = writer_->path_of(at.iteration);
  observer_.checkpoint({latest_checkpoint_, at.epoch, at.iteration, bytes_of(taken), taken.monitor.seconds, true,
                        seconds_since_start() - began});
  // A checkpoint that can be gone on from has its line in the log, after which a run that goes on adds its own.
  constexpr auto kLongest = std::chrono::seconds(5);
  const auto told = [this, handed_on = observer_.handed_on(), kLongest] { observer_.wait_for(handed_on, kLongest); };
  writer_->write({layout_, std::move(taken), told});
  last_checkpoint_ = seconds_since_start();
}

// The end of the run is one more, so that a run that is asked to go on knows that nothing is left.
void Training::end_checkpoints(RunFinished& end) {
  if (!writer_) return;
  if (trained_ && stopped_.empty()) take_checkpoint(end.reason);
  writer_->wait();
  end.checkpoint = latest_checkpoint_;
  end.checkpoint_error = writer_->error();
}

}  // namespace arbalest
