#pragma once
// Standard output as a file, for tests of what commands print.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace arbalest::test {

// Standard output goes to a file while it lives.
class Redirected {
 public:
  explicit Redirected(const std::string& file) : file_(file), before_(flushed_copy()) {
    const int out = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    REQUIRE(out >= 0);
    dup2(out, STDOUT_FILENO);
    close(out);
  }
  ~Redirected() {
    std::fflush(stdout);
    dup2(before_, STDOUT_FILENO);
    close(before_);
  }
  std::vector<std::string> lines() const {
    std::fflush(stdout);
    std::vector<std::string> lines;
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

 private:
  static int flushed_copy() {
    std::fflush(stdout);
    return dup(STDOUT_FILENO);
  }
  std::string file_;
  int before_;
};

}  // namespace arbalest::test
