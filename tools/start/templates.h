// SPDX-License-Identifier: Apache-2.0
#pragma once
// The graph files that `arbalest init` starts from: tools/start/graphs, embedded by templates.py.

#include <vector>

namespace arbalest {

struct Template {
  const char* name;
  const char* text;
};

extern const std::vector<Template> kTemplates;

}  // namespace arbalest
