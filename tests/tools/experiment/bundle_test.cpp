// SPDX-License-Identifier: Apache-2.0

// bench --bundle: an archive from which a bench can be run again.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "tests/tools/experiment/bench_place.h"
#include "tools/experiment/answer/bundle.h"

using namespace arbalest;
using namespace arbalest::test;

namespace bundle_test {

namespace fs = std::filesystem;

TEST_CASE("a bundle has all that a bench was made of, and answers without measuring") {
  const BenchPlace place;
  fs::create_directories(place.folder / "bench");
  const std::string file = place.folder
                               .write("bench/b.toml", std::string("[settings]\ngraph = \"../g.onnxtxt\"\ndevices = "
                                                                  "\"cpu:0\"\nthreads = 1\ntrain.epochs = 1\n"
                                                                  "[accuracy]\nseeds = [1]\n"))
                               .string();
  const auto bench = [&](const std::string& of, const std::string& results, const Words& more) {
    Words words = {"bench", of, "--results", results, "--program", place.program, "--anyway"};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    const Redirected output(place.path("out")), errors(place.path("errors"), stderr);
    return parse(pointers).run();
  };
  const std::string bundle = place.path("b.tar"), results = place.path("r.jsonl");
  REQUIRE(bench(file, results, {"--bundle", bundle}) == kDone);
  const std::string unpacked = place.path("unpacked");
  fs::create_directories(unpacked);
  REQUIRE(std::system(("tar -xf " + bundle + " -C " + unpacked).c_str()) == 0);
  for (const char* name : {"page.html", "tables.md", "tables.csv", "environment.json", "results.jsonl",
                           "files/bench/b.toml", "files/g.onnxtxt"}) {
    CHECK_MESSAGE(fs::exists(fs::path(unpacked) / "b" / name), name);
  }
  const auto environment = nlohmann::json::parse(read_text(unpacked + "/b/environment.json"));
  const auto& measured = environment.at("measured on");
  REQUIRE(measured.size() == 1);
  CHECK(measured[0].at("software").at("kernel").get<std::string>().starts_with("Linux "));
  CHECK(measured[0].at("trials") == 1);
  CHECK(environment.at("bundled on").contains("host"));
  size_t logs = 0;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(unpacked) / "b/results")) {
    logs += entry.path().filename() == "log.jsonl" ? 1 : 0;
  }
  CHECK(logs == 1);
  // The same command, over the files of the bundle, has nothing to do; what it writes over is a bundle, or nothing.
  CHECK(bench(unpacked + "/b/files/bench/b.toml", unpacked + "/b/results.jsonl", {"--bundle", bundle}) == kDone);
  CHECK(place.text("errors").empty());
  place.folder.write("letter.tar", std::string("a letter"));
  CHECK_THROWS_AS(bench(file, results, {"--bundle", place.path("letter.tar")}), GraphError);
}

TEST_CASE("the environment of a bundle is that of the machines which measured") {
  const auto result = [](const char* devices, const char* kernel, const char* fault) {
    TrialResult trial;
    trial.identity = {"g", "o", "b", devices};
    trial.state["software"]["kernel"] = kernel;
    if (*fault != 0) trial.state["faults"] = {fault};
    return trial;
  };
  TrialResult old = result("cpu", "", "");  // of a build that kept no software
  old.state = nullptr;
  const auto machines =
      machines_of({result("h100", "5", ""), result("h200", "6", ""), result("h100", "5", "hot"), old});
  REQUIRE(machines.size() == 3);
  CHECK(machines[0].at("devices") == "cpu");
  CHECK_FALSE(machines[0].contains("software"));
  CHECK(machines[1].at("devices") == "h100");
  CHECK(machines[1].at("trials") == 2);
  CHECK(machines[1].at("disturbed by") == std::vector<std::string>{"hot"});
  CHECK(machines[2].at("software").at("kernel") == "6");
}

TEST_CASE("a bundle of collected results has the logs of each machine, and names runs whose logs are not there") {
  const BenchPlace place;
  place.write(
      "threads = 1\ntrain.epochs = 1\n[[together]]\nmachine = [\"one\", \"other\"]\ndevices = [\"cpu:0\", \"cpu:0\"]\n"
      "[accuracy]\nseeds = [1]\n");
  for (const char* machine : {"one", "other"}) {  // alike: their runs have the same key
    const std::string results = std::string("all/results/") + machine + ".jsonl";
    REQUIRE(place.run(results, {"--cell", std::string("machine ") + machine}) == kDone);
  }
  const std::string bundle = place.path("b.tar");
  const auto logs = [&] {
    REQUIRE(place.run("r.jsonl", {"--collect", place.path("all"), "--bundle", bundle}) == kDone);
    std::vector<std::string> found;
    const std::string unpacked = place.path("unpacked");
    fs::remove_all(unpacked);
    fs::create_directories(unpacked);
    REQUIRE(std::system(("tar -xf " + bundle + " -C " + unpacked).c_str()) == 0);
    for (const auto& entry : fs::recursive_directory_iterator(unpacked)) {
      if (entry.path().filename() != "log.jsonl") continue;
      found.push_back(entry.path().parent_path().parent_path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  };
  CHECK(logs() == std::vector<std::string>{"one", "other"});
  CHECK(place.text("errors").find("without a log") == std::string::npos);
  fs::remove_all(place.path("all/results/other"));
  fs::remove_all(place.path("all/results/one"));
  CHECK(logs().empty());
  CHECK(place.text("errors").find("2 runs without a log: machine o") != std::string::npos);
}

}  // namespace bundle_test
