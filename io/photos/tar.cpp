// SPDX-License-Identifier: Apache-2.0

// tar: photos in archives of many, as WebDataset writes them.

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files/file.h"
#include "base/memory/host_memory.h"
#include "base/process.h"
#include "io/formats/tar_reader.h"
#include "io/photos/empty_classes.h"
#include "io/photos/open_files.h"
#include "io/photos/photo_files.h"
#include "io/photos/schemes.h"
#include "io/photos/shards.h"
#include "io/sources/schemes.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// Reads shards a block at a time; the samples of a block may be in any order. Before the first of them it advises the
// system that the whole block is needed. After the last one, if not all shards fit the system's memory, it advises that
// the block is not needed any more.
class TarSource final : public Source {
 public:
  TarSource(Shards shards, int64_t classes, Names names, bool keep, std::string label)
      : files_(std::move(shards.paths), "a tar archive"),
        samples_(std::move(shards.samples)),
        ends_(std::move(shards.ends)),
        others_(std::move(shards.others)),
        classes_(classes),
        names_(std::move(names)),
        keep_(keep),
        label_(std::move(label)) {
    constexpr uint64_t kBytesOfBlock = 8 << 20;
    uint64_t bytes = 0;
    for (const ShardSample& sample : samples_) bytes += uint64_t{sample.header} + sample.size;
    block_ = std::clamp<int64_t>(int64_t(kBytesOfBlock / (bytes / samples_.size())), 1, size());
    blocks_ = std::vector<BlockState>(size_t((size() + block_ - 1) / block_));
  }

  std::vector<Field> fields() const override { return photo_and_label(classes_); }
  int64_t size() const override { return int64_t(samples_.size()); }
  int64_t block() const override { return block_; }
  PassedOver passed_over() const override { return others_; }
  Names class_names() const override { return names_; }
  double microseconds_per_sample() const override { return kMicrosecondsToReadPhoto; }
  std::string describe() const override {
    return fmt::format("{}: {} samples of {} in {} shard{}, in blocks of {}", label_, size(), to_string(fields()),
                       ends_.size(), ends_.size() == 1 ? "" : "s", block_);
  }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    if (fields[1] == nullptr) return;
    for (size_t i = 0; i < samples.size(); ++i) {
      const int32_t label = sample(samples[i].index).label;
      std::memcpy(fields[1] + i * sizeof label, &label, sizeof label);
    }
  }

  void read(int64_t index, size_t /*field*/, std::vector<std::byte>& bytes) const override {
    const ShardSample& wanted = sample(index);
    bytes.resize(wanted.size);
    files_.file(shard_of(index))->read(wanted.offset, bytes);
    const int64_t block = index / block_, first = block * block_;
    BlockState& state = blocks_[size_t(block)];
    state.last = announced_.load();
    if (!keep_ && ++state.read % std::min(block_, size() - first) == 0) advise(block, false);
  }

  std::string locate(int64_t index) const override {
    return fmt::format("{}: '{}' at byte {}", files_.paths()[shard_of(index)], member(index), sample(index).offset);
  }
  std::string name(int64_t index) const override { return files_.paths()[shard_of(index)] + "/" + member(index); }

  void will_read(std::span<const int64_t> blocks) const override {
    constexpr int64_t kRecent = 4;  // times as many blocks
    const int64_t before = announced_.fetch_add(int64_t(blocks.size()));
    for (const int64_t block : blocks) {
      BlockState& state = blocks_[size_t(block)];
      if (before - state.last.load() < kRecent * int64_t(blocks.size())) continue;
      state.read = 0;  // of a block that was not read to its end, when an epoch ended
      advise(block, true);
    }
  }

 private:
  // A sample's name in its archive; "" if the shard has changed, since reading reports that fault.
  std::string member(int64_t index) const try {
    const ShardSample& wanted = sample(index);
    return TarReader(*files_.file(shard_of(index)), wanted.offset - wanted.header).next().value().name;
  } catch (const std::exception&) {
    return "";
  }
  const ShardSample& sample(int64_t index) const {
    assert(index >= 0 && index < size());
    return samples_[size_t(index)];
  }
  size_t shard_of(int64_t index) const {
    return size_t(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  }

  // Advises the system, for each shard with samples in the block, whether their bytes are needed soon. A shard that
  // cannot be opened is reported when it is read.
  void advise(int64_t block, bool needed) const try {
    const int64_t end = std::min((block + 1) * block_, size());
    for (int64_t first = block * block_; first < end;) {
      const size_t shard = shard_of(first);
      const int64_t last = std::min(end, ends_[shard]) - 1;
      const uint64_t from = sample(first).offset - sample(first).header;
      files_.file(shard)->advise(from, sample(last).offset + sample(last).size - from, needed);
      first = last + 1;
    }
  } catch (const RunError&) {
  }

  OpenFiles files_;  // the shards
  std::vector<ShardSample> samples_;
  std::vector<int64_t> ends_;
  PassedOver others_;
  int64_t classes_;
  Names names_;
  bool keep_;  // the shards stay in the system's memory, however much was read
  std::string label_;
  int64_t block_ = 1;
  // Threads read ahead of each other, so that a block may be announced when others are reading it, or have: it is left
  // alone then. Otherwise it would be asked for again, or its count begin anew, and nothing would let go of it.
  struct BlockState {
    std::atomic<int64_t> read = 0;             // samples; a whole block's each time it was read
    std::atomic<int64_t> last = -(1LL << 62);  // how many blocks had been announced when one was read
  };
  mutable std::vector<BlockState> blocks_;
  mutable std::atomic<int64_t> announced_ = 0;  // blocks, by will_read()
};

int64_t greatest_label(const std::vector<ShardSample>& samples) {
  int64_t greatest = 0;
  for (const ShardSample& sample : samples) greatest = std::max<int64_t>(greatest, sample.label);
  return greatest;
}

// The names in a file in the shards' folder, one per line; none if there is no such file.
Names read_names(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return {};
  return read_lines(file);
}

// As the option says, or classes.txt, or else as many as there are in all splits.
int64_t count_classes(const SourceSpec& spec, const Names& names, const std::vector<ShardSample>& samples) {
  if (spec.find("classes")) {
    const int64_t stated = spec.integer("classes", 1, 1, kMostClasses);
    if (names.empty() || int64_t(names.size()) == stated) return stated;
    throw GraphError(fmt::format("source '{}': option 'classes' is {}, and classes.txt next to the shards has {} names",
                                 spec.text, stated, names.size()));
  }
  if (!names.empty()) return int64_t(names.size());
  int64_t greatest = greatest_label(samples);
  for (const char* split : {"train", "test", "validation"}) {
    if (spec.split == split) continue;
    const Names paths = shards_of(spec, split);
    if (!paths.empty()) greatest = std::max(greatest, greatest_label(open_shards(spec, paths).samples));
  }
  return greatest + 1;
}

bool fits_memory(const Names& paths) {
  uint64_t bytes = 0;
  for (const std::string& path : paths) bytes += fs::file_size(path);
  return bytes < uint64_t(host_memory()) / 2;
}

// Samples by a rule of ours, which others that read the shards may not have.
void warn_of_dotted_names(const SourceSpec& spec, const Shards& shards) {
  if (shards.dotted == 0) return;
  warn(
      fmt::format("source '{}': {} of {} samples have dots in their names, which are cut at the last one; readers that "
                  "follow WebDataset's rule cut at the first, and take several of them for one sample",
                  spec.label(), shards.dotted, shards.samples.size()));
}

// Warns of shards that are in two splits, because a model would be judged by what it was trained on. Only the training
// split warns, so that it is said once.
void warn_of_shared_shards(const SourceSpec& spec, const Names& paths) {
  if (spec.split != "train") return;
  std::set<fs::path> training;
  std::error_code error;
  for (const std::string& path : paths) training.insert(fs::weakly_canonical(path, error));
  Names shared;
  for (const std::string& path : shards_of(spec, "test")) {
    if (training.contains(fs::weakly_canonical(path, error))) shared.push_back(path);
  }
  if (shared.empty()) return;
  warn(fmt::format("source '{}': {} shard{} in train and in test, the first one is '{}'", spec.text, shared.size(),
                   shared.size() == 1 ? " is" : "s are", shared.front()));
}

std::unique_ptr<Source> open_tar(const SourceSpec& spec) {
  const Names paths = shards_of(spec, spec.split);
  check_shards(spec, paths);
  check_lists(spec, paths);
  warn_of_shared_shards(spec, paths);
  Shards shards = open_shards(spec, paths);
  warn_of_dotted_names(spec, shards);
  Names names = read_names(fs::path(paths.front()).parent_path() / "classes.txt");
  const int64_t classes = count_classes(spec, names, shards.samples);
  const bool keep = spec.integer("keep", fits_memory(paths) ? 1 : 0, 0, 1) != 0;
  const auto wrong = std::find_if(shards.samples.begin(), shards.samples.end(),
                                  [&](const ShardSample& sample) { return sample.label >= classes; });
  const int64_t label = wrong == shards.samples.end() ? -1 : wrong->label, at = wrong - shards.samples.begin();
  if (label < 0) {
    warn_of_one_class(spec, photo_and_label(classes), names, "two classes or more: NAME.cls holds the number of one");
    warn_of_empty_classes(spec, classes, names, shards.samples.size(),
                          [&](size_t i) { return shards.samples[i].label; });
  }
  auto source = std::make_unique<TarSource>(std::move(shards), classes, std::move(names), keep, spec.label());
  if (label >= 0)
    throw RunError(fmt::format("{}: found class {}, expected 0 to {}", source->locate(at), label, classes - 1));
  return source;
}

}  // namespace

DescribedScheme tar_scheme() {
  return described(
      {.name = "tar", .needs_path = true, .splits = {"train", "test", "validation"}, .open = open_tar},
      {.path = "PATTERN",
       .text = "photos in tar archives, as WebDataset and 'arbalest data pack' write them",
       .more = "A sample is a member NAME.jpg, or another image, and the number of its class in NAME.cls "
               "next to it; dots in NAME divide nothing. In PATTERN * stands for anything, {0000..0099} for numbers, "
               "{a,b} for either and "
               "{split} for the split's name. Classes have the names that classes.txt next to the shards "
               "lists, where it is there. Of archives that 'arbalest data pack' lists all have to be there where * "
               "names them, and no others. An index is kept next to each shard, SHARD.tar.index.",
       .options = {{"test", "PATTERN", "the shards of the other split, where the pattern has no {split}"},
                   {"classes", "K", "how many classes there are", "the lines of classes.txt, or what is found"},
                   {"keep", "0", "0: what was read is let go of; 1: it stays in memory",
                    "1, or 0 where the shards take half of the memory or more"}},
       .example = "tar:shards/{split}-*.tar"});
}

}  // namespace arbalest
