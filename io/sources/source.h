// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sources of samples: the executor's only access to data.
//
// A sample is a list of fields (graph/field.h): an image and a label, a vector of floats, several labels, a mask. A
// source states them, and writes samples into memory that others provide. It knows no batch and no thread.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/field.h"

namespace arbalest {

// One sample of a batch.
struct SampleRef {
  int64_t index = 0;      // in the split: 0 … size() − 1
  uint64_t epoch = 0;     // of the run
  uint64_t position = 0;  // in the epoch's order. Random choices are keyed by seed, epoch and position, so that a
                          // sample is prepared the same on any thread, learner or machine
};

// Files, or members of archives, that were found among samples and are not read: number for each ending (".heic"; "":
// none).
using PassedOver = std::map<std::string, int64_t>;

// The data set has no such split; it may have others.
class MissingSplit : public RunError {
 public:
  using RunError::RunError;
};

// One split of a data set. Everything is const and may be called by several threads at once.
class Source {
 public:
  virtual ~Source() = default;

  virtual std::vector<Field> fields() const = 0;  // at least one; names differ
  virtual int64_t size() const = 0;               // samples in this split, at least one

  // Writes a part of a batch. fields[f] is the address for field f of the first of the samples; those of the others
  // follow without gaps. It is nullptr if nobody reads the field. Samples of three dimensions, which are images (C, H,
  // W), are channels-last in memory: height, width, channels; all others are row-major. May allocate, and may take
  // long: it runs on threads that nothing else waits for. An exception ends the run.
  virtual void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const = 0;

  // The bytes of a sample's field that is a string, such as an image file. fill() gets nullptr for it. An exception
  // ends the run, unless bad samples are skipped (ExecutionOptions::skip_bad).
  virtual void read(int64_t index, size_t field, std::vector<std::byte>& bytes) const;

  // The place that a sample comes from, for messages: "photos/train/cup/0007.jpg"; "sample 7" by default.
  virtual std::string locate(int64_t index) const { return "sample " + std::to_string(index); }

  // A sample's name in lists of samples: its file without the folder it was found in. locate() by default.
  virtual std::string name(int64_t index) const { return locate(index); }

  // Throws RunError if files of samples are missing or empty, and lists the first of them. Runs that skip no bad
  // samples call it before they begin; nothing is read.
  virtual void check_files() const {}

  // Files that were found among the samples and are no samples.
  virtual PassedOver passed_over() const { return {}; }

  // Names of the classes, by their index; empty: they are numbers.
  virtual std::vector<std::string> class_names() const { return {}; }

  // Number of samples that lie next to each other and are best read together; 1 if any order is as good. See DataOrder.
  virtual int64_t block() const { return 1; }

  // Announces blocks that will be read soon, each sample about once: block b is samples b · block() and on.
  virtual void will_read(std::span<const int64_t> /*blocks*/) const {}

  // About how many microseconds fill() takes for one sample on one thread. Batches that take long are filled in parts,
  // on several threads at once. Not below 0. The default is the time to copy the sample, or to read a file; 0: batches
  // are never divided.
  virtual double microseconds_per_sample() const;

  // True if the content of a batch does not matter (noise). Then fill() is called once per slot when the run is set up,
  // and the batch then stays on the device.
  virtual bool resident() const { return false; }

  // A checksum of what distinguishes this data from other of the same shape and can be had without reading files:
  // arrays in memory, labels, names of files. 0: nothing can.
  virtual uint32_t checksum() const { return 0; }

  virtual std::string describe() const = 0;  // one line: "mnist:DIR train: 60000 samples of image uint8[1,28,28], …"
};

// The source and the split that a graph asks for: `source`, as in "scheme:path?key=value&key=value", and `split`.
struct SourceSpec {
  std::string text = {};    // the source as written
  std::string scheme = {};  // "mnist"
  std::string path = {};    // between ':' and '?'
  std::vector<std::pair<std::string, std::string>> options = {};
  std::string split = {};  // "train"
  uint64_t seed = 0;       // the run's

  std::string label() const { return text + " " + split; }  // for messages

  const std::string* find(const std::string& key) const;  // the option as text; nullptr: it was left out
  // The option as an integer in [least, most]; `otherwise` if it was left out. Throws GraphError.
  int64_t integer(const std::string& key, int64_t otherwise, int64_t least, int64_t most) const;
  // The option as a number between 0 and 1, both excluded. Throws GraphError.
  double fraction(const std::string& key, double otherwise) const;
  // The option as CHANNELSxHEIGHTxWIDTH. Throws GraphError.
  Shape image_shape(const std::string& key, Shape otherwise) const;
};

// How sources of a scheme are opened.
struct SourceScheme {
  std::string name = {};                                // before the colon: letters, digits, '_', '-' and '.'
  bool needs_path = false;                              // what is between ':' and '?' is required, or refused
  std::vector<std::string> options = {};                // keys that may follow '?', besides 'limit'
  std::vector<std::string> splits = {"train", "test"};  // that there are
  bool follows_seed = true;                             // samples depend on SourceSpec::seed
  // Throws GraphError if the spec is wrong, RunError if files are missing or malformed.
  std::function<std::unique_ptr<Source>(const SourceSpec&)> open = nullptr;
};

// Checks that open_source() makes for any source: fields as check_fields() wants them, at least one sample, and a valid
// time per sample. Throws GraphError.
void check_source(const Source& source);

// "3x32x32"
std::string dimensions(const Shape& shape);

}  // namespace arbalest
