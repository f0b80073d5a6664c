// SPDX-License-Identifier: Apache-2.0
#pragma once
// TensorBoard's event files: records in TFRecord's framing, each an `Event` of TensorFlow's event.proto in protobuf's
// wire format. Writes only what TensorBoard needs for scalars and hyperparameters, without a library.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace arbalest {

using Hyperparameter = std::variant<double, std::string, bool>;

// Castagnoli's cyclic redundancy check of all bytes (RFC 3720).
uint32_t crc32c(std::string_view bytes);

// A record: length, its check, the bytes, theirs. Checks are rotated and shifted ("masked") as TFRecord wants them.
std::string framed(std::string_view bytes);

// Events, not yet framed. `wall_time`: seconds since 1970.
std::string version_event(double wall_time);  // the first of a file
// A run goes on: discards events written earlier for this step and later ones.
std::string restarted_event(double wall_time, int64_t step);
std::string scalars_event(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
std::string session_started_event(double wall_time,
                                  const std::vector<std::pair<std::string, Hyperparameter>>& parameters);
std::string session_ended_event(double wall_time, bool success);

}  // namespace arbalest
