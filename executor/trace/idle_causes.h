#pragma once
// Why a lane was idle: what ran, or what was waited for, on the way to the instance that ended the gap.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "executor/trace/trace_file.h"
#include "executor/trace/trace_intervals.h"

namespace arbalest {

// What an idle lane waited for, in kinds that a reader need not know the plan for: see in_words().
enum class IdleCause : uint8_t {
  Nothing,     // before the lane's first task and after its last
  Input,       // the batch was not read yet
  Copy,        // the batch was read, and not yet on the device
  Averaging,   // replicas were being averaged, on a device or over all
  Results,     // tallies or outputs of earlier batches were not out of the way
  Validation,  // validation had not taken or given what was needed
  Compute,     // work of another compute lane, or of this one
  Turns,       // another lane of the same CPU device had its thread
  Pace,        // the host may run no further ahead
  Noticing,    // what it waited for had ended, and the host did not know yet
  Thread,      // a host task waited for a thread
  Reading,     // the same, while all threads read batches
  Issuing,     // the host was putting it into its device queue
  Starting,    // it was in its queue and first there
};
inline constexpr size_t kIdleCauses = size_t(IdleCause::Starting) + 1;

// "the next batch was not read yet": ends a sentence that begins with "idle, because".
std::string in_words(IdleCause cause, const TracedRun& run);

// What learners do to agree: "averaging" models or, with S-SGD, "summing gradients".
std::string agreeing_in_words(const TracedRun& run);

// Time of a gap that has one cause.
struct IdlePart {
  std::string why;  // "waiting for cuda:0/copy in (image)", "pace (…)", "issuing"
  IdleCause cause = IdleCause::Nothing;
  LaneId lane = kNone;  // whose task it was spent on; kNone: on none
  int64_t ns = 0;
};

class IdleCauses {
 public:
  // All of them outlive the object. `busy`: when each lane ran a task, by lane.
  IdleCauses(const TraceFile& trace, const SpanIndex& index, const std::vector<Intervals>& busy);

  // Divides a gap of a lane, which `next` ended, among its causes. From the start of `next` the way leads back over the
  // edge that was satisfied last to the instance that satisfied it, and while that does not cover the gap either, on to
  // what that one waited for: a learner that waits for an average, which waits for the slowest learner, waits for that
  // learner. Latest first; parts of one cause and text are one.
  std::vector<IdlePart> of(LaneId lane, const Interval& gap, const TaskSpan& next) const;

 private:
  class WayBack;
  std::pair<const Edge*, const TaskSpan*> last_needed(const TaskSpan& span) const;
  IdleCause cause_of(const Edge& edge) const;
  const std::string& wait_for(const Edge& edge) const { return waiting_[size_t(&edge - plan_.edges.data())]; }
  IdleCause waiting_for_thread(int64_t from, int64_t to) const;
  const std::vector<LaneId>& sharing_thread(LaneId lane) const { return sharing_[size_t(lane)]; }

  const Plan& plan_;
  const SpanIndex& index_;
  const std::vector<Intervals>& busy_;
  std::vector<std::vector<const Edge*>> into_;  // by task
  std::vector<std::string> waiting_;            // by edge: what is said of those that wait for it
  std::vector<std::vector<LaneId>> sharing_;    // by lane: other lanes of the same CPU device, which take turns
  Intervals reading_;                           // when all threads of the host read batches
};

}  // namespace arbalest
