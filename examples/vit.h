// SPDX-License-Identifier: Apache-2.0
#pragma once
// ViT-S/16 for ImageNet in the C++ DSL: the graph of examples/vit_s16.onnxtxt.

#include <cstdint>
#include <string>
#include <vector>

#include "examples/imagenet.h"

namespace arbalest {

inline Tensor token_linear(Tensor x, int64_t units) {
  return linear(x, {.units = units, .axis = -1, .init = "normal:0.02"});
}

// Self-attention over tokens (N, T, 384) with 6 heads of 64: softmax(Q Kᵀ / 8) V for each head, then a linear
// projection of all heads.
inline Tensor attention(Tensor x) {
  std::vector<Tensor> heads = split(token_linear(x, 3 * 384), 2, 3);
  for (Tensor& each : heads) each = reshape(each, {0, 0, 6, 64});
  const Tensor queries = transpose(heads[0], {0, 2, 1, 3}), keys = transpose(heads[1], {0, 2, 3, 1}),
               values = transpose(heads[2], {0, 2, 1, 3});
  const Tensor scores = matmul(queries * x.model().constant(0.125), keys);
  const Tensor attended = matmul(softmax(scores), values);
  return token_linear(reshape(transpose(attended, {0, 2, 1, 3}), {0, 0, 384}), 384);
}

// A transformer block: attention and a two-layer MLP per token, each with a residual connection. Stochastic depth
// leaves only the residual connection for a share `dropped` of the samples.
inline Tensor encoder(Tensor x, double dropped) {
  const Tensor h = stochastic_depth(attention(layer_norm(x, {.epsilon = 1e-6})), dropped) + x;
  const Tensor wide = gelu(token_linear(layer_norm(h, {.epsilon = 1e-6}), 1536));
  return stochastic_depth(token_linear(wide, 384), dropped) + h;
}

inline void build_vit_s16(Model& model, const std::string& source) {
  constexpr int kBlocks = 12;
  auto [x, label] = imagenet(model, source, 64);
  x = transpose(conv(x, {.filters = 384, .kernel = 16, .stride = 16, .pad = 0}), {0, 2, 3, 1});
  x = class_token(reshape(x, {0, -1, 384}), 1e-6).named("classed");
  x = position_embedding(x).named("h0");
  for (int i = 0; i < kBlocks; ++i) x = encoder(x, dropped_share(0.1, i, kBlocks - 1));
  x = slice(layer_norm(x, {.epsilon = 1e-6}), 1, 0, 1);  // the class token
  train_classifier(linear(x, {.units = 1000, .init = "normal:0.02"}).named("logits"), label,
                   {.lr = 6.25e-5,
                    .weight_decay = 0.05,
                    .schedule = "cosine",
                    .warmup = 5,
                    .epochs = 300,
                    .lr_end = 1e-6,
                    .optimizer = "adamw",
                    .decay_norms = false,
                    .no_decay = {"h0.weight", "classed.weight"}},
                   {.label_smoothing = 0.1});
}

}  // namespace arbalest
