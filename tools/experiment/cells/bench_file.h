// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bench file (TOML): the settings of an experiment, what is measured of each combination, and what it costs.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "executor/trace/link_model.h"

namespace arbalest {

// Settings whose lists go together: the k-th combination has the k-th value of each. A setting with one value is an
// axis with one place.
struct SettingAxis {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> values;  // by place, in the order of names
  Position where;
};

// A setting that follows from others, by an expression (tools/experiment/cells/expression.h).
struct DerivedSetting {
  std::string name, expression;
  Position where;
};

// Combinations that are left out.
struct Exclusion {
  std::string when, reason;
  Position where;
};

// How throughput is measured. Each repetition is a process of its own.
struct ThroughputRule {
  int64_t repetitions = 5;
  int64_t windows = 5;  // of a repetition; their median is its rate
  double window_seconds = 1;
  double warmup_seconds = 1;  // at least
};

// How training is measured: one run a seed, to the end of its schedule.
struct AccuracyRule {
  std::string metric = "accuracy";
  bool lower = false;           // whether lower is better
  std::vector<double> targets;  // of the metric
  std::vector<int64_t> seeds = {1, 2, 3};
  std::string checkpoint_every = "60s";  // as run --checkpoint-every takes it
  std::optional<double> claim;           // that the mean of the final metric is tested against, on one side
  // Entries of MLPerf's log of each run, each "submission_org=Lab"; none: no such log is written.
  std::optional<std::vector<std::string>> mllog;
};

// BenchCells that differ in one setting alone are compared with the one that has `against` there.
struct CellComparison {
  std::string by, against;
  Position where;
};

// Prices are expressions of settings.
struct BenchPrice {
  std::string currency, source, date;
  std::string per_hour, spot_per_hour;  // spot_per_hour "": there is none
  double interruptions_per_hour = 0;    // of the clock, on spot machines
  double lost_seconds = 0;              // of work, by an interruption
  double by_seconds = 0;                // when training has to be done, for the cheapest way; 0: any time
  Position where;
};

// Another program. `command` has settings in braces, and {seed}; what it prints are lines of JSON.
struct Peer {
  std::string name, command;
  std::string when;  // the cells that it has a side to; "": all
  Position where;
};

// Options of a SLURM script; "" and 0: left out.
struct QueueSettings {
  std::string account, partition, qos, constraint, gres, time = "01:00:00";
  int64_t at_once = 4, cpus_per_task = 0, gpus_per_task = -1, signal_seconds = 120;  // −1: as many as a cell needs
  std::vector<std::string> modules, setup;                                           // lines before the bench
  std::string apptainer, pyxis;                                                      // an image
  std::vector<std::string> mounts;  // in it, each "FOLDER" or "FOLDER:THERE"
};

// Links that predictions are for; none: those that are usual for the devices, which hosts do not have.
struct StatedLinks {
  std::optional<Link> within, between;  // of devices of a host, and of hosts
};

struct BenchFile {
  std::string path, title;
  std::vector<SettingAxis> axes;
  std::vector<DerivedSetting> derived;
  std::vector<Exclusion> exclusions;
  std::optional<ThroughputRule> throughput;
  std::optional<AccuracyRule> accuracy;
  std::optional<CellComparison> comparison;
  std::optional<BenchPrice> price;
  StatedLinks links;
  std::vector<Peer> peers;
  QueueSettings queue;
};

// Reads a file. `changes`: of a command line, each "learners=[1, 2]", "train.lr=0.1" or "throughput.repetitions=3"; a
// name without a section is a setting. Throws GraphError with the line, what was found and what was expected, and
// RunError if the file cannot be read.
BenchFile read_bench_file(const std::string& path, const std::vector<std::string>& changes = {});

}  // namespace arbalest
