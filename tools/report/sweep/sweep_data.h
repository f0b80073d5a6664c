// SPDX-License-Identifier: Apache-2.0
#pragma once
// A sweep as its page carries it.

#include <string>

#include <nlohmann/json.hpp>

#include "tools/sweep/sweep_log.h"

namespace arbalest {

// An object of
//   graph, metric, lower     lower: whether less of the metric is better; metric "": no trial has a value yet
//   why                      trials are ranked by another metric than the graph's; "": they are not
//   in_iterations            whether lengths are in iterations, since a trial ended within an epoch
//   trials_ended, trials_failed, finished
//   rungs                    epochs at which a search judges trials; empty: there is no search
//   settings   [{name, scale, means}]: those that differ between groups. Scales are "linear", "log" and "names".
//     means    [{text, at, mean, low, high, values, failed}], by value or range of values: how many trials have a
//              value of the metric, their mean, the bounds of its interval of 95 % (null: there is none)
//   groups     [{settings, at, trials, values, failed, unfinished, mean, low, high, epochs, iterations}], the best
//              first: texts and places by setting (null: the group has none), positions in `trials`, and the same
//              numbers as of means
//   trials     [{settings, group, state, value, epochs, iterations, error}]: state is "ended", "failed", "unfinished"
//   or "waiting";
//              an unfinished trial has its latest value. Those of a search have `first`, value and epochs at the first
//              rung, which means of settings and cells of pairs are of
//   pairs      [{down, across, cells}]: positions of two settings; cells[i][j] is {mean, values, failed} of the trials
//              with the i-th of the means of one and the j-th of the other, or null
//   validation, loss   [{group, epochs, mean, low, high, count}]: the metric of validations and the loss of training.
//              Without low, high and count no place has several trials. `curves_left_out`: groups without curves,
//              since there are too many.
//   rates      [{name, points}] of a search for a learning rate: [{group, rate, loss, error}], losses of training
//   advice     about rates, in words
//   notes      about logs that are missing or damaged; `notes_left_out`: how many more
// Never throws because of a trial's log.
nlohmann::ordered_json sweep_data(const SweepRecord& record, const std::string& folder);

}  // namespace arbalest
