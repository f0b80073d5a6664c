// SPDX-License-Identifier: Apache-2.0
#pragma once
// The findings of a survey, for people and for programs.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/data/survey.h"

namespace arbalest {

// Several lines, indented by two columns and more; `threads` is how many looked.
std::string survey_text(const SplitSurvey& survey, int threads);

// "3 files of test are in train as well: …"; "" if none are.
std::string shared_text(const SharedFiles& shared);

nlohmann::ordered_json shared_json(const SharedFiles& shared);
nlohmann::ordered_json survey_json(const SplitSurvey& survey, int threads);

}  // namespace arbalest
