// arbalest run: train as the graph says.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/log.h"
#include "tools/progress.h"
#include "tools/session_setup.h"

namespace arbalest {
namespace {

// Tells several observers.
class Observers final : public RunObserver {
 public:
  explicit Observers(std::vector<RunObserver*> all) : all_(std::move(all)) {}
  void started(const RunStarted& event) override { tell(&RunObserver::started, event); }
  void progress(const RunProgress& event) override { tell(&RunObserver::progress, event); }
  void epoch(const EpochEnded& event) override { tell(&RunObserver::epoch, event); }
  void validation(const Validated& event) override { tell(&RunObserver::validation, event); }
  void tuned(const Tuned& event) override { tell(&RunObserver::tuned, event); }
  void checkpoint(const CheckpointSaved& event) override { tell(&RunObserver::checkpoint, event); }
  void finished(const RunFinished& event) override { tell(&RunObserver::finished, event); }
  void failed(const RunFailed& event) override { tell(&RunObserver::failed, event); }

 private:
  template <typename Event>
  void tell(void (RunObserver::*method)(const Event&), const Event& event) {
    for (RunObserver* observer : all_) (observer->*method)(event);
  }
  std::vector<RunObserver*> all_;
};

}  // namespace

int command_run(const RunOptions& options) {
  Graph graph = load_with_overrides(options);
  SessionOptions session = session_options(options);
  session.report_every = options.log_every;
  session.rules = options.rules;
  session.rate_scaling = options.scale_lr;
  session.collective_timeout = options.collective_timeout;
  session.save_best = options.save_best;
  session.weights = options.weights;
  session.save = options.save;
  session.trace = options.trace;

  std::optional<JsonLog> log;  // opened once the graph is read: a typo leaves the log of an earlier run as it is
  if (!options.log.empty()) log.emplace(options.log);
  ProgressLine progress(stderr);
  std::vector<RunObserver*> watching = {&progress};
  if (log) watching.push_back(&*log);
  Observers observers(std::move(watching));

  const InterruptHandler interrupt;
  const RunFinished end = train(std::move(graph), session, observers, InterruptHandler::requested());
  if (end.reason == "interrupted") return kInterrupted;
  return !options.rules.targets.empty() && end.reason != "until" ? kNotReached : kDone;
}

}  // namespace arbalest
