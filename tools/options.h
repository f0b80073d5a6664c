#pragma once
// The command line as structs, one a subcommand.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "executor/session.h"
#include "executor/target.h"

namespace arbalest {

// What makes a plan; common to run, check and plan.
struct PlanOptions {
  std::string graph;             // the file
  std::string devices = "auto";  // see executor/device_list.h
  int learners = 1;              // per device
  Precision precision = Precision::Fp32;
  uint64_t seed = 1;
  bool deterministic = false;
  std::optional<int64_t> epochs;      // otherwise the graph's
  std::optional<int64_t> iterations;  // ends earlier than the epochs say
  std::vector<std::string> set;       // each "node.attribute=value"
  int threads = 0;                    // of the process for kernels and decoding; 0: one a core
};

struct RunOptions : PlanOptions {
  std::vector<Target> until;  // all of them
  std::string weights;        // read before training
  std::string save;           // written at the end
  std::string trace;
  std::string log;        // JSON lines
  int64_t log_every = 0;  // iterations between progress events; 0: by the length of an epoch
};

struct CheckOptions : PlanOptions {
  bool json = false;
};

struct PlanCommandOptions : PlanOptions {
  std::string after;  // a pass: print the graph as it leaves it
  bool json = false;
};

struct TraceOptions {
  std::string file;
  int slowest = 5;
  int gaps = 5;
  int reasons = 3;
};

// The process ends with `status` after printing `text`: help on standard output (0), faults on standard error (2).
struct Exit {
  int status = 0;
  std::string text;
};

using Command = std::variant<Exit, RunOptions, CheckOptions, PlanCommandOptions, TraceOptions>;

Command parse_command_line(int argc, const char* const* argv);

}  // namespace arbalest
