// SPDX-License-Identifier: Apache-2.0
#pragma once
// A port that no process of this machine listens at.

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

namespace arbalest::test {

inline int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  REQUIRE(bind(descriptor, reinterpret_cast<sockaddr*>(&address), bytes) == 0);
  REQUIRE(getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  close(descriptor);
  return ntohs(address.sin_port);
}

}  // namespace arbalest::test
