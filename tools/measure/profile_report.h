// SPDX-License-Identifier: Apache-2.0
#pragma once
// The text that `arbalest profile` prints.

#include <nlohmann/json.hpp>
#include <string>

#include "executor/run/step_profile.h"

namespace arbalest {

struct ProfiledRun {
  std::string graph, device, precision;
  int64_t batch = 0;
  double images_per_second = 0;
  int64_t planned_peak_bytes = 0;
  StepProfile step;
};

// Tables by stage, by operator and, with `layers`, by layer; then so many nodes, those first that lose most against
// their limit.
std::string profile_text(const ProfiledRun& run, int slowest, bool layers);

nlohmann::ordered_json profile_record(const ProfiledRun& run);

}  // namespace arbalest
