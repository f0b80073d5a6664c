// SPDX-License-Identifier: Apache-2.0
#pragma once
// A survey of a data set's split: every sample is read, every image decoded whole.

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "io/images/image_format.h"
#include "io/sources/field_values.h"
#include "io/sources/source.h"

namespace arbalest {

struct SurveyOptions {
  int64_t limit = 0;  // samples to look at, spread evenly over the split; 0: all. Classes are counted over all
  int threads = 1;
};

// Statistics of the images that could be decoded.
struct ImageSurvey {
  std::array<int64_t, kImageFormats> files{};  // by ImageFormat
  int64_t arrays = 0;                          // bytes of a fixed shape, not files
  int64_t grey = 0, colour = 0;
  int64_t turned = 0;                             // by EXIF's orientation
  int64_t deep = 0;                               // of more than 8 bits a channel
  int64_t transparent = 0;                        // with alpha
  int64_t several = 0;                            // with frames or pages after the first
  std::vector<int64_t> widths, heights, shorter;  // pixels of the upright images, ascending
  std::vector<int64_t> bytes;                     // of the files, ascending
  // Mean and standard deviation of each channel in 0 … 1. Each image weighs the same at any size, as images
  // scaled to one size do. One channel if all images are grey, else three; a grey image counts for all three.
  std::vector<double> mean, deviation;

  int64_t size() const { return grey + colour; }
};

// Counts for one of a sample's several labels.
struct LabelSurvey {
  int64_t positive = 0, negative = 0, missing = 0;
};

// Length and checksums, which distinguish the content of a sample's file from that of others.
struct FilePrint {
  int64_t bytes = 0;
  uint32_t crc32 = 0, adler32 = 0;
  auto operator<=>(const FilePrint&) const = default;
};

struct FaultySample {
  std::string where, why;
};

// A field of numbers; the range leaves out NaN and infinities.
struct FieldValues {
  std::string name;
  FieldRange range;
};

struct SplitSurvey {
  std::string split;
  std::vector<Field> fields;
  int64_t samples = 0, looked_at = 0;
  std::vector<std::string> class_names;  // by index, or by label; numbers if the source has no names
  std::vector<int64_t> class_counts;     // samples of each class, or of each label if the source states no classes
  std::vector<LabelSurvey> labels;       // empty: there are not several labels
  ImageSurvey images;
  std::string class_note;                // of labels that are probably not counted as they are meant; "": they are
  std::vector<FieldValues> values;       // of fields of numbers that are neither classes nor labels
  std::vector<FaultySample> unreadable;  // in the source's order
  std::vector<FaultySample> faulty;      // with a label that is no class, or a number that is none or infinite
  PassedOver passed_over;
  std::vector<std::pair<FilePrint, int64_t>> prints;  // of each file that was read, and its sample; ascending
  double seconds = 0;                                 // that looking took
  double read_seconds = 0, decode_seconds = 0;        // of all threads
};

// The field that holds images or image files: bytes of any length, or uint8 of one or three channels. -1: none.
int image_field(const std::vector<Field>& fields);
// The field that is a class index; -1: none.
int class_field(const std::vector<Field>& fields);
// The classes of all samples of the split; `field` is one that class_field() found.
std::vector<int32_t> classes_of(const Source& source, int field);

// Files with the same content in two splits, or in two classes of one, under any name.
struct SharedFiles {
  std::string first, second;                               // the splits; the same one: of two classes
  int64_t files = 0;                                       // of the second
  std::vector<std::pair<std::string, std::string>> named;  // some of them, by their names in both
};

// `one`, `other`: the surveys of the splits that the sources read.
SharedFiles shared_files(const SplitSurvey& one, const Source& first, const SplitSurvey& other, const Source& second);
SharedFiles files_of_two_classes(const SplitSurvey& split, const Source& source);

// Progress of a survey: samples done, and the total. Called now and then, by the calling thread.
using SurveyProgress = std::function<void(int64_t done, int64_t total)>;

// Surveys a split. Its findings include files that cannot be read or decoded, labels that are no classes and numbers
// that are not finite; other errors are thrown.
SplitSurvey survey(const Source& source, const std::string& split, const SurveyOptions& options,
                   const SurveyProgress& progress);

}  // namespace arbalest
