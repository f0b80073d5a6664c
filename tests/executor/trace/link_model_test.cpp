// SPDX-License-Identifier: Apache-2.0

#include "executor/trace/link_model.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace arbalest::link_model_test {

TEST_CASE("an all-reduce takes what its ring or its tree does, within hosts and between them") {
  const WorldLinks links = {{1e-6, 100e9}, {1e-3, 1e9}};
  CHECK(all_reduce_seconds(1e9, {1, 1}, links) == 0);
  // 2 · 7 messages of an eighth.
  CHECK(all_reduce_seconds(1e9, {1, 8}, links) == doctest::Approx(14 * (1e-6 + 1e9 / 8 / 100e9)));
  CHECK(all_reduce_seconds(1e9, {4, 1}, links) == doctest::Approx(6 * (1e-3 + 1e9 / 4 / 1e9)));
  CHECK(all_reduce_seconds(1e9, {4, 8}, links) ==
        doctest::Approx(all_reduce_seconds(1e9, {4, 1}, links) + all_reduce_seconds(1e9, {1, 8}, links)));
  // Few bytes over many hosts: 2 · 7 latencies of a tree rather than 2 · 127 of a ring.
  CHECK(all_reduce_seconds(1e3, {128, 1}, links) == doctest::Approx(2 * (7e-3 + 1e3 / 1e9)));
}

TEST_CASE("links and worlds are read with their units, and refused with what was expected") {
  const Link link = parse_link("--between", "0.5ms,100Gbit/s");
  CHECK(link.latency == doctest::Approx(5e-4));
  CHECK(link.bytes_per_second == doctest::Approx(12.5e9));
  CHECK(to_string(link) == "500 us, 12.5 GB/s");
  CHECK(to_string(parse_link("--between", "20ms,20Mbit/s")) == "20 ms, 2.5 MB/s");
  CHECK(parse_link("--between", "10us,3.2Tbit/s").bytes_per_second == 400e9);
  CHECK(parse_link("--within", "1us,1.8TB/s").bytes_per_second == 1.8e12);
  CHECK(parse_world_size("--world", "128x8") == WorldSize{128, 8});
  for (const char* text :
       {"", "5us", "5us,", "5,3GB/s", "5us,3GB", "-1us,3GB/s", "5us,0GB/s", "nan us,1GB/s", "61s,1GB/s"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_link("--between", text), doctest::Contains("such as 5us,300GB/s"), GraphError);
  }
  for (const char* text : {"", "2", "0x1", "2x", "x2", "2x65", "5000x1", "2x4x"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(parse_world_size("--world", text), doctest::Contains("such as 2x4"), GraphError);
  }
}

}  // namespace arbalest::link_model_test
