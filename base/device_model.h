// SPDX-License-Identifier: Apache-2.0
#pragma once
// A GPU, as far as choices between kernels, passes and plans, and predictions, depend on it. Needs no CUDA.

#include <cstdint>
#include <string>
#include <string_view>

namespace arbalest {

struct DeviceModel {
  static constexpr int kLargeBlock = 150 << 10;  // bytes

  std::string name;      // "NVIDIA H200"
  int architecture = 0;  // compute capability: 90 is 9.0
  int multiprocessors = 0;
  int shared_bytes = 0;  // of shared memory, at most, of a block
  // Rates as kernels of this build reach them: bytes from memory to memory, and operations of products of large
  // matrices in each precision.
  double bytes_per_second = 0, fp32_per_second = 0, tf32_per_second = 0, bf16_per_second = 0;
  double link_bytes_per_second = 0;  // of all-reduces between devices of a host

  // Whether kernels that keep a whole tile in shared memory, and multiply bfloat16 there, run on it.
  bool has_large_blocks() const { return architecture >= 80 && shared_bytes >= kLargeBlock; }
  // Whether it has the copy engine and the matrix units that only Hopper has.
  bool is_hopper() const { return architecture == 90; }
  // The multiprocessors that one kernel's blocks are to fill where kernels of so many learners run at the same time:
  // twice a learner's share, as a multiprocessor hides the waits of one block behind another. More blocks would only
  // repeat what each does for itself, such as loading a filter or leaving a partial sum.
  int multiprocessors_for(int learners) const;
  // Estimated µs of a separate pass: the launch, and `bytes` at about the rate of the memory.
  double pass_microseconds(int64_t bytes) const { return 2 + double(bytes) / (bytes_per_second / 1e6); }
};

// The GPU that plans are made for if none is there or named.
inline constexpr const char* kUsualDevice = "H200";

// The model whose name, as "H200", is part of `name`, which may be a driver's longer one: "NVIDIA H200". Throws
// GraphError, with the names there are.
DeviceModel device_model(std::string_view name);

// The same, or that of kUsualDevice.
DeviceModel device_model_or_usual(std::string_view name);

// Completes `model` of a device at hand, whose rates are missing: those of the model with its name. A device without
// one has the rates of the model with the next lower architecture, by its share of multiprocessors.
void add_rates(DeviceModel& model);

}  // namespace arbalest
