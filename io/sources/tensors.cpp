// tensors: a folder with a safetensors file for each split, DIR/train.safetensors, DIR/test.safetensors, …. A tensor is
// a field, and its first dimension counts samples: what Python writes with two calls.

#include <fmt/format.h>

#include "io/formats/file.h"
#include "io/formats/safetensors.h"
#include "io/sources/sample_array.h"
#include "io/sources/schemes.h"

namespace arbalest {

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
    arrays.push_back(sample_array(std::move(array), classes));
  }
  return memory_source(std::move(arrays), spec.label());
}

}  // namespace arbalest
