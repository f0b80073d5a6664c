// SPDX-License-Identifier: Apache-2.0
#include "tools/command/world_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/device_model.h"
#include "base/number.h"
#include "base/plain_message.h"
#include "base/process.h"
#include "executor/devices/device.h"
#include "executor/plan/device_list.h"
#include "executor/session/facts.h"
#include "executor/trace/link_model.h"
#include "executor/world/agreement.h"
#include "executor/world/part.h"
#include "tools/command/interrupt.h"

namespace arbalest {
namespace {

// How the plan names the devices of a rank: by its host, and by its number where a host has several.
std::string name_in_plan(const Ranks& ranks, int rank) {
  int here = 0;
  for (int other = 0; other < ranks.size(); ++other) here += ranks.host(other) == ranks.host(rank);
  const std::string host = printable(ranks.host(rank));
  return here == 1 ? host : fmt::format("{}.{}", host, rank);
}

// The place of this rank among those of its host.
int place_on_host(const Ranks& ranks) {
  int place = 0;
  for (int other = 0; other < ranks.rank(); ++other) place += ranks.host(other) == ranks.host(ranks.rank());
  return place;
}

std::vector<PlanDevice> own_devices(const Ranks& ranks, const std::string& devices) {
  return parse_devices(devices, [&] {
    const int gpus = cuda_device_count(), place = place_on_host(ranks);
    if (gpus == 0 || ranks.on_this_host() == 1) return default_devices();
    if (gpus >= ranks.on_this_host()) return std::vector<PlanDevice>{{PlanDevice::Kind::Cuda, place}};
    if (gpus == 1) return default_devices();  // the launcher gives each rank its own
    throw GraphError(fmt::format("{} ranks on {}, which has {} GPUs; expected as many ranks, or --devices",
                                 ranks.on_this_host(), ranks.host(ranks.rank()), gpus));
  });
}

// The GPUs among devices, as their host numbers them: "0000:1b:00.0".
std::string bus_ids(const std::vector<PlanDevice>& devices) {
  std::vector<std::string> ids;
  for (const PlanDevice& device : devices) {
    if (device.kind == PlanDevice::Kind::Cuda) ids.push_back(cuda_bus_id(device.index));
  }
  return fmt::format("{}", fmt::join(ids, " "));
}

// NCCL connects no GPU with itself, unless it takes the ranks for ones of several hosts.
void check_each_gpu_once(const Ranks& ranks, const Ranks::Parts& bus_ids) {
  if (std::getenv("NCCL_HOSTID")) return;
  std::map<std::string, int> taken;  // by host and GPU
  for (int rank = 0; rank < ranks.size(); ++rank) {
    std::istringstream ids(bus_ids[size_t(rank)]);
    for (std::string id; ids >> id;) {
      const auto [found, is_first] = taken.try_emplace(ranks.host(rank) + " " + id, rank);
      if (is_first) continue;
      throw GraphError(
          fmt::format("{} and {} have the same GPU ({}); expected each GPU once: --devices, or CUDA_VISIBLE_DEVICES, "
                      "says which a rank has",
                      ranks.name(found->second), ranks.name(rank), printable(id)));
    }
  }
}

// A number of this machine's kernel since it started; "": unknown.
std::string machine() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

void check_machines_apart(const Ranks& ranks, const Ranks::Parts& machines) {
  if (ranks.returns()) return;  // others of its host may be lost as well, and have told before their host was restarted
  std::map<std::string, int> first;  // rank, by host
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const int other = first.try_emplace(ranks.host(rank), rank).first->second;
    const std::string &one = machines[size_t(rank)], &another = machines[size_t(other)];
    if (one.empty() || another.empty() || one == another) continue;
    throw GraphError(fmt::format(
        "{} and {} are on machines of the same name; expected another name for each, by hostname or by the "
        "variable {}, such as {}={}-{} for rank {}",
        ranks.name(other), ranks.name(rank), kHostVariable, kHostVariable, printable(ranks.host(rank)), rank, rank));
  }
}

}  // namespace

std::shared_ptr<Ranks> join_world(const WorldOptions& options, bool takes_back) {
  WorldSettings settings = detect_world(process_environment(), options);
  if (settings.size == 1) return nullptr;
  settings.takes_back = takes_back;
  settings.interrupted_by = InterruptHandler::signal_name;
  std::shared_ptr<Ranks> ranks;
  {
    const InterruptHandler interrupt("");  // the error says more, within a moment
    settings.stop = interrupt.token();
    ranks = std::make_shared<Ranks>(settings);
  }
  if (InterruptHandler::requested()) {  // as the last rank came
    ranks->fail(interruption(settings));
    throw InterruptedError(interruption(settings));
  }
  if (!ranks->first()) return ranks;
  std::set<std::string> hosts;
  for (int rank = 0; rank < ranks->size(); ++rank) hosts.insert(ranks->host(rank));
  warn(fmt::format("{} ranks on {} host{}, as {} says", ranks->size(), hosts.size(), hosts.size() == 1 ? "" : "s",
                   settings.told_by));
  return ranks;
}

void tell_if_alone(const Ranks* ranks, const WorldOptions& options) {
  const std::string told = ranks ? "" : alone_in_job(process_environment(), options);
  if (!told.empty()) warn(told);
}

// Rank 0's GPU, for which all ranks plan, so that hosts with others have the same plan; none: it is a CPU.
std::optional<DeviceModel> gpu_of_first(Ranks& ranks, const PlanDevice& own) {
  PartWriter told;
  if (own.kind == PlanDevice::Kind::Cuda) {
    const DeviceModel model = cuda_device_model(own.index);
    told.array(model.name);
    for (const int number : {model.architecture, model.multiprocessors, model.shared_bytes}) told.number(number);
  }
  const Ranks::Parts parts = ranks.exchange("GPU of rank 0", told.bytes);
  if (parts[0].empty()) return std::nullopt;
  PartReader read(parts[0]);
  DeviceModel model;
  model.name = read.text();
  for (int* number : {&model.architecture, &model.multiprocessors, &model.shared_bytes}) *number = read.number<int>();
  add_rates(model);
  return model;
}

void share_session(const std::shared_ptr<Ranks>& ranks, const std::string& devices, SessionOptions& session) {
  session.ranks = ranks;
  // Another build may exchange other things, so nothing may come before.
  check_options_alike(*ranks, {{"--collectives", to_string(ranks->settings().collectives)},
                               {"--lost-after", fmt::format("{} s", ranks->settings().silence)},
                               {"build", build_text()}});
  check_machines_apart(*ranks, ranks->exchange("machines", machine()));
  const int asked = session.execution.threads;
  const int threads = asked > 0 ? asked : std::max(1, thread_count(0) / ranks->on_this_host());
  const std::vector<PlanDevice> own = own_devices(*ranks, devices);
  std::vector<std::string> names;
  for (const PlanDevice& device : own) names.push_back(to_string(device));
  check_each_gpu_once(*ranks, ranks->exchange("GPUs", bus_ids(own)));
  session.execution.gpu = gpu_of_first(*ranks, own.front());
  const Ranks::Parts parts = ranks->exchange("devices", fmt::format("{} {}", threads, fmt::join(names, ",")));
  session.learners.devices.clear();
  std::map<std::string, int32_t> hosts;  // their numbers
  session.execution.threads = threads;
  for (int rank = 0; rank < ranks->size(); ++rank) {
    const std::string& part = parts[size_t(rank)];
    const int32_t host = hosts.emplace(ranks->host(rank), int32_t(hosts.size())).first->second;
    const size_t blank = std::min(part.find(' '), part.size() - 1);
    const int theirs = read_number<int>(part.substr(0, blank)).value_or(threads);
    session.execution.threads = std::min(session.execution.threads, std::max(1, theirs));
    for (PlanDevice device : parse_devices(part.substr(blank + 1), default_devices)) {
      device.rank = rank;
      device.host = name_in_plan(*ranks, rank);
      device.host_number = host;
      if (ranks->settings().collectives == Collectives::Mpi && device.kind != PlanDevice::Kind::Cpu) {
        throw GraphError(
            fmt::format("--collectives mpi is for CPU devices; found {}, whose arrays NCCL sends", to_string(device)));
      }
      session.learners.devices.push_back(device);
    }
  }
}

std::vector<PlanDevice> on_hosts(int64_t hosts, const std::vector<PlanDevice>& of_each) {
  std::vector<PlanDevice> devices;
  for (int32_t host = 0; host < hosts; ++host) {
    for (const PlanDevice& device : of_each) {
      devices.push_back({device.kind, device.index, host, fmt::format("host{}", host), host});
    }
  }
  return devices;
}

std::vector<PlanDevice> devices_of_world(const std::string& text, PlanDevice::Kind kind) {
  const WorldSize size = parse_world_size("--world", text);
  std::vector<PlanDevice> of_each;
  for (int index = 0; index < size.devices; ++index) of_each.push_back({kind, index});
  return on_hosts(size.hosts, of_each);
}

WarningsOfFirst::WarningsOfFirst(const Ranks* ranks) {
  if (ranks && !ranks->first()) before_ = set_warning_handler([](const std::string&) {});
}

WarningsOfFirst::~WarningsOfFirst() {
  if (before_) set_warning_handler(before_);
}

void check_options_alike(Ranks& ranks, const std::vector<std::pair<std::string, std::string>>& options) {
  std::vector<Fact> facts;
  for (const auto& [name, value] : options) facts.push_back({name, value});
  check_alike(ranks, facts);
}

bool on_any_rank(Ranks* ranks, bool here) {
  return largest_of(ranks, here ? 1 : 0) > 0;
}

int run_as_rank(Ranks* ranks, const std::function<int()>& run, OnLost on_lost) {
  if (!ranks) return run();
  const auto tell = [&](const std::exception& error) {
    const std::string message = plain_message(error);
    ranks->fail(message);
    const std::string name = ranks->name(ranks->rank());
    return ranks->first() || message.starts_with(name) ? message : fmt::format("{}: {}", name, message);
  };
  // Those that are left come to their ends together, so that none of them takes another's end for a loss.
  const auto end = [&] {
    for (bool ended = false; !ended;) {
      try {
        ranks->end();
        ended = true;
      } catch (const RunError&) {
        if (on_lost == OnLost::End || !ranks->lost() || ranks->over()) throw;
        ranks->go_on();
      }
    }
  };
  try {
    const int status = run();
    end();
    return status;
  } catch (const GraphError& error) {
    throw GraphError(tell(error));
  } catch (const InterruptedError& error) {
    throw InterruptedError(tell(error));
  } catch (const std::exception& error) {
    throw RunError(tell(error));
  }
}

}  // namespace arbalest
