// SPDX-License-Identifier: Apache-2.0

// npy: arrays as NumPy saves them, a file for each field of each split: DIR/train/image.npy or DIR/train_image.npy, ….

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "io/formats/npy.h"
#include "io/sources/sample_array.h"
#include "io/sources/schemes.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

struct ArrayFile {
  std::string field;
  fs::path path;
};

// The arrays in a folder, by what is left of their names without `before` and `behind`, in byte order.
std::vector<ArrayFile> arrays_in(const fs::path& folder, const std::string& before, const std::string& behind = "") {
  std::vector<ArrayFile> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    const std::string name = path.stem().string();
    const bool fits = name.size() > before.size() + behind.size() && name.starts_with(before) && name.ends_with(behind);
    if (path.extension() != ".npy" || !fits) continue;
    found.push_back({name.substr(before.size(), name.size() - before.size() - behind.size()), path});
  }
  if (error && fs::is_directory(folder)) {
    throw RunError(fmt::format("{}: the folder cannot be listed: {}", folder.string(), error.message()));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.field < b.field; });
  return found;
}

// 'images' and 'labels' are 'image' and 'label', if nothing else is; places stay.
void take_plurals(std::vector<ArrayFile>& files) {
  for (const char* name : {"image", "label"}) {
    const auto called = [&](const std::string& text) {
      return std::find_if(files.begin(), files.end(), [&](const ArrayFile& file) { return file.field == text; });
    };
    const auto plural = called(std::string(name) + "s");
    if (plural != files.end() && called(name) == files.end()) plural->field = name;
  }
}

// The archive of arrays that the path is, or that its folder has; "" for none.
fs::path archive_in(const fs::path& folder) {
  if (folder.extension() == ".npz") return folder;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".npz") return entry.path();
  }
  return {};
}

std::unique_ptr<Source> open_npy(const SourceSpec& spec) {
  const int64_t classes = spec.integer("classes", 0, 1, kMostClasses);
  const fs::path folder = spec.path;
  auto files = arrays_in(folder / spec.split, "");
  if (files.empty()) files = arrays_in(folder, spec.split + "_");
  if (files.empty()) files = arrays_in(folder, "", "_" + spec.split);
  if (files.empty()) {
    const fs::path archive = archive_in(folder);
    const std::string remedy = archive.empty() ? "" : "; archives (.npz) are not read, and " + unpacking(archive);
    throw MissingSplit(fmt::format(
        "source '{}': no such files: looked for {}/FIELD.npy, {}_FIELD.npy and FIELD_{}.npy in '{}', {}{}",
        spec.label(), spec.split, spec.split, spec.split, folder.string(), describe_folder(folder), remedy));
  }
  take_plurals(files);
  std::vector<FieldArray> arrays;
  for (const auto& [field, path] : files) {
    NpyArray array = read_npy(path);
    arrays.push_back(sample_array(
        {path.string(), field, array.dtype, array.shape, std::move(array.bytes), array.stored_as}, classes));
  }
  return memory_source(std::move(arrays), spec.label());
}

}  // namespace

DescribedScheme npy_scheme() {
  return described(
      {.name = "npy", .needs_path = true, .splits = {"train", "test", "validation"}, .open = open_npy},
      {.path = "DIR",
       .text = "NumPy's arrays of any kind, a file for each field",
       .more = "The files are DIR/SPLIT/FIELD.npy, DIR/SPLIT_FIELD.npy or DIR/FIELD_SPLIT.npy, as in train/image.npy: "
               "whole numbers, floats or booleans in row-major order, with samples along the first dimension; images "
               "and labels stand for image and label. Images are whole numbers from 0 to 255 (N, C, H, W), or floats; "
               "classes are whole numbers (N) or (N, 1). Floats of any type are read as float, and several booleans a "
               "sample as well. NumPy writes such a file by numpy.save(FILE, array).",
       .options = {classes_option()},
       .example = "npy:data/mine"});
}

}  // namespace arbalest
