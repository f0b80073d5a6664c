// SPDX-License-Identifier: Apache-2.0

// Messages name settings as the program's user knows them.

#include "base/setting.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "io/sources/bad_samples.h"

using namespace arbalest;

namespace setting_test {
namespace {

// Messages name settings so while this lives.
class NamedBy {
 public:
  explicit NamedBy(SettingNamer namer) : before_(set_setting_namer(namer)) {}
  ~NamedBy() { set_setting_namer(before_); }
  NamedBy(const NamedBy&) = delete;
  NamedBy& operator=(const NamedBy&) = delete;

 private:
  const SettingNamer before_;
};

std::string refusal_of_bad_sample(int64_t most) {
  BadSamples bad(most, [](const std::string&, const std::string&) {});
  try {
    for (int64_t i = 0; i <= most; ++i) bad.add({"photo " + std::to_string(i), "cannot be read", ""});
  } catch (const RunError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a program that says nothing of names hears of fields, and the command's user of options") {
  CHECK(name_of(SettingKey::DeviceTimeout) == "--device-timeout");  // as tests/command_names.cpp has it
  CHECK(set_to(SettingKey::OnLost, "continue") == "--on-lost continue");
  const NamedBy fields(nullptr);
  CHECK(name_of(SettingKey::DeviceTimeout) == "ExecutionOptions::device_timeout");
  CHECK(set_to(SettingKey::OnLost, "continue") == "SessionOptions::on_lost = continue");
  CHECK(name_of(SettingKey::LearnersAuto) == "LearnerOptions::per_device = 0");
}

TEST_CASE("a program may have names of its own") {
  const NamedBy own([](SettingKey setting, const std::string& value) {
    return "key " + std::to_string(int(setting)) + (value.empty() ? "" : ": " + value);
  });
  CHECK(name_of(SettingKey::BatchTotal) == "key 0");
  CHECK(set_to(SettingKey::BatchTotal, "64") == "key 0: 64");
  CHECK((set_setting_namer(nullptr) != name_field));
  CHECK((set_setting_namer(nullptr) == name_field));
}

TEST_CASE("messages of the library follow") {
  const std::string option = refusal_of_bad_sample(2);
  CHECK(option.ends_with("; --skip-bad 2 is used up, a greater number goes on"));
  const NamedBy fields(nullptr);
  CHECK(refusal_of_bad_sample(2).ends_with("; ExecutionOptions::skip_bad = 2 is used up, a greater number goes on"));
  CHECK(refusal_of_bad_sample(0).ends_with(
      "; ExecutionOptions::skip_bad = N goes on over up to N samples that cannot be read"));
}

}  // namespace setting_test
