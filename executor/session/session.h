// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run from a graph to trained weights: what `arbalest run` and the C++ DSL call.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "base/device_model.h"
#include "executor/limit/fit_memory.h"
#include "executor/plan/make_plan.h"
#include "executor/session/learner_tuner.h"
#include "executor/session/monitor.h"
#include "executor/session/observer.h"
#include "executor/session/sample_stores.h"
#include "executor/session/strategy_phases.h"
#include "graph/graph.h"
#include "io/sources/source.h"

namespace arbalest {

struct BindOptions;      // executor/run/binding.h
class BadSamples;        // io/sources/bad_samples.h
class Ranks;             // executor/world/ranks.h
class SharedResources;   // executor/session/shared_resources.h
class ReadWatch;         // executor/run/read_watch.h
struct CheckpointFile;   // executor/training/checkpoint.h
class CheckpointFolder;  // executor/training/checkpoint_folder.h
struct StepProfile;      // executor/run/step_profile.h

// The precision of products and convolutions.
enum class Precision : uint8_t { Fp32, Tf32, Bf16 };
Precision parse_precision(std::string_view text);  // "fp32", "tf32", "bf16"; throws GraphError otherwise
std::string_view name_of(Precision precision);     // as parse_precision() takes it

// How the learning rate follows the number of learners, on request.
enum class RateScaling : uint8_t { None, Linear, Sqrt };
RateScaling parse_rate_scaling(std::string_view text);  // "none", "linear", "sqrt"; throws GraphError otherwise

// Sources that a program passes itself: each takes the place of what the graph's Prefetch names. Nothing is opened for
// validation if the graph has none, or if it is given. They are read by several threads at once, and they are
// what `source = "memory:"` stands for.
struct DataSources {
  std::shared_ptr<const Source> training = {}, validation = {};
};

// The devices, and the learners on each.
struct LearnerOptions {
  std::vector<PlanDevice> devices = {};      // empty: the first GPU, or cpu:0 where there is none
  int32_t per_device = 1;                    // 0: found while training
  LearnerTuner::Options tuning = {};         // how they are found
  std::optional<std::string> strategy = {};  // its name; otherwise Synchronize's, otherwise sma
  RateScaling rate_scaling = RateScaling::None;
  int64_t batch_total = 0;  // samples of all learners' batches together; 0: the graph's, for each
};

// How numbers are computed and drawn.
struct NumericsOptions {
  Precision precision = Precision::Fp32;
  uint64_t seed = 1;  // of initialisers, order of data and augmentation
  bool deterministic = false;
  std::set<std::string> without = {};  // optional passes that are left out: see ProgramOptions
};

// When the run ends.
struct LengthOptions {
  std::optional<int64_t> epochs = {};  // otherwise Train's attribute, otherwise 1
  // Epochs that the learning rate's schedule spans, if this run is a part of a longer training; otherwise `epochs`.
  std::optional<int64_t> schedule_epochs = {};
  std::optional<int64_t> iterations = {};  // of each learner; ends the run earlier
  double seconds = 0;                      // after which the run ends as if it were interrupted; 0: never
};

// Threads, memory, limits of time, and what is reported.
struct ExecutionOptions {
  int threads = 0;  // of the process, for kernels and reading; 0: one a core
  // Seconds; infinity: no limit. What hangs longer ends the run: see HangWatch and Standstill.
  double device_timeout = 20;
  // Memory limit of each device in bytes; 0: none. If a plan would need more, values are computed again rather than
  // kept.
  int64_t memory_limit = 0;
  std::optional<DeviceModel> gpu = {};  // that passes are for; none: the first GPU, or the usual one
  int64_t skip_bad = 0;                 // samples that cannot be read and are skipped; one more ends the run
  // Seconds; 0: no limit. A sample that takes longer to read ends the run. If the thread that reads it does not return,
  // the process ends too: see set_end_handler() in base/process.h.
  double read_timeout = 20;
  int64_t report_every = 0;  // iterations between progress events; 0: by the length of an epoch
  bool nvtx = false;         // ranges for Nsight; refused if the build has none
  // Returns the reason why a stop was requested, such as "SIGINT", for the trace. Called once the run has ended; may be
  // empty.
  std::function<std::string()> interrupted_by = nullptr;
  int64_t sample_ms = 100;   // between samples of devices and process in a trace; 0: none
  bool check_passes = true;  // every graph after every pass: see ProgramOptions
};

// Seconds that a task of the host may take at one of several ranks: ten times those of a device, and more than a read.
double host_patience(const ExecutionOptions& options);

// The files that a run reads and writes.
struct FileOptions {         // paths; "" for none
  std::string weights = {};  // read before training
  // Rules for names in `weights` that are not the graph's; see executor/weights/weights_map.h.
  std::string weights_map = {};
  std::vector<std::string> fresh = {};  // patterns of parameters that start as without `weights`
  std::string save = {};                // written at the end
  std::string save_best = {};           // written whenever a validation is better than all before
  std::string trace = {};               // written at the end
  // Changes that the command line made in the graph's file, kept with saved weights; none: the graph is no file's.
  std::optional<std::vector<std::string>> overrides = {};
  bool rescues = true;  // a model that `save` cannot take is written to another place, and otherwise the run fails
};

// The action taken if a run's loss is no longer finite.
enum class OnDivergence : uint8_t {
  Stop,      // it ends with an error
  Rollback,  // it goes back to its newest checkpoint that is finite, with a lower rate
  // Nothing: an update whose loss, or whose gradients' norm, is not finite leaves weights, slots and statistics as they
  // are. Each learner decides for itself, but with S-SGD all alike. The run ends if all updates are skipped
  // (Monitor::kMostSkipped).
  Skip,
};
OnDivergence parse_on_divergence(std::string_view text);  // "stop", "rollback", "skip"; throws GraphError otherwise

// How a loss that is not finite is met.
struct DivergenceOptions {
  // The run rests after each iteration, keeps on the host what it held before, and ends, or goes back, at the first
  // loss or weight that is not finite. It names the node that made it (executor/run/first_not_finite.h). Slow.
  bool find = false;
  OnDivergence then = OnDivergence::Stop;
  double rate_factor = 0.5;    // Rollback: what the learning rate is multiplied by, each time
  int64_t most_rollbacks = 3;  // that a run makes; if its loss diverges once more it ends as with Stop
};

// Checkpoints, from which a run that was ended goes on (executor/training/checkpoint.h).
struct CheckpointOptions {
  std::string folder = {};                          // "": none are written
  int64_t iterations = 0;                           // from one to the next; 0: see `epochs`
  int64_t epochs = 0;                               // from one to the next; 0: see `seconds`
  double seconds = 600;                             // from one to the next, if both are 0
  int64_t keep = 3;                                 // of the newest; that of the best validation stays too
  std::string working_folder = {};                  // in which the run was started, for those who resume it
  bool resume = false;                              // the folder may have checkpoints already
  std::shared_ptr<const CheckpointFile> from = {};  // where the run goes on; nullptr: it starts afresh
  // The folder, held since before `from` was looked for (open_checkpoints()); nullptr: the run takes hold of it.
  std::shared_ptr<const CheckpointFolder> held = {};
  // Each "train.lr=0.01": numbers of the learning rate's schedule that differ from the graph's from here on. They go
  // into checkpoints, and a run that goes on begins with those of its checkpoint.
  std::vector<std::string> changes = {};
};

// The action taken if a process of several is lost: killed, or its network is gone.
enum class OnLost : uint8_t {
  End,       // all others end with an error
  Continue,  // they go on with the learners that are left; the strategy has to average models
};
OnLost parse_on_lost(std::string_view text);  // "end", "continue"; throws GraphError otherwise

// The settings of a run that its graph does not state; each has a default.
struct SessionOptions {
  DataSources sources = {};  // none: the graph's
  // The processes that train together, whose devices LearnerOptions::devices names; nullptr: this one alone.
  // Ranks::end() comes after the last run, and is for the caller.
  std::shared_ptr<Ranks> ranks = {};
  OnLost on_lost = OnLost::End;
  // Shared with runs that train at the same time in this process; nullptr: there are none.
  std::shared_ptr<SharedResources> shared = {};
  LearnerOptions learners = {};
  NumericsOptions numerics = {};
  LengthOptions length = {};
  ExecutionOptions execution = {};
  ValidationRules rules = {};
  FileOptions files = {};
  CheckpointOptions checkpoints = {};
  DivergenceOptions divergence = {};
  std::vector<std::string> command = {};  // words that started the run; its trace and its checkpoints have them
};

// A graph with its data: what is needed to plan.
struct Prepared {
  Graph graph;  // verified, as the user wrote it
  Program program;
  std::shared_ptr<const Source> training = {}, validation = {};
  std::shared_ptr<BadSamples> bad;   // of both splits
  std::shared_ptr<ReadWatch> watch;  // of both splits
  SampleStores stores;
  std::shared_ptr<const SampleStores> shared_stores;  // that `stores` is a copy of, if runs share them
  std::vector<StrategyPhase> strategies;              // of the run, in order
  PlanRequest request;                                // for whole epochs from the first on
  double total_epochs = 0;                            // of the run, for schedules
  Recomputation recomputation;                        // in the program's training step
  std::vector<std::string> notes;                     // about settings that are probably unintended
};

// Bytes of the host's memory that the caches take once all samples of both splits have been prepared.
int64_t bytes_of_caches(const Prepared& prepared);

// The first GPU, or cpu:0.
std::vector<PlanDevice> default_devices();

// Opens the graph's sources, verifies it, runs the passes. `after`: see ProgramOptions. Throws GraphError or RunError.
Prepared prepare(Graph graph, const SessionOptions& options,
                 const std::function<void(std::string_view, const Graph&)>& after = {});

// A request for a pass over a split without training; see executor/inference/inference.h.
struct InferenceRequest {
  std::string split = {};                 // "": that of the graph's Validate
  std::vector<std::string> outputs = {};  // values of the graph that each batch hands out
  int64_t batch = 0;                      // samples of a batch; 0: as Validate's
  // Batches without end that a program fills itself: nothing is measured, and a sample needs no field that the outputs
  // do not depend on.
  bool endless = false;
};

// As prepare(), for a pass over one split: nothing but that split is opened. A graph without a Validate node is
// measured by its loss.
Prepared prepare_inference(Graph graph, const SessionOptions& options, const InferenceRequest& asked);

// How kernels compute.
BindOptions bind_options(const Prepared& prepared, const SessionOptions& options);

// Threads of the process, for kernels and reading: one a core if 0 are asked for.
int thread_count(int asked);
int thread_count(const SessionOptions& options);  // as the options ask

// The factor of the learning rate of so many learners.
double rate_scale(RateScaling scaling, int64_t learners);

// Runs the passes again for another number of learners per device, and makes the request for them, with the strategy
// that holds in `epoch`. Throws LimitTooLow if a memory limit cannot be met.
void set_learners(Prepared& prepared, int32_t learners, const SessionOptions& options, int64_t epoch = 0,
                  const std::function<void(std::string_view, const Graph&)>& after = {});

// Runs the passes again if kernels need so many bytes of each device's memory besides what is planned: less is left
// of the memory limit. Throws LimitTooLow.
void leave_for_workspace(Prepared& prepared, int64_t bytes, const SessionOptions& options);

// Trains. Throws RunError (or GraphError, if the graph does not fit the devices) after RunFailed, and exceptions of the
// observer (see RunObserver). Returns the event that the observer got last. Once `stop` is requested the run ends after
// the batches already read, without a validation that is under way, but still saves.
RunFinished run_training(Graph graph, const SessionOptions& options = {}, RunObserver& observer = no_observer(),
                         std::stop_token stop = {});

// Trains as run_training() does, until the run ends or is stopped, and then profiles the step of its first learner
// (executor/run/step_profile.h).
StepProfile profile_training(Graph graph, const SessionOptions& options, RunObserver& observer, std::stop_token stop);

}  // namespace arbalest
