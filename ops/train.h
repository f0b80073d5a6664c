#pragma once
// The learning rate's schedule; the executor writes its value into StepScalars::learning_rate.

#include "graph/graph.h"

namespace arbalest {

// The rate of an arbalest.Train node once `epochs_seen` (samples seen ÷ samples of an epoch) have been trained. Where
// the attribute `epochs` is 0, cosine and linear schedules end at `total_epochs`, the run's.
double learning_rate(const Node& train, double epochs_seen, double total_epochs);

}  // namespace arbalest
