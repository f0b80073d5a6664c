// SPDX-License-Identifier: Apache-2.0
#pragma once
// This room's schemes; each is opened and described in the file named after it (cifar10 and cifar100 in cifar.cpp).
// Internal to io.

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "io/sources/memory_source.h"
#include "io/sources/source_doc.h"

namespace arbalest {

DescribedScheme mnist_scheme();
DescribedScheme cifar10_scheme();
DescribedScheme cifar100_scheme();
DescribedScheme synthetic_scheme();
DescribedScheme glyphs_scheme();
DescribedScheme tensors_scheme();
DescribedScheme npy_scheme();

// find_file() for a file that a split cannot do without. Throws MissingSplit.
std::filesystem::path find_split_file(const std::string& what, std::span<const std::filesystem::path> folders,
                                      std::span<const std::string> names);

// Options of several schemes.
inline SourceOption classes_option() {
  return {"classes", "K", "how many classes 'label' has, so that larger numbers are reported; otherwise unknown", ""};
}
inline SourceOption held_out_part_option() {
  return {"test", "FRACTION", "the part of each class that is held out where there are no splits", "0.2"};
}
inline SourceOption held_out_seed_option() {
  return {"seed", "N", "which samples those are", "0"};
}

inline constexpr int64_t kMostClasses = 1 << 30;

// Fields and sources of the kinds that most image data sets have.
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
