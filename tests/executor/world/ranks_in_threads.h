// SPDX-License-Identifier: Apache-2.0
#pragma once
// Worlds whose ranks are threads of this process.

#include <doctest/doctest.h>

#include <functional>
#include <future>
#include <string>
#include <vector>

#include "base/error.h"
#include "executor/world/ranks.h"
#include "tests/executor/world/free_port.h"

namespace arbalest::test {

inline WorldSettings settings(int rank, int size, int port) {
  WorldSettings world;
  world.rank = rank;
  world.size = size;
  world.host = "127.0.0.1";
  world.port = port;
  world.told_by = "SIZE=" + std::to_string(size);
  world.secret = "a secret";
  world.patience = 20;
  return world;
}

// Runs each function in a thread and returns their errors: "": none.
inline std::vector<std::string> faults(const std::vector<std::function<void()>>& functions) {
  std::vector<std::future<std::string>> running;
  for (const auto& function : functions) {
    running.push_back(std::async(std::launch::async, [&function]() -> std::string {
      try {
        function();
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    }));
  }
  std::vector<std::string> found;
  for (auto& each : running) found.push_back(each.get());
  return found;
}

// The errors of a world in which each rank does this.
inline std::vector<std::string> world(int size, const std::function<void(Ranks&)>& each) {
  const int port = free_port();
  std::vector<std::function<void()>> functions;
  for (int rank = 0; rank < size; ++rank) {
    functions.emplace_back([=] {
      Ranks ranks(settings(rank, size, port));
      each(ranks);
    });
  }
  return faults(functions);
}

inline bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  CHECK_MESSAGE(found, "'", text, "' has no '", part, "'");
  return found;
}

}  // namespace arbalest::test
