// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model of links: how long collectives take on devices and hosts that are not there. Predictions of more hosts and
// quotes of experiments use it; kLinkAssumptions is printed next to their numbers.

#include <cstdint>
#include <string>
#include <string_view>

namespace arbalest {

// A connection, each way: a message takes latency + bytes / bytes_per_second.
struct Link {
  double latency = 0;           // s
  double bytes_per_second = 0;  // of each direction
};

// The connections of a world.
struct WorldLinks {
  Link within;   // between devices of one host, each of which has such a link
  Link between;  // between hosts, each of which has one such link for all its devices
};

struct WorldSize {
  int64_t hosts = 1, devices = 1;  // devices: of each host
  bool operator==(const WorldSize&) const = default;
};

inline constexpr const char* kLinkAssumptions =
    "a message takes latency + bytes / bandwidth; all-reduces go within hosts, then between them, each by a ring or a "
    "tree, whichever is sooner; nothing else uses the links, and all devices and hosts are alike and come to a "
    "collective at the same time";

// Seconds of an all-reduce of `bytes` on each device: a reduce-scatter within each host, an all-reduce between hosts,
// an all-gather within each host. Of n places a ring takes 2(n − 1) messages of bytes / n one after the other, a tree
// 2⌈log2 n⌉ latencies and 2 · bytes / bandwidth. 0 for one device.
double all_reduce_seconds(double bytes, const WorldSize& size, const WorldLinks& links);

// "5us,300GB/s" or "0.5ms,100Gbit/s": a latency in ns, us, ms or s, and a bandwidth in kB/s, MB/s, GB/s, kbit/s, Mbit/s
// or Gbit/s (of 1000). Throws GraphError with `option`, what was found and what was expected.
Link parse_link(const std::string& option, std::string_view text);
std::string to_string(const Link& link);  // "5 us, 300 GB/s"

// "2x8": hosts x devices of each. Throws GraphError with `option`, what was found and what was expected.
WorldSize parse_world_size(const std::string& option, std::string_view text);

}  // namespace arbalest
