// SPDX-License-Identifier: Apache-2.0
#pragma once
// Test cases that are made of a list which is complete only once main() has begun: one case for each entry.

#include <doctest/doctest.h>

#include <source_location>
#include <string>
#include <vector>

namespace arbalest::test {

// A function that main() calls before it chooses test cases. It calls make_case().
struct MadeCases {
  explicit MadeCases(void (*make)()) { all().push_back(make); }
  static std::vector<void (*)()>& all() {
    static std::vector<void (*)()> makers;
    return makers;
  }
};

// Adds the test case "name<entry>", which calls run(). `index` is the entry's place in its list.
inline void make_case(void (*run)(), const char* name, const std::string& entry, size_t index,
                      const std::source_location& where = std::source_location::current()) {
  doctest::detail::regTest(doctest::detail::TestCase(run, where.file_name(), where.line(),
                                                     doctest_detail_test_suite_ns::getCurrentTestSuite(), entry.c_str(),
                                                     int(index)) *
                           name);
}

// The index of the made case that runs.
inline size_t made_case() {
  return size_t(doctest::getContextOptions()->currentTest->m_template_id);
}

}  // namespace arbalest::test
