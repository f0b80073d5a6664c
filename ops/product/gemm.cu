// SPDX-License-Identifier: Apache-2.0

// Products of matrices on CUDA, and Gemm, arbalest.GemmSum and arbalest.GemmGradB as such. Engines are kernels for few
// columns, one for small products and cuBLASLt's algorithms, with the bias in the epilogue if the library takes it, and
// in padded memory if rows are odd and that is faster. The library is column-major, so a row-major product Y = A·B is
// computed as Yᵀ = Bᵀ·Aᵀ with the operands swapped. For a large product, the fastest of the algorithms that the
// heuristics propose is taken. It is timed and kept as engines of convolutions are.

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/product_algorithms.h"
#include "ops/product/few_columns.h"
#include "ops/product/kernel_engines.h"
#include "ops/product/padded_product.h"
#include "ops/product/products.h"
#include "ops/product/small_product.h"

namespace arbalest::cuda {
namespace {

struct Deleter {
  void operator()(cublasLtMatmulDescOpaque_t* d) const { cublasLtMatmulDescDestroy(d); }
  void operator()(cublasLtMatrixLayoutOpaque_t* d) const { cublasLtMatrixLayoutDestroy(d); }
  void operator()(cublasLtMatmulPreferenceOpaque_t* d) const { cublasLtMatmulPreferenceDestroy(d); }
};
using MatmulDescriptor = std::unique_ptr<cublasLtMatmulDescOpaque_t, Deleter>;
using MatrixLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Deleter>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Deleter>;

cudaDataType_t cuda_type(const KernelRequest& request, DataType type) {
  switch (type) {
    case DataType::Float32: return CUDA_R_32F;
    case DataType::Bfloat16: return CUDA_R_16BF;
    default: fail_type(request, type, "float and bfloat16");
  }
}

// Layout of the problem's row-major (rows, columns) matrices as the column-major transposes that cuBLAS sees. `which`:
// their part of the problem's steps and pitches.
MatrixLayout make_layout(cudaDataType_t type, int64_t rows, int64_t columns, const Problem& problem,
                         int64_t MatrixSteps::*which) {
  const int64_t batch = problem.batch, step = problem.steps.*which, pitch = problem.pitches.*which;
  cublasLtMatrixLayout_t layout = nullptr;
  CUBLAS_CHECK(
      cublasLtMatrixLayoutCreate(&layout, type, uint64_t(columns), uint64_t(rows), pitch > 0 ? pitch : columns));
  MatrixLayout owner(layout);
  if (batch > 1) {
    const auto count = int32_t(batch);
    CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    CUBLAS_CHECK(
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step)));
  }
  return owner;
}

template <typename Value>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)));
}

// y(m, n) += beta · c. c has strides c_row and c_column; a stride of 0 broadcasts c along rows or columns.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_matrix_kernel(int64_t m, int64_t n, float beta, const float* c, int64_t c_row, int64_t c_column, T* y) {
  for (int64_t i = thread_index(); i < m * n; i += thread_count()) {
    const int64_t row = i / n, column = i - row * n;
    y[i] = narrow<T>(widen(y[i]) + beta * c[row * c_row + column * c_column]);
  }
}

}  // namespace

void add_matrix(const KernelContext& c, const Problem& problem, int multiprocessors) {
  if (problem.addend == Addend::None) return;
  const bool rows = problem.addend == Addend::Column || problem.addend == Addend::Matrix;
  const bool columns = problem.addend == Addend::Row || problem.addend == Addend::Matrix;
  const int64_t c_row = !rows ? 0 : columns ? problem.n : 1, c_column = columns ? 1 : 0;
  const auto* addend = input<float>(c, size_t(problem.inputs.c));
  const unsigned blocks = blocks_for(problem.m * problem.n, multiprocessors);
  if (problem.out == DataType::Float32) {
    add_matrix_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(problem.m, problem.n, problem.beta, addend, c_row,
                                                             c_column, static_cast<float*>(c.outputs[0]));
  } else {
    add_matrix_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(problem.m, problem.n, problem.beta, addend, c_row,
                                                             c_column, static_cast<__nv_bfloat16*>(c.outputs[0]));
  }
  check_launch("gemm add C");
}

namespace {

// Products of no terms, and no products.
std::unique_ptr<Kernel> product_without_terms(const KernelRequest& request, const Problem& problem) {
  const int64_t elements = problem.products() * problem.m * problem.n;
  if (elements == 0) return make_kernel([](const KernelContext&) {});
  if (problem.k != 0) return nullptr;
  return make_kernel([=, processors = multiprocessors_of(request)](const KernelContext& c) {
    const size_t bytes = size_t(elements) * size_of(problem.out);
    const int summand = problem.inputs.summand;
    if (summand < 0) CUDA_CHECK(cudaMemsetAsync(c.outputs[0], 0, bytes, stream_of(c)));
    if (summand >= 0) {
      CUDA_CHECK(cudaMemcpyAsync(c.outputs[0], c.inputs[summand], bytes, cudaMemcpyDefault, stream_of(c)));
    }
    add_matrix(c, problem, processors);
  });
}

ProductProblem described_product(const KernelRequest& request, const Problem& problem, bool bias) {
  return {.m = problem.m,
          .n = problem.n,
          .k = problem.k,
          .trans_a = problem.trans_a,
          .trans_b = problem.trans_b,
          .tf32 = request.math == MathMode::Tf32 && problem.in == DataType::Float32,
          .bias = bias,
          .in = problem.in,
          .out = problem.out,
          .pitches = {problem.pitches.a, problem.pitches.b, problem.pitches.y},
          .workspace_limit = std::min<int64_t>(request.workspace_limit, 32 << 20),
          .concurrent = std::min(request.concurrent, kMostTimedTogether)};
}

class CublasProduct final : public Kernel {
 public:
  // `bias`: C, one number a column, is added in the epilogue.
  CublasProduct(const KernelRequest& request, const Problem& problem, bool bias)
      : problem_(problem), context_(cuda_context(request)), bias_in_epilogue_(bias) {
    timed_ = !request.deterministic && problem.batch == 1 && problem.calls.size() == 1 &&
             problem.m * problem.n * problem.k >= kWorthTiming;
    const cudaDataType_t in = cuda_type(request, problem.in), out = cuda_type(request, problem.out);
    const ProductProblem described = described_product(request, problem, bias);
    make_descriptor(described.tf32);
    const auto [b_rows, b_columns] =
        problem.trans_b ? std::pair(problem.n, problem.k) : std::pair(problem.k, problem.n);
    const auto [a_rows, a_columns] =
        problem.trans_a ? std::pair(problem.k, problem.m) : std::pair(problem.m, problem.k);
    left_ = make_layout(in, b_rows, b_columns, problem, &MatrixSteps::b);
    right_ = make_layout(in, a_rows, a_columns, problem, &MatrixSteps::a);
    result_ = make_layout(out, problem.m, problem.n, problem, &MatrixSteps::y);
    if (bias) {  // the bias of a bfloat16 result has to be bfloat16 too
      set(descriptor_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out);
    }
    matrix_in_product_ =
        problem.addend == Addend::Matrix && problem.out == DataType::Float32 && problem.inputs.summand < 0;
    choose_algorithm(described);
  }

  bool found() const { return algorithm_.found; }
  int64_t workspace_bytes() const override { return bias_offset() + bias_bytes(); }
  std::string engine() const override { return algorithm_.name(); }

  void run(const KernelContext& c) const override {
    const ProductInputs& at = problem_.inputs;
    const auto* addend = at.c < 0 ? nullptr : input<float>(c, size_t(at.c));
    require_alignment("gemm", {c.inputs[at.a], c.inputs[at.b], c.outputs[0], matrix_in_product_ ? addend : nullptr,
                               at.summand < 0 ? nullptr : c.inputs[at.summand]});
    if (bias_in_epilogue_) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_from(c, addend));
    for (const MatrixSteps& call : problem_.calls) multiply(c, call, addend);
    if (!bias_in_epilogue_ && !matrix_in_product_) add_matrix(c, problem_, context_.multiprocessors);
  }

 private:
  void multiply(const KernelContext& c, const MatrixSteps& call, const float* addend) const {
    const auto at = [](const void* base, int64_t elements, DataType type) {
      return static_cast<const char*>(base) + elements * int64_t(size_of(type));
    };
    void* y = static_cast<char*>(c.outputs[0]) + call.y * int64_t(size_of(problem_.out));
    const ProductInputs& from = problem_.inputs;
    const Joined joined = from.summand >= 0    ? Joined{c.inputs[from.summand], problem_.summand_factor}
                          : matrix_in_product_ ? Joined{addend, problem_.beta}
                                               : Joined{};
    launch(algorithm_, at(c.inputs[from.a], call.a, problem_.in), at(c.inputs[from.b], call.b, problem_.in), joined, y,
           c.workspace, stream_of(c));
  }

  // A matrix of Y's type that joins the product, and its factor; null: there is none.
  struct Joined {
    const void* matrix = nullptr;
    float factor = 0;
  };

  void launch(const ProductAlgorithm& algorithm, const void* a, const void* b, const Joined& joined, void* y,
              void* workspace, cudaStream_t stream) const {
    const float alpha = problem_.alpha;
    const HandlePool::Lease handles(context_.handles);
    CUBLAS_CHECK(cublasLtMatmul(handles->cublas_lt, descriptor_.get(), &alpha, b, left_.get(), a, right_.get(),
                                &joined.factor, joined.matrix != nullptr ? joined.matrix : y, result_.get(), y,
                                result_.get(), &algorithm.algorithm, workspace, size_t(algorithm.workspace_bytes),
                                stream));
  }

  // Offset in the workspace of the bias as bfloat16, after cuBLASLt's part.
  int64_t bias_offset() const { return (algorithm_.workspace_bytes + 15) / 16 * 16; }
  int64_t bias_bytes() const {
    return bias_in_epilogue_ && problem_.out == DataType::Bfloat16 ? problem_.n * int64_t(size_of(problem_.out)) : 0;
  }

  const void* bias_from(const KernelContext& c, const float* addend) const {
    if (bias_bytes() == 0) return addend;
    auto* bias = reinterpret_cast<__nv_bfloat16*>(static_cast<char*>(c.workspace) + bias_offset());
    launch_elementwise("gemm bias", stream_of(c), context_.multiprocessors, problem_.n, Same(), bias, addend);
    return bias;
  }

  // Alignment in bytes, at most 16, that all matrices of an operand have. Operands themselves are aligned to 16.
  uint32_t alignment(int64_t MatrixSteps::*operand, DataType type) const {
    int64_t all = 16 | problem_.steps.*operand * int64_t(size_of(type));
    for (const MatrixSteps& call : problem_.calls) all |= call.*operand * int64_t(size_of(type));
    return uint32_t(all & -all);
  }

  void make_descriptor(bool tf32) {
    cublasLtMatmulDesc_t descriptor = nullptr;
    CUBLAS_CHECK(
        cublasLtMatmulDescCreate(&descriptor, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    descriptor_.reset(descriptor);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, problem_.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSB, problem_.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  }

  // Takes the heuristics' first algorithm for the operands' alignment, or the fastest one if timed_.
  void choose_algorithm(const ProductProblem& described) {
    cublasLtMatmulPreference_t preference = nullptr;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const Preference owner(preference);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(described.workspace_limit));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(&MatrixSteps::b, problem_.in));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(&MatrixSteps::a, problem_.in));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(&MatrixSteps::y, problem_.out));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(&MatrixSteps::y, problem_.out));
    const ProductDescription description = {descriptor_.get(), left_.get(), right_.get(), result_.get(), preference};
    if (timed_) {
      const auto run = [&](const ProductAlgorithm& algorithm, const ConvolutionCall& with) {
        if (bias_in_epilogue_) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, with.bias);
        launch(algorithm, with.a, with.b, {}, with.result, with.workspace, with.stream);
      };
      algorithm_ = fastest_algorithm(context_, described, description, run);
    } else {
      algorithm_ = first_algorithm(context_, description);
    }
  }

  static constexpr int64_t kWorthTiming = 1 << 22;  // products of two numbers, in a product of matrices

  const Problem problem_;
  CudaContext& context_;
  MatmulDescriptor descriptor_;
  MatrixLayout left_, right_, result_;
  ProductAlgorithm algorithm_;
  const bool bias_in_epilogue_;
  bool timed_ = false, matrix_in_product_ = false;
};

// C joins the product if cuBLASLt takes it; elsewhere a kernel of ours adds it afterwards.
template <bool bias>
std::unique_ptr<Kernel> product_by_cublas(const KernelRequest& request, const Problem& problem) {
  if (bias && !(problem.addend == Addend::Row && problem.beta == 1)) return nullptr;
  auto kernel = std::make_unique<CublasProduct>(request, problem, bias);
  return kernel->found() ? std::move(kernel) : nullptr;
}

std::unique_ptr<Kernel> product_by_library(const KernelRequest& request, const Problem& problem) {
  auto kernel = product_by_cublas<true>(request, problem);
  return kernel ? std::move(kernel) : product_by_cublas<false>(request, problem);
}

// The problem as it is timed: one call with matrices that follow each other, and nothing added except for a bias.
struct TimedProduct {
  Problem problem;
  ProductProblem described;

  TimedProduct(const KernelRequest& request, const Problem& given) : problem(given) {
    const bool bias = given.addend == Addend::Row;
    if (!bias) problem.addend = Addend::None;
    problem.inputs = {.a = 0, .b = 1, .c = bias ? 2 : -1};
    problem.steps = {given.m * given.k, given.n * given.k, given.m * given.n};
    problem.calls = {{}};
    described = described_product(request, problem, bias);
    described.batch = given.batch;
  }
};

// Timed against cuBLASLt, without what is added except for a bias; deterministic runs have it by rule.
std::unique_ptr<Kernel> small_product_if_faster(const KernelRequest& request, const Problem& problem) {
  auto kernel = small_product(request, problem);
  if (!kernel || request.deterministic) return kernel;
  const TimedProduct timed(request, problem);
  const int64_t fastest = fastest_product(cuda_context(request), "small product 1", timed.described,
                                          {[&] { return small_product(request, timed.problem); },
                                           [&] { return product_by_library(request, timed.problem); }});
  return fastest == 0 ? std::move(kernel) : nullptr;
}

// The ways to pad are timed against each other and cuBLASLt with the rows as they are; deterministic runs have the
// first that is faster by rule.
std::unique_ptr<Kernel> padded_product_if_faster(const KernelRequest& request, const Problem& problem) {
  CudaContext& context = cuda_context(request);
  const std::vector<ProductPadding> paddings =
      proposed_paddings(context.model, problem, memory_for_padding(request), request.deterministic);
  if (paddings.empty()) return nullptr;
  if (request.deterministic) return padded_product(request, problem, paddings[0]);
  TimedProduct timed(request, problem);
  timed.described.workspace_limit = request.workspace_limit;
  std::vector<MakeProduct> ways;
  for (const ProductPadding& padding : paddings) {
    ways.push_back([&] { return padded_product(request, timed.problem, padding); });
  }
  ways.push_back([&] { return product_by_library(request, timed.problem); });
  const auto fastest = size_t(fastest_product(context, "padded product 1", timed.described, ways));
  return fastest < paddings.size() ? padded_product(request, problem, paddings[fastest]) : nullptr;
}

constexpr KernelEngine<Problem> kProductEngines[] = {
    {"no terms", product_without_terms},          {"few columns", product_of_few_columns},
    {"sums of few columns", sums_of_few_columns}, {"small product", small_product_if_faster},
    {"padded product", padded_product_if_faster}, {"cuBLASLt with the bias", product_by_cublas<true>},
    {"cuBLASLt", product_by_cublas<false>},
};

}  // namespace

std::unique_ptr<Kernel> library_product(const KernelRequest& request, const Problem& problem) {
  return product_by_cublas<false>(request, problem);
}

std::unique_ptr<Kernel> product_kernel(const KernelRequest& request, const Problem& problem) {
  if (auto kernel = first_kernel(kProductEngines, request, problem)) return kernel;
  throw RunError("node '" + request.node.name + "' (" + request.node.op->qualified_name() +
                 "): cuBLASLt has no algorithm for a product of " + std::to_string(problem.m) + " × " +
                 std::to_string(problem.k) + " and " + std::to_string(problem.k) + " × " + std::to_string(problem.n) +
                 " in " + std::string(name_of(problem.in)));
}

}  // namespace arbalest::cuda

namespace arbalest {

using namespace cuda;

namespace {

// Y = alpha · op(A) · op(B) + beta · C, C at input 2.
Problem problem_of(const KernelRequest& request) {
  using In = GemmInput;
  const Shape &a = request.inputs[In::A].shape, &y = request.outputs[0].shape;
  Problem problem = {.m = y[0],
                     .n = y[1],
                     .k = 0,
                     .trans_a = int_attribute(request.node, "transA") != 0,
                     .trans_b = int_attribute(request.node, "transB") != 0,
                     .in = request.inputs[In::A].dtype,
                     .out = request.outputs[0].dtype,
                     .alpha = float(float_attribute(request.node, "alpha")),
                     .beta = float(float_attribute(request.node, "beta"))};
  problem.k = problem.trans_a ? a[0] : a[1];
  if (request.has_input(In::C) && problem.beta != 0) {
    require_float(request, In::C, "a float C");
    problem.addend = addend_of(request.inputs[In::C].shape, problem.m, problem.n);
    if (problem.addend != Addend::None) problem.inputs.c = int(GemmInput::C);
  }
  return problem;
}

std::unique_ptr<Kernel> gemm(const KernelRequest& request) {
  return product_kernel(request, problem_of(request));
}

std::unique_ptr<Kernel> gemm_sum(const KernelRequest& request) {
  Problem problem = problem_of(request);
  problem.inputs.summand = GemmInput::Summand;
  return product_kernel(request, problem);
}

// With Y = alpha · op(A) · op(B): dB = alpha · op(A)ᵀ · dY, or its transpose if B enters transposed.
std::unique_ptr<Kernel> gemm_grad_b(const KernelRequest& request) {
  const Shape &db = request.outputs[0].shape, &dy = request.inputs[GemmGradBInput::dY].shape;
  const bool trans_a = int_attribute(request.node, "transA") != 0, trans_b = int_attribute(request.node, "transB") != 0;
  Problem problem = {.m = db[0],
                     .n = db[1],
                     .k = dy[0],
                     .trans_a = trans_b ? true : !trans_a,
                     .trans_b = trans_b ? trans_a : false,
                     .in = request.inputs[GemmGradBInput::A].dtype,
                     .out = request.outputs[0].dtype,
                     .alpha = float(float_attribute(request.node, "alpha"))};
  if (trans_b) problem.inputs = {.a = 1, .b = 0};
  return product_kernel(request, problem);
}

}  // namespace

void register_product_gemm_cuda(OpRegistry& registry) {
  registry.find("Gemm")->cuda = gemm;
  registry.find("arbalest.GemmSum")->cuda = gemm_sum;
  registry.find("arbalest.GemmGradB")->cuda = gemm_grad_b;
}

}  // namespace arbalest
