// SPDX-License-Identifier: Apache-2.0

// BMPs, GIFs and TIFFs for tests.

#include <doctest/doctest.h>
#include <gif_lib.h>
#include <tiffio.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "tests/io/image_files.h"

namespace arbalest {

namespace {

void put_little(FileBytes& file, uint64_t value, int count) {
  for (int k = 0; k < count; ++k) file.push_back(uint8_t(k < 8 ? value >> 8 * k : 0));
}

std::vector<uint8_t> colour_of(int index, bool grey) {
  return grey ? std::vector<uint8_t>(3, uint8_t(index * 17)) : palette_colour(index);
}

// Values of less than 8 bits, packed from the high bit on; others as they are.
FileBytes packed_row(const uint8_t* values, int count, int bits) {
  FileBytes row(size_t(count * bits + 7) / 8);
  for (int x = 0; x < count; ++x) {
    row[size_t(x * bits / 8)] |= uint8_t(values[x] << (8 - bits - x * bits % 8));
  }
  return row;
}

FileBytes bmp_row(const TestImage& image, int y, const BmpKind& kind) {
  const uint8_t* at = &image.bytes[size_t(y * image.width * image.channels)];
  FileBytes row;
  if (kind.bits <= 8) {
    row = packed_row(at, image.width, kind.bits);
  } else {
    const std::vector<uint32_t> usual =
        kind.bits == 16 ? std::vector<uint32_t>{0x7c00, 0x3e0, 0x1f} : std::vector<uint32_t>{0xff0000, 0xff00, 0xff};
    const std::vector<uint32_t>& masks = kind.masks.empty() ? usual : kind.masks;
    for (int x = 0; x < image.width; ++x, at += image.channels) {
      uint64_t pixel = 0;
      for (size_t c = 0; c < std::min(masks.size(), size_t(image.channels)); ++c) {
        const int shift = std::countr_zero(masks[c]);
        pixel |= (uint64_t{at[c]} * (masks[c] >> shift) + 127) / 255 << shift;
      }
      put_little(row, pixel, kind.bits / 8);
    }
  }
  row.resize((row.size() + 3) / 4 * 4);
  return row;
}

}  // namespace

FileBytes encode_bmp(const TestImage& image, const BmpKind& kind) {
  FileBytes file = {'B', 'M'};
  const bool core = kind.header == 12;
  const size_t colours = kind.bits <= 8 ? size_t{1} << kind.bits : 0;
  const size_t masks = kind.header == 40 ? kind.masks.size() * 4 : 0;
  const size_t offset = 14 + size_t(kind.header) + masks + colours * (core ? 3 : 4);
  put_little(file, 0, 8);  // its size, which nobody reads, and nothing
  put_little(file, offset, 4);
  put_little(file, uint64_t(kind.header), 4);
  put_little(file, uint64_t(image.width), core ? 2 : 4);
  put_little(file, uint64_t(kind.from_top ? -image.height : image.height), core ? 2 : 4);
  put_little(file, 1, 2);
  put_little(file, uint64_t(kind.bits), 2);
  if (!core) {
    put_little(file, kind.masks.empty() ? 0 : 3, 4);
    put_little(file, 0, 20);
    for (const uint32_t mask : kind.masks) put_little(file, mask, 4);
  }
  file.resize(14 + std::max(size_t(kind.header), file.size() - 14));
  for (size_t k = 0; k < colours; ++k) {
    const std::vector<uint8_t> colour = colour_of(int(k), kind.grey_palette);
    file.insert(file.end(), {colour[2], colour[1], colour[0]});
    if (!core) file.push_back(0);
  }
  for (int y = 0; y < image.height; ++y) {
    const FileBytes row = bmp_row(image, kind.from_top ? y : image.height - 1 - y, kind);
    file.insert(file.end(), row.begin(), row.end());
  }
  return file;
}

FileBytes encode_gif(const TestImage& image, const GifKind& kind) {
  FileBytes file;
  int error = 0;
  GifFileType* const gif = EGifOpen(
      &file,
      [](GifFileType* to, const GifByteType* bytes, int count) {
        FileBytes& out = *static_cast<FileBytes*>(to->UserData);
        out.insert(out.end(), bytes, bytes + count);
        return count;
      },
      &error);
  REQUIRE(gif != nullptr);
  EGifSetGifVersion(gif, true);
  ColorMapObject* const map = GifMakeMapObject(256, nullptr);
  for (int k = 0; k < 256; ++k) {
    const std::vector<uint8_t> colour = colour_of(k, kind.grey_palette);
    map->Colors[k] = {colour[0], colour[1], colour[2]};
  }
  const int canvas_width = std::max(kind.canvas_width, image.width),
            canvas_height = std::max(kind.canvas_height, image.height);
  REQUIRE(EGifPutScreenDesc(gif, canvas_width, canvas_height, 8, 0, map) == GIF_OK);
  for (int frame = 0; frame < kind.frames; ++frame) {
    if (kind.transparent >= 0) {
      const GifByteType control[4] = {1, 0, 0, GifByteType(kind.transparent)};
      REQUIRE(EGifPutExtension(gif, GRAPHICS_EXT_FUNC_CODE, 4, control) == GIF_OK);
    }
    REQUIRE(EGifPutImageDesc(gif, kind.left, kind.top, image.width, image.height, kind.interlaced, nullptr) == GIF_OK);
    std::vector<int> rows;
    for (const auto& [first, step] : std::vector<std::pair<int, int>>{{0, 8}, {4, 8}, {2, 4}, {1, 2}}) {
      for (int y = first; y < image.height; y += step) rows.push_back(y);
    }
    if (!kind.interlaced) std::sort(rows.begin(), rows.end());
    for (const int y : rows) {
      FileBytes row(&image.bytes[size_t(y * image.width)], &image.bytes[size_t(y * image.width)] + image.width);
      if (frame > 0) std::reverse(row.begin(), row.end());
      REQUIRE(EGifPutLine(gif, row.data(), image.width) == GIF_OK);
    }
  }
  GifFreeMapObject(map);
  REQUIRE(EGifCloseFile(gif, &error) == GIF_OK);
  return file;
}

namespace {

// A file in memory, for libtiff.
struct Memory {
  FileBytes bytes;
  size_t at = 0;
};

TIFF* open_tiff(Memory& memory, bool big_endian) {
  return TIFFClientOpen(
      "", big_endian ? "wb" : "wl", &memory,
      [](thandle_t handle, void* to, tmsize_t count) -> tmsize_t {
        Memory& from = *static_cast<Memory*>(handle);
        const size_t have = std::min(size_t(count), from.bytes.size() - std::min(from.at, from.bytes.size()));
        std::memcpy(to, from.bytes.data() + from.at, have);
        from.at += have;
        return tmsize_t(have);
      },
      [](thandle_t handle, void* bytes, tmsize_t count) -> tmsize_t {
        Memory& to = *static_cast<Memory*>(handle);
        to.bytes.resize(std::max(to.bytes.size(), to.at + size_t(count)));
        std::memcpy(to.bytes.data() + to.at, bytes, size_t(count));
        to.at += size_t(count);
        return count;
      },
      [](thandle_t handle, toff_t offset, int whence) -> toff_t {
        Memory& memory = *static_cast<Memory*>(handle);
        memory.at = size_t(offset) + (whence == SEEK_CUR ? memory.at : whence == SEEK_END ? memory.bytes.size() : 0);
        return memory.at;
      },
      [](thandle_t) { return 0; },
      [](thandle_t handle) -> toff_t { return static_cast<Memory*>(handle)->bytes.size(); }, nullptr, nullptr);
}

// A part of a row as libtiff takes it: packed, and 16 bits in the machine's order.
FileBytes tiff_row(const TestImage& image, int y, int x, int count, int channel, const TiffKind& kind) {
  const int channels = kind.separate ? 1 : image.channels, bytes = image.bits / 8;
  FileBytes values;
  for (int i = x; i < x + count; ++i) {
    for (int c = 0; c < channels; ++c) {
      const bool inside = i < image.width && y < image.height;
      const size_t at = size_t(((y * image.width + i) * image.channels + channel + c) * bytes);
      if (image.bits == 16) {
        const uint16_t value = inside ? uint16_t(image.bytes[at] << 8 | image.bytes[at + 1]) : uint16_t{0};
        values.resize(values.size() + 2);
        std::memcpy(&values[values.size() - 2], &value, 2);
      } else {
        values.push_back(inside ? image.bytes[at] : uint8_t{0});
      }
    }
  }
  return kind.bits < 8 ? packed_row(values.data(), int(values.size()), kind.bits) : values;
}

void write_page(TIFF* tiff, const TestImage& image, const TiffKind& kind) {
  TIFFSetField(tiff, TIFFTAG_IMAGEWIDTH, image.width);
  TIFFSetField(tiff, TIFFTAG_IMAGELENGTH, image.height);
  TIFFSetField(tiff, TIFFTAG_BITSPERSAMPLE, image.bits == 16 ? 16 : kind.bits);
  TIFFSetField(tiff, TIFFTAG_SAMPLESPERPIXEL, image.channels);
  TIFFSetField(tiff, TIFFTAG_PHOTOMETRIC, kind.photometric);
  TIFFSetField(tiff, TIFFTAG_COMPRESSION, kind.compression);
  TIFFSetField(tiff, TIFFTAG_PLANARCONFIG, kind.separate ? PLANARCONFIG_SEPARATE : PLANARCONFIG_CONTIG);
  if (kind.orientation != 0) TIFFSetField(tiff, TIFFTAG_ORIENTATION, kind.orientation);
  if (kind.floats) TIFFSetField(tiff, TIFFTAG_SAMPLEFORMAT, SAMPLEFORMAT_IEEEFP);
  if (kind.photometric == PHOTOMETRIC_YCBCR) {
    TIFFSetField(tiff, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
    TIFFSetField(tiff, TIFFTAG_JPEGQUALITY, 95);
  }
  const int colours = kind.photometric == PHOTOMETRIC_RGB || kind.photometric == PHOTOMETRIC_YCBCR ? 3
                      : kind.photometric == PHOTOMETRIC_SEPARATED                                  ? 4
                                                                                                   : 1;
  const uint16_t alpha = EXTRASAMPLE_UNASSALPHA;
  if (image.channels > colours) TIFFSetField(tiff, TIFFTAG_EXTRASAMPLES, 1, &alpha);
  std::vector<uint16_t> map[3];
  for (int k = 0; k < 1 << kind.bits && kind.photometric == PHOTOMETRIC_PALETTE; ++k) {
    for (size_t c = 0; c < 3; ++c) map[c].push_back(uint16_t(palette_colour(k)[c] * 257));
  }
  if (!map[0].empty()) TIFFSetField(tiff, TIFFTAG_COLORMAP, map[0].data(), map[1].data(), map[2].data());
  const int planes = kind.separate ? image.channels : 1;
  if (kind.tile == 0) {
    TIFFSetField(tiff, TIFFTAG_ROWSPERSTRIP, kind.rows == 0 ? image.height : kind.rows);
    for (int plane = 0; plane < planes; ++plane) {
      for (int y = 0; y < image.height; ++y) {
        FileBytes row = tiff_row(image, y, 0, image.width, plane, kind);
        REQUIRE(TIFFWriteScanline(tiff, row.data(), uint32_t(y), uint16_t(plane)) == 1);
      }
    }
    return;
  }
  TIFFSetField(tiff, TIFFTAG_TILEWIDTH, kind.tile);
  TIFFSetField(tiff, TIFFTAG_TILELENGTH, kind.tile);
  for (int plane = 0; plane < planes; ++plane) {
    for (int y = 0; y < image.height; y += kind.tile) {
      for (int x = 0; x < image.width; x += kind.tile) {
        FileBytes tile;
        for (int row = y; row < y + kind.tile; ++row) {
          const FileBytes part = tiff_row(image, row, x, kind.tile, plane, kind);
          tile.insert(tile.end(), part.begin(), part.end());
        }
        REQUIRE(TIFFWriteTile(tiff, tile.data(), uint32_t(x), uint32_t(y), 0, uint16_t(plane)) > 0);
      }
    }
  }
}

}  // namespace

FileBytes encode_tiff(const TestImage& image, const TiffKind& kind) {
  Memory memory;
  TIFF* const tiff = open_tiff(memory, kind.big_endian);
  REQUIRE(tiff != nullptr);
  for (int page = 0; page < kind.pages; ++page) {
    write_page(tiff, image, kind);
    if (kind.pages > 1) REQUIRE(TIFFWriteDirectory(tiff) == 1);
  }
  TIFFClose(tiff);
  return std::move(memory.bytes);
}

}  // namespace arbalest
