// SPDX-License-Identifier: Apache-2.0
#include "executor/training/divergence.h"

#include <fmt/format.h>

#include <utility>

#include "base/setting.h"

namespace arbalest {

DivergencePolicy::DivergencePolicy(const SessionOptions& session, bool tunes) : options_(session) {
  const DivergenceOptions& options = session.divergence;
  if (options.find && tunes) {
    throw GraphError(fmt::format("{} depends on measured times; {} excludes it", name_of(SettingKey::LearnersAuto),
                                 name_of(SettingKey::FindNan)));
  }
  if (options.find && options.then == OnDivergence::Skip) {
    throw GraphError(
        fmt::format("{} ends a run where {} goes on", name_of(SettingKey::FindNan), set_to(SettingKey::OnNan, "skip")));
  }
  if (options.then != OnDivergence::Rollback) return;
  if (session.checkpoints.folder.empty()) {
    throw GraphError(
        fmt::format("{} needs {}", set_to(SettingKey::OnNan, "rollback"), set_to(SettingKey::Checkpoint, "DIR")));
  }
  if (!(options.rate_factor > 0 && options.rate_factor <= 1)) {
    throw GraphError(fmt::format("{}: expected a number above 0, and no more than 1",
                                 set_to(SettingKey::NanRateFactor, fmt::format("{}", options.rate_factor))));
  }
}

void DivergencePolicy::begin(const Segment& segment) {
  if (finds()) before_ = segment.own_snapshot();
}

bool DivergencePolicy::is_finite(Segment& segment, Checkpoints& checkpoints) {
  const SegmentReports& reports = segment.reports();
  if (reports.diverged()) return false;
  if (const auto found = checkpoints.take_not_finite()) {
    segment.diverge(
        {fmt::format("'{}' is no longer finite after iteration {}, though the loss is; try a lower learning "
                     "rate{}",
                     found->array, found->iteration, reports.faults().cause_in_range()),
         found->iteration, Diverged::Of::Training});
    return false;
  }
  const bool may_go_back = options_.divergence.then == OnDivergence::Rollback && segment.complete();
  if (!finds() && !may_go_back) return true;
  SegmentSnapshot now = segment.own_snapshot();
  if (const std::string what = segment.not_finite(now); !what.empty()) {
    const int64_t at = segment.position().iteration;
    segment.diverge({fmt::format("{} are no longer finite after iteration {}", what, at), at, Diverged::Of::Training});
    return false;
  }
  if (finds()) before_ = std::move(now);
  return true;
}

Diverged DivergencePolicy::located(const Diverged& error, const Segment& segment) const {
  // A validation is of weights that were finite. If the run was about to end by itself, iterations may have gone by
  // without a rest.
  const bool known = error.of == Diverged::Of::Training && before_.at.iterations == segment.iterations() - 1;
  if (!finds() || !known) return error;
  return {fmt::format("{}; in iteration {} {}", error.what(), segment.position().iteration,
                      segment.first_not_finite(before_)),
          error.iteration, error.of};
}

std::shared_ptr<const CheckpointFile> DivergencePolicy::checkpoint_for(const Diverged& error, int64_t rollbacks) {
  if (rollbacks >= options_.divergence.most_rollbacks) {
    throw TaskError(fmt::format("{}; the run has gone back to a checkpoint {} time{} already", error.what(), rollbacks,
                                rollbacks == 1 ? "" : "s"),
                    error.iteration);
  }
  const std::string& folder = options_.checkpoints.folder;
  auto file = checkpoint_to_go_back_to(folder, error.iteration, gone_back_to_, options_.ranks.get());
  if (!file) {
    throw TaskError(fmt::format("{}; '{}' has no checkpoint to go back to", error.what(), folder), error.iteration);
  }
  gone_back_to_ = file->checkpoint.position.iteration;
  return file;
}

}  // namespace arbalest
