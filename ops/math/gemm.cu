// Gemm and arbalest.GemmGradB on CUDA: cuBLASLt's matrix product, with the bias in its epilogue where the library takes
// it. cuBLAS is column-major, so a row-major product Y = A·B is computed as Yᵀ = Bᵀ·Aᵀ with the operands swapped.

#include <type_traits>

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

struct Deleter {
  void operator()(cublasLtMatmulDescOpaque_t* d) const { cublasLtMatmulDescDestroy(d); }
  void operator()(cublasLtMatrixLayoutOpaque_t* d) const { cublasLtMatrixLayoutDestroy(d); }
  void operator()(cublasLtMatmulPreferenceOpaque_t* d) const { cublasLtMatmulPreferenceDestroy(d); }
};
using MatmulDescriptor = std::unique_ptr<cublasLtMatmulDescOpaque_t, Deleter>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Deleter>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Deleter>;

cudaDataType_t cuda_type(const KernelRequest& request, DataType type) {
  switch (type) {
    case DataType::Float32: return CUDA_R_32F;
    case DataType::Bfloat16: return CUDA_R_16BF;
    default: fail_type(request, type, "float and bfloat16");
  }
}

// Of a row-major (rows, columns) matrix, as the column-major transpose that cuBLAS sees.
Layout make_layout(cudaDataType_t type, int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, type, uint64_t(columns), uint64_t(rows), columns));
  return Layout(layout);
}

template <typename Value>
void set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)));
}

// y(m, n) += beta · c, where c is (m, n), or (n) with c_stride = 0.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    add_matrix_kernel(int64_t m, int64_t n, float beta, const float* c, int64_t c_stride, T* y) {
  for (int64_t i = thread_index(); i < m * n; i += thread_count()) {
    const int64_t row = i / n, column = i - row * n;
    y[i] = narrow<T>(widen(y[i]) + beta * c[row * c_stride + column]);
  }
}

// Y (M,N) = alpha · op(A) · op(B) [+ beta · C].
struct Problem {
  int64_t m, n, k;
  bool trans_a, trans_b;
  DataType in, out;
  float alpha = 1, beta = 0;
  enum class Addend : uint8_t { None, Row, Matrix } addend = Addend::None;  // C's shape: (N) or (M,N), of floats
};

class GemmKernel final : public Kernel {
 public:
  // `a`, `b`, `c`: which inputs the operands are; c < 0 where there is none.
  GemmKernel(const KernelRequest& request, const Problem& problem, int a, int b, int c)
      : problem_(problem), a_(a), b_(b), c_(c), context_(cuda_context(request)) {
    if (empty()) return;
    const cudaDataType_t in = cuda_type(request, problem.in), out = cuda_type(request, problem.out);
    const bool tf32 = request.math == MathMode::Tf32 && problem.in == DataType::Float32;
    make_descriptor(tf32);
    const auto [b_rows, b_columns] =
        problem.trans_b ? std::pair(problem.n, problem.k) : std::pair(problem.k, problem.n);
    const auto [a_rows, a_columns] =
        problem.trans_a ? std::pair(problem.k, problem.m) : std::pair(problem.m, problem.k);
    left_ = make_layout(in, b_rows, b_columns);
    right_ = make_layout(in, a_rows, a_columns);
    result_ = make_layout(out, problem.m, problem.n);

    // C joins the product where cuBLASLt takes it; elsewhere a kernel of ours adds it afterwards.
    if (problem.addend == Problem::Addend::Row && problem.beta == 1) {
      set(descriptor_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
      bias_in_epilogue_ = choose_algorithm(request.workspace_limit);
      if (!bias_in_epilogue_) make_descriptor(tf32);
    }
    matrix_in_product_ = problem.addend == Problem::Addend::Matrix && problem.out == DataType::Float32;
    if (!bias_in_epilogue_ && !choose_algorithm(request.workspace_limit)) {
      throw RunError("node '" + request.node.name + "' (" + request.node.op->qualified_name() +
                     "): cuBLASLt has no algorithm for a product of " + std::to_string(problem.m) + " × " +
                     std::to_string(problem.k) + " and " + std::to_string(problem.k) + " × " +
                     std::to_string(problem.n) + " in " + std::string(name_of(problem.in)));
    }
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const KernelContext& c) const override {
    if (problem_.m == 0 || problem_.n == 0) return;
    void* y = c.outputs[0];
    const auto* addend = c_ < 0 ? nullptr : input<float>(c, size_t(c_));
    if (problem_.k == 0) {
      CUDA_CHECK(cudaMemsetAsync(y, 0, size_t(problem_.m * problem_.n) * size_of(problem_.out), stream_of(c)));
    } else {
      require_alignment("gemm", {c.inputs[a_], c.inputs[b_], y, matrix_in_product_ ? addend : nullptr});
      if (bias_in_epilogue_) set(descriptor_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, addend);
      const float alpha = problem_.alpha, beta = matrix_in_product_ ? problem_.beta : 0.0f;
      CUBLAS_CHECK(cublasLtMatmul(context_.cublas_lt, descriptor_.get(), &alpha, c.inputs[b_], left_.get(),
                                  c.inputs[a_], right_.get(), &beta, matrix_in_product_ ? addend : y, result_.get(), y,
                                  result_.get(), &algorithm_, c.workspace, size_t(workspace_bytes_), stream_of(c)));
      if (bias_in_epilogue_ || matrix_in_product_) return;
    }
    if (problem_.addend == Problem::Addend::None) return;
    const int64_t stride = problem_.addend == Problem::Addend::Row ? 0 : problem_.n;
    const unsigned blocks = blocks_for(problem_.m * problem_.n, context_.multiprocessors);
    if (problem_.out == DataType::Float32) {
      add_matrix_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(problem_.m, problem_.n, problem_.beta, addend, stride,
                                                               static_cast<float*>(y));
    } else {
      add_matrix_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(problem_.m, problem_.n, problem_.beta, addend, stride,
                                                               static_cast<__nv_bfloat16*>(y));
    }
    check_launch("gemm add C");
  }

 private:
  void make_descriptor(bool tf32) {
    cublasLtMatmulDesc_t descriptor = nullptr;
    CUBLAS_CHECK(
        cublasLtMatmulDescCreate(&descriptor, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    descriptor_.reset(descriptor);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, problem_.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(descriptor, CUBLASLT_MATMUL_DESC_TRANSB, problem_.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  }

  bool empty() const { return problem_.m == 0 || problem_.n == 0 || problem_.k == 0; }

  // The heuristics' first algorithm for operands aligned to 16 bytes; false if there is none.
  bool choose_algorithm(int64_t workspace_limit) {
    cublasLtMatmulPreference_t preference = nullptr;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const Preference owner(preference);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(std::min<int64_t>(workspace_limit, 32 << 20)));
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(attribute, uint32_t{16});
    }
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(context_.cublas_lt, descriptor_.get(), left_.get(), right_.get(), result_.get(),
                                       result_.get(), preference, 1, &found, &count);
    if (status != CUBLAS_STATUS_SUCCESS || count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return false;
    algorithm_ = found.algo;
    workspace_bytes_ = int64_t(found.workspaceSize);
    return true;
  }

  Problem problem_;
  int a_, b_, c_;
  CudaContext& context_;
  MatmulDescriptor descriptor_;
  Layout left_, right_, result_;
  cublasLtMatmulAlgo_t algorithm_ = {};
  int64_t workspace_bytes_ = 0;
  bool bias_in_epilogue_ = false, matrix_in_product_ = false;
};

std::unique_ptr<Kernel> gemm(const KernelRequest& request) {
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
  const bool has_c = request.has_input(2) && problem.beta != 0;
  if (has_c) {
    if (request.inputs[2].dtype != DataType::Float32) fail_type(request, request.inputs[2].dtype, "a float C");
    const Shape& c = request.inputs[2].shape;
    const bool row = c.size() == 1 || (c[0] == 1 && problem.m != 1);
    problem.addend = row ? Problem::Addend::Row : Problem::Addend::Matrix;
  }
  return std::make_unique<GemmKernel>(request, problem, 0, 1, has_c ? 2 : -1);
}

// With Y = alpha · op(A) · op(B): dB = alpha · op(A)ᵀ · dY, or its transpose where B enters transposed.
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

void register_math_gemm_cuda(OpRegistry& registry) {
  registry.find("Gemm")->cuda = gemm;
  registry.find("arbalest.GemmGradB")->cuda = gemm_grad_b;
}

}  // namespace arbalest
