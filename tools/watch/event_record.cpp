// SPDX-License-Identifier: Apache-2.0
#include "tools/watch/event_record.h"

#include <array>
#include <bit>
#include <utility>

namespace arbalest {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kCastagnoli = 0x82f63b78;  // the polynomial, lowest bit first
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kCastagnoli : 0);
    table[i] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

template <typename Unsigned>
void append_little_endian(std::string& bytes, Unsigned value) {
  for (size_t i = 0; i < sizeof value; ++i) bytes += char(value >> 8 * i & 255);
}

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// A message in protobuf's wire format: each field is a key, which has its number and how it is written, and its value.
class Message {
 public:
  Message& whole(int field, uint64_t value) { return key(field, 0).varint(value); }
  Message& real(int field, double value) {
    append_little_endian(key(field, 1).bytes_, std::bit_cast<uint64_t>(value));
    return *this;
  }
  Message& single(int field, float value) {
    append_little_endian(key(field, 5).bytes_, std::bit_cast<uint32_t>(value));
    return *this;
  }
  Message& text(int field, std::string_view value) {
    key(field, 2).varint(value.size()).bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }

  const std::string& bytes() const { return bytes_; }

 private:
  Message& key(int field, int how) { return varint(uint64_t(field) << 3 | uint64_t(how)); }
  Message& varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += char(value | 128);
    bytes_ += char(value);
    return *this;
  }

  std::string bytes_;
};

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5.
Message event(double wall_time) {
  return std::move(Message().real(1, wall_time));
}

// Hyperparameters travel as the content of a plugin: Summary.value = 1; Value: tag = 1, tensor = 8, metadata = 9;
// SummaryMetadata: plugin_data = 1; PluginData: plugin_name = 1, content = 2. The tensor is an empty scalar of floats,
// TensorProto: dtype = 1 (1: float), tensor_shape = 2.
std::string hyperparameters_event(double wall_time, std::string_view tag, const Message& content) {
  const Message plugin = Message().text(1, "hparams").message(2, content);
  const Message metadata = Message().message(1, plugin);
  const Message tensor = Message().whole(1, 1).message(2, Message());
  const Message value = Message().text(1, tag).message(8, tensor).message(9, metadata);
  return event(wall_time).message(5, Message().message(1, value)).bytes();
}

// google.protobuf.Value: number_value = 2, string_value = 3, bool_value = 4.
Message value_of(const Hyperparameter& parameter) {
  Message value;
  if (const double* number = std::get_if<double>(&parameter)) value.real(2, *number);
  if (const std::string* text = std::get_if<std::string>(&parameter)) value.text(3, *text);
  if (const bool* flag = std::get_if<bool>(&parameter)) value.whole(4, *flag);
  return value;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ uint8_t(byte)) & 255];
  return ~crc;
}

std::string framed(std::string_view bytes) {
  std::string record;
  append_little_endian(record, uint64_t(bytes.size()));
  append_little_endian(record, masked_crc(record));
  record += bytes;
  append_little_endian(record, masked_crc(bytes));
  return record;
}

std::string version_event(double wall_time) {
  return event(wall_time).text(3, "brain.Event:2").bytes();
}

// Event: session_log = 7; SessionLog: status = 1 (1: start).
std::string restarted_event(double wall_time, int64_t step) {
  return event(wall_time).whole(2, uint64_t(step)).message(7, Message().whole(1, 1)).bytes();
}

// Value: tag = 1, simple_value = 2.
std::string scalars_event(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  Message summary;
  for (const auto& [tag, number] : scalars) summary.message(1, Message().text(1, tag).single(2, float(number)));
  return event(wall_time).whole(2, uint64_t(step)).message(5, summary).bytes();
}

// HParamsPluginData: session_start_info = 3; SessionStartInfo: hparams = 1 (a map: key = 1, value = 2),
// start_time_secs = 5.
std::string session_started_event(double wall_time,
                                  const std::vector<std::pair<std::string, Hyperparameter>>& parameters) {
  Message info;
  for (const auto& [name, parameter] : parameters) {
    info.message(1, Message().text(1, name).message(2, value_of(parameter)));
  }
  info.real(5, wall_time);
  return hyperparameters_event(wall_time, "_hparams_/session_start_info", Message().message(3, info));
}

// HParamsPluginData: session_end_info = 4; SessionEndInfo: status = 1 (1: success, 2: failure), end_time_secs = 2.
std::string session_ended_event(double wall_time, bool success) {
  const Message info = Message().whole(1, success ? 1 : 2).real(2, wall_time);
  return hyperparameters_event(wall_time, "_hparams_/session_end_info", Message().message(4, info));
}

}  // namespace arbalest
