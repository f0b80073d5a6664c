// npy: arrays as NumPy saves them, a file for each field of each split: DIR/train/image.npy or DIR/train_image.npy, ….

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "graph/error.h"
#include "io/formats/file.h"
#include "io/formats/npy.h"
#include "io/sources/sample_array.h"
#include "io/sources/schemes.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

// The arrays in a folder whose names begin with `prefix`, by their fields, in byte order.
std::vector<std::pair<std::string, fs::path>> arrays_in(const fs::path& folder, const std::string& prefix) {
  std::vector<std::pair<std::string, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    const std::string name = path.stem().string();
    if (path.extension() == ".npy" && name.starts_with(prefix)) found.emplace_back(name.substr(prefix.size()), path);
  }
  if (error && fs::exists(folder)) {
    throw RunError(fmt::format("{}: the folder cannot be listed: {}", folder.string(), error.message()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::unique_ptr<Source> open_npy(const SourceSpec& spec) {
  const int64_t classes = spec.integer("classes", 0, 1, kMostClasses);
  const fs::path folder = spec.path;
  auto files = arrays_in(folder / spec.split, "");
  if (files.empty()) files = arrays_in(folder, spec.split + "_");
  if (files.empty()) {
    throw MissingSplit(fmt::format("source '{}': no such files: looked for {}/FIELD.npy and {}_FIELD.npy in '{}', {}",
                                   spec.label(), spec.split, spec.split, folder.string(), describe_folder(folder)));
  }
  std::vector<FieldArray> arrays;
  for (const auto& [field, path] : files) {
    NpyArray array = read_npy(path);
    arrays.push_back(sample_array({path.string(), field, array.dtype, array.shape, std::move(array.bytes)}, classes));
  }
  return memory_source(std::move(arrays), spec.label());
}

}  // namespace

DescribedScheme npy_scheme() {
  return described(
      {.name = "npy", .needs_path = true, .splits = {"train", "test", "validation"}, .open = open_npy},
      {.path = "DIR",
       .text = "NumPy's arrays of any kind, a file for each field",
       .more = "The files are DIR/SPLIT/FIELD.npy or DIR/SPLIT_FIELD.npy, as in train/image.npy: uint8, int32, "
               "int64, float32 or float64 in row-major order, with samples along the first dimension; doubles are "
               "read as floats. "
               "Images are uint8 (N, C, H, W), classes int32 or int64 (N). NumPy writes such a file by "
               "numpy.save(FILE, array).",
       .options = {classes_option()},
       .example = "npy:data/mine"});
}

}  // namespace arbalest
