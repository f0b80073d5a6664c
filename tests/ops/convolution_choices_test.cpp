// Engines that were found for convolutions: found once, kept, and found anew, one at a time, where they do not fit.

#include "ops/cuda/convolution_choices.h"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace arbalest;

namespace {

const auto any = [](const ConvolutionChoice&) { return true; };

}  // namespace

TEST_CASE("an engine is chosen once for a convolution, and 'none' is an answer too") {
  ConvolutionChoices choices;
  int chosen = 0;
  const auto choose = [&] { return ConvolutionChoice{++chosen, "engine", 5}; };
  CHECK(choices.find("a", any, choose).index == 1);
  CHECK(choices.find("a", any, choose).index == 1);
  CHECK(choices.find("b", any, choose).index == 2);
  const auto none = [] { return ConvolutionChoice{}; };
  CHECK(choices.find("c", any, none).index == -1);
  CHECK(choices.find("c", any, choose).index == -1);
}

TEST_CASE("what does not fit is chosen anew, and the new choice is kept") {
  ConvolutionChoices choices;
  int chosen = 0;
  const auto choose = [&] { return ConvolutionChoice{++chosen, "engine " + std::to_string(chosen), 5}; };
  choices.find("a", any, choose);
  const auto second_fits = [](const ConvolutionChoice& choice) { return choice.engine == "engine 2"; };
  CHECK(choices.find("a", second_fits, choose).engine == "engine 2");
  CHECK(choices.find("a", second_fits, choose).engine == "engine 2");
  CHECK(choices.find("a", any, choose).engine == "engine 2");
  CHECK(chosen == 2);
}

TEST_CASE("a failure to choose is passed on, and nothing is kept of it") {
  ConvolutionChoices choices;
  const auto fail = []() -> ConvolutionChoice { throw std::runtime_error("no memory"); };
  CHECK_THROWS_WITH(choices.find("a", any, fail), "no memory");
  CHECK(choices.find("a", any, [] { return ConvolutionChoice{4, "engine", 5}; }).index == 4);
}

TEST_CASE("engines are timed one at a time, where they are chosen anew as well") {
  ConvolutionChoices choices;
  std::atomic<int> timing{0}, most{0}, chosen{0};
  const auto choose = [&] {
    int now = ++timing;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    --timing;
    return ConvolutionChoice{++chosen, "new", 5};
  };
  choices.find("a", any, [] { return ConvolutionChoice{0, "old", 5}; });
  const auto fits = [](const ConvolutionChoice& choice) { return choice.engine == "new"; };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { CHECK(choices.find("a", fits, choose).engine == "new"); });
  threads.clear();
  CHECK(most == 1);
  CHECK(chosen == 1);  // the others took what the first had found
}
