// SPDX-License-Identifier: Apache-2.0

// Measures the preparation of photos: regions as RandomResizedCrop draws them (0.08 … 1 of the area, sides 3:4 … 4:3),
// scaled to one size. Takes all files of a folder, on 1, 2, … threads. For comparison it measures the decoder alone:
// libjpeg-turbo, the whole image, no scaling.
//
//     build/tools/bench_decode FOLDER [--size 224] [--threads 1,2] [--seconds 3] [--images 1000] [--channels 3]
//
// The two alternate every quarter of a second, since other work of the machine would otherwise affect only one of them.
// Microseconds are processor time per image, images/s are by the clock.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>  // jpeglib.h wants it
#include <filesystem>
#include <string>
#include <thread>
#include <vector>
//
#include <jpeglib.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/random.h"
#include "base/time/clock.h"
#include "io/images/image.h"

namespace arbalest {
namespace {

struct Options {
  std::string folder;
  int size = 224, channels = 3;
  std::vector<int> threads = {1};
  double seconds = 3;
  size_t images = 1000;
};

double processor_seconds() {
  return double(clock_ns(CLOCK_THREAD_CPUTIME_ID)) * 1e-9;
}

Region draw_region(const ImageInfo& info, uint64_t position) {
  for (uint64_t attempt = 0; attempt < 10; ++attempt) {
    const Random4 random = philox(1, attempt, position);
    const double area = double(info.width * info.height) * (0.08 + 0.92 * uniform(random.word[0]));
    const double ratio = std::exp((2 * uniform(random.word[1]) - 1) * std::log(4.0 / 3));
    const double width = std::round(std::sqrt(area * ratio)), height = std::round(std::sqrt(area / ratio));
    if (width > double(info.width) || height > double(info.height) || width < 1 || height < 1) continue;
    return {double(below(random.word[2], uint32_t(double(info.width) - width) + 1)),
            double(below(random.word[3], uint32_t(double(info.height) - height) + 1)), width, height};
  }
  return {0, 0, double(info.width), double(info.height)};
}

struct Costs {
  int64_t images = 0;
  double wall = 0, processor = 0, read = 0;  // seconds
  PreparationTimes times;

  void add(const Costs& other) {
    images += other.images;
    wall += other.wall;
    processor += other.processor;
    read += other.read;
    times.decode += other.times.decode;
    times.scale += other.times.scale;
  }
};

class Preparing {
 public:
  explicit Preparing(const Options& options)
      : options_(options), out_(size_t(options.size * options.size * options.channels)) {}

  void run(const std::string& path, uint64_t position, Costs& costs) {
    const double start = processor_seconds();
    const std::vector<uint8_t> file = read_file(path);
    costs.read += processor_seconds() - start;
    const ImageInfo info = decoder_.open(std::as_bytes(std::span(file)));
    decoder_.decode(draw_region(info, position), options_.size, options_.size, options_.channels, out_.data(),
                    costs.times);
  }

 private:
  const Options& options_;
  ImageDecoder decoder_;
  std::vector<uint8_t> out_;
};

class DecoderAlone {
 public:
  DecoderAlone() {
    handle_.err = jpeg_std_error(&errors_);
    jpeg_create_decompress(&handle_);
  }
  ~DecoderAlone() { jpeg_destroy_decompress(&handle_); }
  DecoderAlone(const DecoderAlone&) = delete;
  DecoderAlone& operator=(const DecoderAlone&) = delete;

  void run(const std::string& path, uint64_t, Costs& costs) {
    const double start = processor_seconds();
    const std::vector<uint8_t> file = read_file(path);
    costs.read += processor_seconds() - start;
    jpeg_mem_src(&handle_, file.data(), file.size());
    jpeg_read_header(&handle_, TRUE);
    handle_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&handle_);
    const size_t row_bytes = size_t(handle_.output_width) * 3;
    out_.resize(std::max(out_.size(), row_bytes * handle_.output_height));
    while (handle_.output_scanline < handle_.output_height) {
      JSAMPROW row = out_.data() + handle_.output_scanline * row_bytes;
      jpeg_read_scanlines(&handle_, &row, 1);
    }
    jpeg_finish_decompress(&handle_);
  }

 private:
  jpeg_decompress_struct handle_ = {};
  jpeg_error_mgr errors_ = {};
  std::vector<uint8_t> out_;
};

// Takes images in turn for a while.
template <typename Work>
Costs work_for(double seconds, Work& work, const std::vector<std::string>& files, uint64_t& position) {
  using Clock = std::chrono::steady_clock;
  Costs costs;
  const Clock::time_point start = Clock::now();
  const double processor = processor_seconds();
  do {
    work.run(files[position % files.size()], position, costs);
    ++position;
    ++costs.images;
    costs.wall = std::chrono::duration<double>(Clock::now() - start).count();
  } while (costs.wall < seconds);
  costs.processor = processor_seconds() - processor;
  return costs;
}

void measure(const Options& options, int threads, const std::vector<std::string>& files) {
  constexpr double kTurn = 0.25;
  std::vector<Costs> prepared(size_t(threads), Costs{}), alone(size_t(threads), Costs{});
  std::vector<std::thread> running;
  for (int k = 0; k < threads; ++k) {
    running.emplace_back([&, k] {
      Preparing preparing(options);
      DecoderAlone decoder;
      uint64_t position = uint64_t(k) * 7919, decoded = position;
      for (double spent = 0; spent < options.seconds; spent += 2 * kTurn) {
        prepared[size_t(k)].add(work_for(kTurn, preparing, files, position));
        alone[size_t(k)].add(work_for(kTurn, decoder, files, decoded));
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  Costs ours, whole;
  for (const Costs& costs : prepared) ours.add(costs);
  for (const Costs& costs : alone) whole.add(costs);
  const auto micros = [](double seconds, const Costs& costs) { return seconds * 1e6 / double(costs.images); };
  // Stages are timed by the clock; of processor time they are taken to have the same shares.
  const double stages = ours.times.decode + ours.times.scale, processor = ours.processor - ours.read;
  fmt::print("{:7} {:10.0f} {:8.0f} {:8.0f} {:8.0f} {:9.0f} {:14.0f} {:8.0f}\n", threads,
             double(ours.images) * threads / ours.wall, micros(ours.processor, ours), micros(ours.read, ours),
             micros(processor * ours.times.decode / stages, ours), micros(processor * ours.times.scale / stages, ours),
             double(whole.images) * threads / whole.wall, micros(whole.processor, whole));
}

void run(const Options& options) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options.folder)) {
    const std::string extension = entry.path().extension();
    if (entry.is_regular_file() && (extension == ".jpg" || extension == ".jpeg")) files.push_back(entry.path());
  }
  if (files.empty()) throw RunError(options.folder + ": expected JPEGs (.jpg, .jpeg), found none");
  std::sort(files.begin(), files.end());
  files.resize(std::min(files.size(), options.images));
  fmt::print("{} files, to {} × {} × {}\n", files.size(), options.size, options.size, options.channels);
  fmt::print("{:>7} {:>10} {:>8} {:>8} {:>8} {:>9} {:>14} {:>8}\n", "threads", "images/s", "µs each", "read", "decode",
             "resample", "whole JPEGs/s", "µs each");
  for (const int threads : options.threads) measure(options, threads, files);
}

}  // namespace
}  // namespace arbalest

int main(int argc, char** argv) {
  arbalest::Options options;
  CLI::App app("Measures what decoding a region of a photo and scaling it costs.");
  app.add_option("folder", options.folder, "JPEGs, in folders below it too")->required();
  app.add_option("--size", options.size, "height and width of what comes out")->check(CLI::Range(1, 4096));
  app.add_option("--channels", options.channels, "1: grey, 3: colour")->check(CLI::IsMember({1, 3}));
  app.add_option("--threads", options.threads, "how many at once")->delimiter(',')->check(CLI::Range(1, 1024));
  app.add_option("--seconds", options.seconds, "for each number of threads");
  app.add_option("--images", options.images, "how many files at most")->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  try {
    arbalest::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_decode: {}\n", error.what());
    return 1;
  }
}
