// SPDX-License-Identifier: Apache-2.0
#include "executor/sweep/sweep_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace arbalest {

std::vector<int64_t> rungs_between(int64_t first, int64_t epochs, int reduction) {
  if (first < 1 || first > epochs || reduction < 2) {
    throw GraphError(
        fmt::format("rungs from epoch {} to {}, each {} times the one before: expected 1 to {} for the "
                    "first, and 2 or more times",
                    first, epochs, reduction, epochs));
  }
  std::vector<int64_t> rungs;
  for (int64_t rung = first; rung < epochs; rung *= reduction) {
    rungs.push_back(rung);
    if (rung > epochs / reduction) break;
  }
  rungs.push_back(epochs);
  return rungs;
}

SweepSchedule::SweepSchedule(int trials, std::optional<HalvingRule> rule, std::vector<int> groups)
    : trials_(trials), rule_(std::move(rule)), group_(std::move(groups)) {
  if (group_.empty()) {
    group_.resize(size_t(trials));
    std::iota(group_.begin(), group_.end(), 0);
  }
  for (int trial = 0; trial < trials_; ++trial) {
    const auto group = size_t(group_[size_t(trial)]);
    members_.resize(std::max(members_.size(), group + 1));
    members_[group].push_back(trial);
  }
  if (!rule_) {
    for (; begun_ < trials_; ++begun_) ready_.push_back({begun_});
    return;
  }
  rungs_.resize(rule_->epochs.size());
  for (Rung& rung : rungs_) {
    rung.promoted.resize(size_t(trials_));
    rung.scores.resize(members_.size());
  }
  lanes_.resize(size_t(std::max(1, rule_->lanes)));
  for (Lane& lane : lanes_) give(lane, 0);
}

std::optional<SweepJob> SweepSchedule::next() {
  if (ready_.empty()) return std::nullopt;
  const SweepJob job = ready_.front();
  ready_.pop_front();
  ++under_way_;
  return job;
}

void SweepSchedule::ended(const SweepJob& job, std::optional<double> score) {
  --under_way_;
  if (score && std::isnan(*score)) score.reset();
  if (!rule_) return;
  scores_[{job.trial, job.rung}] = score;
  decide();
}

int64_t SweepSchedule::length_of(const SweepJob& job) const {
  return job.epochs - (job.rung > 0 ? rule_->epochs[size_t(job.rung - 1)] : 0);
}

// Passes on all jobs that have ended on the clock of decisions and in fact.
void SweepSchedule::decide() {
  for (;;) {
    Lane* first = nullptr;
    for (Lane& lane : lanes_) {
      if (lane.job && (!first || lane.ends < first->ends)) first = &lane;
    }
    if (!first) return;
    const SweepJob job = *first->job;
    const auto score = scores_.find({job.trial, job.rung});
    if (score == scores_.end()) return;
    if (score->second) judge(job, *score->second);
    const int64_t now = first->ends;
    first->job.reset();
    for (Lane& lane : lanes_) {
      if (!lane.job) give(lane, now);
    }
    const bool idle = std::none_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.job.has_value(); });
    if (idle) give_to_best_left(now);
  }
}

// A group is judged once all of its trials are.
void SweepSchedule::judge(const SweepJob& job, double score) {
  Rung& rung = rungs_[size_t(job.rung)];
  const int group = group_[size_t(job.trial)];
  std::vector<double>& scores = rung.scores[size_t(group)];
  scores.push_back(score);
  if (scores.size() < members_[size_t(group)].size()) return;
  const double mean = std::accumulate(scores.begin(), scores.end(), 0.0) / double(scores.size());
  // Equal scores: the group that was judged first stays in front.
  const auto place =
      std::find_if(rung.judged.begin(), rung.judged.end(), [&](const auto& other) { return other.first < mean; });
  rung.judged.insert(place, {mean, group});
}

// Starts a job on a lane: a promotion, from the highest rung down, otherwise a new trial.
bool SweepSchedule::give(Lane& lane, int64_t now) {
  std::optional<SweepJob> job;
  for (size_t rung = rungs_.size() - 1; rung-- > 0 && !job;) {
    job = promotion(rung, rungs_[rung].judged.size() / size_t(rule_->reduction));
  }
  if (!job && begun_ < trials_) job = SweepJob{begun_++, 0, rule_->epochs.front()};
  if (!job) return false;
  lane = {job, now + length_of(*job)};
  ready_.push_back(*job);
  return true;
}

// A trial of the best of the first `of_best` groups of a rung that has not gone on.
std::optional<SweepJob> SweepSchedule::promotion(size_t rung, size_t of_best) {
  Rung& from = rungs_[rung];
  for (size_t place = 0; place < of_best; ++place) {
    for (const int trial : members_[size_t(from.judged[place].second)]) {
      if (from.promoted[size_t(trial)]) continue;
      from.promoted[size_t(trial)] = true;
      return SweepJob{trial, int(rung + 1), rule_->epochs[rung + 1], int(place + 1), int(from.judged.size())};
    }
  }
  return std::nullopt;
}

// With few trials no rung may have enough for a promotion, and those that were promoted may fail. The best that is left
// in the highest rung then goes on to the end.
void SweepSchedule::give_to_best_left(int64_t now) {
  if (!rungs_.back().judged.empty()) return;
  for (size_t rung = rungs_.size() - 1; rung-- > 0;) {
    std::optional<SweepJob> job = promotion(rung, rungs_[rung].judged.size());
    if (!job) continue;
    const int place = job->place;
    for (Lane& lane : lanes_) {
      lane = {job, now + length_of(*job)};
      ready_.push_back(*job);
      job = promotion(rung, size_t(place));  // of the same group: those before have gone on
      if (!job) return;
    }
    rungs_[rung].promoted[size_t(job->trial)] = false;  // for which no lane is left yet
    return;
  }
}

}  // namespace arbalest
