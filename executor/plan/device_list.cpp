// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/device_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/number.h"
#include "base/setting.h"

namespace arbalest {
namespace {

constexpr int kMostDevices = 1024;  // indices below this: a typing error makes no plan of millions

class DeviceList {
 public:
  explicit DeviceList(std::string_view text) : text_(text) {}

  std::vector<PlanDevice> parse() {
    for (size_t at = 0; at <= text_.size();) {
      const size_t comma = std::min(text_.find(',', at), text_.size());
      item(text_.substr(at, comma - at));
      at = comma + 1;
    }
    return std::move(devices_);
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& hint = "") const {
    throw GraphError(fmt::format("{}: {}; expected a list such as cpu:0-1, cuda:0 or cuda:0,2-3, or auto{}",
                                 set_to(SettingKey::Devices, fmt::format("'{}'", text_)), what, hint));
  }

  void item(std::string_view text) {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    if (text.empty()) fail("found an empty item");
    const size_t colon = text.find(':');
    const bool bare_number = colon == text.npos && text.front() >= '0' && text.front() <= '9';
    if (bare_number) {
      if (!kind_) fail(fmt::format("found '{}' before any kind of device", text));
      return range(text, text);
    }
    kind_ = kind(text.substr(0, colon));
    if (colon == text.npos) return add(0);
    range(text.substr(colon + 1), text);
  }

  PlanDevice::Kind kind(std::string_view name) const {
    if (name == "cpu") return PlanDevice::Kind::Cpu;
    if (name == "cuda") return PlanDevice::Kind::Cuda;
    if (name == "auto") fail("'auto' stands alone");
    const std::vector<std::string> kinds = {"cpu", "cuda"};
    const bool gpu = name == "gpu";  // nearer to 'cpu' in letters alone
    fail(fmt::format("unknown kind of device '{}'", name), gpu ? "; did you mean 'cuda'?" : did_you_mean(name, kinds));
  }

  void range(std::string_view text, std::string_view item) {
    const size_t dash = text.find('-');
    const int first = number(text.substr(0, dash), item);
    const int last = dash == text.npos ? first : number(text.substr(dash + 1), item);
    if (last < first) fail(fmt::format("the range '{}' runs backwards", item));
    for (int index = first; index <= last; ++index) add(index);
  }

  int number(std::string_view text, std::string_view item) const {
    const int value = read_number<int>(text).value_or(-1);
    if (value < 0) fail(fmt::format("found '{}' where the number of a device should be, in '{}'", text, item));
    if (value >= kMostDevices) fail(fmt::format("device number {} is not below {}", value, kMostDevices));
    return value;
  }

  void add(int index) {
    const PlanDevice device{*kind_, index};
    if (std::find(devices_.begin(), devices_.end(), device) != devices_.end()) {
      fail(to_string(device) + " is named twice");
    }
    devices_.push_back(device);
  }

  std::string_view text_;
  std::optional<PlanDevice::Kind> kind_;  // of the item before
  std::vector<PlanDevice> devices_;
};

}  // namespace

std::vector<PlanDevice> parse_devices(std::string_view text,
                                      const std::function<std::vector<PlanDevice>()>& resolve_auto) {
  if (text == "auto") return resolve_auto();
  return DeviceList(text).parse();
}

}  // namespace arbalest
