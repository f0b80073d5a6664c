// SPDX-License-Identifier: Apache-2.0

// folder: photos in a folder for each class.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <set>

#include "base/error.h"
#include "base/files/file.h"
#include "base/process.h"
#include "io/images/image_format.h"
#include "io/photos/empty_classes.h"
#include "io/photos/file_source.h"
#include "io/photos/folder_listing.h"
#include "io/photos/held_out.h"
#include "io/photos/photo_files.h"
#include "io/photos/schemes.h"
#include "io/sources/passed_over.h"
#include "io/sources/schemes.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class FolderSource final : public FileSource {
 public:
  FolderSource(std::string label, PhotoFiles photos, std::set<int64_t> missing, Names classes,
               std::vector<int64_t> class_ends, PassedOver others, std::string description)
      : FileSource(std::move(label)),
        photos_(std::move(photos)),
        missing_(std::move(missing)),
        classes_(std::move(classes)),
        class_ends_(std::move(class_ends)),
        others_(std::move(others)),
        description_(std::move(description)) {}

  std::vector<Field> fields() const override { return photo_and_label(int64_t(classes_.size())); }
  int64_t size() const override { return photos_.size(); }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    if (fields[1] == nullptr) return;
    for (size_t i = 0; i < samples.size(); ++i) {
      assert(samples[i].index >= 0 && samples[i].index < size());
      const auto end = std::upper_bound(class_ends_.begin(), class_ends_.end(), samples[i].index);
      const auto label = int32_t(end - class_ends_.begin());
      std::memcpy(fields[1] + i * sizeof label, &label, sizeof label);
    }
  }
  void read(int64_t index, size_t /*field*/, std::vector<std::byte>& bytes) const override {
    photos_.read(index, bytes);
  }
  std::string locate(int64_t index) const override { return photos_.path(index); }
  PassedOver passed_over() const override { return others_; }
  Names class_names() const override { return classes_; }
  double microseconds_per_sample() const override { return kMicrosecondsToReadPhoto; }
  std::string describe() const override { return description_; }

 protected:
  std::string fault(int64_t index) const override {
    return missing_.contains(index) ? fault_of_file(locate(index)) : "";
  }

 private:
  PhotoFiles photos_;          // class by class, in byte order within each
  std::set<int64_t> missing_;  // links that lead nowhere
  Names classes_;
  std::vector<int64_t> class_ends_;  // photos before the next class
  PassedOver others_;
  std::string description_;
};

// The location of a split's photos.
struct FolderSplit {
  fs::path root;  // of the class folders
  Names classes;
  bool divided = false;  // the root holds all splits: the held-out photos belong to the others
  int64_t beside = 0;    // images that are in no class's folder
};

bool holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The classes of training are those of all splits.
void check_classes(const SourceSpec& spec, const FolderSplit& split, const fs::path& training) {
  Names unknown = folders_in(split.root.string());
  std::erase_if(unknown, [&](const std::string& name) { return holds(split.classes, name); });
  if (unknown.empty()) return;
  constexpr size_t kShown = 5;
  const size_t shown = std::min(unknown.size(), kShown);
  throw RunError(fmt::format("source '{}': '{}' has {} class{} that '{}' has not: {}{}", spec.label(),
                             split.root.string(), unknown.size(), unknown.size() == 1 ? "" : "es", training.string(),
                             fmt::join(unknown.begin(), unknown.begin() + ptrdiff_t(shown), ", "),
                             unknown.size() > shown ? fmt::format(" and {} more", unknown.size() - shown) : ""));
}

// The folder with one of these names, in letters of any case; "" if there is none.
std::string split_folder(const SourceSpec& spec, const Names& folders, std::initializer_list<const char*> names) {
  Names found = folders;
  std::erase_if(found, [&](const std::string& folder) {
    return std::none_of(names.begin(), names.end(),
                        [&](const char* name) { return strcasecmp(folder.c_str(), name) == 0; });
  });
  if (found.size() < 2) return found.empty() ? "" : found[0];
  throw RunError(fmt::format("source '{}': found folders {} in '{}', expected one for {}", spec.label(),
                             fmt::join(found, " and "), spec.path, *names.begin()));
}

// A hint that names the source whose classes are the folders in `folder`; "" if fewer than two of them have images, or,
// with `alone`, if the folder holds anything else.
std::string source_of_classes_in(const SourceSpec& spec, const fs::path& folder, bool alone = false) {
  std::error_code error;
  int64_t classes = 0, beside = 0;
  if (!fs::is_directory(folder, error)) return "";
  const Names folders = folders_in(folder.string(), &beside);
  for (const std::string& name : folders) {
    int64_t images = 0;
    folders_in((folder / name).string(), &images);
    if (images > 0) ++classes;
    if (images == 0 && alone) return "";
    if (classes == 2 && !alone) break;
  }
  if (classes < 2 || (alone && beside > 0)) return "";
  const std::string options = spec.text.substr(std::min(spec.text.size(), spec.text.find('?')));
  return fmt::format("; classes seem to be in '{}': folder:{}{}", folder.string(), folder.string(), options);
}

// A hint at the folder that was probably meant: the only one in the given folder, or its parent if it holds images
// itself and stands among folders of classes alone.
std::string meant_instead(const SourceSpec& spec, const Names& folders, int64_t images) {
  const fs::path root = spec.path;
  std::string meant = folders.size() == 1 ? source_of_classes_in(spec, root / folders.front()) : "";
  if (!meant.empty() || images == 0) return meant;
  const fs::path around = (fs::absolute(root) / "").lexically_normal().parent_path().parent_path();
  return source_of_classes_in(spec, root.is_absolute() ? around : fs::proximate(around), true);
}

std::string images_alone(int64_t images, const fs::path& folder) {
  return fmt::format("found {} image{} in '{}' itself, and no folder of a class", images, images == 1 ? "" : "s",
                     folder.string());
}

FolderSplit find_split(const SourceSpec& spec) {
  const fs::path root = spec.path;
  int64_t beside = 0;
  const Names folders = folders_in(root.string(), &beside);
  const std::string train = split_folder(spec, folders, {"training", "train"}),
                    test = split_folder(spec, folders, {"test", "testing"}),
                    validation = split_folder(spec, folders, {"validation", "val", "valid"});
  if (!train.empty() && !(test.empty() && validation.empty())) {
    for (const char* option : {"test", "seed"}) {
      if (!spec.find(option)) continue;
      throw GraphError(fmt::format("source '{}': option '{}' divides a folder without splits, and '{}' has {} and {}",
                                   spec.text, option, root.string(), train, test.empty() ? validation : test));
    }
    const bool is_test = spec.split == "test" ? !test.empty() : validation.empty();
    const std::string folder = spec.split == "train" ? train : is_test ? test : validation;
    FolderSplit split{root / folder, folders_in((root / train).string()), false, beside};
    for (const std::string& each : {train, folder}) {
      int64_t images = 0;
      if (!folders_in((root / each).string(), &images).empty() || images == 0) continue;
      throw RunError(fmt::format("source '{}': {}; expected the images in a folder for each class: '{}'", spec.label(),
                                 images_alone(images, root / each), (root / each / "CLASS").string()));
    }
    check_classes(spec, split, root / train);
    folders_in(split.root.string(), &split.beside);
    return split;
  }
  const auto is_split = [&](const std::string& name) { return name == train || name == test || name == validation; };
  if (folders.empty() || std::all_of(folders.begin(), folders.end(), is_split)) {
    const std::string found = folders.empty() && beside > 0
                                  ? images_alone(beside, root)
                                  : fmt::format("found folder '{}', {}", root.string(), describe_folder(root));
    throw RunError(fmt::format(
        "source '{}': {}; expected a folder for each class, or train and one of test, validation, val, valid with a "
        "folder for each class{}",
        spec.label(), found, meant_instead(spec, folders, beside)));
  }
  return {root, folders, true, beside};
}

void warn_of_images_beside(const SourceSpec& spec, const FolderSplit& split) {
  if (split.beside == 0) return;
  warn(fmt::format("source '{}': {} image{} next to the folders of classes {} in no class and ignored", spec.label(),
                   split.beside, split.beside == 1 ? "" : "s", split.beside == 1 ? "is" : "are"));
}

std::string describe(const SourceSpec& spec, const FolderSplit& split, int64_t photos, int64_t others) {
  const std::string folder = split.root.filename().string();
  return fmt::format("{}{}: {} samples of {}{}", spec.label(),
                     split.divided || folder == spec.split ? "" : fmt::format(" (folder '{}')", folder), photos,
                     to_string(photo_and_label(int64_t(split.classes.size()))),
                     others > 0 ? fmt::format("; {} other file{} ignored", others, others == 1 ? "" : "s") : "");
}

std::unique_ptr<Source> open_folder(const SourceSpec& spec) {
  const FolderSplit split = find_split(spec);
  const HeldOut part = held_out_option(spec);
  const bool training = spec.split == "train";
  PathList photos, of_class;
  std::set<std::string, std::less<>> missing;  // of all splits
  std::set<int64_t> missing_here;
  std::vector<int64_t> class_ends;
  PassedOver others;
  for (const std::string& name : split.classes) {
    const fs::path folder = split.root / name;
    std::error_code error;
    of_class.clear();
    if (split.divided || training || fs::exists(folder, error)) {
      list_images(folder.string(), name + "/", of_class, missing, others);
    }
    if (of_class.size() == 0 && (split.divided || training)) {
      throw RunError(fmt::format("source '{}': class '{}' has no images: expected {} in '{}', {}", spec.label(), name,
                                 image_endings(), folder.string(), describe_folder(folder)));
    }
    of_class.sort();
    std::vector<bool> held(of_class.size(), !training);
    if (split.divided) held = hold_out(part, of_class.size(), [&](size_t i) { return of_class[i]; });
    for (size_t i = 0; i < of_class.size(); ++i) {
      if (held[i] == training) continue;
      if (missing.contains(of_class[i])) missing_here.insert(int64_t(photos.size()));
      photos.add(of_class[i]);
    }
    class_ends.push_back(int64_t(photos.size()));
  }
  if (photos.size() == 0) {
    const std::string root = split.root.string();
    throw MissingSplit(
        split.divided
            ? fmt::format("source '{}': found no images for split '{}': each class in '{}' has only one, which "
                          "is for training",
                          spec.label(), spec.split, root)
            : fmt::format("source '{}': found no images in '{}', {}", spec.label(), root, describe_folder(split.root)));
  }
  const std::string instead = split.divided ? meant_instead(spec, split.classes, split.beside) : "";
  warn_of_one_class(spec, photo_and_label(int64_t(split.classes.size())), split.classes,
                    fmt::format("a folder for each class in '{}'{}", split.root.string(), instead));
  warn_of_images_beside(spec, split);
  warn_of_empty_classes(spec, int64_t(split.classes.size()), split.classes, class_ends.size(),
                        [&](size_t c) { return class_ends[c] > (c > 0 ? class_ends[c - 1] : 0) ? int64_t(c) : -1; });
  std::string description = describe(spec, split, int64_t(photos.size()), count(others));
  return std::make_unique<FolderSource>(spec.label(), PhotoFiles(split.root.string(), std::move(photos)),
                                        std::move(missing_here), split.classes, std::move(class_ends),
                                        std::move(others), std::move(description));
}

}  // namespace

DescribedScheme folder_scheme() {
  return described(
      {.name = "folder", .needs_path = true, .splits = {"train", "test", "validation"}, .open = open_folder},
      {.path = "DIR",
       .text = fmt::format("photos ({}) in a folder for each class", image_formats()),
       .more = "Classes are numbered by the names of their folders in byte order, and photos may lie at any "
               "depth below these. The splits are the folders train (or training) and test (testing), "
               "validation, val or valid of DIR, in letters of any case, with the classes of train; test and "
               "validation stand for what is there. Without them all of DIR is divided: at least one photo "
               "of two is held out, by the seed and the names of files. A link that leads nowhere is an "
               "image that is missing, and one to a folder above is not followed.",
       .options = {held_out_part_option(), held_out_seed_option()},
       .example = "folder:data/photos?test=0.1"});
}

}  // namespace arbalest
