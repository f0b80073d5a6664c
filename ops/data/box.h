// SPDX-License-Identifier: Apache-2.0
#pragma once
// A rectangle of pixels, on CPUs and GPUs.

#include "base/host_device.h"

namespace arbalest {

struct Box {
  int top = 0, left = 0, height = 0, width = 0;  // a height of 0: none

  ARBALEST_HOST_DEVICE bool holds(int row, int column) const {
    return row >= top && row < top + height && column >= left && column < left + width;
  }
};

}  // namespace arbalest
