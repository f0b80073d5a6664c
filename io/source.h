#pragma once
// Sources of samples: all that the executor knows of data.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace arbalest {

struct SampleShape {
  int64_t channels = 0, height = 0, width = 0;

  int64_t bytes() const { return channels * height * width; }  // uint8 pixels
  bool operator==(const SampleShape&) const = default;
};

std::string to_string(const SampleShape& shape);  // "3x32x32"

// One split of a data set. Everything is const and may be called by several threads at once.
class Source {
 public:
  virtual ~Source() = default;

  virtual SampleShape sample_shape() const = 0;
  virtual int64_t classes() const = 0;
  virtual int64_t size() const = 0;  // samples in this split

  // Writes the given samples (0 … size() − 1): `images` is uint8, channels-last (n, height, width, channels), n being
  // samples.size(); `labels` is (n), 0 … classes() − 1. Allocates nothing.
  virtual void fill(std::span<const int64_t> samples, uint8_t* images, int32_t* labels) const = 0;

  // True where the content of a batch does not matter (noise): fill() is called once per slot when the run is set up,
  // and the batch then stays on the device.
  virtual bool resident() const { return false; }

  virtual std::string describe() const = 0;  // one line: "mnist:DIR train: 60000 samples of 1x28x28, 10 classes"
};

// Opens a split ("train" or "test") of the source that `spec` names:
//   mnist:DIR                          idx files, plain or gzipped
//   cifar10:DIR                        the official binary layout, in DIR or in DIR/cifar-10-batches-bin
//   synthetic:?shape=3x224x224&classes=1000&size=50000&test=10000   noise; size and test: samples of the splits;
//                                      delay=MICROSECONDS: made anew for each batch, which takes so long at least
//   glyphs:?train=20000&test=4000&size=28                   rendered digits, made from `seed`
// Options may be left out. Throws GraphError for a spec that is wrong (unknown scheme, option or split), RunError for
// files that are missing or malformed.
std::unique_ptr<Source> open_source(const std::string& spec, const std::string& split, uint64_t seed);

}  // namespace arbalest
