// SPDX-License-Identifier: Apache-2.0

// Tests that a run's outputs must be writable, and must not be its inputs.

#include "executor/session/output_paths.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/error.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

TEST_CASE("outputs do not overwrite what the run reads, whatever the name or link") {
  TestFolder folder;
  const std::string weights = folder.write("w.safetensors", std::string("weights")).string();
  std::filesystem::create_symlink("w.safetensors", folder / "symbolic");
  std::filesystem::create_hard_link(weights, folder / "hard");
  const NamedPaths inputs = {{"GRAPH", "net.onnxtxt"}, {"--weights", weights}};
  for (const std::string& path :
       {weights, folder.string() + "/./w.safetensors", (folder / "symbolic").string(), (folder / "hard").string()}) {
    CAPTURE(path);
    CHECK(message_of<GraphError>([&] {
            check_inputs_kept(inputs, {{"--trace", ""}, {"--log", path}});
          }) == "--log would overwrite '" + path + "', which --weights reads");
    CHECK_THROWS_AS(check_distinct_paths({{"--save", weights}, {"--log", path}}), GraphError);
  }
  CHECK_NOTHROW(check_inputs_kept(inputs, {{"--log", (folder / "other").string()}, {"--trace", ""}}));
  CHECK_NOTHROW(check_inputs_kept({{"--weights", ""}}, {{"--log", ""}}));
}

TEST_CASE("a file that cannot be written is reported before the run") {
  TestFolder folder;
  const std::string kept = folder.write("kept", std::string("old")).string();
  REQUIRE(chmod(kept.c_str(), 0444) == 0);
  const auto refusal = [&](const std::string& path) {
    return message_of<RunError>([&] { const auto held = hold_outputs({{"--save", path}}); });
  };
  check_parts(refusal(kept), {"kept: cannot be written", "read-only"});
  check_parts(refusal(folder.string()), {"no regular file"});
  check_parts(refusal((folder / "none/w").string()), {"there is no folder"});
  check_parts(refusal((folder / std::string(300, 'n')).string()), {"nnn: cannot be written: File name too long"});
  check_parts(refusal((folder / std::string(300, 'n') / "w").string()), {"w: cannot be written: File name too long"});
  check_parts(refusal(kept + "/w"), {"kept/w: cannot be written: there is no folder"});
  std::filesystem::create_symlink(folder / "gone/w", folder / "dead");
  check_parts(refusal((folder / "dead").string()), {"dead: cannot be written: there is no folder", "/gone'"});
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  check_parts(refusal((folder / "pipe").string()), {"pipe: cannot be written: it is there and no regular file"});
  std::filesystem::create_symlink("new", folder / "link");
  for (const std::string path : {"new", "link"}) {
    const auto held = hold_outputs({{"--save", (folder / path).string()}, {"--trace", "/dev/null"}, {"--log", ""}});
    check_parts(refusal((folder / "new").string()), {"new: ", "process", " writes this file"});
  }
}

TEST_CASE("a graph of any name gives the name of one file in one folder") {
  CHECK(file_name_of("resnet20") == "resnet20");
  CHECK(file_name_of("gr\u00fcn-2.1_b") == "gr\u00fcn-2.1_b");
  CHECK(file_name_of("../x/y") == "___x_y");
  CHECK(file_name_of(std::string("a\0b\nc", 5)) == "a_b_c");
  CHECK(file_name_of(".hidden") == "_hidden");
  CHECK(file_name_of("") == "unnamed");
  CHECK(file_name_of(std::string(300, 'n')) == std::string(100, 'n'));
  const std::string cut = file_name_of(std::string(99, 'n') + "\u00fc");
  CHECK(cut == std::string(99, 'n'));
}

TEST_CASE("a name that is taken gets a number, and what is there stays") {
  TestFolder folder;
  const auto at = [&](const char* name) { return (folder / name).string(); };
  CHECK(free_path(at("net.interrupted.safetensors")).path == at("net.interrupted.safetensors"));
  folder.write("net.interrupted.safetensors", std::string("first"));
  const FreePath first = free_path(at("net.interrupted.safetensors"));
  CHECK(first.path == at("net.interrupted-1.safetensors"));
  CHECK(free_path(at("net.interrupted.safetensors")).path == at("net.interrupted-2.safetensors"));  // the first is held
  std::filesystem::create_symlink("nowhere", folder / "net.interrupted-1.safetensors");
  CHECK(free_path(at("net.interrupted.safetensors")).path == at("net.interrupted-2.safetensors"));
  CHECK(free_path(at("none/net")).path == at("none/net"));
}
