// SPDX-License-Identifier: Apache-2.0
#pragma once
// Facts that files of weights keep along with them: entries of safetensors' metadata, arrays of strings in JSON.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace arbalest {

using Metadata = std::map<std::string, std::string>;  // of TensorFile

// No entry if there are no names. Bytes that are no UTF-8 are replaced.
void put_class_names(Metadata& metadata, const std::vector<std::string>& names);

// None if there is no such entry, or one of another program's.
std::vector<std::string> class_names_in(const Metadata& metadata);

// The first class that differs between those of a file of weights and `names`: "class 2 was 'two', and is 'due'". "" if
// none differs, or one side has no names. A model distinguishes classes by their numbers alone, so other names, or
// another order of them, probably come from another data set.
std::string other_classes(const std::vector<std::string>& trained, const std::vector<std::string>& names);

// The run's changes to its graph's file, as apply_override() takes it.
void put_overrides(Metadata& metadata, const std::vector<std::string>& overrides);
// None if there is no such entry: an older file, or one of another program's.
std::optional<std::vector<std::string>> overrides_in(const Metadata& metadata);

// A number of the run by which its model is judged again: how many samples that cannot be read it passed over at most
// (skip_bad), and its seed, from which some sources draw their samples (seed).
void put_number(Metadata& metadata, const std::string& name, uint64_t number);
// None if there is no such entry, or one that is no number.
std::optional<uint64_t> number_in(const Metadata& metadata, const std::string& name);

}  // namespace arbalest
