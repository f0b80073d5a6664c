// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/call_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/process.h"
#include "base/setting.h"
#include "executor/devices/threads.h"

namespace arbalest {
namespace {

constexpr double kShareOfLoading = 0.1;
constexpr CallWatch::Seconds kSeldom{0.1};  // from one look to the next

}  // namespace

CallWatch::Caller& CallWatch::add(const std::vector<std::string>& devices, std::string_view call) {
  const std::scoped_lock lock(mutex_);
  if (!watching_) watching_ = look_each(std::min(kSeldom, limit_ / 10), [this] { look(); });
  if (!watching_) {
    refuse_thread("watching calls for GPUs", std::make_error_code(std::errc::resource_unavailable_try_again));
  }
  std::vector<std::atomic<int>*> loading;
  for (const std::string& device : devices) loading.push_back(&loading_[device]);
  return callers_.emplace_back(fmt::format("{} for {}", call, fmt::join(devices, ", ")), std::move(loading), limit_);
}

CallWatch::Listener CallWatch::listen(Listener listener) {
  const std::scoped_lock lock(mutex_);
  return std::exchange(listener_, std::move(listener));
}

void CallWatch::look() {
  const std::scoped_lock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::string> late;
  bool ends = false;
  for (Caller& caller : callers_) {
    if (!is_late(caller, now)) continue;
    late.push_back(caller.call_);
    ends = ends || caller.watch_.waited() > limit_ + grace_;
  }
  if (!ends) return;
  const std::string message = message_of(late);
  if (listener_.process_ends) listener_.process_ends(message);
  end_process(message);
}

std::string CallWatch::message_of(const std::vector<std::string>& calls) const {
  return fmt::format("{} {} not returned for {:g} s; where it may take so long, raise {}", fmt::join(calls, ", "),
                     calls.size() == 1 ? "has" : "have", limit(), name_of(SettingKey::DeviceTimeout));
}

// Whether the caller's call is late, which is reported once. If calls wait for each other, the caller added first is
// reported first: devices add the callers that issue work before the one that polls for completion. Once a call has
// been reported, its waiting time counts in full even while modules are loaded, since the whole process waits for it.
bool CallWatch::is_late(Caller& caller, HangWatch::Time now) {
  const int64_t count = caller.count_.load(std::memory_order_acquire);
  const bool loading = std::any_of(caller.loading_.begin(), caller.loading_.end(),
                                   [](const std::atomic<int>* device) { return device->load() > 0; });
  const HangWatch::Look look{.task = 0,
                             .instance = count,
                             .ready = count % 2 == 1,
                             .share = loading && caller.told_ != count ? kShareOfLoading : 1};
  if (!caller.watch_.hangs(look, now)) return false;
  if (std::exchange(caller.told_, count) != count && listener_.late) {
    listener_.late({message_of({caller.call_}), caller.task_.load(), caller.instance_.load()});
  }
  return true;
}

}  // namespace arbalest
