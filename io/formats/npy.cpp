#include "io/formats/npy.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "graph/error.h"
#include "io/formats/random_access_file.h"

namespace arbalest {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct NpyType {
  std::string_view descr;
  DataType dtype;
};
constexpr std::array<NpyType, 5> kTypes = {{{"|u1", DataType::Uint8},
                                            {"<i4", DataType::Int32},
                                            {"<i8", DataType::Int64},
                                            {"<f4", DataType::Float32},
                                            {"<f8", DataType::Float64}}};

[[noreturn]] void fail(const std::string& path, const std::string& expected, const std::string& found) {
  throw RunError(fmt::format("{}: expected {}, found {}", path, expected, found));
}

// The header is a dictionary of Python's: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }.
class Header {
 public:
  Header(const std::string& path, std::string_view text) : path_(path), text_(text), rest_(text) {}

  // Element type and shape.
  void parse(NpyArray& array) {
    int seen = 0;
    expect("{");
    while (!take("}")) {
      const std::string_view key = quoted();
      expect(":");
      if (key == "descr") {
        array.dtype = type();
      } else if (key == "fortran_order") {
        if (take("True")) fail(path_, "an array in C's order (numpy.ascontiguousarray makes one)", "one in Fortran's");
        expect("False");
      } else if (key == "shape") {
        array.shape = shape();
      } else {
        malformed();
      }
      ++seen;
      if (!take(",")) {
        expect("}");
        break;
      }
    }
    constexpr int kKeys = 3;
    skip_spaces();
    if (seen != kKeys || !rest_.empty()) malformed();
  }

 private:
  [[noreturn]] void malformed() const {
    constexpr size_t kShown = 120;
    fail(path_, "a header as in {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
         fmt::format("'{}'", text_.substr(0, std::min(kShown, text_.find('\n')))));
  }
  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size())); }
  bool take(std::string_view token) {
    skip_spaces();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) malformed();
  }
  std::string_view quoted() {
    expect("'");
    const std::string_view text = rest_.substr(0, rest_.find('\''));
    rest_.remove_prefix(text.size());
    expect("'");
    return text;
  }

  DataType type() {
    constexpr const char* kExpected = "uint8, int32, int64, float32 or float64, little-endian";
    skip_spaces();
    if (!rest_.starts_with("'")) fail(path_, kExpected, "an array of records");
    const std::string_view descr = quoted();
    for (const NpyType& known : kTypes) {
      if (known.descr == descr) return known.dtype;
    }
    fail(path_, kExpected,
         fmt::format("'{}'{}", descr,
                     descr.starts_with('>') ? ", which is big-endian"
                     : descr == "|O"        ? ", which are Python's objects"
                                            : ""));
  }

  Shape shape() {
    Shape extents;
    expect("(");
    while (!take(")")) {
      skip_spaces();
      int64_t& extent = extents.emplace_back();
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), extent);
      if (error != std::errc() || extent < 0) malformed();
      rest_.remove_prefix(size_t(end - rest_.data()));
      if (take(",")) continue;
      expect(")");
      break;
    }
    return extents;
  }

  const std::string& path_;
  std::string_view text_, rest_;
};

}  // namespace

NpyArray read_npy(const std::filesystem::path& path) {
  const RandomAccessFile file(path, "an array of NumPy's");
  const auto read_text = [&](uint64_t offset, uint64_t size, const char* what) {
    if (file.size() < offset || file.size() - offset < size) {
      fail(file.path(), fmt::format("{} bytes of {} at byte {}", size, what, offset),
           fmt::format("a file of {} bytes", file.size()));
    }
    std::string text(size_t(size), '\0');
    file.read(offset, std::as_writable_bytes(std::span(text)));
    return text;
  };
  const std::string start = read_text(0, kMagic.size() + 2, "an array of NumPy's");
  if (!start.starts_with(kMagic)) fail(file.path(), "an array of NumPy's (.npy)", "another kind of file");
  const int version = uint8_t(start[kMagic.size()]);
  if (version < 1 || version > 3) fail(file.path(), "version 1, 2 or 3", fmt::format("{}", version));
  const uint64_t at = start.size(), width = version == 1 ? 2 : 4;
  const std::string digits = read_text(at, width, "a length");
  uint64_t length = 0;
  for (uint64_t i = 0; i < width; ++i) length |= uint64_t(uint8_t(digits[i])) << (8 * i);

  NpyArray array;
  const std::string header = read_text(at + width, length, "a header");
  Header(file.path(), header).parse(array);
  const uint64_t offset = at + width + length, there = file.size() - offset;
  uint64_t bytes = size_of(array.dtype);
  bool fits = true;
  for (const int64_t extent : array.shape) fits = !__builtin_mul_overflow(bytes, uint64_t(extent), &bytes) && fits;
  if (!fits || bytes != there) {
    fail(file.path(),
         fmt::format("{} elements of {} from byte {} on", to_string(array.shape), name_of(array.dtype), offset),
         fmt::format("{} bytes", there));
  }
  array.bytes.resize(size_t(bytes));
  file.read(offset, array.bytes);
  return array;
}

}  // namespace arbalest
