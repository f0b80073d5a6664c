#pragma once
// A plan bound to the devices that it names, as a session's options ask.

#include <memory>

#include "executor/run/binding.h"
#include "executor/session/session.h"

namespace arbalest {

// Makes the plan's devices and, where a lane spans them, their collectives; `cache` keeps kernels and communicators
// from one plan to the next. Throws RunError.
std::unique_ptr<Binding> bind_plan(Plan& plan, const SessionOptions& options, int64_t workspace_limit,
                                   const std::shared_ptr<DeviceCache>& cache);

}  // namespace arbalest
