// SPDX-License-Identifier: Apache-2.0
#pragma once
// How arbalest.MixImages mixes a sample with the one before it in the batch, the same on CPUs and GPUs. Mixup (Zhang et
// al., ICLR 2018) blends whole images, CutMix (Yun et al., ICCV 2019) replaces a rectangle. Draws depend on the seed,
// the node's name, the epoch and the position of the sample, or of the batch's first sample. They are made in double so
// that they are the same everywhere.

#include <cmath>
#include <string>

#include "base/host_device.h"
#include "base/random.h"
#include "graph/graph.h"
#include "graph/kernel.h"
#include "ops/data/box.h"

namespace arbalest {

struct MixImagesInput {
  enum : size_t { Image, Label };
};
struct MixImagesOutput {
  enum : size_t { Mixed, Rows };
};

// The settings of one node.
struct Mixing {
  int64_t batch = 0;
  int height = 0, width = 0;     // of the images
  double mixup = 0, cutmix = 0;  // α of the Beta distribution that λ is drawn from; 0: never
  double to_cutmix = 0;          // probability of CutMix if both are on
  double probability = 0;        // that a sample is mixed at all
  bool per_sample = false;       // whether each sample draws for itself, or the batch for all
  uint64_t name_hash = 0;

  Mixing() = default;
  Mixing(const Node& node, int64_t batch, int64_t height, int64_t width);  // of a node whose attributes are checked

  ARBALEST_HOST_DEVICE int64_t partner(int64_t sample) const { return sample == 0 ? batch - 1 : sample - 1; }
};

// The words that a sample's mix is made of.
class MixDraws {
 public:
  enum Draw : int { kChoices = 0, kFirstGamma = 1, kSecondGamma = 9, kDraws = 32 };

  ARBALEST_HOST_DEVICE MixDraws(const Mixing& mixing, const StepScalars& scalars, int64_t sample)
      : key_(random_key(scalars.seed, mixing.name_hash)),
        epoch_(scalars.epoch),
        position_(scalars.position + uint64_t(mixing.per_sample ? sample : 0)) {}

  ARBALEST_HOST_DEVICE Random4 operator()(int draw) const {
    return philox(key_, epoch_, position_ * kDraws + uint64_t(draw));
  }

 private:
  uint64_t key_, epoch_, position_;
};

// The logarithm of a number from the gamma distribution of shape α, by Marsaglia and Tsang ("A simple method for
// generating gamma variables", 2000). Each of eight tries succeeds with a probability above 0.95; if none does, it
// is near the mean. Below 1 it is that of α + 1 times a uniform number to the power of 1 / α.
ARBALEST_HOST_DEVICE inline double log_gamma_number(const MixDraws& draws, int first_draw, double alpha) {
  constexpr int kTries = 8;
  constexpr double kTurn = 6.283185307179586;
  const auto above_zero = [](uint32_t word) { return (double(word) + 0.5) * 0x1p-32; };
  const double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  const double power = alpha < 1 ? std::log(above_zero(draws(first_draw).word[3])) / alpha : 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const Random4 draw = draws(first_draw + attempt);
    const double normal =
        std::sqrt(-2 * std::log(above_zero(draw.word[0]))) * std::cos(kTurn * above_zero(draw.word[1]));
    const double root = 1 + c * normal;
    if (!(root > 0)) continue;
    const double v = root * root * root, bound = 0.5 * normal * normal + d * (1 - v + std::log(v));
    if (std::log(above_zero(draw.word[2])) < bound) return std::log(d * v) + power;
  }
  return std::log(d) + power;
}

// Draws from Beta(α, α): the share of one gamma number in the sum of two.
ARBALEST_HOST_DEVICE inline double beta_number(const MixDraws& draws, double alpha) {
  const double first = log_gamma_number(draws, MixDraws::kFirstGamma, alpha);
  const double second = log_gamma_number(draws, MixDraws::kSecondGamma, alpha);
  return 1 / (1 + std::exp(second - first));
}

// The mix of one sample. Its label is λ of its own and 1 − λ of its partner's. Its image is λ times its own and 1 − λ
// times its partner's, or its own with the partner's pixels in the box.
struct Mix {
  double own = 1;  // λ
  bool cuts = false;
  Box box;

  ARBALEST_HOST_DEVICE Mix(const Mixing& mixing, const StepScalars& scalars, int64_t sample) {
    const MixDraws draws(mixing, scalars, sample);
    const Random4 choices = draws(MixDraws::kChoices);
    if (!(mixing.mixup > 0 || mixing.cutmix > 0) || !(uniform(choices.word[0]) < mixing.probability)) return;
    cuts = mixing.cutmix > 0 && (!(mixing.mixup > 0) || uniform(choices.word[1]) < mixing.to_cutmix);
    own = beta_number(draws, cuts ? mixing.cutmix : mixing.mixup);
    if (!cuts) return;
    // A box of 1 − λ of the area about any pixel, cut off at the image's edges; λ is what is left of the own image.
    const double half = 0.5 * std::sqrt(1 - own);
    const int row = int(below(choices.word[2], uint32_t(mixing.height))), rows = int(half * mixing.height);
    const int column = int(below(choices.word[3], uint32_t(mixing.width))), columns = int(half * mixing.width);
    box.top = row > rows ? row - rows : 0;
    box.left = column > columns ? column - columns : 0;
    box.height = (row + rows < mixing.height ? row + rows : mixing.height) - box.top;
    box.width = (column + columns < mixing.width ? column + columns : mixing.width) - box.left;
    own = 1 - double(box.height) * box.width / (double(mixing.height) * mixing.width);
  }
};

}  // namespace arbalest
