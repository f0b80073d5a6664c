#pragma once
// What a survey found, for people and for programs.

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "tools/data/survey.h"

namespace arbalest {

// Several lines, indented by two columns and more; `threads` is how many looked.
std::string survey_text(const SplitSurvey& survey, int threads);

nlohmann::ordered_json survey_json(const SplitSurvey& survey, int threads);

}  // namespace arbalest
