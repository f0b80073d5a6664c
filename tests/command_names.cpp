// SPDX-License-Identifier: Apache-2.0

// Tests judge messages as users of the command see them, who know settings by their options.

#include "base/setting.h"

namespace command_names {

const arbalest::SettingNamer before = arbalest::set_setting_namer(arbalest::name_option);

}  // namespace command_names
