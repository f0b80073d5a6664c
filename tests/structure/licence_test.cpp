// SPDX-License-Identifier: Apache-2.0

// Each source says in its first line, or in the one after `#!`, under which licence it is.

#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace licence_test {
namespace {

constexpr std::string_view kLine = " SPDX-License-Identifier: Apache-2.0\n";

// Whether a file is one that has the line: C++, CUDA and JavaScript, Python, and scripts that name their interpreter.
bool needs_line(const fs::path& path, std::string_view text) {
  return is_source(path) || path.extension() == ".js" || path.extension() == ".py" || text.starts_with("#!");
}

bool has_line(const fs::path& path, std::string_view text) {
  const bool code = is_source(path) || path.extension() == ".js";
  if (text.starts_with("#!")) text.remove_prefix(text.find('\n') + 1);
  const std::string_view mark = code ? "//" : "#";
  return text.starts_with(mark) && text.substr(mark.size()).starts_with(kLine);
}

}  // namespace

TEST_CASE("each source begins with its licence") {
  int files = 0;
  for (const std::string top :
       {".ci", "base", "dsl", "examples", "executor", "graph", "io", "ops", "package", "passes", "tests", "tools"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / top)) {
      if (!entry.is_regular_file()) continue;
      const std::string extension = entry.path().extension();
      if (fs::path(entry.path().stem()).extension() == ".cmake") continue;
      if (extension == ".pyc") continue;
      const std::string text = content(entry.path());
      if (!needs_line(entry.path(), text)) continue;
      ++files;
      CHECK_MESSAGE(has_line(entry.path(), text), fs::relative(entry.path(), root()).string(),
                    ": its first line is not '", is_source(entry.path()) ? "//" : "#",
                    kLine.substr(0, kLine.size() - 1), "'");
    }
  }
  CHECK(files > 1000);
}

TEST_CASE("a source without its licence is found") {
  CHECK(has_line("a.h", "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n"));
  CHECK(has_line("tool", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"));
  CHECK_FALSE(has_line("a.h", "#pragma once\n// SPDX-License-Identifier: Apache-2.0\n"));
  CHECK_FALSE(has_line("a.h", "// SPDX-License-Identifier: MIT\n"));
  CHECK_FALSE(has_line("tool", "#!/bin/sh\necho\n"));
}

}  // namespace licence_test
