// SPDX-License-Identifier: Apache-2.0

// Collectives over the GPUs of this machine. Compiled only with CUDA.

#include <doctest/doctest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"
#include "ops/cuda/upload.h"
#include "ops/replicas/collective_context.h"

using namespace arbalest;
using namespace arbalest::test;

namespace collective_cuda_test {
namespace {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// One array a device. Made and used with its device current.
template <typename T>
struct Arrays {
  std::vector<DeviceBuffer> memory;
  std::vector<void*> pointers;

  Arrays(const CollectiveContext& context, size_t count) {
    for (const int device : context.devices) {
      CUDA_CHECK(cudaSetDevice(device));
      memory.emplace_back(int64_t(count * sizeof(T)));
      pointers.push_back(memory.back().data());
    }
  }
  void fill(size_t i, const std::vector<T>& values) { upload(pointers[i], values.data(), values.size() * sizeof(T)); }
  std::vector<T> values(size_t i, size_t count) const {
    std::vector<T> values(count);
    CUDA_CHECK(cudaMemcpy(values.data(), pointers[i], count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
};

std::unique_ptr<Kernel> make_all_reduce(const Case& test, CollectiveContext& context) {
  return builtin_ops()
      .get("arbalest.AllReduce")
      .cuda({.node = test.get(), .inputs = test.input_types(), .outputs = test.output_types(), .device = &context});
}

Case all_reduce_of(DataType type, size_t count, size_t arrays) {
  return Case(builtin_ops().get("arbalest.AllReduce"), std::vector<TensorType>(arrays, {type, {int64_t(count)}}),
              int(arrays), {});
}

// Whole numbers, so that sums are exact in whatever order.
template <typename T>
void check_sums(CollectiveContext& context, DataType type, size_t count, bool in_place) {
  const size_t devices = context.devices.size();
  const Case test = all_reduce_of(type, count, devices);
  const auto kernel = make_all_reduce(test, context);
  Arrays<T> in(context, count), out(context, count);
  std::vector<T> expected(count, T(0));
  for (size_t i = 0; i < devices; ++i) {
    std::vector<T> values(count);
    for (size_t e = 0; e < count; ++e) values[e] = T((e * 7 + i * 3) % 101);
    for (size_t e = 0; e < count; ++e) expected[e] += values[e];
    in.fill(i, values);
  }
  kernel->run({.inputs = in.pointers.data(), .outputs = in_place ? in.pointers.data() : out.pointers.data()});
  for (const cudaStream_t stream : context.streams) CUDA_CHECK(cudaStreamSynchronize(stream));
  context.check();
  for (size_t i = 0; i < devices; ++i) CHECK((in_place ? in : out).values(i, count) == expected);
}

std::vector<int> first_devices(int count) {
  std::vector<int> devices(static_cast<size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

template <typename F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const RunError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("an all-reduce leaves the sum on every device") {
  const int present = device_count();
  if (present == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  for (const int used : present == 1 ? std::vector<int>{1} : std::vector<int>{1, present}) {
    CAPTURE(used);
    CollectiveContext context(first_devices(used));
    for (const bool in_place : {false, true}) {
      check_sums<float>(context, DataType::Float32, 1, in_place);
      check_sums<float>(context, DataType::Float32, 1000003, in_place);
      check_sums<double>(context, DataType::Float64, 4099, in_place);
    }
  }
}

TEST_CASE("collectives name what is wrong with their devices, and stop when aborted") {
  if (device_count() == 0) {
    MESSAGE("SKIP: no CUDA device");
    return;
  }
  CHECK(error_of([] {
          CollectiveContext({0, 0});
        }).find("cuda:0, cuda:0); expected one or more, each once") != std::string::npos);
  CollectiveContext context({0});
  CHECK(error_of([&] { make_all_reduce(all_reduce_of(DataType::Float32, 4, 2), context); }).find("2 inputs") !=
        std::string::npos);
  const Case test = all_reduce_of(DataType::Float32, 4, 1);
  const auto kernel = make_all_reduce(test, context);
  Arrays<float> array(context, 4);
  CollectiveContext::abort({&context});
  CHECK(context.aborted());
  context.check();
  CHECK(error_of([&] {
          kernel->run({.inputs = array.pointers.data(), .outputs = array.pointers.data()});
        }).find("aborted") != std::string::npos);
}

TEST_CASE("collectives of two lanes that never end are aborted together") {
  if (device_count() < 2) {
    MESSAGE("SKIP: fewer than two CUDA devices");
    return;
  }
  constexpr size_t kCount = 1 << 20;
  CollectiveContext training({0, 1}), validation({0, 1});
  Arrays<float> arrays(training, kCount);
  CUDA_CHECK(cudaSetDevice(0));
  const auto hangs = [&](const CollectiveContext& context) {  // the other GPU never takes part
    void* array = arrays.pointers[0];
    REQUIRE(ncclAllReduce(array, array, kCount, ncclFloat, ncclSum, context.communicators[0], context.streams[0]) ==
            ncclSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK(cudaStreamQuery(context.streams[0]) == cudaErrorNotReady);
  };
  hangs(training);
  hangs(validation);
  const auto began = std::chrono::steady_clock::now();
  CollectiveContext::abort({&training, &validation});
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  for (const CollectiveContext* context : {&training, &validation}) {
    CHECK(cudaStreamQuery(context->streams[0]) == cudaSuccess);
  }
}

}  // namespace collective_cuda_test
