// SPDX-License-Identifier: Apache-2.0

// Dependent kernels wait. A kernel that launch_dependent() launches and that does not wait reads, now and then, what
// the kernel before it is still writing. No other test is sure to notice it, so this one reads the sources.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/structure/sources.h"

using namespace arbalest::test;

namespace launches_test {
namespace {

// Names of kernels that `text` gives to launch_dependent(), by themselves or as what a local `kernel` stands for.
std::set<std::string> launched_as_dependents(const std::string& text, const std::string& file) {
  static const std::regex launch(R"(launch_dependent\(\s*(\w+))"), local(R"(\bkernel = [^;]*;)"),
      name(R"(\w+_kernel\b)");
  std::set<std::string> names;
  bool by_local = false;
  for (std::sregex_iterator i(text.begin(), text.end(), launch), end; i != end; ++i) {
    if ((*i)[1] == "kernel") {
      by_local = true;
    } else {
      names.insert((*i)[1]);
    }
  }
  if (!by_local) return names;
  const size_t before = names.size();
  for (std::sregex_iterator i(text.begin(), text.end(), local), end; i != end; ++i) {
    // A lambda that chooses has statements of its own: up to the end of its block.
    const size_t from = size_t(i->position()), of_lambda = text.find("}();", from);
    const bool lambda = text.compare(from, 12, "kernel = [&]") == 0 && of_lambda != std::string::npos;
    const std::string chosen = lambda ? text.substr(from, of_lambda - from) : i->str();
    for (std::sregex_iterator k(chosen.begin(), chosen.end(), name); k != end; ++k) names.insert(k->str());
  }
  CHECK_MESSAGE(names.size() > before, file, " launches a `kernel` without an assignment that names one");
  return names;
}

struct Kernel {
  std::string file, body;
};

// The kernels that are defined in the sources, by their names.
std::multimap<std::string, Kernel> kernels_of(const std::string& text, const std::string& file) {
  static const std::regex definition(R"(__global__ void (?:__launch_bounds__\([^)]*\)\s*)?(\w+)\()");
  std::multimap<std::string, Kernel> kernels;
  for (std::sregex_iterator i(text.begin(), text.end(), definition), end; i != end; ++i) {
    const size_t from = size_t(i->position());
    kernels.emplace((*i)[1], Kernel{file, text.substr(from, text.find("\n}", from) - from)});
  }
  return kernels;
}

bool waits(const Kernel& kernel) {
  return kernel.body.find("wait_for_dependencies();") != std::string::npos;
}

}  // namespace

TEST_CASE("kernels that are launched as dependents wait for what they depend on") {
  std::multimap<std::string, Kernel> kernels;
  std::map<std::string, std::set<std::string>> launched;  // by file
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root() / "ops")) {
    if (!entry.is_regular_file() || !is_source(entry.path())) continue;
    const std::string file = fs::relative(entry.path(), root()), text = content(entry.path());
    kernels.merge(kernels_of(text, file));
    if (entry.path().filename() == "dependent_launch.cuh") continue;  // the file of launch_dependent() itself
    if (auto names = launched_as_dependents(text, file); !names.empty()) launched[file] = names;
  }
  size_t checked = 0;
  for (const auto& [file, names] : launched) {
    for (const std::string& name : names) {
      const fs::path folder = fs::path(file).parent_path();
      const auto [first, last] = kernels.equal_range(name);
      CHECK_MESSAGE(first != last, file, " launches ", name, ", which is defined nowhere");
      // If several files have kernels of this name, those in the same folder are meant, if there are any.
      const bool here = std::any_of(
          first, last, [&](const auto& kernel) { return fs::path(kernel.second.file).parent_path() == folder; });
      for (auto kernel = first; kernel != last; ++kernel) {
        if (here && fs::path(kernel->second.file).parent_path() != folder) continue;
        CHECK_MESSAGE(waits(kernel->second), kernel->second.file, ": ", name, ", which ", file,
                      " launches as a dependent, does not call wait_for_dependencies()");
        ++checked;
      }
    }
  }
  CHECK(checked >= 30);
}

TEST_CASE("a dependent kernel that does not wait is found in a source") {
  const std::string source = R"(
template <typename T>
__global__ void __launch_bounds__(kThreads) eager_kernel(T* y) {
  if (y) y[0] = 1;
}

__global__ void patient_kernel(float* y) {
  wait_for_dependencies();
  y[0] = 1;
}

void launch() {
  launch_dependent(eager_kernel<float>, 1, 1, 0, stream, y);
  const auto kernel = wide ? patient_kernel : other_kernel;
  launch_dependent(
      kernel, 1, 1, 0, stream, y);
}
)";
  CHECK(launched_as_dependents(source, "a.cu") ==
        std::set<std::string>{"eager_kernel", "patient_kernel", "other_kernel"});
  const std::multimap<std::string, Kernel> kernels = kernels_of(source, "a.cu");
  REQUIRE(kernels.size() == 2);
  CHECK(!waits(kernels.find("eager_kernel")->second));
  CHECK(waits(kernels.find("patient_kernel")->second));
}

}  // namespace launches_test
