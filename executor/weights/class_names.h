#pragma once
// What classes are called, as files of weights keep it: an entry of safetensors' metadata, an array of strings in JSON.

#include <map>
#include <string>
#include <vector>

namespace arbalest {

using Metadata = std::map<std::string, std::string>;  // of TensorFile

// No entry where there are no names. Bytes that are no UTF-8 are replaced.
void put_class_names(Metadata& metadata, const std::vector<std::string>& names);

// None where there is no such entry, or one of another program's.
std::vector<std::string> class_names_in(const Metadata& metadata);

}  // namespace arbalest
