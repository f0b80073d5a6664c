// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/answer/bundle.h"

#include <algorithm>
#include <map>
#include <span>

#include "base/files/file.h"
#include "tools/data/tar_writer.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

fs::path absolute_path(const fs::path& path) {
  return fs::absolute(path).lexically_normal();
}

// The deepest folder that holds all of the files.
fs::path common_folder(const std::vector<fs::path>& files) {
  fs::path common = absolute_path(files.front()).parent_path();
  for (const fs::path& file : files) {
    const fs::path folder = absolute_path(file).parent_path();
    const auto [mine, theirs] = std::mismatch(common.begin(), common.end(), folder.begin(), folder.end());
    fs::path shared;
    for (auto part = common.begin(); part != mine; ++part) shared /= *part;
    common = shared;
  }
  return common;
}

}  // namespace

nlohmann::ordered_json machines_of(const std::vector<TrialResult>& results) {
  using Json = nlohmann::ordered_json;
  struct Trials {
    int64_t count = 0;
    std::set<std::string> faults;
  };
  std::map<std::string, Trials> found;  // by the machine's record
  for (const TrialResult& result : results) {
    Json machine = {{"devices", result.identity.devices}, {"build", result.identity.build}};
    const Json state = result.state.is_object() ? result.state : Json::object();
    if (state.contains("software")) machine["software"] = state.at("software");
    Trials& trials = found[machine.dump()];
    ++trials.count;
    for (const auto& fault : state.value("faults", std::vector<std::string>())) trials.faults.insert(fault);
  }
  Json machines = Json::array();
  for (const auto& [record, trials] : found) {
    Json machine = Json::parse(record);
    machine["trials"] = trials.count;
    if (!trials.faults.empty()) machine["disturbed by"] = trials.faults;
    machines.push_back(std::move(machine));
  }
  return machines;
}

std::set<std::string> write_bundle(const fs::path& path, const BenchBundle& bundle) {
  std::map<std::string, fs::path> files;  // by their names in the archive
  const fs::path common = common_folder(bundle.inputs);
  for (const fs::path& input : bundle.inputs) {
    files[(fs::path("files") / absolute_path(input).lexically_relative(common)).string()] = input;
  }
  std::error_code none;
  if (fs::exists(bundle.results, none)) files["results.jsonl"] = bundle.results;
  std::set<std::string> logged;
  for (const RunFolder& runs : bundle.runs) {
    const fs::path inner = fs::path("results") / runs.name;
    for (const fs::directory_entry& run : fs::directory_iterator(runs.path, none)) {
      const fs::path name = run.path().filename();
      if (name == "quotes.json") files[(inner / name).string()] = run.path();
      for (const char* log : {"log.jsonl", "mllog.txt"}) {
        if (fs::exists(run.path() / log, none)) files[(inner / name / log).string()] = run.path() / log;
      }
      if (fs::exists(run.path() / "log.jsonl", none)) logged.insert(name.string());
    }
  }
  TarWriter archive(path);
  const auto add = [&](const std::string& name, std::span<const std::byte> content) {
    archive.add(bundle.name + "/" + name, content);
  };
  for (const auto& [name, text] : bundle.texts) add(name, std::as_bytes(std::span(text)));
  for (const auto& [name, file] : files) {
    const std::vector<uint8_t> content = read_file(file);
    add(name, std::as_bytes(std::span(content)));
  }
  archive.finish();
  return logged;
}

}  // namespace arbalest
