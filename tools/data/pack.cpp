// SPDX-License-Identifier: Apache-2.0
#include "tools/data/pack.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>
#include <numeric>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/folder.h"
#include "base/files/output_lock.h"
#include "base/random.h"
#include "io/images/image.h"
#include "io/sources/bad_samples.h"
#include "tools/data/jpeg_writer.h"
#include "tools/data/shard_list.h"
#include "tools/data/survey.h"
#include "tools/data/tar_writer.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkOfThread = 16;  // samples prepared while those before are written
constexpr uint64_t kEndOfArchive = 1024;

struct Item {
  int64_t index = 0;  // of the sample
  std::vector<std::byte> file;
  std::string_view extension;
  int32_t label = 0;
  std::string fault;  // why it cannot be read; "": it can
};

// Reads and prepares samples for packing, on one thread.
class Preparer {
 public:
  Preparer(const Source& source, const PackOptions& options)
      : source_(source),
        options_(options),
        image_(image_field(source.fields())),
        label_(class_field(source.fields())) {}

  void prepare(Item& item) {
    try {
      source_.read(item.index, size_t(image_), item.file);
      const ImageInfo info = decoder_.open(item.file);
      item.extension = ending_of(info.format);
      const int64_t shorter = std::min(info.width, info.height);
      if (options_.shorter_side > 0 && shorter > options_.shorter_side) {
        scale(info, shorter, item);
      } else {
        check(info);
      }
      const SampleRef sample{item.index, 0, uint64_t(item.index)};
      std::vector<std::byte*> fields(source_.fields().size(), nullptr);
      fields[size_t(label_)] = reinterpret_cast<std::byte*>(&item.label);
      source_.fill({&sample, 1}, fields);
    } catch (const RunError& error) {
      item.fault = fault_of_sample(source_, item.index, error.what());
    }
  }

 private:
  // Whether all of the file can be decoded: its colours at an eighth of the size, which is enough to read all of it.
  void check(const ImageInfo& info) {
    constexpr int64_t kEighth = 8;
    const int64_t width = (info.width + kEighth - 1) / kEighth, height = (info.height + kEighth - 1) / kEighth;
    pixels_.resize(size_t(width * height * info.channels));
    PreparationTimes times;
    decoder_.decode({0, 0, double(info.width), double(info.height)}, height, width, info.channels, pixels_.data(),
                    times);
  }

  void scale(const ImageInfo& info, int64_t shorter, Item& item) {
    const auto scaled = [&](int64_t extent) {
      return int64_t(round_of({__int128{extent} * options_.shorter_side, shorter}));
    };
    const int64_t width = scaled(info.width), height = scaled(info.height);
    pixels_.resize(size_t(width * height * info.channels));
    PreparationTimes times;
    decoder_.decode({0, 0, double(info.width), double(info.height)}, height, width, info.channels, pixels_.data(),
                    times);
    write_jpeg(pixels_.data(), width, height, info.channels, options_.quality, item.file);
    item.extension = ending_of(ImageFormat::Jpeg);
  }

  const Source& source_;
  const PackOptions& options_;
  int image_, label_;
  ImageDecoder decoder_;
  std::vector<uint8_t> pixels_;
};

// Fisher and Yates'.
std::vector<int64_t> shuffled(int64_t size, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  const uint64_t key = random_key(seed, hash_name("pack"));
  for (int64_t i = size - 1; i > 0; --i) {
    std::swap(order[size_t(i)], order[below(philox(key, 0, uint64_t(i)).word[0], uint32_t(i + 1))]);
  }
  return order;
}

void check_fields(const Source& source) {
  const std::vector<Field> fields = source.fields();
  const int image = image_field(fields);
  if (image >= 0 && fields[size_t(image)].dtype == DataType::String && class_field(fields) >= 0) return;
  throw GraphError(
      fmt::format("the source has the fields {}, expected photos that are files and a class of each: "
                  "image string[], label int32[] of K classes",
                  to_string(fields)));
}

// Names of all classes; of those without one, their numbers.
std::vector<std::string> class_names_of(const Source& source) {
  const std::vector<Field> fields = source.fields();
  std::vector<std::string> names = source.class_names();
  for (int64_t c = int64_t(names.size()); c < fields[size_t(class_field(fields))].classes; ++c) {
    names.push_back(std::to_string(c));
  }
  for (const std::string& name : names) {
    if (name.find_first_of("\r\n") == name.npos) continue;
    throw GraphError(fmt::format("class '{}' has a line end in its name, and classes.txt a name a line", name));
  }
  return names;
}

void write_class_names(const Source& source, const fs::path& folder) {
  const std::vector<std::string> names = class_names_of(source);
  const fs::path path = folder / "classes.txt";
  if (fs::exists(path)) {
    if (read_lines(path) == names) return;
    throw GraphError(fmt::format("{}: has other classes than the source; give another folder", path.string()));
  }
  AtomicFile file(path);
  file.write(fmt::format("{}\n", fmt::join(names, "\n")));
  file.commit();
}

class Packer {
 public:
  Packer(const Source& source, const PackOptions& options)
      : source_(source),
        options_(options),
        order_(shuffled(source.size(), options.seed)),
        held_(fs::path(options.folder) / (options.split + ".shards")),
        list_(options.folder, options.split, settings(source, options)) {
    for (int t = 0; t < options.threads; ++t) preparers_.emplace_back(source, options);
    result_.kept_shards = list_.check();
    for (const PackedShard& shard : list_.shards()) result_.skipped += shard.skipped;
    result_.progress.total = source.size();
    result_.progress.shards = result_.kept_shards;
    result_.progress.done = list_.shards().empty() ? 0 : list_.shards().back().next;
  }

  template <typename Progress>
  PackResult run(const std::stop_token& stop, const Progress& progress,
                 std::function<void(const std::string&, const std::string&)> skipped) {
    bad_.emplace(options_.skip_bad, std::move(skipped), result_.skipped);
    list_.begin();
    int64_t& done = result_.progress.done;
    std::future<std::vector<Item>> ahead = begin_chunk(done);
    while (done < source_.size()) {
      if ((result_.interrupted = stop.stop_requested())) return result_;
      std::vector<Item> items = ahead.get();
      ahead = begin_chunk(done + int64_t(items.size()));
      for (const Item& item : items) {
        ++done;
        item.fault.empty() ? add(item) : skip(item);
      }
      progress(result_.progress);
    }
    finish_shard(done);
    progress(result_.progress);
    if (list_.shards().empty()) throw RunError("no photo could be read, so that there is no shard");
    if (list_.shards().back().next < done) list_.end(done, current_.skipped);
    return result_;
  }

 private:
  static PackSettings settings(const Source& source, const PackOptions& options) {
    return {{"source", options.source},
            {"split", options.split},
            {"samples", source.size()},
            {"seed", options.seed},
            {"shorter_side", options.shorter_side},
            {"quality", options.shorter_side > 0 ? options.quality : 0},
            {"shard_mib", options.shard_mib}};
  }

  std::future<std::vector<Item>> begin_chunk(int64_t first) {
    return std::async(std::launch::async, [this, first] { return prepare_chunk(first); });
  }

  std::vector<Item> prepare_chunk(int64_t first) {
    const int64_t count = std::min(kChunkOfThread * options_.threads, source_.size() - first);
    std::vector<Item> items(static_cast<size_t>(std::max<int64_t>(count, 0)));
    std::atomic<size_t> next{0};
    std::vector<std::future<void>> threads;
    for (Preparer& preparer : preparers_) {
      threads.push_back(std::async(std::launch::async, [&] {
        for (size_t i = next++; i < items.size(); i = next++) {
          items[i].index = order_[size_t(first) + i];
          preparer.prepare(items[i]);
        }
      }));
    }
    for (std::future<void>& thread : threads) thread.get();
    return items;
  }

  void add(const Item& item) {
    const std::string label = std::to_string(item.label);
    const uint64_t bytes = TarWriter::member_bytes(item.file.size()) + TarWriter::member_bytes(label.size());
    const uint64_t most = uint64_t(options_.shard_mib) << 20;
    if (shard_ && shard_->bytes() + bytes + kEndOfArchive > most) finish_shard(result_.progress.done - 1);
    if (!shard_) {
      current_.name = fmt::format("{}-{:04}.tar", options_.split, list_.shards().size());
      shard_.emplace(fs::path(options_.folder) / current_.name);
    }
    const std::string key = fmt::format("{:08}", item.index);
    shard_->add(fmt::format("{}.{}", key, item.extension), item.file);
    shard_->add(key + ".cls", std::as_bytes(std::span(label)));
    ++current_.samples;
  }

  void skip(const Item& item) {
    bad_->add({source_.locate(item.index), item.fault, ""});
    ++result_.skipped;
    ++current_.skipped;
  }

  // `next`: the position after its last sample.
  void finish_shard(int64_t next) {
    if (!shard_) return;
    shard_->finish();
    current_.next = next;
    current_.bytes = shard_->bytes();
    current_.crc32 = shard_->checksum();
    list_.add(current_);
    result_.progress.shards += 1;
    result_.progress.bytes += current_.bytes;
    shard_.reset();
    current_ = {};
  }

  const Source& source_;
  const PackOptions& options_;
  std::vector<int64_t> order_;  // sample at each position
  const OutputLock held_;       // the split's list, for all of its files
  ShardList list_;
  std::vector<Preparer> preparers_;  // one a thread
  std::optional<TarWriter> shard_;   // that is being written
  PackedShard current_;
  PackResult result_;
  std::optional<BadSamples> bad_;
};

}  // namespace

PackResult pack(const Source& source, const PackOptions& options, const std::stop_token& stop,
                const std::function<void(const PackProgress&)>& progress,
                const std::function<void(const std::string&, const std::string&)>& skipped) {
  check_fields(source);
  make_folders(options.folder);
  Packer packer(source, options);
  write_class_names(source, options.folder);
  return packer.run(stop, progress, skipped);
}

}  // namespace arbalest
