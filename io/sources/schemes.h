#pragma once
// The schemes that come with the library; each is opened in the file named after it (cifar10 and cifar100 in
// cifar.cpp), here or in io/photos. Internal to io.

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "io/sources/memory_source.h"
#include "io/sources/source.h"

namespace arbalest {

std::unique_ptr<Source> open_mnist(const SourceSpec& spec);
std::unique_ptr<Source> open_cifar10(const SourceSpec& spec);
std::unique_ptr<Source> open_cifar100(const SourceSpec& spec);
std::unique_ptr<Source> open_synthetic(const SourceSpec& spec);
std::unique_ptr<Source> open_glyphs(const SourceSpec& spec);
std::unique_ptr<Source> open_tensors(const SourceSpec& spec);
std::unique_ptr<Source> open_npy(const SourceSpec& spec);
std::unique_ptr<Source> open_folder(const SourceSpec& spec);
std::unique_ptr<Source> open_csv(const SourceSpec& spec);
std::unique_ptr<Source> open_tar(const SourceSpec& spec);

// find_file() for a file that a split cannot do without. Throws MissingSplit.
std::filesystem::path find_split_file(const std::string& what, std::span<const std::filesystem::path> folders,
                                      std::span<const std::string> names);

inline constexpr int64_t kMostClasses = 1 << 30;

// What most data sets of images hold.
inline std::vector<Field> image_and_label(Shape image, int64_t classes) {
  return {{"image", DataType::Uint8, std::move(image)}, {"label", DataType::Int32, {}, classes}};
}
inline std::vector<Field> photo_and_label(int64_t classes) {
  return {{"image", DataType::String, {}}, {"label", DataType::Int32, {}, classes}};
}
inline std::unique_ptr<Source> image_source(const SourceSpec& spec, Shape shape, int64_t classes,
                                            std::vector<uint8_t> images, std::vector<int32_t> labels,
                                            std::vector<std::string> class_names = {}) {
  return memory_source(
      {owned_array("image", std::move(shape), std::move(images)), owned_array("label", {}, std::move(labels), classes)},
      spec.label(), std::move(class_names));
}

}  // namespace arbalest
