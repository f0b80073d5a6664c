// SPDX-License-Identifier: Apache-2.0
#include "ops/onednn/versions.h"

#ifdef ARBALEST_ONEDNN
#include <dnnl.h>
#include <fmt/format.h>
#endif

namespace arbalest {

std::vector<std::pair<std::string, std::string>> kernel_library_versions() {
#ifdef ARBALEST_ONEDNN
  const dnnl_version_t* version = dnnl_version();
  return {{"onednn", fmt::format("{}.{}.{}", version->major, version->minor, version->patch)}};
#else
  return {};
#endif
}

}  // namespace arbalest
