// SPDX-License-Identifier: Apache-2.0
#include "tools/data/contact_sheet.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "tools/data/sheet_forms.h"

namespace arbalest {
namespace {

constexpr size_t kColumns = 8, kPictureRows = 40, kPageSamples = 10'000;
constexpr size_t kPictureSamples = 80, kPageWithoutClasses = 400;  // if there are no classes

// So many of the list, evenly spread; all of it if it has no more.
template <typename T>
std::vector<T> spread(const std::vector<T>& all, size_t count) {
  if (all.size() <= count) return all;
  std::vector<T> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(all[i * all.size() / count]);
  return chosen;
}

SheetRows rows_of_classes(const Source& source, int label, int64_t classes, bool page) {
  const std::vector<int32_t> labels = classes_of(source, label);
  std::vector<std::vector<int64_t>> of_classes(static_cast<size_t>(classes));
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= 0 && labels[i] < classes) of_classes[size_t(labels[i])].push_back(int64_t(i));
  }
  std::vector<int32_t> present;
  for (int32_t c = 0; c < classes; ++c) {
    if (!of_classes[size_t(c)].empty()) present.push_back(c);
  }
  SheetRows rows;
  rows.all_classes = int64_t(present.size());
  rows.columns = page ? std::clamp<size_t>(kPageSamples / std::max<size_t>(1, present.size()), 1, kColumns) : kColumns;
  rows.classes = spread(present, page ? kPageSamples : kPictureRows);
  for (const int32_t c : rows.classes) {
    rows.samples.push_back(spread(of_classes[size_t(c)], rows.columns));
    rows.counts.push_back(int64_t(of_classes[size_t(c)].size()));
  }
  return rows;
}

SheetRows rows_of_any(const Source& source, size_t count) {
  std::vector<int64_t> all(size_t(source.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  SheetRows rows;
  rows.columns = kColumns;
  for (const int64_t sample : spread(all, count)) {
    if (rows.samples.empty() || rows.samples.back().size() == kColumns) rows.samples.emplace_back();
    rows.samples.back().push_back(sample);
  }
  return rows;
}

}  // namespace

void check_contact_sheet(const Source& source, const std::string& path) {
  const std::vector<Field> fields = source.fields();
  if (image_field(fields) < 0) {
    throw GraphError(fmt::format("--contact-sheet: the source has no images, its fields are {}", to_string(fields)));
  }
  for (const char* ending : {".html", ".png", ".jpg", ".jpeg"}) {
    if (path.ends_with(ending)) return;
  }
  throw GraphError(
      fmt::format("--contact-sheet {}: expected a file name that ends in .html, .png, .jpg or .jpeg", path));
}

ContactSheet write_contact_sheet(const Source& source, const SplitSurvey& survey, const std::string& path,
                                 int threads) {
  check_contact_sheet(source, path);
  const std::vector<Field> fields = source.fields();
  const int image = image_field(fields), label = class_field(fields);
  const bool page = path.ends_with(".html");
  SheetRows rows = label >= 0 ? rows_of_classes(source, label, fields[size_t(label)].classes, page)
                              : rows_of_any(source, page ? kPageWithoutClasses : kPictureSamples);
  const SheetImages images{source, image, threads};
  AtomicFile file(path);
  if (page) {
    file.write(sheet_page(images, rows, survey));
  } else {
    file.write(sheet_picture(images, rows, path.ends_with(".png")));
  }
  file.commit();
  return {int(rows.columns), int(rows.samples.size()), std::move(rows.classes), rows.all_classes};
}

}  // namespace arbalest
