// SPDX-License-Identifier: Apache-2.0
#include "ops/product/padding.h"

#include <algorithm>
#include <optional>

namespace arbalest::cuda {
namespace {

constexpr int64_t kAlignedElements = 8;  // of bfloat16 in 16 bytes
constexpr int64_t kPartUnit = 64;        // parts of an axis of a matrix are multiples, so that they begin at tiles
constexpr int64_t kMostParts = 64;
constexpr int64_t kMostMemory = 1 << 30;  // bytes, so that words are counted by 31 bits
constexpr ProductMatrix kMatrices[] = {kOfA, kOfB, kOfY};

int64_t rounded_up(int64_t number, int64_t to) {
  return (number + to - 1) / to * to;
}

struct Stored {
  int64_t rows, columns;
};

// A matrix of a product of these extents as it lies in memory.
Stored stored(const Problem& p, const ProductExtents& e, ProductMatrix matrix) {
  switch (matrix) {
    case kOfA: return p.trans_a ? Stored{e.k, e.m} : Stored{e.m, e.k};
    case kOfB: return p.trans_b ? Stored{e.n, e.k} : Stored{e.k, e.n};
    default: return {e.m, e.n};
  }
}

ProductExtents extents_of(const Problem& p) {
  return {p.batch, p.m, p.n, p.k};
}

int64_t extent_along(const ProductExtents& e, ProductAxis axis) {
  constexpr int64_t ProductExtents::*kExtents[] = {&ProductExtents::batch, &ProductExtents::m, &ProductExtents::n,
                                                   &ProductExtents::k};
  return e.*kExtents[size_t(axis)];
}

ProductExtents rounded_extents(const ProductPadding& padding, ProductExtents e) {
  if (padding.round_m) e.m = rounded_up(e.m, kAlignedElements);
  if (padding.round_n) e.n = rounded_up(e.n, kAlignedElements);
  if (padding.round_k) e.k = rounded_up(e.k, kAlignedElements);
  return e;
}

// A matrix of a part in the kernel's own memory.
struct Padded {
  int64_t batch, rows, pitch;
  int64_t elements() const { return batch * rows * pitch; }
};

Padded padded(const Problem& p, const ProductPadding& padding, const ProductExtents& e, ProductMatrix matrix) {
  const Stored whole = stored(p, rounded_extents(padding, e), matrix);
  const bool shared = matrix != kOfY && p.steps.*kStepOf[matrix] == 0;
  return {shared ? 1 : e.batch, whole.rows, rounded_up(whole.columns, kAlignedElements)};
}

bool has_odd_rows(const Problem& p, ProductMatrix matrix) {
  const int64_t bytes = int64_t(size_of(matrix == kOfY ? p.out : p.in));
  return stored(p, extents_of(p), matrix).columns * bytes % 16 != 0;
}

// Without parts. nullopt: this way is the same as another, or none.
std::optional<ProductPadding> padding_by(const Problem& p, PaddingWay way) {
  const bool a = has_odd_rows(p, kOfA), b = has_odd_rows(p, kOfB), y = has_odd_rows(p, kOfY);
  if (!a && !b && !y) return {};
  if (way == PaddingWay::Rows) return ProductPadding{.way = way, .own = {a, b, y}};
  if (way == PaddingWay::Inputs) {
    const bool differs = y && (a || b) && p.calls.size() == 1;  // more calls begin in the middle of odd rows
    return differs ? std::optional(ProductPadding{.way = way, .own = {a, b, false}}) : std::nullopt;
  }
  ProductPadding padding{.way = way};
  padding.round_m = a && p.trans_a;
  padding.round_n = y || (b && !p.trans_b);
  padding.round_k = (a && !p.trans_a) || (b && p.trans_b);
  padding.own = {padding.round_m || padding.round_k, padding.round_k || padding.round_n,
                 padding.round_m || padding.round_n};
  return padding;
}

// Bytes that parts read again, or read and write again, because the product has parts along the axis.
double repeated_bytes(const Problem& p, const ProductPadding& padding) {
  const auto bytes = [&](ProductMatrix matrix) {
    const Stored whole = stored(p, extents_of(p), matrix);
    return double(whole.rows * whole.columns) * (matrix == kOfY ? 2 * sizeof(float) : size_of(p.in));
  };
  const double again = double(parts_of(p, padding) - 1);
  switch (padding.axis) {
    case ProductAxis::M: return again * bytes(kOfB);
    case ProductAxis::N: return again * bytes(kOfA);
    case ProductAxis::K: return again * bytes(kOfY);
    default: return 0;
  }
}

// The padding with the fewest parts along an axis that fit in so many bytes.
std::optional<ProductPadding> fitted_along(const Problem& p, ProductPadding padding, ProductAxis axis, int64_t memory) {
  const int64_t extent = extent_along(extents_of(p), axis);
  const int64_t unit = axis == ProductAxis::Batch ? kAlignedElements : kPartUnit;
  padding.axis = axis;
  for (int64_t parts = 1; parts <= kMostParts; ++parts) {
    padding.part = std::min(extent, rounded_up((extent + parts - 1) / parts, unit));
    if (axis == ProductAxis::K && padding.part < extent && p.out != DataType::Float32) padding.own[kOfY] = true;
    if (padded_memory(p, padding).bytes <= memory) return padding;
  }
  return {};
}

std::optional<ProductPadding> fitted(const Problem& p, const ProductPadding& padding, int64_t memory) {
  if (p.batch > 1) return fitted_along(p, padding, ProductAxis::Batch, memory);
  std::optional<ProductPadding> best;
  for (const ProductAxis axis : {ProductAxis::M, ProductAxis::N, ProductAxis::K}) {
    const auto found = fitted_along(p, padding, axis, memory);
    if (found && (!best || repeated_bytes(p, *found) < repeated_bytes(p, *best))) best = found;
  }
  return best;
}

}  // namespace

int64_t parts_of(const Problem& problem, const ProductPadding& padding) {
  return (extent_along(extents_of(problem), padding.axis) + padding.part - 1) / padding.part;
}

ProductPart part_of(const Problem& p, const ProductPadding& padding, int64_t index) {
  const int64_t before = index * padding.part;
  const int64_t count = std::min(padding.part, extent_along(extents_of(p), padding.axis) - before);
  ProductPart part{extents_of(p), {}};
  switch (padding.axis) {
    case ProductAxis::Batch:
      part.extents.batch = count;
      part.first = {p.steps.a * before, p.steps.b * before, p.steps.y * before};
      break;
    case ProductAxis::M:
      part.extents.m = count;
      part.first = {.a = p.trans_a ? before : before * p.k, .y = before * p.n};
      break;
    case ProductAxis::N:
      part.extents.n = count;
      part.first = {.b = p.trans_b ? before * p.k : before, .y = before};
      break;
    case ProductAxis::K:
      part.extents.k = count;
      part.first = {.a = p.trans_a ? before * p.m : before, .b = p.trans_b ? before : before * p.n};
      break;
  }
  return part;
}

bool moves_with_part(const Problem& p, const ProductPadding& padding, ProductMatrix matrix) {
  switch (padding.axis) {
    case ProductAxis::Batch: return p.steps.*kStepOf[matrix] != 0;
    case ProductAxis::M: return matrix != kOfB;
    case ProductAxis::N: return matrix != kOfA;
    default: return matrix != kOfY;
  }
}

DataType type_of_sums(const Problem& problem, const ProductPadding& padding) {
  const bool sums = padding.axis == ProductAxis::K && parts_of(problem, padding) > 1;
  return sums ? DataType::Float32 : problem.out;
}

Problem problem_of_part(const Problem& p, const ProductPadding& padding, int64_t index) {
  const ProductExtents part = part_of(p, padding, index).extents, e = rounded_extents(padding, part);
  Problem inner = {.m = e.m,
                   .n = e.n,
                   .k = e.k,
                   .trans_a = p.trans_a,
                   .trans_b = p.trans_b,
                   .in = p.in,
                   .out = type_of_sums(p, padding),
                   .alpha = p.alpha,
                   .batch = e.batch};
  for (const ProductMatrix matrix : kMatrices) {
    const Padded own = padded(p, padding, part, matrix);
    const bool follows = part.batch > 1 && own.batch > 1;
    inner.pitches.*kStepOf[matrix] = padding.own[matrix] ? own.pitch : stored(p, extents_of(p), matrix).columns;
    inner.steps.*kStepOf[matrix] = !padding.own[matrix] ? p.steps.*kStepOf[matrix] : follows ? own.rows * own.pitch : 0;
  }
  const bool adds_up = padding.axis == ProductAxis::K && index > 0;
  if (!adds_up && !padding.own[kOfY]) inner.summand_factor = p.summand_factor;
  if (adds_up || (!padding.own[kOfY] && p.inputs.summand >= 0)) inner.inputs.summand = PartInput::Summand;
  return inner;
}

RowsMove move_of_part(const Problem& p, const ProductPadding& padding, int64_t index, ProductMatrix matrix) {
  const ProductExtents part = part_of(p, padding, index).extents;
  const Padded own = padded(p, padding, part, matrix);
  const Stored block = stored(p, part, matrix);
  const RowsMove::Side outside{p.steps.*kStepOf[matrix], stored(p, extents_of(p), matrix).columns},
      inside{own.rows * own.pitch, own.pitch};
  if (matrix == kOfY) return {own.batch, block.rows, block.columns, block.rows, block.columns, inside, outside};
  return {own.batch, block.rows, block.columns, own.rows, own.pitch, outside, inside};
}

PaddedMemory padded_memory(const Problem& p, const ProductPadding& padding) {
  PaddedMemory memory;
  const ProductExtents largest = part_of(p, padding, 0).extents;
  for (const ProductMatrix matrix : kMatrices) {
    memory.offset[matrix] = memory.bytes;
    if (!padding.own[matrix]) continue;
    const DataType type = matrix == kOfY ? type_of_sums(p, padding) : p.in;
    memory.bytes += rounded_up(padded(p, padding, largest, matrix).elements() * int64_t(size_of(type)), 256);
  }
  return memory;
}

double padding_microseconds(const DeviceModel& device, const Problem& p, const ProductPadding& padding) {
  const int64_t parts = parts_of(p, padding);
  int64_t launches = parts - 1;
  double bytes = 0;
  for (const ProductMatrix matrix : kMatrices) {
    if (!padding.own[matrix]) continue;
    const int64_t read = int64_t(size_of(matrix == kOfY ? type_of_sums(p, padding) : p.in));
    const int64_t written = int64_t(size_of(matrix == kOfY ? p.out : p.in));
    const Stored whole = stored(p, extents_of(p), matrix);
    const bool shared = matrix != kOfY && p.batch > 1 && p.steps.*kStepOf[matrix] == 0;
    bytes += double((shared ? 1 : p.batch) * whole.rows * whole.columns) * double(read + written);
    launches += moves_with_part(p, padding, matrix) ? parts : 1;
  }
  const double calls = double(p.calls.size());
  return calls * (double(launches) * device.pass_microseconds(0) + bytes / (device.bytes_per_second / 1e6));
}

std::vector<ProductPadding> proposed_paddings(const DeviceModel& device, const Problem& problem, int64_t memory,
                                              bool surely) {
  // A product with odd rows was seen to take up to 5 times as long as its operations at the device's rate, and one
  // whose rows are multiples of 4 bytes one and a half times.
  constexpr double kMostLost = 4, kSurelyLost = 0.5;
  if (problem.in != DataType::Bfloat16 || device.architecture < 80) return {};
  const double terms = double(problem.products()) * double(problem.m) * double(problem.n) * double(problem.k);
  const double microseconds = 2 * terms / (device.bf16_per_second / 1e6);
  const double lost = microseconds * (surely ? kSurelyLost : kMostLost);
  std::vector<ProductPadding> proposed;
  for (const PaddingWay way : {PaddingWay::Extents, PaddingWay::Rows, PaddingWay::Inputs}) {
    const auto wanted = padding_by(problem, way);
    if (!wanted) continue;
    const auto padding = fitted(problem, *wanted, std::min(memory, kMostMemory));
    if (padding && padding_microseconds(device, problem, *padding) < lost) proposed.push_back(*padding);
  }
  return proposed;
}

}  // namespace arbalest::cuda
