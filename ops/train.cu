// CUDA kernel of arbalest.Sgd: one pass over the flat arenas of a replica.

#include "ops/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

struct SgdAttributes {
  float momentum, weight_decay;
  bool nesterov;
};

// (P) each; null where left out. Outputs may be the memory of their inputs (Op::aliases).
struct SgdArrays {
  const float *gradients, *weights, *velocity, *average, *averaged;
  float *new_weights, *new_velocity;
  __nv_bfloat16* lowered;
  float* restarted;

  bool all_aligned() const {
    return aligned(gradients) && aligned(weights) && aligned(velocity) && aligned(average) && aligned(averaged) &&
           aligned(new_weights) && aligned(new_velocity) && aligned(lowered) && aligned(restarted);
  }
};

template <int W>
__device__ void store_weights(const SgdArrays& a, int64_t at, const Pack<float, W>& w) {
  store(a.new_weights + at, w);
  if (a.lowered == nullptr) return;
  Pack<__nv_bfloat16, W> low;
#pragma unroll
  for (int k = 0; k < W; ++k) low.element[k] = narrow<__nv_bfloat16>(w.element[k]);
  store(a.lowered + at, low);
}

// PyTorch's rule: g ← g + λw; v ← mv + g; w ← w − γ(nesterov ? g + mv : v). Averaging: less correction · (w − average),
// of the w before; without a correction `average` is not read, since it may be being written.
template <int W, bool Averaging>
__device__ void update_pack(const SgdAttributes& sgd, const SgdArrays& a, float rate, float correction, int64_t at) {
  const Pack<float, W> gradient = load<W>(a.gradients + at);
  Pack<float, W> w = load<W>(a.weights + at), v = load<W>(a.velocity + at);
  Pack<float, W> average = w;
  if (Averaging && correction != 0.0f) average = load<W>(a.average + at);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const float pull = Averaging ? correction * (w.element[k] - average.element[k]) : 0.0f;
    const float g = gradient.element[k] + sgd.weight_decay * w.element[k];
    v.element[k] = sgd.momentum * v.element[k] + g;
    w.element[k] -= rate * (sgd.nesterov ? g + sgd.momentum * v.element[k] : v.element[k]);
    if (Averaging) w.element[k] -= pull;
  }
  store_weights<W>(a, at, w);
  store(a.new_velocity + at, v);
}

// The learner starts again from the average, and the average from what it has become.
template <int W>
__device__ void restart_pack(const SgdArrays& a, int64_t at) {
  const Pack<float, W> averaged = load<W>(a.averaged + at);
  store_weights<W>(a, at, averaged);
  store(a.new_velocity + at, Pack<float, W>{});
  if (a.restarted != nullptr) store(a.restarted + at, averaged);
}

template <int W, bool Averaging>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(int64_t count, SgdAttributes sgd, const StepScalars* scalars, SgdArrays a) {
  if (scalars->update == 0) return;
  const int64_t packs = count / W, rest = packs * W + thread_index();
  if (Averaging && scalars->restart != 0 && a.averaged != nullptr) {
    for (int64_t i = thread_index(); i < packs; i += thread_count()) restart_pack<W>(a, i * W);
    if (rest < count) restart_pack<1>(a, rest);
    return;
  }
  const float rate = scalars->learning_rate;
  const float correction = Averaging && a.average != nullptr ? scalars->correction : 0.0f;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    update_pack<W, Averaging>(sgd, a, rate, correction, i * W);
  }
  if (rest < count) update_pack<1, Averaging>(sgd, a, rate, correction, rest);
}

template <int W, bool Averaging>
void launch(int64_t count, int multiprocessors, const SgdAttributes& sgd, const SgdArrays& a, const KernelContext& c) {
  const unsigned blocks = blocks_for((count + W - 1) / W, multiprocessors);
  sgd_kernel<W, Averaging><<<blocks, kThreads, 0, stream_of(c)>>>(count, sgd, c.scalars, a);
  check_launch("sgd");
}

template <bool Averaging>
std::unique_ptr<Kernel> make_sgd(const KernelRequest& request) {
  const int64_t count = request.inputs[0].elements();
  const int multiprocessors = cuda_context(request).multiprocessors;
  const SgdAttributes sgd{float(float_attribute(request.node, "momentum")),
                          float(float_attribute(request.node, "weight_decay")),
                          int_attribute(request.node, "nesterov") != 0};
  const bool average = request.has_input(3), averaged = request.has_input(4);
  const bool lowered = request.has_output(2), restarted = request.has_output(3);
  return make_kernel([=](const KernelContext& c) {
    if (count == 0) return;
    const SgdArrays a{.gradients = input<float>(c, 0),
                      .weights = input<float>(c, 1),
                      .velocity = input<float>(c, 2),
                      .average = average ? input<float>(c, 3) : nullptr,
                      .averaged = averaged ? input<float>(c, 4) : nullptr,
                      .new_weights = output<float>(c, 0),
                      .new_velocity = output<float>(c, 1),
                      .lowered = lowered ? output<__nv_bfloat16>(c, 2) : nullptr,
                      .restarted = restarted ? output<float>(c, 3) : nullptr};
    a.all_aligned() ? launch<4, Averaging>(count, multiprocessors, sgd, a, c)
                    : launch<1, Averaging>(count, multiprocessors, sgd, a, c);
  });
}

}  // namespace

void register_train_cuda(OpRegistry& registry) {
  registry.find("arbalest.Sgd")->cuda = [](const KernelRequest& request) {
    if (request.inputs[1].dtype != DataType::Float32) fail_type(request, request.inputs[1].dtype, "float weights");
    return request.has_input(3) || request.has_input(4) ? make_sgd<true>(request) : make_sgd<false>(request);
  };
}

}  // namespace arbalest
