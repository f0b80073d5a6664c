// SPDX-License-Identifier: Apache-2.0
#pragma once
// A command that several processes carry out together.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "executor/session/session.h"
#include "executor/world/ranks.h"
#include "tools/command/options.h"

namespace arbalest {

// The world that this process is started in, once all its ranks have met; nullptr: it is alone. Rank 0 says on standard
// error how many they are. Until then a signal to any rank ends all that are there. `takes_back`: ranks that are lost
// later may come back. Throws as detect_world() and meet() do.
std::shared_ptr<Ranks> join_world(const WorldOptions& options, bool takes_back = false);

// Warns if a process that is alone may have been meant to be one of several: see alone_in_job().
void tell_if_alone(const Ranks* ranks, const WorldOptions& options);

// Makes the session one of all ranks: their devices in the order of ranks, and as many threads for each as the rank
// with the fewest has. Only rank 0 writes files. `devices`: as --devices has them; with "auto" ranks of one host take a
// GPU each. Every rank calls it.
void share_session(const std::shared_ptr<Ranks>& ranks, const std::string& devices, SessionOptions& session);

// These devices on each of so many hosts with a process each, for plans: none of them need be there.
std::vector<PlanDevice> on_hosts(int64_t hosts, const std::vector<PlanDevice>& of_each);
// Devices of so many hosts with so many each: "2x4". `kind`: a device of that kind. Throws GraphError.
std::vector<PlanDevice> devices_of_world(const std::string& text, PlanDevice::Kind kind);

// Until it is gone, warnings of ranks but the first are dropped: the first gives the same ones.
class WarningsOfFirst {
 public:
  explicit WarningsOfFirst(const Ranks* ranks);
  ~WarningsOfFirst();
  WarningsOfFirst(const WarningsOfFirst&) = delete;
  WarningsOfFirst& operator=(const WarningsOfFirst&) = delete;

 private:
  MessageHandler before_ = nullptr;
};

// Throws GraphError, on all ranks alike, if options (name, value) are not the same everywhere. Every rank calls it.
void check_options_alike(Ranks& ranks, const std::vector<std::pair<std::string, std::string>>& options);

// Whether something is so on any rank. Every rank calls this; `ranks` is nullptr for a process that is alone.
bool on_any_rank(Ranks* ranks, bool here);

// Returns what `run` does, once all ranks have come to their ends. If there are other ranks, they hear of an error, and
// the error says which rank it is of. `on_lost`: whether a rank that is lost then is an error.
int run_as_rank(Ranks* ranks, const std::function<int()>& run, OnLost on_lost = OnLost::End);

}  // namespace arbalest
