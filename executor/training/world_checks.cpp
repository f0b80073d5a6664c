// SPDX-License-Identifier: Apache-2.0
#include "executor/training/world_checks.h"

#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <string_view>

#include "base/random.h"
#include "base/version.h"
#include "executor/devices/device.h"
#include "executor/world/agreement.h"

namespace arbalest {
namespace {

// Tells apart what differs by mistake.
std::string sum_of(std::string_view content) {
  return fmt::format("{:016x}", hash_name(content));
}

// The linker's identification of a loaded object, if it is the program or the library.
int add_build_id(dl_phdr_info* info, size_t /*bytes*/, void* to) {
  const std::string name = info->dlpi_name ? info->dlpi_name : "";
  if (!name.empty() && name.find("arbalest") == std::string::npos) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr);
    for (const char* const end = at + header.p_memsz; at + sizeof(ElfW(Nhdr)) <= end;) {
      const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(at);
      const char* const id = at + sizeof note + (note.n_namesz + 3) / 4 * 4;
      if (note.n_type == NT_GNU_BUILD_ID) static_cast<std::string*>(to)->append(id, note.n_descsz);
      at = id + (note.n_descsz + 3) / 4 * 4;
    }
  }
  return 0;
}

std::string build() {
  std::string ids;
  dl_iterate_phdr(add_build_id, &ids);
  std::string text = fmt::format("arbalest {} ({})", ARBALEST_VERSION, sum_of(ids));
  for (const auto& [name, version] : library_versions()) text += fmt::format(", {} {}", name, version);
  return text;
}

// A file that cannot be read has no bytes here. Training tells of it, or passes over it.
std::vector<std::byte> read_or_none(const Source& source, int64_t index, size_t field) {
  std::vector<std::byte> bytes;
  try {
    source.read(index, field, bytes);
  } catch (const std::exception&) {
    bytes.clear();
  }
  return bytes;
}

// The sum of a few samples spread over the split.
std::string samples_of(const Source& source) {
  constexpr int64_t kSamples = 8;
  const std::vector<Field> fields = source.fields();
  std::string all;
  for (int64_t i = 0; i < std::min(kSamples, source.size()); ++i) {
    const int64_t index = i * (source.size() - 1) / std::max<int64_t>(1, kSamples - 1);
    std::vector<std::vector<std::byte>> contents(fields.size());
    std::vector<std::byte*> places;
    for (size_t f = 0; f < fields.size(); ++f) {
      const bool is_file = fields[f].dtype == DataType::String;
      if (is_file) contents[f] = read_or_none(source, index, f);
      if (!is_file) contents[f].resize(size_t(fields[f].sample().bytes()));
      places.push_back(is_file ? nullptr : contents[f].data());
    }
    const SampleRef sample{index, 0, uint64_t(index)};
    source.fill({&sample, 1}, places);
    for (const auto& content : contents) all.append(reinterpret_cast<const char*>(content.data()), content.size());
  }
  return fmt::format("{} samples with the sum {}", source.size(), sum_of(all));
}

// Facts that have to be the same everywhere: name, value.
std::vector<std::pair<std::string, std::string>> facts_of(const Prepared& prepared, const SessionOptions& options,
                                                          const RunIdentity& identity) {
  std::vector<std::pair<std::string, std::string>> facts = {{"build", build()}};
  const auto add = [&](const char* name, auto value) { facts.emplace_back(name, fmt::format("{}", value)); };
  facts.insert(facts.end(), identity.settings.begin(), identity.settings.end());
  add("training samples", samples_of(*prepared.training));
  if (prepared.validation) add("validation samples", samples_of(*prepared.validation));
  add("graph", sum_of(fmt::format("{}", fmt::join(identity.graph, "\n"))));
  const PlanRequest& request = prepared.request;
  add("epochs", request.epochs);
  add("iterations", request.iterations);
  std::vector<std::string> targets;
  for (const Target& target : options.rules.targets) targets.push_back(to_string(target));
  add("--until", fmt::format("{}", fmt::join(targets, " ")));
  add("--patience", options.rules.patience);
  const CheckpointOptions& checkpoints = options.checkpoints;
  add("--checkpoint", checkpoints.folder.empty() ? "none" : "given");
  add("--checkpoint-every", fmt::format("{} iterations, {} epochs", checkpoints.iterations, checkpoints.epochs));
  const CheckpointFile* from = checkpoints.from.get();
  add("checkpoint to go on from",
      from ? fmt::format("{} after iteration {}", std::filesystem::path(from->path).filename().string(),
                         from->checkpoint.position.iteration)
           : "none");
  const DivergenceOptions& divergence = options.divergence;
  add("--trace", options.files.trace.empty() ? "none" : "given");
  add("--memory-limit", options.execution.memory_limit);
  add("--skip-bad", options.execution.skip_bad);
  add("--find-nan", divergence.find);
  add("--on-nan", int(divergence.then));
  add("--nan-rate-factor", divergence.rate_factor);
  add("--nan-rollbacks", divergence.most_rollbacks);
  add("--change", fmt::format("{}", fmt::join(checkpoints.changes, " ")));
  add("plan", sum_of(print_plan(make_plan(prepared.program, request))));
  return facts;
}

// Throws GraphError if the learners train a model each, which several processes do not do together.
void check_strategy(const Prepared& prepared) {
  const std::string& strategy = prepared.request.strategy.name;
  if (!strategy_spec(strategy).alone) return;
  throw GraphError(
      fmt::format("the strategy '{}', by which learners do not agree, is for one process; expected another, or "
                  "--world-size 1 to train with each process alone",
                  strategy));
}

}  // namespace

void check_world(Ranks& ranks, const Prepared& prepared, const SessionOptions& options, const RunIdentity& identity) {
  check_strategy(prepared);
  check_alike(ranks, facts_of(prepared, options, identity));
}

}  // namespace arbalest
