// SPDX-License-Identifier: Apache-2.0
#include "base/device_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace arbalest {
namespace {

// In the order of architectures, and longer names ahead of those that are part of them. An H200's rates are measured:
// passes and products on one, all-reduces of 2 to 411 MB on two that NVLink connects. An H100 has the same, so that
// both choose alike. The others' are estimates: an H200's, by the makers' peaks.
const std::vector<DeviceModel>& models() {
  static const std::vector<DeviceModel> all = {
      {"A100", 80, 108, 163 << 10, 1.5e12, 15e12, 55e12, 110e12, 170e9},
      {"RTX 3090", 86, 82, 99 << 10, 0.68e12, 28e12, 12.5e12, 25e12, 20e9},
      {"A10", 86, 72, 99 << 10, 0.44e12, 24e12, 22e12, 44e12, 20e9},
      {"RTX 4090", 89, 128, 99 << 10, 0.73e12, 65e12, 30e12, 60e12, 20e9},
      {"L40", 89, 142, 99 << 10, 0.63e12, 70e12, 65e12, 130e12, 20e9},
      {"L4", 89, 58, 99 << 10, 0.22e12, 23e12, 21e12, 43e12, 20e9},
      {"H200", 90, 132, 227 << 10, 3.5e12, 52.5e12, 175e12, 350e12, 260e9},
      {"H100", 90, 132, 227 << 10, 3.5e12, 52.5e12, 175e12, 350e12, 260e9},
      {"B200", 100, 148, 227 << 10, 5.8e12, 60e12, 400e12, 800e12, 520e9},
      {"RTX 5090", 120, 170, 99 << 10, 1.3e12, 80e12, 38e12, 75e12, 40e9},
  };
  return all;
}

const DeviceModel* model_named(std::string_view name) {
  for (const DeviceModel& model : models()) {
    // A whole word, or one with a letter behind it: "A10G", and not the A100 of "RTX A1000".
    const size_t place = name.find(model.name), end = place + model.name.size();
    if (place != name.npos && (end >= name.size() || name[end] < '0' || name[end] > '9')) return &model;
  }
  return nullptr;
}

}  // namespace

DeviceModel device_model(std::string_view name) {
  if (const DeviceModel* model = model_named(name)) return *model;
  std::vector<std::string> names;
  for (const DeviceModel& model : models()) names.push_back(model.name);
  throw GraphError(fmt::format("no GPU '{}' is known; expected one of {}", name, fmt::join(names, ", ")));
}

DeviceModel device_model_or_usual(std::string_view name) {
  const DeviceModel* model = model_named(name);
  return model != nullptr ? *model : device_model(kUsualDevice);
}

int DeviceModel::multiprocessors_for(int learners) const {
  constexpr int kLeast = 8;
  return std::max(std::min(kLeast, multiprocessors), 2 * multiprocessors / std::max(learners, 2));
}

void add_rates(DeviceModel& model) {
  const DeviceModel* like = model_named(model.name);
  double share = 1;
  if (like == nullptr) {
    like = &models().front();
    for (const DeviceModel& other : models()) {
      if (other.architecture <= model.architecture) like = &other;
    }
    share = double(model.multiprocessors) / like->multiprocessors;
  }
  model.bytes_per_second = like->bytes_per_second * share;
  model.fp32_per_second = like->fp32_per_second * share;
  model.tf32_per_second = like->tf32_per_second * share;
  model.bf16_per_second = like->bf16_per_second * share;
  model.link_bytes_per_second = like->link_bytes_per_second;
}

}  // namespace arbalest
