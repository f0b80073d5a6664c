// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/link_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/number.h"

namespace arbalest {
namespace {

constexpr double kMostLatency = 60, kMostBandwidth = 1e15;

using UnitOfLink = std::pair<std::string_view, double>;
constexpr std::array kLatencyUnits = {UnitOfLink{"ns", 1e-9}, UnitOfLink{"us", 1e-6}, UnitOfLink{"ms", 1e-3},
                                      UnitOfLink{"s", 1}};
constexpr std::array kBandwidthUnits = {UnitOfLink{"kB/s", 1e3},         UnitOfLink{"MB/s", 1e6},
                                        UnitOfLink{"GB/s", 1e9},         UnitOfLink{"TB/s", 1e12},
                                        UnitOfLink{"kbit/s", 1e3 / 8.0}, UnitOfLink{"Mbit/s", 1e6 / 8.0},
                                        UnitOfLink{"Gbit/s", 1e9 / 8.0}, UnitOfLink{"Tbit/s", 1e12 / 8.0}};

// A number with one of the units after it, in the unit of 1; none if the text is no such thing.
template <size_t N>
std::optional<double> amount_of(std::string_view text, const std::array<UnitOfLink, N>& units) {
  const auto number = take_number<double>(text);
  if (!number || !std::isfinite(*number) || *number < 0) return std::nullopt;
  const auto unit =
      std::find_if(units.begin(), units.end(), [&](const UnitOfLink& each) { return each.first == text; });
  if (unit == units.end()) return std::nullopt;
  return *number * unit->second;
}

// An all-reduce over `places` that are connected by such links.
double reduce_over(double bytes, int64_t places, const Link& link) {
  if (places <= 1) return 0;
  const auto n = double(places);
  const double ring = 2 * (n - 1) * (link.latency + bytes / n / link.bytes_per_second);
  const double tree = 2 * (std::ceil(std::log2(n)) * link.latency + bytes / link.bytes_per_second);
  return std::min(ring, tree);
}

}  // namespace

double all_reduce_seconds(double bytes, const WorldSize& size, const WorldLinks& links) {
  return reduce_over(bytes, size.devices, links.within) + reduce_over(bytes, size.hosts, links.between);
}

Link parse_link(const std::string& option, std::string_view text) {
  const size_t comma = std::min(text.find(','), text.size());
  const auto latency = amount_of(text.substr(0, comma), kLatencyUnits);
  const auto bandwidth = comma < text.size() ? amount_of(text.substr(comma + 1), kBandwidthUnits) : std::nullopt;
  if (!latency || *latency > kMostLatency || !bandwidth || *bandwidth < 1 || *bandwidth > kMostBandwidth) {
    throw GraphError(fmt::format(
        "{} '{}': expected a latency of at most {:g} s and a bandwidth, such as 5us,300GB/s or 0.5ms,100Gbit/s", option,
        printable(std::string(text)), kMostLatency));
  }
  return {*latency, *bandwidth};
}

std::string to_string(const Link& link) {
  const double latency = link.latency, rate = link.bytes_per_second;
  const std::string time =
      latency < 1e-3 ? fmt::format("{:g} us", latency * 1e6) : fmt::format("{:g} ms", latency * 1e3);
  return fmt::format("{}, {}", time,
                     rate < 1e9 ? fmt::format("{:g} MB/s", rate / 1e6) : fmt::format("{:g} GB/s", rate / 1e9));
}

WorldSize parse_world_size(const std::string& option, std::string_view text) {
  constexpr int kMostHosts = 4096, kMostEach = 64;
  const size_t by = std::min(text.find('x'), text.size());
  const auto number = [&](std::string_view digits, int most) -> int64_t {
    const int value = read_number<int>(digits).value_or(0);
    return value >= 1 && value <= most ? value : 0;
  };
  const WorldSize size = {number(text.substr(0, by), kMostHosts),
                          by < text.size() ? number(text.substr(by + 1), kMostEach) : 0};
  if (size.hosts == 0 || size.devices == 0) {
    throw GraphError(fmt::format("{} '{}': expected hosts x devices of each, such as 2x4; at most {}x{}", option,
                                 printable(std::string(text)), kMostHosts, kMostEach));
  }
  return size;
}

}  // namespace arbalest
