// SPDX-License-Identifier: Apache-2.0
#pragma once
// JPEG files of pixels in memory, by libjpeg.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace arbalest {

// Pixels are (height, width, channels) bytes; channels is 1 or 3. `quality`: 1 … 100, as libjpeg has it; colour is
// stored at half the resolution (4:2:0). Replaces what `file` has. Throws RunError.
void write_jpeg(const uint8_t* pixels, int64_t width, int64_t height, int channels, int quality,
                std::vector<std::byte>& file);

}  // namespace arbalest
