// SPDX-License-Identifier: Apache-2.0

// Measures the time and memory that opening a source takes: bench_open SOURCE [SPLIT]

#include <fmt/format.h>
#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "io/sources/source.h"

using namespace arbalest;

namespace {

// A line of the process's status, given in KiB, as MiB: "VmRSS", "VmHWM".
double mebibytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: bench_open SOURCE [SPLIT]\n");
    return 2;
  }
  const double before = mebibytes("VmRSS");
  const auto began = std::chrono::steady_clock::now();
  const auto source = open_source(argv[1], argc == 3 ? argv[2] : "train", 1);
  source->check_files();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  malloc_trim(0);  // memory that the allocator keeps for later is not the source's
  fmt::print("{}\n{:.2f} s, {:.1f} MiB more than before, {:.1f} MiB at the most\n", source->describe(), seconds.count(),
             mebibytes("VmRSS") - before, mebibytes("VmHWM") - before);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_open: {}\n", error.what());
  return 1;
}
