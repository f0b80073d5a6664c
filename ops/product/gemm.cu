// SPDX-License-Identifier: Apache-2.0

// Gemm, arbalest.GemmSum and arbalest.GemmGradB on CUDA.

#include "ops/product/gemm.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// Y = alpha · op(A) · op(B) + beta · C, C at input 2.
Problem problem_of(const KernelRequest& request) {
  const Shape &a = request.inputs[0].shape, &y = request.outputs[0].shape;
  Problem problem = {.m = y[0],
                     .n = y[1],
                     .k = 0,
                     .trans_a = int_attribute(request.node, "transA") != 0,
                     .trans_b = int_attribute(request.node, "transB") != 0,
                     .in = request.inputs[0].dtype,
                     .out = request.outputs[0].dtype,
                     .alpha = float(float_attribute(request.node, "alpha")),
                     .beta = float(float_attribute(request.node, "beta"))};
  problem.k = problem.trans_a ? a[0] : a[1];
  if (request.has_input(2) && problem.beta != 0) {
    if (request.inputs[2].dtype != DataType::Float32) fail_type(request, request.inputs[2].dtype, "a float C");
    problem.addend = addend_of(request.inputs[2].shape, problem.m, problem.n);
  }
  return problem;
}

std::unique_ptr<Kernel> gemm(const KernelRequest& request) {
  const Problem problem = problem_of(request);
  return std::make_unique<GemmKernel>(request, problem, 0, 1, problem.addend == Addend::None ? -1 : 2);
}

std::unique_ptr<Kernel> gemm_sum(const KernelRequest& request) {
  const Problem problem = problem_of(request);
  return std::make_unique<GemmKernel>(request, problem, GemmInput::A, GemmInput::B,
                                      problem.addend == Addend::None ? -1 : int(GemmInput::C), GemmInput::Summand);
}

// With Y = alpha · op(A) · op(B): dB = alpha · op(A)ᵀ · dY, or its transpose if B enters transposed.
std::unique_ptr<Kernel> gemm_grad_b(const KernelRequest& request) {
  const Shape &db = request.outputs[0].shape, &dy = request.inputs[1].shape;
  const bool trans_a = int_attribute(request.node, "transA") != 0, trans_b = int_attribute(request.node, "transB") != 0;
  const Problem problem = {.m = db[0],
                           .n = db[1],
                           .k = dy[0],
                           .trans_a = trans_b ? true : !trans_a,
                           .trans_b = trans_b ? trans_a : false,
                           .in = request.inputs[0].dtype,
                           .out = request.outputs[0].dtype,
                           .alpha = float(float_attribute(request.node, "alpha"))};
  return trans_b ? std::make_unique<GemmKernel>(request, problem, 1, 0, -1)
                 : std::make_unique<GemmKernel>(request, problem, 0, 1, -1);
}

}  // namespace

void register_product_gemm_cuda(OpRegistry& registry) {
  registry.find("Gemm")->cuda = gemm;
  registry.find("arbalest.GemmSum")->cuda = gemm_sum;
  registry.find("arbalest.GemmGradB")->cuda = gemm_grad_b;
}

}  // namespace arbalest
