// SPDX-License-Identifier: Apache-2.0
#include "io/formats/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files/random_access_file.h"
#include "base/half.h"
#include "base/number.h"

namespace arbalest {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct NpyType {
  std::string_view descr;  // after the byte order
  const char* name;        // NumPy's
  size_t bytes;            // of an element
  DataType dtype;          // that it is read as
};
constexpr std::array<NpyType, 12> kTypes = {{{"b1", "bool", 1, DataType::Uint8},
                                             {"u1", "uint8", 1, DataType::Uint8},
                                             {"i1", "int8", 1, DataType::Int32},
                                             {"i2", "int16", 2, DataType::Int32},
                                             {"u2", "uint16", 2, DataType::Int32},
                                             {"i4", "int32", 4, DataType::Int32},
                                             {"u4", "uint32", 4, DataType::Int64},
                                             {"i8", "int64", 8, DataType::Int64},
                                             {"u8", "uint64", 8, DataType::Int64},
                                             {"f2", "float16", 2, DataType::Float32},
                                             {"f4", "float32", 4, DataType::Float32},
                                             {"f8", "float64", 8, DataType::Float64}}};

// How NumPy makes an array that can be read of one of another type, by the letter of its kind.
const char* remedy_for(char kind) {
  switch (kind) {
    case 'O': return ", which are Python's objects; in NumPy: numpy.stack(list(array)), of arrays of one shape";
    case 'U':
    case 'S': return ", which is text; in NumPy: numpy.unique(labels, return_inverse=True)[1], which numbers labels";
    case 'c': return ", which are complex numbers; in NumPy: abs(array), or array.real";
    default: return "; in NumPy: array.astype('float32')";
  }
}

[[noreturn]] void fail(const std::string& path, const std::string& expected, const std::string& found) {
  throw RunError(fmt::format("{}: expected {}, found {}", path, expected, found));
}

// The header is a dictionary of Python's: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }.
class Header {
 public:
  Header(const std::string& path, std::string_view text) : path_(path), text_(text), rest_(text) {}

  const NpyType& stored() const { return type_; }
  bool big_endian() const { return big_endian_; }

  // Element type and shape.
  void parse(NpyArray& array) {
    int seen = 0;
    expect("{");
    while (!take("}")) {
      const std::string_view key = quoted();
      expect(":");
      if (key == "descr") {
        type_ = type();
        array.dtype = type_.dtype;
        array.stored_as = type_.name;
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

  NpyType type() {
    constexpr const char* kExpected = "whole numbers, floats or booleans";
    skip_spaces();
    if (!rest_.starts_with("'")) fail(path_, kExpected, "an array of records; in NumPy: array['NAME'] is one field");
    const std::string_view descr = quoted();
    if (descr.size() < 2) malformed();
    for (const NpyType& known : kTypes) {
      if (known.descr != descr.substr(1) || std::string_view("<>|=").find(descr[0]) == std::string_view::npos) continue;
      big_endian_ = descr[0] == '>';
      return known;
    }
    fail(path_, kExpected, fmt::format("'{}'{}", descr, remedy_for(descr[1])));
  }

  Shape shape() {
    Shape extents;
    expect("(");
    while (!take(")")) {
      skip_spaces();
      if (extents.emplace_back(take_number<int64_t>(rest_).value_or(-1)) < 0) malformed();
      if (take(",")) continue;
      expect(")");
      break;
    }
    return extents;
  }

  const std::string& path_;
  std::string_view text_, rest_;
  NpyType type_ = kTypes[0];
  bool big_endian_ = false;
};

template <typename From, typename To>
std::vector<std::byte> converted(std::span<const std::byte> stored, To (*convert)(From)) {
  const size_t count = stored.size() / sizeof(From);
  std::vector<std::byte> made(count * sizeof(To));
  for (size_t i = 0; i < count; ++i) {
    From from{};
    std::memcpy(&from, stored.data() + i * sizeof from, sizeof from);
    const To to = convert(from);
    std::memcpy(made.data() + i * sizeof to, &to, sizeof to);
  }
  return made;
}
template <typename From, typename To>
std::vector<std::byte> widened(std::span<const std::byte> stored) {
  return converted<From, To>(stored, [](From number) { return static_cast<To>(number); });
}

// Elements in the machine's order, as the type that they are read as.
std::vector<std::byte> as_read(const std::string& path, const NpyType& type, std::vector<std::byte> stored) {
  if (type.descr == "i1") return widened<int8_t, int32_t>(stored);
  if (type.descr == "i2") return widened<int16_t, int32_t>(stored);
  if (type.descr == "u2") return widened<uint16_t, int32_t>(stored);
  if (type.descr == "u4") return widened<uint32_t, int64_t>(stored);
  if (type.descr == "f2") return converted<uint16_t, float>(stored, float_of_half);
  if (type.descr == "u8") {
    const auto beyond = converted<uint64_t, uint8_t>(stored, [](uint64_t number) { return uint8_t(number >> 63); });
    if (std::find(beyond.begin(), beyond.end(), std::byte{1}) != beyond.end()) {
      fail(path, "numbers below 2^63", "a greater one; in NumPy: array.astype('float64')");
    }
  }
  return stored;
}

}  // namespace

std::string unpacking(const std::filesystem::path& archive) {
  const std::filesystem::path folder = archive.has_parent_path() ? archive.parent_path() : ".";
  return fmt::format(
      "python3 -c \"import numpy; a = numpy.load('{}'); [numpy.save('{}/' + name, a[name]) for name in a]\" makes "
      "files "
      "of its arrays, to be called SPLIT_FIELD.npy",
      archive.string(), folder.string());
}

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
  if (!start.starts_with(kMagic))
    fail(file.path(), "an array of NumPy's (.npy)",
         start.starts_with("PK") ? "an archive of several (.npz); " + unpacking(path) : "another kind of file");
  const int version = uint8_t(start[kMagic.size()]);
  if (version < 1 || version > 3) fail(file.path(), "version 1, 2 or 3", fmt::format("{}", version));
  const uint64_t at = start.size(), width = version == 1 ? 2 : 4;
  const std::string digits = read_text(at, width, "a length");
  uint64_t length = 0;
  for (uint64_t i = 0; i < width; ++i) length |= uint64_t(uint8_t(digits[i])) << (8 * i);

  NpyArray array;
  const std::string header = read_text(at + width, length, "a header");
  Header parsed(file.path(), header);
  parsed.parse(array);
  const uint64_t offset = at + width + length, there = file.size() - offset;
  const NpyType& stored = parsed.stored();
  uint64_t bytes = stored.bytes;
  bool fits = true;
  for (const int64_t extent : array.shape) fits = !__builtin_mul_overflow(bytes, uint64_t(extent), &bytes) && fits;
  if (!fits || bytes != there) {
    fail(file.path(), fmt::format("{} elements of {} from byte {} on", to_string(array.shape), stored.name, offset),
         fmt::format("{} bytes", there));
  }
  array.bytes.resize(size_t(bytes));
  file.read(offset, array.bytes);
  for (size_t i = 0; parsed.big_endian() && i < array.bytes.size(); i += stored.bytes) {
    std::reverse(array.bytes.begin() + ptrdiff_t(i), array.bytes.begin() + ptrdiff_t(i + stored.bytes));
  }
  array.bytes = as_read(file.path(), stored, std::move(array.bytes));
  return array;
}

}  // namespace arbalest
