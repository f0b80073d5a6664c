// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products of matrices of few columns and very many rows on CUDA, such as those across an attention's heads: what they
// read and write takes longer than what they multiply, and matrix units would multiply zeros for the most part.

#include "ops/product/products.h"

namespace arbalest::cuda {

// A (M,K) of many rows times B (K,N), with a bias or without. nullptr: it takes other problems.
std::unique_ptr<Kernel> product_of_few_columns(const KernelRequest& request, const Problem& problem);

// Aᵀ (M,K) times B (K,N), sums over many rows, in a fixed order. nullptr: it takes other problems.
std::unique_ptr<Kernel> sums_of_few_columns(const KernelRequest& request, const Problem& problem);

}  // namespace arbalest::cuda
