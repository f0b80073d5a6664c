// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strategies that correct learners towards an average while training goes on, by the tasks of SMA.

#include <memory>

#include "executor/plan/strategy.h"

namespace arbalest {

// A strategy by SMA's equations with these facts, which average models and correct.
std::unique_ptr<const Strategy> make_correcting(StrategySpec facts);

}  // namespace arbalest
