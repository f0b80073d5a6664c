// SPDX-License-Identifier: Apache-2.0

// Matrix products through oneDNN.

#include <functional>
#include <numeric>
#include <optional>

#include "ops/onednn/onednn.h"
#include "ops/product/gemm.h"
#include "ops/product/matrix_product.h"

namespace arbalest {
namespace {

using onednn::Arguments;
using onednn::OnednnKernel;
using onednn::Operand;
using onednn::Part;

struct OnednnProduct {
  Operand a, b, bias, y;  // bias: one row, or nothing
};

onednn::Dims dims_of(const onednn::Desc& desc) {
#if DNNL_VERSION_MAJOR >= 3
  return desc.get_dims();
#else
  return desc.dims();
#endif
}

double operations_of(int64_t depth, const onednn::Dims& extents) {
  return std::accumulate(extents.begin(), extents.end(), 2.0 * double(depth), std::multiplies<double>());
}

// Each of the products as those of parts of an axis of y; the axis is also one of a, b or both.
std::vector<OnednnProduct> divide(const std::vector<OnednnProduct>& products, size_t axis,
                                  const std::vector<Part>& parts) {
  if (parts.size() < 2) return products;
  std::vector<OnednnProduct> divided;
  for (const OnednnProduct& whole : products) {
    const size_t rank = dims_of(whole.y.desc).size();
    for (const auto& [first, count] : parts) {
      OnednnProduct& part = divided.emplace_back(whole);
      if (axis + 1 != rank) part.a = whole.a.part(axis, first, count);
      if (axis + 2 != rank) part.b = whole.b.part(axis, first, count);
      if (axis + 1 == rank && !whole.bias.desc.is_zero()) part.bias = whole.bias.part(axis, first, count);
      part.y = whole.y.part(axis, first, count);
    }
  }
  return divided;
}

// Pieces that extents alone decide on: matrices of the batch, then blocks of columns and of rows.
std::vector<OnednnProduct> pieces_of(const OnednnProduct& whole) {
  constexpr int64_t kMostPieces = 16;
  constexpr int64_t kBlock = 128;  // smaller ones take longer to fetch than to multiply
  const onednn::Dims extents = dims_of(whole.y.desc);
  const size_t rows = extents.size() - 2, columns = extents.size() - 1;
  std::vector<OnednnProduct> pieces = {whole};
  const auto divide_axis = [&](size_t axis, int64_t block) {
    const int64_t most = std::max<int64_t>(1, kMostPieces / int64_t(pieces.size()));
    pieces = divide(pieces, axis, onednn::divided(extents[axis], block, most));
  };
  for (size_t axis = 0; axis < rows; ++axis) divide_axis(axis, 1);
  const bool wide = extents[columns] >= extents[rows];
  divide_axis(wide ? columns : rows, kBlock);
  divide_axis(wide ? rows : columns, kBlock);
  return pieces;
}

}  // namespace

std::unique_ptr<Kernel> onednn_matmul(const onednn::Desc& a, const onednn::Desc& b, const onednn::Desc& y,
                                      int64_t a_input, int64_t b_input, int64_t bias_columns, bool deterministic) try {
  using Primitive = dnnl::matmul;
  const onednn::ThreadChoice threads(operations_of(dims_of(a).back(), dims_of(y)), deterministic);
  std::optional<onednn::OneThread> one;
  if (threads.divides) one.emplace();
  auto kernel = std::make_unique<OnednnKernel>(threads.alone);
  const onednn::Desc bias =
      bias_columns ? onednn::matrix_desc(1, bias_columns, false, DataType::Float32) : onednn::Desc();
  const OnednnProduct whole = {kernel->input(a_input, a), kernel->input(b_input, b), kernel->input(GemmInput::C, bias),
                               kernel->output(0, y)};
  std::vector<std::pair<Primitive::primitive_desc, Arguments>> pieces;
  for (const OnednnProduct& piece : threads.divides ? pieces_of(whole) : std::vector{whole}) {
    const auto desc = onednn::make_matmul(piece.a.desc, piece.b.desc, piece.bias.desc, piece.y.desc);
    if (onednn::is_reference(desc)) return nullptr;
    Arguments arguments = {{DNNL_ARG_SRC, piece.a}, {DNNL_ARG_WEIGHTS, piece.b}, {DNNL_ARG_DST, piece.y}};
    if (bias_columns) arguments.emplace_back(DNNL_ARG_BIAS, piece.bias);
    pieces.emplace_back(desc, std::move(arguments));
  }
  if (threads.divides) {
    kernel->add_pieces<Primitive>(std::move(pieces));
  } else {
    kernel->add<Primitive>(pieces.front().first, std::move(pieces.front().second));
  }
  return kernel;
} catch (const dnnl::error&) {
  return nullptr;
}

}  // namespace arbalest
