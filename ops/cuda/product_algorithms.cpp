// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/product_algorithms.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "ops/cuda/convolution_choices.h"

namespace arbalest {
namespace {

// Its number is to be changed with how the choice is made: what was kept before is chosen again then. The file of
// choices is by versions of cuDNN and CUDA; cuBLASLt has one of its own.
std::string product_key(const CudaContext& context, const ProductProblem& p) {
  const bool follow = p.pitches == std::array<int64_t, 3>();
  return fmt::format("{} product 2 cuBLASLt {} {} {} {} {:d}{:d}{:d}{:d} {} {} {} {}{}", context.model.name,
                     cublasLtGetVersion(), p.m, p.n, p.k, p.trans_a, p.trans_b, p.tf32, p.bias, name_of(p.in),
                     name_of(p.out), p.workspace_limit, p.concurrent,
                     follow ? "" : fmt::format(" rows of {}", fmt::join(p.pitches, " ")));
}

// A convolution of 1 × 1: its operands have at least as many elements as the product's, and so has its bias.
ConvolutionProblem as_convolution(const ProductProblem& p) {
  const auto [a, b, y] = p.pitches;
  const int64_t m = std::max(p.m, p.trans_a ? a : 0), n = std::max({p.n, p.trans_b ? 0 : b, y}),
                k = std::max({p.k, p.trans_a ? 0 : a, p.trans_b ? b : 0});
  ConvolutionProblem same;
  same.type = p.in;
  same.output_type = p.out;
  same.x = {p.batch * m, k, 1, 1};
  same.w = {p.batch * n, k, 1, 1};
  same.y = {p.batch * m, n, 1, 1};
  same.concurrent = p.concurrent;
  return same;
}

constexpr int kMostTimed = 12;

std::vector<ProductAlgorithm> proposed_algorithms(CudaContext& context, const ProductDescription& d, int most) {
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const HandlePool::Lease handles(context.handles);
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handles->cublas_lt, d.product, d.a, d.b, d.y, d.y,
                                                               d.preference, most, found.data(), &count);
  std::vector<ProductAlgorithm> proposed;
  for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& each = found[size_t(i)];
    if (each.state == CUBLAS_STATUS_SUCCESS) proposed.push_back({true, each.algo, int64_t(each.workspaceSize)});
  }
  return proposed;
}

// "_7"; without the number if the library does not tell it.
template <typename Number>
std::string number_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  Number number = 0;
  size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &number, sizeof(number), &written);
  return status == CUBLAS_STATUS_SUCCESS ? fmt::format("_{}", number) : "_";
}

}  // namespace

std::string ProductAlgorithm::name() const {
  std::string name = "cuBLASLt";
  for (const auto attribute : {CUBLASLT_ALGO_CONFIG_ID, CUBLASLT_ALGO_CONFIG_TILE_ID, CUBLASLT_ALGO_CONFIG_STAGES_ID,
                               CUBLASLT_ALGO_CONFIG_SPLITK_NUM, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                               CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION}) {
    name += number_of<uint32_t>(algorithm, attribute);
  }
  for (const auto attribute : {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID}) {
    name += number_of<uint16_t>(algorithm, attribute);
  }
  return name;
}

ProductAlgorithm first_algorithm(CudaContext& context, const ProductDescription& description) {
  const std::vector<ProductAlgorithm> proposed = proposed_algorithms(context, description, 1);
  return proposed.empty() ? ProductAlgorithm() : proposed[0];
}

ProductAlgorithm fastest_algorithm(CudaContext& context, const ProductProblem& problem,
                                   const ProductDescription& description, const RunAlgorithm& run) {
  const std::vector<ProductAlgorithm> proposed = proposed_algorithms(context, description, kMostTimed);
  if (proposed.size() < 2) return proposed.empty() ? ProductAlgorithm() : proposed[0];
  const auto fits = [&](const ConvolutionChoice& known) {
    return known.index < int64_t(proposed.size()) && known.engine == proposed[size_t(known.index)].name();
  };
  const auto choose = [&] {
    int64_t workspace = 0;
    for (const ProductAlgorithm& each : proposed) workspace = std::max(workspace, each.workspace_bytes);
    const ConvolutionProblem same = as_convolution(problem);
    ConvolutionTimer timer(context, same, workspace);
    std::vector<ConvolutionTimer::Call> calls;
    for (const auto& algorithm : proposed) {
      calls.push_back([&](const ConvolutionCall& call) { run(algorithm, call); });
    }
    const auto [place, microseconds] = timer.fastest(calls);
    return place < 0 ? ConvolutionChoice() : ConvolutionChoice{place, proposed[size_t(place)].name(), microseconds};
  };
  try {
    const ConvolutionChoice choice = ConvolutionChoices::of_process().find(product_key(context, problem), fits, choose);
    return proposed[size_t(std::max<int64_t>(0, choice.index))];
  } catch (const RunError&) {
    cudaGetLastError();
    return proposed[0];
  }
}

int64_t fastest_product(CudaContext& context, const std::string& name, const ProductProblem& problem,
                        const std::vector<MakeProduct>& ways) {
  const auto choose = [&] {
    std::vector<std::unique_ptr<Kernel>> kernels;
    std::vector<int64_t> places;
    int64_t workspace = 0;
    for (size_t i = 0; i < ways.size(); ++i) {
      auto kernel = ways[i]();
      if (!kernel) continue;
      workspace = std::max(workspace, kernel->workspace_bytes());
      kernels.push_back(std::move(kernel));
      places.push_back(int64_t(i));
    }
    if (kernels.size() == 1) return ConvolutionChoice{places[0], name};
    const ConvolutionProblem same = as_convolution(problem);
    ConvolutionTimer timer(context, same, workspace);
    std::vector<ConvolutionTimer::Call> calls;
    for (const std::unique_ptr<Kernel>& kernel : kernels) {
      calls.push_back([&](const ConvolutionCall& with) {
        const void* const inputs[] = {with.a, with.b, with.bias};
        void* const outputs[] = {with.result};
        kernel->run({.stream = with.stream, .inputs = inputs, .outputs = outputs, .workspace = with.workspace});
      });
    }
    const auto [place, microseconds] = timer.fastest(calls);
    return place < 0 ? ConvolutionChoice() : ConvolutionChoice{places[size_t(place)], name, microseconds};
  };
  const auto last = int64_t(ways.size()) - 1;
  try {
    const std::string key = fmt::format("{} of {}: {}", name, problem.batch, product_key(context, problem));
    const auto fits = [&](const ConvolutionChoice& known) { return known.index <= last; };
    const int64_t index = ConvolutionChoices::of_process().find(key, fits, choose).index;
    return index < 0 ? last : index;
  } catch (const RunError&) {
    cudaGetLastError();
    return last;
  }
}

}  // namespace arbalest
