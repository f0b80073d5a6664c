// SPDX-License-Identifier: Apache-2.0
#pragma once
// Standard output, or standard error, as a file, for tests of what commands print.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace arbalest::test {

// The stream goes to a file while it lives.
class Redirected {
 public:
  explicit Redirected(const std::string& file, std::FILE* stream = stdout)
      : file_(file), stream_(stream), before_(flushed_copy(stream)) {
    const int out = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    REQUIRE(out >= 0);
    dup2(out, fileno(stream_));
    close(out);
  }
  ~Redirected() {
    std::fflush(stream_);
    dup2(before_, fileno(stream_));
    close(before_);
  }
  std::vector<std::string> lines() const {
    std::fflush(stream_);
    std::vector<std::string> lines;
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

 private:
  static int flushed_copy(std::FILE* stream) {
    std::fflush(stream);
    return dup(fileno(stream));
  }
  std::string file_;
  std::FILE* stream_;
  int before_;
};

}  // namespace arbalest::test
