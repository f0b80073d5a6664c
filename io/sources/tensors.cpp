// SPDX-License-Identifier: Apache-2.0

// tensors: a folder with a safetensors file for each split, DIR/train.safetensors, DIR/test.safetensors, …. A tensor is
// a field, and its first dimension counts samples: what Python writes with two calls.

#include <fmt/format.h>

#include "base/files/file.h"
#include "io/formats/safetensors.h"
#include "io/sources/sample_array.h"
#include "io/sources/schemes.h"

namespace arbalest {
namespace {

std::unique_ptr<Source> open_tensors(const SourceSpec& spec) {
  const int64_t classes = spec.integer("classes", 0, 1, kMostClasses);
  const std::filesystem::path folders[] = {spec.path};
  const std::string names[] = {spec.split + ".safetensors"};
  const SafetensorsReader file(find_split_file(fmt::format("source '{}'", spec.label()), folders, names));
  std::vector<FieldArray> arrays;
  for (const SafetensorsReader::Entry& entry : file.entries()) {
    StoredArray array{file.path(), entry.name, entry.dtype, entry.shape, {}};
    array.bytes.resize(size_t(TensorType{entry.dtype, entry.shape}.bytes()));
    file.read(entry, entry.dtype, array.bytes);
    if (entry.dtype == DataType::Bool) array.dtype = DataType::Uint8, array.stored_as = "bool";
    arrays.push_back(sample_array(std::move(array), classes));
  }
  return memory_source(std::move(arrays), spec.label());
}

}  // namespace

DescribedScheme tensors_scheme() {
  return described(
      {.name = "tensors", .needs_path = true, .splits = {"train", "test", "validation"}, .open = open_tensors},
      {.path = "DIR",
       .text = "tensors of any kind, a safetensors file for each split",
       .more = "The files are DIR/train.safetensors, test.safetensors and validation.safetensors. Each tensor "
               "is a field of its name, with samples along its first dimension; floats of any type "
               "are read as float, and several booleans a sample as well. Images are uint8 (N, C, H, W), classes whole "
               "numbers (N) or (N, 1). Python writes "
               "such a file by "
               "safetensors.numpy.save_file({\"image\": images, \"label\": labels}, FILE).",
       .options = {classes_option()},
       .example = "tensors:data/mine"});
}

}  // namespace arbalest
