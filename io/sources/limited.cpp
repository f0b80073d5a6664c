// SPDX-License-Identifier: Apache-2.0
#include "io/sources/limited.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/sources/data_order.h"

namespace arbalest {
namespace {

class LimitedSource final : public Source {
 public:
  LimitedSource(std::unique_ptr<Source> source, std::vector<int64_t> indices)
      : source_(std::move(source)), indices_(std::move(indices)) {}

  std::vector<Field> fields() const override { return source_->fields(); }
  int64_t size() const override { return int64_t(indices_.size()); }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    std::vector<SampleRef> wanted(samples.begin(), samples.end());
    for (SampleRef& sample : wanted) sample.index = indices_[size_t(sample.index)];
    source_->fill(wanted, fields);
  }
  void read(int64_t index, size_t field, std::vector<std::byte>& bytes) const override {
    source_->read(indices_[size_t(index)], field, bytes);
  }
  std::string locate(int64_t index) const override { return source_->locate(indices_[size_t(index)]); }
  std::string name(int64_t index) const override { return source_->name(indices_[size_t(index)]); }
  void check_files() const override {
    if (const auto* files = dynamic_cast<const FileChecks*>(source_.get())) {
      files->check_files(size(), [this](int64_t i) { return indices_[size_t(i)]; });
    } else {
      source_->check_files();
    }
  }
  PassedOver passed_over() const override { return source_->passed_over(); }
  std::vector<std::string> class_names() const override { return source_->class_names(); }
  int64_t block() const override { return source_->block(); }
  void will_read(std::span<const int64_t> blocks) const override {
    std::vector<int64_t> wanted;
    for (const int64_t block : blocks) {
      const int64_t first = block * source_->block(), end = std::min(first + source_->block(), size());
      for (int64_t i = first; i < end; ++i) wanted.push_back(indices_[size_t(i)] / source_->block());
    }
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    source_->will_read(wanted);
  }
  double microseconds_per_sample() const override { return source_->microseconds_per_sample(); }
  bool resident() const override { return source_->resident(); }
  uint32_t checksum() const override { return source_->checksum(); }
  std::string describe() const override {
    return fmt::format("{}; limited to {} of these", source_->describe(), size());
  }

 private:
  const std::unique_ptr<Source> source_;
  const std::vector<int64_t> indices_;  // in the source, ascending
};

}  // namespace

std::unique_ptr<Source> limited_source(std::unique_ptr<Source> source, int64_t limit) {
  if (limit >= source->size()) return source;
  std::vector<int64_t> indices(static_cast<size_t>(limit));
  DataOrder(0, source->size(), true, source->block()).range(0, 0, 0, indices);
  std::sort(indices.begin(), indices.end());
  return std::make_unique<LimitedSource>(std::move(source), std::move(indices));
}

}  // namespace arbalest
