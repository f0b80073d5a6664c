#pragma once
// Sources of samples: all that the executor knows of data.
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

#include "graph/error.h"
#include "graph/field.h"

namespace arbalest {

// One sample of a batch.
struct SampleRef {
  int64_t index = 0;      // in the split: 0 … size() − 1
  uint64_t epoch = 0;     // of the run
  uint64_t position = 0;  // in the epoch's order. Random choices are keyed by seed, epoch and position, so that a
                          // sample is prepared the same on any thread, learner or machine
};

// Files, or members of archives, that are beside samples and are not read: how many of each ending (".heic"; "": none).
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

  // Writes a part of a batch. fields[f] is where field f of the first of the samples goes, those of the others follow
  // without gaps; nullptr where nobody reads the field. Samples of three dimensions, which are images (C, H, W), are
  // channels-last in memory: height, width, channels; all others are row-major. May allocate, and may take long: it
  // runs on threads that nothing else waits for. What it throws ends the run.
  virtual void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const = 0;

  // The bytes of a sample's field that is a string, such as an image file. fill() is given nullptr for it. What it
  // throws ends the run, unless bad samples are skipped (ExecutionOptions::skip_bad).
  virtual void read(int64_t index, size_t field, std::vector<std::byte>& bytes) const;

  // Where a sample comes from, for messages: "photos/train/cup/0007.jpg"; "sample 7" by default.
  virtual std::string locate(int64_t index) const { return "sample " + std::to_string(index); }

  // What a sample is called where samples are listed: its file, without where that was found. locate() by default.
  virtual std::string name(int64_t index) const { return locate(index); }

  // Throws RunError where files of samples are missing or empty, and lists the first of them. Runs that skip no bad
  // samples ask before they begin; nothing is read.
  virtual void check_files() const {}

  // Files that were found where the samples are and that are none.
  virtual PassedOver passed_over() const { return {}; }

  // What classes are called, by their index; empty: they are numbers.
  virtual std::vector<std::string> class_names() const { return {}; }

  // Samples that lie next to each other and are best read together: 1 where any order is as good. See DataOrder.
  virtual int64_t block() const { return 1; }

  // Tells of blocks that will be read soon, each sample about once: block b is samples b · block() and on.
  virtual void will_read(std::span<const int64_t> /*blocks*/) const {}

  // About how long fill() takes for one sample, on one thread. Batches that take long are filled in parts, several
  // threads at once. Not below 0. The default is the time to copy the sample, or to read a file; 0: batches are
  // never divided.
  virtual double microseconds_per_sample() const;

  // True where the content of a batch does not matter (noise): fill() is called once per slot when the run is set up,
  // and the batch then stays on the device.
  virtual bool resident() const { return false; }

  virtual std::string describe() const = 0;  // one line: "mnist:DIR train: 60000 samples of image uint8[1,28,28], …"
};

// What a graph's `source`, as in "scheme:path?key=value&key=value", and `split` ask for.
struct SourceSpec {
  std::string text;    // the source as written
  std::string scheme;  // "mnist"
  std::string path;    // between ':' and '?'
  std::vector<std::pair<std::string, std::string>> options;
  std::string split;  // "train"
  uint64_t seed = 0;  // the run's

  std::string label() const { return text + " " + split; }

  const std::string* find(const std::string& key) const;
  // The option as an integer in [least, most]; `otherwise` where it was left out. Throws GraphError.
  int64_t integer(const std::string& key, int64_t otherwise, int64_t least, int64_t most) const;
  // The option as a number between 0 and 1, neither of which it may be. Throws GraphError.
  double fraction(const std::string& key, double otherwise) const;
  // The option as CHANNELSxHEIGHTxWIDTH. Throws GraphError.
  Shape image_shape(const std::string& key, Shape otherwise) const;
};

// How sources of a scheme are opened.
struct SourceScheme {
  std::string name;                                     // before the colon: letters, digits, '_', '-' and '.'
  bool needs_path = false;                              // what is between ':' and '?' is required, or refused
  std::vector<std::string> options;                     // keys that may follow '?', besides 'limit'
  std::vector<std::string> splits = {"train", "test"};  // that there are
  // Throws GraphError where the spec is wrong, RunError where files are missing or malformed.
  std::function<std::unique_ptr<Source>(const SourceSpec&)> open;
};

// Makes a scheme known to open_source(), and so to graph files. Any thread may call it. Throws GraphError where the
// scheme's name is taken or is none, or where it cannot be opened.
void register_source(SourceScheme scheme);

// Opens a split of the source that `spec` names:
//   mnist:DIR                          idx files, plain or gzipped
//   cifar10:DIR                        the official binary layout, in DIR or in DIR/cifar-10-batches-bin; classes have
//                                      the names in batches.meta.txt, where it is there
//   cifar100:DIR                       the same, or in DIR/cifar-100-binary: the fine labels, fine_label_names.txt
//   synthetic:?shape=3x224x224&classes=1000&size=50000&test=10000   noise; size and test: samples of the splits;
//                                      delay=MICROSECONDS: made anew for each batch, which takes so long at least
//   glyphs:?train=20000&test=4000&size=28                   rendered digits, made from `seed`
//   tensors:DIR?classes=10             any fields, from DIR/train.safetensors, test.safetensors,
//                                      validation.safetensors: a tensor a field, samples along its first dimension;
//                                      int64 labels become int32; classes: those of 'label'
//   npy:DIR?classes=10                 the same of NumPy's arrays (uint8, int32, int64, float32, float64; row-major):
//                                      DIR/SPLIT/FIELD.npy, or DIR/SPLIT_FIELD.npy
//   folder:DIR?test=0.2&seed=0         photos in a folder for each class, with .jpg, .jpeg, .jpe, .jfif, .png, .webp,
//                                      .bmp, .gif, .tif or .tiff at the end of their names, at any depth: 'image', the
//                                      file, and 'label'. Classes are numbered by their names in byte order. Where DIR
//                                      has train (or training), and test (or
//                                      testing) or one of validation, val, valid, in letters of any case, these are the
//                                      splits, with the classes of train; 'test' and 'validation' stand for what is
//                                      there. Otherwise test: the part of each class that is held out, at least one
//                                      photo of two, by seed and the names of files. A link that leads nowhere is an
//                                      image that is missing
//   csv:FILE                           photos that a table lists (RFC 4180, with the names of its columns): 'image',
//                                      the file, and 'label'. The columns:
//     path=COLUMN                      the file; by default 'path', 'file', 'filename', 'image', 'Image Index' and the
//                                      like. Relative to root=DIR, by default the table's folder
//     label=COLUMN                     a class; by default 'label' or 'class'. Names, numbered in byte order, or whole
//                                      numbers 0 … K − 1, each of which is there; classes=K: not each has to be
//     labels=COLUMN,COLUMN,…           instead: several labels, 0 or 1 (0.0, 1.0, false, true), -1 where the cell is
//                                      empty or says missing=TEXT: a float for each. labels=*: all columns that are not
//                                      the path, split or group
//     list=COLUMN                      instead: the labels that hold, divided by separator=| ; none=TEXT stands for no
//                                      label, as nothing does. A float for each, in byte order
//     split=COLUMN                     train, test or validation; by default 'split', where it is there and test is not
//                                      given. Without one test=0.2 and seed=0: the part of each class that is held out
//     group=COLUMN                     what has to stay in one split together, such as a patient's photos: whole groups
//                                      are held out, not parts of classes
//     check=0                          runs do not look first whether all files of the split are there and not empty
//   tar:PATTERN                        photos in archives of many, as WebDataset writes them: 'image', a member
//                                      NAME.jpg or another of these endings, and 'label', the number in NAME.cls beside
//                                      it. Dots in NAME divide nothing. Of shards that 'arbalest data pack' lists all
//                                      have to be there where '*' names them, and no others.
//                                      In PATTERN '*' stands for anything, {0000..0099} for numbers, {a,b} for either,
//                                      and {split} for the split's name; without that the other split is test=PATTERN.
//                                      There are classes=K classes, else as many as there are lines in classes.txt
//                                      beside the shards, which has their names, else as many as are found. An index is
//                                      kept beside each shard, SHARD.tar.index. keep=0 lets go of what was read, as is
//                                      done by itself where the shards take half of the memory or more; keep=1 does not
//   memory:                            what the program passes to the run itself (DataSources in session.h)
//   and whatever was registered, all of them with ?limit=N as well: N samples of each split, spread over it, the same
//   ones whatever the seed; all where there are no more. Options may be left out. Throws GraphError for a spec that is
//   wrong (unknown scheme, option or split), and where what was opened states no fields or no samples; RunError for
//   files that are missing or malformed, MissingSplit where there are no files, or no samples, of the split.
std::unique_ptr<Source> open_source(const std::string& spec, const std::string& split, uint64_t seed);

// What open_source() asks of any source: fields as check_fields() wants them, samples, and a time that is one. Throws
// GraphError.
void check_source(const Source& source);

// "3x32x32"
std::string dimensions(const Shape& shape);

}  // namespace arbalest
