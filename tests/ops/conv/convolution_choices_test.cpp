// SPDX-License-Identifier: Apache-2.0

// Engines that were found for convolutions: found once, kept, for later processes too, and found anew if they do not
// fit.

#include "ops/cuda/convolution_choices.h"
#include "base/files/cache_folder.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/io/test_folder.h"

using namespace arbalest;

namespace convolution_choices_test {
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
  CHECK(choices.timed() == 2);
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

TEST_CASE("for a convolution one caller chooses, where it is chosen anew as well") {
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

TEST_CASE("for different convolutions callers choose at the same time, and a failure of one lets the others choose") {
  ConvolutionChoices choices;
  std::counting_semaphore<2> here(0), there(0);
  const auto meet = [](std::counting_semaphore<2>& mine, std::counting_semaphore<2>& other) {
    mine.release();
    CHECK(other.try_acquire_for(std::chrono::seconds(20)));
    return ConvolutionChoice{1, "engine", 5};
  };
  {
    const std::jthread beside([&] { choices.find("a", any, [&] { return meet(here, there); }); });
    choices.find("b", any, [&] { return meet(there, here); });
  }
  std::atomic<int> failures{0}, chosen{0};
  const auto first_fails = [&]() -> ConvolutionChoice {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (failures == 0) throw std::runtime_error("failure " + std::to_string(++failures));
    return {++chosen, "engine", 5};
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      try {
        const ConvolutionChoice found = choices.find("c", any, first_fails);
        CHECK(found.index == 1);
      } catch (const std::runtime_error& error) {
        CHECK(std::string(error.what()) == "failure 1");
      }
    });
  }
  threads.clear();
  CHECK(failures == 1);
  CHECK(chosen == 1);
}

TEST_CASE("choices are kept in a file, which later processes know from the start") {
  const TestFolder folder;
  const std::filesystem::path file = folder / "cache/choices.tsv";
  int chosen = 0;
  const auto choose = [&] {
    ++chosen;
    return ConvolutionChoice{7, "eng11_k2=3", 12.5};
  };
  const auto never = []() -> ConvolutionChoice { throw std::logic_error("chosen again"); };
  {
    ConvolutionChoices first(file), beside(file);  // two processes at the same time
    first.find("H200 x[1, 2]", any, choose);
    beside.find("another", any, [] { return ConvolutionChoice{2, "", 0}; });
    first.find("none", any, [] { return ConvolutionChoice{}; });
  }
  CHECK(chosen == 1);
  CHECK(std::filesystem::status(file).permissions() == std::filesystem::perms(0600));
  ConvolutionChoices later(file);
  CHECK(later.timed() == 0);
  CHECK(later.known_microseconds("H200 x[1, 2]") == 12.5);
  CHECK(later.known_microseconds("none") == 0);
  CHECK(later.find("H200 x[1, 2]", any, never) == ConvolutionChoice{7, "eng11_k2=3", 12.5});
  CHECK(later.find("another", any, never) == ConvolutionChoice{2, "", 0});
  CHECK_THROWS_WITH(later.find("none", any, never), "chosen again");  // for want of memory, perhaps

  const auto other = [](const ConvolutionChoice& choice) { return choice.index == 9; };
  later.find("H200 x[1, 2]", other, [] { return ConvolutionChoice{9, "eng0", 11}; });
  CHECK(ConvolutionChoices(file).find("H200 x[1, 2]", any, never).index == 9);
}

TEST_CASE("what is damaged in a file of choices is left out, and a file that cannot be used is done without") {
  const TestFolder folder;
  const std::filesystem::path file = folder / "choices.tsv";
  std::ofstream(file) << "whole\t1\te\t2.5\nfew\t1\te\nmany\t1\te\t2\t3\nindex\t1x\te\t2\nnegative\t-1\te\t2\n"
                         "far\t99999999999999999999\te\t2\ntime\t1\te\tnan\nearly\t1\te\t-2\n\n\t\t\t\nend\t1\te\t2";
  ConvolutionChoices choices(file);
  const auto anew = [] { return ConvolutionChoice{5, "new", 1}; };
  CHECK(choices.find("whole", any, anew).index == 1);
  for (const char* key : {"few", "many", "index", "negative", "far", "time", "early", "", "end"}) {
    CAPTURE(key);
    CHECK(choices.find(key, any, anew).index == 5);
  }
  // The line that was cut short takes the next one with it; the others are whole.
  ConvolutionChoices again(file);
  CHECK(again.find("many", any, [] { return ConvolutionChoice{6, "newer", 1}; }).index == 5);

  for (const std::filesystem::path& place : {folder / "choices.tsv/below", std::filesystem::path("/proc/none/file"),
                                             std::filesystem::path("/dev/full"), folder / "."}) {
    CAPTURE(place.string());
    ConvolutionChoices without(place);
    CHECK(without.find("a", any, anew).index == 5);
    CHECK(without.find("a", any, [] { return ConvolutionChoice{6, "newer", 1}; }).index == 5);
  }
  ConvolutionChoices tabs(file);
  tabs.find("a\tb", any, anew);
  tabs.find("a\nb", any, anew);
  for (const char* key : {"a\tb", "a\nb", "b"}) {
    CHECK(ConvolutionChoices(file).find(key, any, [] { return ConvolutionChoice{8, "e", 1}; }).index == 8);
  }
}

TEST_CASE("where choices are kept is the user's to say") {
  const auto with = [](const char* own, const char* cache, const char* home) {
    const auto set = [](const char* name, const char* value) { value ? setenv(name, value, 1) : unsetenv(name); };
    const char* const old_home = std::getenv("HOME");
    const std::string kept_home = old_home ? old_home : "";
    set("ARBALEST_CACHE", own);
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
    const std::string folder = cache_folder().string();
    set("ARBALEST_CACHE", "");
    set("XDG_CACHE_HOME", nullptr);
    set("HOME", old_home ? kept_home.c_str() : nullptr);
    return folder;
  };
  CHECK(with("here", "/cache", "/own") == "here");
  CHECK(with("", "/cache", "/own") == "");
  CHECK(with(nullptr, "/cache", "/own") == "/cache/arbalest");
  CHECK(with(nullptr, "relative", "/own") == "/own/.cache/arbalest");
  CHECK(with(nullptr, nullptr, "/own") == "/own/.cache/arbalest");
  CHECK(with(nullptr, nullptr, nullptr) == "");
}

}  // namespace convolution_choices_test
