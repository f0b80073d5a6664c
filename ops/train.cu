// CUDA kernel of arbalest.Sgd: one pass over the flat arenas of a replica.

#include "ops/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

struct SgdAttributes {
  float momentum, weight_decay;
  bool nesterov;
};

// (P) each. PyTorch's rule: g ← g + λw; v ← mv + g; w ← w − γ(nesterov ? g + mv : v), γ from the step's scalars.
// new_weights and new_velocity may be the memory of weights and velocity; lowered may be null.
template <int W>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(int64_t count, SgdAttributes sgd, const StepScalars* scalars, const float* gradients,
               const float* weights, const float* velocity, float* new_weights, float* new_velocity,
               __nv_bfloat16* lowered) {
  const float rate = scalars->learning_rate;
  const auto update = [&](float gradient, float& w, float& v) {
    const float g = gradient + sgd.weight_decay * w;
    v = sgd.momentum * v + g;
    w -= rate * (sgd.nesterov ? g + sgd.momentum * v : v);
  };
  const int64_t packs = count / W;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    const Pack<float, W> g = load<W>(gradients + i * W);
    Pack<float, W> w = load<W>(weights + i * W), v = load<W>(velocity + i * W);
    Pack<__nv_bfloat16, W> low;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      update(g.element[k], w.element[k], v.element[k]);
      low.element[k] = narrow<__nv_bfloat16>(w.element[k]);
    }
    store(new_weights + i * W, w);
    store(new_velocity + i * W, v);
    if (lowered != nullptr) store(lowered + i * W, low);
  }
  const int64_t rest = packs * W + thread_index();
  if (rest < count) {
    float w = weights[rest], v = velocity[rest];
    update(gradients[rest], w, v);
    new_weights[rest] = w;
    new_velocity[rest] = v;
    if (lowered != nullptr) lowered[rest] = narrow<__nv_bfloat16>(w);
  }
}

}  // namespace

void register_train_cuda(OpRegistry& registry) {
  registry.find("arbalest.Sgd")->cuda = [](const KernelRequest& request) {
    const int64_t count = request.inputs[0].elements();
    const int multiprocessors = cuda_context(request).multiprocessors;
    const SgdAttributes sgd{float(float_attribute(request.node, "momentum")),
                            float(float_attribute(request.node, "weight_decay")),
                            int_attribute(request.node, "nesterov") != 0};
    if (request.inputs[1].dtype != DataType::Float32) fail_type(request, request.inputs[1].dtype, "float weights");
    const bool lowered = request.has_output(2);
    return make_kernel([=](const KernelContext& c) {
      if (count == 0) return;
      const float *g = input<float>(c, 0), *w = input<float>(c, 1), *v = input<float>(c, 2);
      float *new_w = output<float>(c, 0), *new_v = output<float>(c, 1);
      auto* low = lowered ? output<__nv_bfloat16>(c, 2) : nullptr;
      if (aligned(g) && aligned(w) && aligned(v) && aligned(new_w) && aligned(new_v) && aligned(low)) {
        sgd_kernel<4><<<blocks_for((count + 3) / 4, multiprocessors), kThreads, 0, stream_of(c)>>>(
            count, sgd, c.scalars, g, w, v, new_w, new_v, low);
      } else {
        sgd_kernel<1><<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(count, sgd, c.scalars, g, w, v,
                                                                                         new_w, new_v, low);
      }
      check_launch("sgd");
    });
  };
}

}  // namespace arbalest
