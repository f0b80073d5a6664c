// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/nvtx.h"

#include <fmt/format.h>

#if defined(ARBALEST_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#define ARBALEST_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace arbalest {

#ifdef ARBALEST_NVTX
bool has_nvtx() {
  return true;
}
void NvtxRange::begin(const std::string& name, int64_t instance) {
  nvtxRangePushA(instance < 0 ? name.c_str() : fmt::format("{} {}", name, instance).c_str());
}
void NvtxRange::end() {
  nvtxRangePop();
}
#else
bool has_nvtx() {
  return false;
}
void NvtxRange::begin(const std::string&, int64_t) {}
void NvtxRange::end() {}
#endif

}  // namespace arbalest
