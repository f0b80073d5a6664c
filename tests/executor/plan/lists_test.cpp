// SPDX-License-Identifier: Apache-2.0

// The values of --devices and --until.

#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "executor/plan/device_list.h"
#include "executor/session/target.h"

using namespace arbalest;

namespace lists_test {
namespace {

using Devices = std::vector<PlanDevice>;
constexpr auto kCpu = PlanDevice::Kind::Cpu;
constexpr auto kCuda = PlanDevice::Kind::Cuda;

Devices parse(const std::string& text) {
  return parse_devices(text, [] { return Devices{{kCuda, 7}}; });
}

template <typename Function>
std::string message_of(Function function) {
  try {
    function();
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("device lists") {
  CHECK(parse("cpu") == Devices{{kCpu, 0}});
  CHECK(parse("cpu:0-1") == Devices{{kCpu, 0}, {kCpu, 1}});
  CHECK(parse("cuda:3") == Devices{{kCuda, 3}});
  CHECK(parse("cuda:2,0-1") == Devices{{kCuda, 2}, {kCuda, 0}, {kCuda, 1}});
  CHECK(parse("cpu:0, cuda:0") == Devices{{kCpu, 0}, {kCuda, 0}});
  CHECK(parse("auto") == Devices{{kCuda, 7}});
}

TEST_CASE("wrong device lists say what was found") {
  const auto fails_with = [](const std::string& text, const char* part) {
    const std::string message = message_of([&] { parse(text); });
    INFO(text, ": ", message);
    CHECK(message.find(part) != std::string::npos);
  };
  fails_with("", "an empty item");
  fails_with("cuda:0,,1", "an empty item");
  fails_with("cuad:0",
             "unknown kind of device 'cuad'; expected a list such as cpu:0-1, cuda:0 or cuda:0,2-3, or auto; did you "
             "mean 'cuda'?");
  fails_with("gpu:0", "or auto; did you mean 'cuda'?");
  fails_with("0-1", "before any kind");
  fails_with("cuda:", "found '' where the number");
  fails_with("cuda:x", "found 'x' where the number");
  fails_with("cuda:1-", "found '' where the number");
  fails_with("cuda:-1", "found '' where the number");
  fails_with("cuda:3-1", "runs backwards");
  fails_with("cuda:0-2,1", "cuda:1 is named twice");
  fails_with("cuda:99999999999", "where the number");
  fails_with("cpu:5000", "not below");
  fails_with("auto,cpu", "stands alone");
}

TEST_CASE("targets") {
  CHECK(parse_target("accuracy >= 0.94") == Target{"accuracy", Target::Op::GreaterEqual, 0.94});
  CHECK(parse_target("loss<1e-2") == Target{"loss", Target::Op::Less, 0.01});
  CHECK(parse_target(" top5 > .9 ") == Target{"top5", Target::Op::Greater, 0.9});
  CHECK(to_string(parse_target("loss<=0.5")) == "loss <= 0.5");
  CHECK(parse_target("a >= 0.5").met(0.5));
  CHECK_FALSE(parse_target("a > 0.5").met(0.5));
  CHECK(parse_target("a <= 0.5").met(0.5));
  CHECK_FALSE(parse_target("a < 0.5").met(0.5));
  CHECK_FALSE(parse_target("a <= 0.5").met(std::nan("")));
  for (const std::string text : {"", "accuracy", "accuracy = 0.9", "accuracy => 0.9", ">= 0.9", "accuracy >=",
                                 "accuracy >= x", "accuracy >= 0.9%", "my accuracy >= 0.9", "accuracy >= nan"}) {
    INFO(text);
    CHECK_THROWS_AS(parse_target(text), GraphError);
  }
}

}  // namespace lists_test
