// SPDX-License-Identifier: Apache-2.0

// `arbalest plan`, and what check says of memory.

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"
#include "tests/tools/run/small_graph.h"
#include "tools/command/commands.h"

using namespace arbalest;
using namespace arbalest::test;

namespace plan_command_test {

TEST_CASE("plan begins with a summary that fits on a screen") {
  const TestFolder folder;
  auto options = options_in<PlanCommandOptions>(folder);
  options.devices = "cpu:0-1";
  options.session.learners.per_device = 4;
  std::vector<std::string> lines;
  {
    const test::Redirected out((folder / "out").string());
    CHECK(command_plan(options) == kDone);
    lines = out.lines();
  }
  const auto empty = std::find(lines.begin(), lines.end(), "");
  REQUIRE(empty != lines.end());
  CHECK(empty - lines.begin() <= 24);
  const auto line_with = [&](const std::string& part) {
    const auto found =
        std::find_if(lines.begin(), empty, [&](const std::string& line) { return line.find(part) != line.npos; });
    INFO(part);
    REQUIRE(found != empty);
    return *found;
  };
  CHECK(lines[0].starts_with("g: 8 learners on cpu:0, cpu:1; "));
  CHECK(line_with("*/fill").ends_with("each batch, 8 of them, up to 3 at once, 3 slots"));
  CHECK(line_with("*/step").find("forward") != std::string::npos);
  CHECK(line_with("  cpu:1 ").find("learner */state") != std::string::npos);
  CHECK(std::find(empty, lines.end(), "tasks") != lines.end());  // the plan in full follows
}

TEST_CASE("the plan of a world is told by its first host's part") {
  const TestFolder folder;
  const std::string graph =
      write_net(folder, "a = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)\n  h = Relu (a)");
  const auto lines_of = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {"plan",      graph.c_str(),
                                      "--devices", "cpu:0",
                                      "--set",     "prefetch.source=synthetic:?shape=1x16x16&classes=10&size=5000"};
    words.insert(words.end(), more.begin(), more.end());
    const Command command = test::parse(words);
    const test::Redirected out((folder / "out").string());
    CHECK(command_plan(options_of<PlanCommandOptions>(command)) == kDone);
    return out.lines();
  };
  const std::vector<std::string> lines = lines_of({"--world", "30x4"});
  const std::string text = fmt::format("{}", fmt::join(lines, "\n"));
  CHECK(lines.front().find("120 learners on 120 devices, host0/cpu:0 to host29/cpu:3; ") != std::string::npos);
  CHECK(text.find("\n  host0/cpu:0 to host29/cpu:3, each ") != std::string::npos);
  CHECK(text.find("host0/cpu:3/learner 3/step") != std::string::npos);
  CHECK(text.find("\n  */cpu:*/learner */step ") != std::string::npos);
  CHECK(text.find("another process") != std::string::npos);
  CHECK(text.find("host7/cpu:0/learner 28/step") == std::string::npos);
  CHECK(lines.back() == "These are the tasks of host0, one of 30 hosts; --json prints those of all.");
  const auto whole = nlohmann::json::parse(fmt::format("{}", fmt::join(lines_of({"--world", "3x4", "--json"}), "\n")));
  CHECK(whole.dump().find("host2/cpu:3/learner 11/step") != std::string::npos);
}

TEST_CASE("check and plan say what a memory limit costs, and plan lists what is computed again") {
  const TestFolder folder;
  const std::string graph = write_net(folder, R"(a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (x)
  b = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (a)
  h = GlobalAveragePool (b))");
  const auto lines_of = [&](std::vector<const char*> words) {
    words.insert(words.end(), {graph.c_str(), "--devices", "cpu:0"});
    const Command command = test::parse(words);
    const test::Redirected out((folder / "out").string());
    if (const auto* check = options_if<CheckOptions>(command)) CHECK(command_check(*check) == kDone);
    if (const auto* plan = options_if<PlanCommandOptions>(command)) CHECK(command_plan(*plan) == kDone);
    return out.lines();
  };
  const auto joined = [](const std::vector<std::string>& lines) { return fmt::format("{}", fmt::join(lines, "\n")); };
  const auto kept = nlohmann::json::parse(joined(lines_of({"check", "--json"})));
  CHECK(!kept.contains("memory_limit"));
  const int64_t limit = kept.at("planned_bytes").at("cpu:0").get<int64_t>() - 1;
  const std::string size = std::to_string(limit);
  const auto less = nlohmann::json::parse(joined(lines_of({"check", "--json", "--memory-limit", size.c_str()})));
  CHECK(less.at("planned_bytes").at("cpu:0") <= limit);
  CHECK(less.at("memory_limit").at("bytes") == limit);
  CHECK(less.at("memory_limit").at("values_computed_again") == 1);
  CHECK(less.at("memory_limit").at("more_work") > 0);
  const std::string told = "1 value (320 KiB) is computed again in each step, about ";
  CHECK(joined(lines_of({"check", "--memory-limit", size.c_str()})).find(told) != std::string::npos);
  const std::string plan = joined(lines_of({"plan", "--memory-limit", size.c_str()}));
  CHECK(plan.find(told) != std::string::npos);
  CHECK(plan.find("backward Conv ") != std::string::npos);
  CHECK(plan.find(" a.conv again\n") != std::string::npos);
  const auto record = nlohmann::json::parse(joined(lines_of({"plan", "--json", "--memory-limit", size.c_str()})));
  CHECK(record.at("memory_limit") == less.at("memory_limit"));
  const std::string listing = joined(lines_of({"plan", "--after", "recompute", "--memory-limit", size.c_str()}));
  CHECK(listing.find("a.conv again = Conv ") != std::string::npos);
}

TEST_CASE("plan shows the graph without passes that are left out") {
  const TestFolder folder;
  const std::string graph = write_net(folder, R"(a = arbalest.Conv <filters = 4, kernel_shape = [3, 3]> (x)
  h = Relu (a))");
  const auto listing = [&](const char* pass, std::vector<const char*> more) {
    std::vector<const char*> words = {"plan", graph.c_str(), "--devices", "cpu:0", "--after", pass};
    words.insert(words.end(), more.begin(), more.end());
    const Command command = test::parse(words);
    const test::Redirected out((folder / "out").string());
    CHECK(command_plan(options_of<PlanCommandOptions>(command)) == kDone);
    return fmt::format("{}", fmt::join(out.lines(), "\n"));
  };
  for (const char* pass : {"fuse_relu", "remove_dead"}) {
    CHECK(listing(pass, {}).find(" = arbalest.ConvRelu") != std::string::npos);
    const std::string without = listing(pass, {"--without", "fuse_relu"});
    CHECK(without.find(" = arbalest.ConvRelu") == std::string::npos);
    CHECK(without.find(" = Relu") != std::string::npos);
  }
}

TEST_CASE("convolutions of many learners on a GPU leave statistics of fewer, larger chunks") {
  const TestFolder folder;
  const std::string graph = write_net(folder, R"(a = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (x)
  h = arbalest.ConvBnRelu <filters = 16, kernel_shape = [3, 3]> (a))");
  const auto listing = [&](std::vector<const char*> more) {
    std::vector<const char*> words = {
        "plan",        graph.c_str(),    "--devices",
        "cuda:0",      "--gpu",          "H200",
        "--precision", "bf16",           "--batch",
        "64",          "--set",          "prefetch.source=synthetic:?shape=1x16x16&classes=10&size=5000",
        "--after",     "fuse_statistics"};
    words.insert(words.end(), more.begin(), more.end());
    const Command command = test::parse(words);
    const auto [status, text] = [&] {
      const test::Redirected out((folder / "out").string());
      const int ended = command_plan(options_of<PlanCommandOptions>(command));
      return std::pair(ended, fmt::format("{}", fmt::join(out.lines(), "\n")));
    }();
    REQUIRE(status == kDone);
    REQUIRE(text.find("arbalest.ConvStatistics") != std::string::npos);
    return text;
  };
  const std::string larger = "chunk_pixels = 512";
  CHECK(listing({"--learners", "16"}).find(larger) != std::string::npos);
  CHECK(listing({"--learners", "4"}).find(larger) == std::string::npos);
  // The bits of one learner:
  CHECK(listing({"--learners", "16", "--deterministic"}).find(larger) == std::string::npos);
}

}  // namespace plan_command_test
