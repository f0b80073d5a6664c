// SPDX-License-Identifier: Apache-2.0
#include "executor/run/read_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/setting.h"

namespace arbalest {
namespace {

constexpr double kNotLookedAt = -1;  // of what has begun since the look before, which has not waited since then

}  // namespace

ReadWatch::Reading::Reading(ReadWatch* watch, const Source& source, const SampleRef& sample, size_t count)
    : watch_(watch) {
  if (!watch_) return;
  const std::scoped_lock lock(watch_->mutex_);
  entry_ = watch_->entries_.insert(watch_->entries_.end(), {&source, sample, count, kNotLookedAt});
}

ReadWatch::Reading::~Reading() {
  if (!watch_) return;
  const std::scoped_lock lock(watch_->mutex_);
  watch_->entries_.erase(entry_);
}

std::optional<std::string> ReadWatch::late(Time now) {
  constexpr double kLongestStep = 1;
  const std::scoped_lock lock(mutex_);
  const double step = last_ ? std::chrono::duration<double>(now - *last_).count() : 0;
  last_ = now;
  for (Entry& entry : entries_) {
    entry.waited = entry.waited == kNotLookedAt ? 0 : entry.waited + std::clamp(step, 0.0, kLongestStep);
  }
  const auto longest = std::max_element(entries_.begin(), entries_.end(),
                                        [](const Entry& a, const Entry& b) { return a.waited < b.waited; });
  if (limit_ <= 0 || longest == entries_.end() || longest->waited <= limit_) return std::nullopt;
  const std::string data = longest->source->describe();
  const std::string more = longest->count > 1 ? fmt::format(" and {} more", longest->count - 1) : "";
  return fmt::format("{}{}: reading has not ended for {:g} s (sample {} of {}, epoch {}); {} allows longer",
                     longest->source->locate(longest->sample.index), more, limit_, longest->sample.index,
                     data.substr(0, data.find(": ")), longest->sample.epoch + 1, name_of(SettingKey::ReadTimeout));
}

}  // namespace arbalest
