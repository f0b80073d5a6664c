// SPDX-License-Identifier: Apache-2.0
#include "executor/session/facts.h"

#include <elf.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>
#include <zlib.h>

#include <algorithm>

#include "base/random.h"
#include "base/version.h"
#include "executor/devices/device.h"
#include "graph/op.h"

namespace arbalest {
namespace {

// The linker's identification of a loaded object, if it is the program or the library.
int add_build_id(dl_phdr_info* info, size_t /*bytes*/, void* to) {
  const std::string name = info->dlpi_name ? info->dlpi_name : "";
  if (!name.empty() && name.find("libarbalest") == std::string::npos) return 0;
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

// Shortens long lists to their beginning, their length and a checksum.
std::string shortened(const std::string& text) {
  constexpr size_t kLongest = 300;
  if (text.size() <= kLongest) return text;
  const auto sum = crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size());
  return fmt::format("{}... ({} bytes, sum {:08x})", text.substr(0, kLongest / 2), text.size(), sum);
}

std::string line_of(const Graph& graph, const Node& node) {
  const auto names = [&](const std::vector<ValueId>& values) {
    std::vector<std::string> found;
    for (const ValueId value : values) found.push_back(value == kNone ? "" : graph.values[value].name);
    return fmt::format("{}", fmt::join(found, ", "));
  };
  std::string line = fmt::format("{}: {} = {} (", node.name, names(node.outputs), node.op->qualified_name());
  line += names(node.inputs) + ")";
  for (const NamedAttribute& attribute : node.attributes) {
    line += fmt::format(" {}={}", attribute.name, shortened(to_string(attribute.value)));
  }
  return line;
}

}  // namespace

std::string sum_of(std::string_view content) {
  return fmt::format("{:016x}", hash_name(content));
}

std::string build_text() {
  std::string ids;
  dl_iterate_phdr(add_build_id, &ids);
  std::string text = fmt::format("arbalest {} ({})", ARBALEST_VERSION, sum_of(ids));
  for (const auto& [name, version] : library_versions()) text += fmt::format(", {} {}", name, version);
  return text;
}

std::string samples_text(const Source& source) {
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

std::vector<std::string> node_lines(const Graph& graph) {
  std::vector<std::string> lines;
  for (const Node& node : graph.nodes) lines.push_back(line_of(graph, node));
  return lines;
}

}  // namespace arbalest
