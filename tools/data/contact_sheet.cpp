#include "tools/data/contact_sheet.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <numeric>

#include "graph/error.h"
#include "io/formats/atomic_file.h"
#include "io/images/image.h"
#include "tools/data/jpeg_writer.h"
#include "tools/data/survey.h"

namespace arbalest {
namespace {

constexpr int64_t kTile = 96, kGap = 4;  // pixels
constexpr int kColumns = 8, kMostRows = 40, kRowsWithoutClasses = 10;
constexpr uint8_t kBackground = 24;

// Rows of red, green and blue.
class Canvas {
 public:
  Canvas(int64_t width, int64_t height)
      : width_(width), height_(height), bytes_(size_t(width * height * 3), kBackground) {}

  uint8_t* pixel(int64_t x, int64_t y) { return bytes_.data() + (y * width_ + x) * 3; }

  std::vector<uint8_t> png() const {
    png_image image{};
    image.version = PNG_IMAGE_VERSION;
    image.width = png_uint_32(width_);
    image.height = png_uint_32(height_);
    image.format = PNG_FORMAT_RGB;
    png_alloc_size_t size = 0;
    std::vector<uint8_t> file;
    bool done = png_image_write_get_memory_size(image, size, 0, bytes_.data(), 0, nullptr) != 0;
    if (done) {
      file.resize(size);
      done = png_image_write_to_memory(&image, file.data(), &size, 0, bytes_.data(), 0, nullptr) != 0;
    }
    if (!done) throw RunError(fmt::format("a contact sheet cannot be written: {}", image.message));
    file.resize(size);
    return file;
  }

  std::vector<uint8_t> jpeg() const {
    constexpr int kQuality = 90;
    std::vector<std::byte> file;
    write_jpeg(bytes_.data(), width_, height_, 3, kQuality, file);
    const auto* bytes = reinterpret_cast<const uint8_t*>(file.data());
    return {bytes, bytes + file.size()};
  }

 private:
  int64_t width_, height_;
  std::vector<uint8_t> bytes_;
};

class Tiles {
 public:
  Tiles(const Source& source, int field, Canvas& canvas)
      : source_(source), field_(field), stated_(source.fields()[size_t(field)]), canvas_(canvas) {}

  void draw(int64_t index, int64_t column, int64_t row) {
    left_ = kGap + column * (kTile + kGap);
    top_ = kGap + row * (kTile + kGap);
    try {
      stated_.dtype == DataType::String ? draw_file(index) : draw_array(index);
    } catch (const RunError&) {  // the survey tells why
      constexpr uint8_t kDarkRed[] = {112, 16, 16};
      for (int64_t y = 0; y < kTile; ++y)
        for (int64_t x = 0; x < kTile; ++x) std::copy_n(kDarkRed, 3, canvas_.pixel(left_ + x, top_ + y));
    }
  }

 private:
  void draw_file(int64_t index) {
    source_.read(index, size_t(field_), file_);
    const ImageInfo info = decoder_.open(file_);
    const auto [width, height] = fitted(info.width, info.height);
    pixels_.resize(size_t(width * height * 3));
    PreparationTimes times;
    decoder_.decode({0, 0, double(info.width), double(info.height)}, height, width, 3, pixels_.data(), times);
    place(width, height,
          [&, width = width](int64_t x, int64_t y, int c) { return pixels_[size_t((y * width + x) * 3 + c)]; });
  }

  // By the nearest pixel: such images are small.
  void draw_array(int64_t index) {
    const int64_t channels = stated_.shape[0], full_height = stated_.shape[1], full_width = stated_.shape[2];
    pixels_.resize(size_t(stated_.sample().bytes()));
    std::vector<std::byte*> fields(source_.fields().size(), nullptr);
    fields[size_t(field_)] = reinterpret_cast<std::byte*>(pixels_.data());
    const SampleRef sample{index, 0, uint64_t(index)};
    source_.fill({&sample, 1}, fields);
    const auto [width, height] = fitted(full_width, full_height);
    place(width, height, [&, width = width, height = height](int64_t x, int64_t y, int c) {
      const int64_t pixel = y * full_height / height * full_width + x * full_width / width;
      return pixels_[size_t(pixel * channels + std::min<int64_t>(c, channels - 1))];
    });
  }

  static std::pair<int64_t, int64_t> fitted(int64_t width, int64_t height) {
    const int64_t longer = std::max(width, height);
    return {std::max<int64_t>(1, width * kTile / longer), std::max<int64_t>(1, height * kTile / longer)};
  }

  template <typename Value>
  void place(int64_t width, int64_t height, Value value) {
    const int64_t left = left_ + (kTile - width) / 2, top = top_ + (kTile - height) / 2;
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        for (int c = 0; c < 3; ++c) canvas_.pixel(left + x, top + y)[c] = value(x, y, c);
      }
    }
  }

  const Source& source_;
  int field_;
  Field stated_;
  Canvas& canvas_;
  int64_t left_ = 0, top_ = 0;
  ImageDecoder decoder_;
  std::vector<std::byte> file_;
  std::vector<uint8_t> pixels_;
};

// So many of the list, evenly spread; all of it where it has no more.
template <typename T>
std::vector<T> spread(const std::vector<T>& all, size_t count) {
  if (all.size() <= count) return all;
  std::vector<T> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(all[i * all.size() / count]);
  return chosen;
}

using Rows = std::vector<std::vector<int64_t>>;  // of samples

Rows rows_of_classes(const Source& source, int label, int64_t classes, std::vector<int32_t>& shown) {
  const std::vector<int32_t> labels = classes_of(source, label);
  Rows of_classes(static_cast<size_t>(classes));
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= 0 && labels[i] < classes) of_classes[size_t(labels[i])].push_back(int64_t(i));
  }
  std::vector<int32_t> present;
  for (int32_t c = 0; c < classes; ++c) {
    if (!of_classes[size_t(c)].empty()) present.push_back(c);
  }
  shown = spread(present, kMostRows);
  Rows rows;
  for (const int32_t c : shown) rows.push_back(spread(of_classes[size_t(c)], kColumns));
  return rows;
}

Rows rows_of_any(const Source& source) {
  std::vector<int64_t> all(size_t(source.size()));
  std::iota(all.begin(), all.end(), int64_t{0});
  Rows rows;
  for (const int64_t sample : spread(all, size_t(kColumns * kRowsWithoutClasses))) {
    if (rows.empty() || rows.back().size() == kColumns) rows.emplace_back();
    rows.back().push_back(sample);
  }
  return rows;
}

}  // namespace

ContactSheet write_contact_sheet(const Source& source, const std::string& path) {
  const std::vector<Field> fields = source.fields();
  const int image = image_field(fields), label = class_field(fields);
  if (image < 0) {
    throw GraphError(fmt::format("--contact-sheet: the source has no images, its fields are {}", to_string(fields)));
  }
  const bool is_png = path.ends_with(".png");
  if (!is_png && !path.ends_with(".jpg") && !path.ends_with(".jpeg")) {
    throw GraphError(fmt::format("--contact-sheet {}: expected a file name that ends in .png, .jpg or .jpeg", path));
  }
  ContactSheet sheet;
  const Rows rows =
      label >= 0 ? rows_of_classes(source, label, fields[size_t(label)].classes, sheet.classes) : rows_of_any(source);
  sheet.columns = kColumns;
  sheet.rows = int(rows.size());
  Canvas canvas(kGap + kColumns * (kTile + kGap), kGap + int64_t(rows.size()) * (kTile + kGap));
  Tiles tiles(source, image, canvas);
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t column = 0; column < rows[row].size(); ++column) {
      tiles.draw(rows[row][column], int64_t(column), int64_t(row));
    }
  }
  AtomicFile file(path);
  file.write(is_png ? canvas.png() : canvas.jpeg());
  file.commit();
  return sheet;
}

}  // namespace arbalest
