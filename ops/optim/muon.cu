// SPDX-License-Identifier: Apache-2.0

// CUDA kernel of arbalest.Muon: velocities and directions of all elements, then the matrices among the directions are
// made orthogonal, then the pass that all optimisers have.

#include "ops/optim/orthogonal/orthogonal.cuh"
#include "ops/optim/orthogonal/turns.h"
#include "ops/optim/update.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// directions (P); they do not overlap the arrays of `a`.
template <int W>
__device__ void direct(float momentum, bool nesterov, float clip, const UpdateArrays<1>& a, float* directions,
                       int64_t at) {
  const Pack<float, W> gradient = load<W>(a.gradients + at);
  Pack<float, W> velocity = load<W>(a.slots[0] + at), direction;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    // Rounded by itself: a factor of 1 changes no bit.
    const float g = __fmul_rn(clip, gradient.element[k]);
    velocity.element[k] = momentum * velocity.element[k] + g;
    direction.element[k] = nesterov ? g + momentum * velocity.element[k] : velocity.element[k];
  }
  store(a.new_slots[0] + at, velocity);
  store(directions + at, direction);
}

template <int W>
__global__ void __launch_bounds__(kThreads)
    direct_kernel(int64_t count, float momentum, bool nesterov, Idle idle, UpdateArrays<1> a, float* directions) {
  if (idle()) return;
  const float clip = a.clip != nullptr ? *a.clip : 1.0f;
  const int64_t packs = count / W, rest = packs * W + thread_index();
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    direct<W>(momentum, nesterov, clip, a, directions, i * W);
  }
  if (rest < count) direct<1>(momentum, nesterov, clip, a, directions, rest);
}

std::vector<MatrixPlace> places_of(const Node& update) {
  const std::vector<int64_t> matrices = ints_attribute(update, "matrices");
  std::vector<MatrixPlace> places;
  for (size_t k = 0; 3 * k < matrices.size(); ++k) {
    const int64_t rows = matrices[3 * k], columns = matrices[3 * k + 1];
    if (!is_muon_matrix(rows, columns)) continue;
    places.push_back({int(k), int(rows), int(columns), float(muon_scale(rows, columns, matrices[3 * k + 2] != 0))});
  }
  return places;
}

class MuonDirections {
 public:
  explicit MuonDirections(const KernelRequest& request)
      : momentum_(float(float_attribute(request.node, "momentum"))),
        nesterov_(int_attribute(request.node, "nesterov") != 0),
        count_(request.inputs[UpdateOperands::kWeights].elements()),
        multiprocessors_(multiprocessors_of(request)),
        matrices_(request, places_of(request.node)) {}

  int64_t workspace_bytes() const { return directions_bytes() + matrices_.workspace_bytes(); }

  // Moves velocities. Returns the arrays for the pass over all elements, with directions for gradients.
  UpdateArrays<1> run(UpdateArrays<1> a, const KernelContext& c) const {
    auto* directions = static_cast<float*>(c.workspace);
    const Idle idle{c.scalars, a.clip, a.averaged != nullptr};
    if (a.all_aligned()) {
      direct_kernel<4><<<blocks_for((count_ + 3) / 4, multiprocessors_), kThreads, 0, stream_of(c)>>>(
          count_, momentum_, nesterov_, idle, a, directions);
    } else {
      direct_kernel<1><<<blocks_for(count_, multiprocessors_), kThreads, 0, stream_of(c)>>>(
          count_, momentum_, nesterov_, idle, a, directions);
    }
    check_launch("directions");
    matrices_.run({directions, a.tensors, idle}, static_cast<char*>(c.workspace) + directions_bytes(), stream_of(c));
    a.gradients = directions;
    a.slots[0] = a.new_slots[0];
    return a;
  }

 private:
  int64_t directions_bytes() const { return (count_ * int64_t(sizeof(float)) + 255) / 256 * 256; }

  float momentum_;
  bool nesterov_;
  int64_t count_;
  int multiprocessors_;
  OrthogonalMatrices matrices_;
};

// w ← w − γ(λw + direction), once the velocity has moved.
struct MuonStep {
  static constexpr int kSlots = 1;
  using Directions = MuonDirections;

  static MuonStep of(const Node&) { return {}; }
  __device__ MuonStep at(int32_t) const { return *this; }
  __device__ void operator()(float rate, float decay, float direction, float& w, float (&)[kSlots]) const {
    w -= rate * (decay * w + direction);
  }
};

}  // namespace

void register_optim_muon_cuda(OpRegistry& registry) {
  registry.find("arbalest.Muon")->cuda = update_cuda<MuonStep>;
}

}  // namespace arbalest
