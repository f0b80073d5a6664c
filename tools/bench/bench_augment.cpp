// SPDX-License-Identifier: Apache-2.0

// Measures arbalest.Augment on the CPU: images/s of one thread and of all, by its settings. Leaves out settings that
// this build's operator does not have.

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace arbalest {
namespace {

constexpr int kRepeats = 5;  // the fastest counts

struct Setting {
  const char* name;
  int64_t batch, size;  // images are size × size, 3 channels
  Attributes attributes;
};

std::vector<Setting> settings() {
  using Floats = std::vector<double>;
  using Ints = std::vector<int64_t>;
  const Attributes normalised = {{"mean", Floats{0.485, 0.456, 0.406}}, {"std", Floats{0.229, 0.224, 0.225}}};
  const auto with = [](Attributes attributes, const Attributes& more) {
    for (const NamedAttribute& each : more) attributes.set(each.name, each.value);
    return attributes;
  };
  const Attributes cifar = with(normalised, {{"pad", int64_t{4}}, {"flip", int64_t{1}}});
  const Attributes photo = with(normalised, {{"crop", Ints{224, 224}}, {"flip", int64_t{1}}});
  const Attributes resized = with(photo, {{"area", Floats{0.08, 1}}});
  const Attributes colour = {{"brightness", 0.4}, {"contrast", 0.4}, {"saturation", 0.4}, {"hue", 0.1}, {"grey", 0.2}};
  const Attributes rest = with(colour, {{"rotate", 15.0}, {"erase", 0.25}, {"vertical_flip", int64_t{1}}});
  return {{"CIFAR: pad 4, crop, flip", 512, 32, cifar},
          {"CIFAR: and erase", 512, 32, with(cifar, {{"erase", 0.25}})},
          {"CIFAR: everything", 512, 32, with(cifar, rest)},
          {"224² of 256²: crop, flip", 64, 256, photo},
          {"224² of 256²: area, flip", 64, 256, resized},
          {"224² of 256²: area, flip, colour", 64, 256, with(resized, colour)},
          {"224² of 256²: everything", 64, 256, with(resized, rest)}};
}

double processor_seconds() {
  return double(std::clock()) / CLOCKS_PER_SEC;
}

double images_per_second(const Setting& setting) {
  const Op& op = builtin_ops().get("arbalest.Augment");
  const TensorType images{DataType::Uint8, {setting.batch, 3, setting.size, setting.size}};
  const test::Case node(op, {images}, 1, setting.attributes);
  const auto kernel = op.cpu({.node = node.get(), .inputs = node.input_types(), .outputs = node.output_types()});
  std::vector<uint8_t> pixels(size_t(images.bytes()));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = uint8_t(i * 2654435761u >> 24);
  std::vector<std::byte> out(size_t(node.output_types()[0].bytes()));
  const void* inputs[] = {pixels.data()};
  void* outputs[] = {out.data()};
  StepScalars scalars{.seed = 1};
  double fastest = 0;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const double began = processor_seconds();
    double seconds = 0;
    int64_t done = 0;
    for (; seconds < 0.3; done += setting.batch) {
      scalars.position = uint64_t(done);
      kernel->run({.inputs = inputs, .outputs = outputs, .scalars = &scalars});
      seconds = processor_seconds() - began;
    }
    fastest = std::max(fastest, double(done) / seconds);
  }
  return fastest;
}

void print_table() {
  fmt::print("| images/s of a core | |\n| --- | --- |\n");
  for (const Setting& setting : settings()) fmt::print("| {} | {:.0f} |\n", setting.name, images_per_second(setting));
}

}  // namespace
}  // namespace arbalest

int main() {
#ifdef _OPENMP
  omp_set_num_threads(1);
#endif
  arbalest::print_table();
}
