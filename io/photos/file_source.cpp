// SPDX-License-Identifier: Apache-2.0
#include "io/photos/file_source.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/files/file.h"
#include "base/in_threads.h"
#include "base/setting.h"

namespace arbalest {

uint32_t FileSource::checksum() const {
  const std::vector<Field> stated = fields();
  std::vector<std::byte> label(stated.size() > 1 ? size_t(stated[1].sample().bytes()) : 0);
  uLong sum = crc32_z(0, nullptr, 0);
  const auto add = [&](const void* bytes, size_t size) { sum = crc32_z(sum, static_cast<const Bytef*>(bytes), size); };
  for (int64_t i = 0; i < size(); ++i) {
    const std::string file = name(i);
    add(file.c_str(), file.size() + 1);
    if (label.empty()) continue;
    const SampleRef sample{i, 0, 0};
    std::byte* const places[] = {nullptr, label.data()};
    fill({&sample, 1}, places);
    add(label.data(), label.size());
  }
  return uint32_t(sum);
}

void FileSource::check_files() const {
  check_files(size(), [](int64_t i) { return i; });
}

void FileSource::check_files(int64_t count, const std::function<int64_t(int64_t)>& sample) const {
  constexpr size_t kShown = 5;
  constexpr int64_t kPart = 1000;  // of the files, that one thread looks at
  std::vector<std::vector<int64_t>> faulty(size_t((count + kPart - 1) / kPart));
  in_threads(faulty.size(), kFilesAtOnce, [&](size_t part) {
    const int64_t first = int64_t(part) * kPart;
    for (int64_t i = first; i < std::min(first + kPart, count); ++i) {
      if (!fault(sample(i)).empty()) faulty[part].push_back(sample(i));
    }
  });
  std::string listed;
  size_t faults = 0;
  for (const std::vector<int64_t>& part : faulty) {
    for (const int64_t index : part) {
      if (faults++ < kShown) listed += fmt::format("; {}: {}", locate(index), fault(index));
    }
  }
  if (faults == 0) return;
  throw RunError(
      fmt::format("source '{}': {} of {} files cannot be used{}{}; {} goes on over up to N samples that cannot be read",
                  label_, faults, count, listed, faults > kShown ? fmt::format("; and {} more", faults - kShown) : "",
                  set_to(SettingKey::SkipBad, "N")));
}

std::string fault_of_file(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return std::strerror(errno);
  if (!S_ISREG(status.st_mode)) return S_ISDIR(status.st_mode) ? "a folder" : "no regular file";
  return status.st_size == 0 ? "an empty file" : "";
}

}  // namespace arbalest
