// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranges that NVIDIA's Nsight shows along with the GPU's work.

#include <cstdint>
#include <string>

namespace arbalest {

// Whether this build can make them: the CUDA toolkit has the header.
bool has_nvtx();

// From here to the end of the scope, on the calling thread. If it is not `wanted`, it costs a comparison.
class NvtxRange {
 public:
  NvtxRange(bool wanted, const std::string& name, int64_t instance = -1) : wanted_(wanted) {
    if (wanted_) begin(name, instance);
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
  ~NvtxRange() {
    if (wanted_) end();
  }

 private:
  static void begin(const std::string& name, int64_t instance);  // "cuda:0/learner 0/step 17"; −1: the name alone
  static void end();

  const bool wanted_;
};

}  // namespace arbalest
