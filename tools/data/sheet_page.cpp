// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/in_threads.h"
#include "tools/data/jpeg_writer.h"
#include "tools/data/page_parts.h"
#include "tools/data/sheet_forms.h"
#include "tools/data/thumbnails.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kSide = 112;  // pixels of an image's longer side
constexpr int kQuality = 85;

// {"name", "image"}: a JPEG in base64; or {"name", "fault"}.
Json sample_json(const Source& source, Thumbnails& thumbnails, int64_t index) {
  Json sample = {{"name", source.name(index)}};
  try {
    const Thumbnail small = thumbnails.make(index);
    std::vector<std::byte> file;
    write_jpeg(small.pixels.data(), small.width, small.height, 3, kQuality, file);
    sample["image"] = base64({reinterpret_cast<const char*>(file.data()), file.size()});
  } catch (const RunError& error) {
    sample["fault"] = error.what();
  }
  return sample;
}

}  // namespace

std::string sheet_page(const SheetImages& images, const SheetRows& rows, const SplitSurvey& survey) {
  std::vector<Json> all(rows.samples.size());
  in_threads(all.size(), size_t(images.threads), [&](size_t row) {
    Thumbnails thumbnails(images.source, images.field, kSide);
    Json samples = Json::array();
    for (const int64_t index : rows.samples[row]) samples.push_back(sample_json(images.source, thumbnails, index));
    all[row] = {{"samples", std::move(samples)}};
    if (rows.classes.empty()) return;
    all[row]["class"] = rows.classes[row];
    all[row]["name"] = survey.class_names[size_t(rows.classes[row])];
    all[row]["count"] = rows.counts[row];
  });
  HtmlPage page("Samples", kSheetParts);
  page.add_json("sheet-data", {{"source", images.source.describe()},
                               {"split", survey.split},
                               {"samples", survey.samples},
                               {"classes", rows.all_classes},
                               {"rows", std::move(all)}});
  page.add_script();
  return page.finish();
}

}  // namespace arbalest
