// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state that a replica keeps across iterations, on the host: made from initialisers, read from files, written to
// files.

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "executor/session/run_state.h"
#include "executor/weights/weights_file.h"
#include "io/formats/safetensors.h"
#include "passes/program.h"

namespace arbalest {

// Bytes of the value `base` (an arena, or a value of its own) as device memory holds it at the start. Every member
// comes from its initialiser, keyed by `seed` and the member's name. The same for any number of `threads`.
std::vector<std::byte> initial_content(const Graph& graph, ValueId base, uint64_t seed, int threads = 1);

// Whether initial_content() of the value is all zeros.
bool starts_as_zeros(const Graph& graph, ValueId base);

// The same numbers as bfloat16.
std::vector<std::byte> lowered_content(const std::vector<std::byte>& floats);

// Reads the tensors of `file` into the arena's bytes; what the file does not have stays. Returns the names used. Throws
// RunError as WeightsFile::read() does.
std::vector<std::string> adopt_tensors(const WeightsFile& file, const Graph& graph, ValueId base,
                                       std::vector<std::byte>& content);

// Throws as WeightsFile::check() does unless the file has what the arenas need. Says on standard error what of the file
// is not used, and what starts anew.
void check_weights(const WeightsFile& file, const Graph& graph, const std::vector<ValueId>& bases);

// A value that lies in an arena.
struct ArenaMember {
  std::string name;
  TensorType type;
  int64_t offset = 0;  // bytes
};

// The members of the arena `base`, in the order of their offsets; none for kNone.
std::vector<ArenaMember> arena_members(const Graph& graph, ValueId base);

// The members of an arena by name, in file order.
void append_tensors(TensorFile& file, const Graph& graph, ValueId base, const std::vector<std::byte>& content);

// A model's weights, statistics and frozen values, in file order.
void append_model(TensorFile& file, const Loop& training, const ModelState& model);

// Elements of all parameters of one replica that are trained.
int64_t parameter_count(const Graph& graph);

// True if no element of an array is infinite or not a number; always true for types other than float and double.
bool all_finite(DataType type, std::span<const std::byte> content);

}  // namespace arbalest
