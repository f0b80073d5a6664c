// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan bound to the devices that it names.

#include <memory>

#include "executor/run/binding.h"

namespace arbalest {

// Makes the plan's devices and, if a lane spans them, their collectives. `threads` are shared by the CPU devices;
// what hangs on GPUs for longer than `device_timeout` seconds fails; `cache` keeps kernels and communicators from one
// plan to the next. Throws RunError.
std::unique_ptr<Binding> bind_plan(Plan& plan, int threads, double device_timeout, const BindOptions& options,
                                   const std::shared_ptr<DeviceCache>& cache);

}  // namespace arbalest
