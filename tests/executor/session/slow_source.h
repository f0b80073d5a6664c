// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "io/sources/source.h"

namespace arbalest::test {

// Another source, of which reading a batch takes so long at least.
class SlowSource final : public Source {
 public:
  SlowSource(std::unique_ptr<Source> source, int milliseconds) : source_(std::move(source)), wait_(milliseconds) {}
  int64_t size() const override { return source_->size(); }
  std::vector<Field> fields() const override { return source_->fields(); }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    std::this_thread::sleep_for(wait_);
    source_->fill(samples, fields);
  }
  std::string describe() const override { return source_->describe(); }

 private:
  const std::unique_ptr<Source> source_;
  const std::chrono::milliseconds wait_;
};

}  // namespace arbalest::test
