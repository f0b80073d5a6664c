// SPDX-License-Identifier: Apache-2.0

// Models of GPUs, by name and for a device at hand.

#include "base/device_model.h"

#include <doctest/doctest.h>

#include "base/error.h"

using namespace arbalest;

namespace device_model_test {

TEST_CASE("a GPU's model is found by its name or a driver's longer one") {
  CHECK(device_model(kUsualDevice).multiprocessors == 132);
  CHECK(device_model("NVIDIA H100 80GB HBM3").architecture == 90);
  CHECK(device_model("NVIDIA A100-SXM4-40GB").architecture == 80);
  CHECK(device_model("NVIDIA A10G").architecture == 86);
  CHECK(device_model("NVIDIA L40S").multiprocessors == 142);
  CHECK(device_model("NVIDIA L4").multiprocessors == 58);
  CHECK(device_model_or_usual("NVIDIA RTX A1000").name == kUsualDevice);  // neither an A100 nor an A10
  CHECK_THROWS_AS(device_model("A99"), GraphError);
}

TEST_CASE("kernels of many learners are laid out for twice a learner's share of a GPU") {
  const DeviceModel model = device_model("H200");
  CHECK(model.multiprocessors_for(1) == 132);
  CHECK(model.multiprocessors_for(2) == 132);
  CHECK(model.multiprocessors_for(4) == 66);
  CHECK(model.multiprocessors_for(16) == 16);
  CHECK(model.multiprocessors_for(1000) == 8);
  CHECK(DeviceModel{.multiprocessors = 4}.multiprocessors_for(16) == 4);
}

TEST_CASE("a GPU without a model of its name has the rates of its architecture by its share of multiprocessors") {
  DeviceModel known{.name = "NVIDIA H200", .architecture = 90, .multiprocessors = 132};
  add_rates(known);
  CHECK(known.pass_microseconds(7'000'000) == 4);
  CHECK(known.bf16_per_second / known.bytes_per_second == 100);
  CHECK(known.tf32_per_second / known.bytes_per_second == 50);
  CHECK(known.fp32_per_second / known.bytes_per_second == 15);
  const DeviceModel ada = device_model("L4");
  DeviceModel other{.name = "a new one", .architecture = 89, .multiprocessors = 29};
  add_rates(other);
  CHECK(other.bytes_per_second == doctest::Approx(ada.bytes_per_second / 2));
  DeviceModel older{.name = "an old one", .architecture = 75, .multiprocessors = 54};
  add_rates(older);
  CHECK(older.bf16_per_second == doctest::Approx(device_model("A100").bf16_per_second / 2));
}

}  // namespace device_model_test
