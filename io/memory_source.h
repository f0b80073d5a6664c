#pragma once
// A split that is held in memory whole: what data sets of files and generated ones become. Internal to io.

#include <string>
#include <vector>

#include "io/source.h"

namespace arbalest {

class MemorySource final : public Source {
 public:
  // `images` is (n, height, width, channels), `labels` is (n) with values below `classes`.
  MemorySource(std::string name, SampleShape shape, int64_t classes, std::vector<uint8_t> images,
               std::vector<uint8_t> labels);

  SampleShape sample_shape() const override { return shape_; }
  int64_t classes() const override { return classes_; }
  int64_t size() const override { return int64_t(labels_.size()); }
  void fill(std::span<const int64_t> samples, uint8_t* images, int32_t* labels) const override;
  std::string describe() const override;

 private:
  std::string name_;
  SampleShape shape_;
  int64_t classes_;
  std::vector<uint8_t> images_;
  std::vector<uint8_t> labels_;
};

}  // namespace arbalest
