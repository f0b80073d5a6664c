// SPDX-License-Identifier: Apache-2.0

// The display and the log of a run.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "base/error.h"
#include "base/plain_message.h"
#include "executor/console/console_observer.h"
#include "executor/console/progress_text.h"
#include "executor/console/terminal.h"
#include "executor/plan/make_plan.h"
#include "executor/trace/trace_summary.h"
#include "executor/trace/what_if.h"
#include "tests/executor/fixture.h"
#include "tests/executor/trace/trace_fixture.h"
#include "tests/io/test_folder.h"
#include "tools/command/plan_summary.h"
#include "tools/watch/fitted_text.h"
#include "tools/watch/log.h"

using namespace arbalest;
using test::contains;

namespace reporting_test {
namespace {

RunStarted ten_epochs() {
  RunStarted run;
  run.graph = "lenet.onnxtxt";
  run.devices = {"cpu:0"};
  run.precision = "fp32";
  run.batch = 64;
  run.iterations_per_epoch = 100;
  run.iterations = 1000;
  return run;
}

RunProgress some_progress() {
  RunProgress progress;
  progress.epoch = 3;
  progress.epochs = 2.5;
  progress.iteration = 250;
  progress.seconds = 30;
  progress.images_per_second = 12345;
  progress.learning_rate = 0.05;
  progress.loss = 0.12345;
  return progress;
}

std::string content(std::FILE* file) {
  std::string text(size_t(std::ftell(file)), '\0');
  std::rewind(file);
  REQUIRE(std::fread(text.data(), 1, text.size(), file) == text.size());
  return text;
}

}  // namespace

TEST_CASE("a progress line sheds what matters least") {
  const RunStarted run = ten_epochs();
  const RunProgress progress = some_progress();
  CHECK(progress_text(run, progress, {200}) == "epoch 3/10  50 %  loss 0.1235  lr 0.05  12.3k images/s  ETA 1:30");
  RunStarted resumed = run;  // with more learners: the iterations before were shorter
  resumed.iterations = 1600;
  resumed.epochs = 10;
  CHECK(progress_text(resumed, progress, {24}) == "epoch 3/10  loss 0.1235");
  CHECK(progress_text(run, progress, {60}) == "epoch 3/10  50 %  loss 0.1235  12.3k images/s  ETA 1:30");
  CHECK(progress_text(run, progress, {24}) == "epoch 3/10  loss 0.1235");
  RunProgress diverging = progress;
  diverging.loss = 6.80335378154e26;
  CHECK(progress_text(run, diverging, {30}) == "epoch 3/10  loss 6.8034e+26");
  diverging.loss = 999999;
  CHECK(progress_text(run, diverging, {30}) == "epoch 3/10  loss 999999.0000");
  RunProgress with_accuracy = progress;
  with_accuracy.metrics = {{"accuracy", 0.9612}};
  CHECK(progress_text(run, with_accuracy, {200}) ==
        "epoch 3/10  50 %  loss 0.1235  accuracy 0.9612  lr 0.05  12.3k images/s  ETA 1:30");
  CHECK(progress_text(run, with_accuracy, {65}) == "epoch 3/10  50 %  loss 0.1235  12.3k images/s  ETA 1:30");
  for (size_t width = 1; width < 100; ++width) CHECK(progress_text(run, progress, {width}).size() <= width);
  RunProgress waiting = progress;
  waiting.input.late = 0.9;
  CHECK(progress_text(run, waiting, {200}) ==
        "epoch 3/10  50 %  loss 0.1235  lr 0.05  12.3k images/s  input-bound  ETA 1:30");
}

TEST_CASE("on a terminal a bar takes what is left, and a validation that goes on is reported") {
  const RunStarted run = ten_epochs();
  RunProgress progress = some_progress();
  progress.metrics = {{"accuracy", 0.9612}};
  const auto on = [&](size_t width, double validated = -1) {
    return progress_text(run, progress, {width, true, validated});
  };
  CHECK(on(80) == "epoch 3/10  [==> ]  50 %  loss 0.1235  accuracy 0.9612  12.3k images/s  ETA 1:30");
  CHECK(on(200) ==
        "epoch 3/10  [==============>             ]  50 %  loss 0.1235  accuracy 0.9612  lr 0.05  12.3k images/s  "
        "ETA 1:30");
  CHECK(on(60, 0.37) == "epoch 3/10  loss 0.1235  12.3k images/s  validating 37 %");
  CHECK(progress_text(run, {}, {60, true, 0.37, true}) == "recalibrating 37 %");
  CHECK(progress_text(run, {}, {60, true, 0.37}) == "validating 37 %");  // before training has told anything
  CHECK(on(44) == "epoch 3/10  loss 0.1235  12.3k images/s");
  for (size_t width = 1; width <= 200; ++width) {
    CHECK(on(width).size() <= width);
    CHECK(on(width, 1).size() <= width);
  }
  progress.epochs = 3;
  CHECK(contains(on(90), "=]  100 %"));
}

// A terminal that a test reads from.
class Terminal {
 public:
  explicit Terminal(uint16_t columns) {
    const winsize size = {24, columns, 0, 0};
    REQUIRE(openpty(&screen_, &line_, nullptr, nullptr, &size) == 0);
    out_ = fdopen(line_, "w");
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    std::fclose(out_);
    close(screen_);
  }
  std::FILE* out() const { return out_; }
  std::string shown() const {
    constexpr const char* kEnd = "<end>";  // what is written arrives a little later
    std::fputs(kEnd, out_);
    std::fflush(out_);
    std::string text;
    char part[4096];
    while (text.find(kEnd) == text.npos) {
      const ssize_t got = read(screen_, part, sizeof part);
      REQUIRE(got > 0);
      text.append(part, size_t(got));
    }
    return text.substr(0, text.find(kEnd));
  }

 private:
  int screen_ = -1, line_ = -1;
  std::FILE* out_ = nullptr;
};

// The display of a run on a terminal with this number of columns.
std::string shown_on(uint16_t columns) {
  const Terminal terminal(columns);
  ConsoleObserver line(terminal.out());
  RunStarted run = ten_epochs();
  run.note = "what is probably not meant, which takes more than one line on a narrow terminal";
  line.started(run);
  line.kept({"a split with a rather long name", 370, 1000, 1 << 20, 0.5});
  line.kept({"a split with a rather long name", 1000, 1000, 1 << 20, 1.5});
  RunProgress progress = some_progress();
  progress.metrics = {{"accuracy", 0.9612}};
  progress.input.late = 0.9;
  line.progress(progress);
  line.validating({3, 0.37, 31});
  line.epoch({3, 300, 36, 12345, 0.1235, false, {{"accuracy", 0.9612}}, true});
  Validated validated;
  validated.epoch = 3;
  validated.metrics = {{"accuracy", 0.97}, {"auc", 0.99}};
  line.validation(validated);
  line.progress(progress);
  RunFinished end;
  end.reason = RunEnd::Complete;
  end.trace = "a/rather/long/path/of/a/trace/that/nobody/would/type/by/hand.trace.json.gz";
  line.finished(end);
  line.failed({"boom", 3, 300, 36, end.trace});
  return terminal.shown();
}

TEST_CASE("every line fits terminals of 44 to 200 columns, and colours are shown where they are wanted") {
  const char* const before = std::getenv("TERM");
  const std::string terminal = before != nullptr ? before : "";
  setenv("TERM", "xterm", 1);
  for (const bool coloured : {true, false}) {
    coloured ? unsetenv("NO_COLOR") : setenv("NO_COLOR", "1", 1);
    for (uint16_t columns = 44; columns <= 200; ++columns) {
      const std::string text = shown_on(columns);
      CHECK(contains(text, "\033[36m") == (coloured && columns > 93));  // the bar
      CHECK(contains(text, "\033[3") == coloured);
      const std::string plain = std::regex_replace(text, std::regex("\033\\[[0-9]*[mK]"), "");
      size_t widest = 0;
      for (size_t at = 0; at < plain.size();) {
        const size_t end = std::min(plain.find_first_of("\r\n", at), plain.size());
        widest = std::max(widest, end - at);
        at = end + 1;
      }
      CHECK(widest < columns);
      CHECK(contains(plain, "validating 37 %"));
      CHECK(contains(plain, "reading samples of a split with a rather lo"));
    }
  }
  unsetenv("NO_COLOR");
  before != nullptr ? setenv("TERM", terminal.c_str(), 1) : unsetenv("TERM");
}

TEST_CASE("times and counts for reading") {
  CHECK(clock_time(7) == "0:07");
  CHECK(clock_time(3723) == "1:02:03");
  CHECK(clock_time(std::nan("")) == "?");
  CHECK(short_count(950) == "950");
  CHECK(short_count(12345) == "12.3k");
  CHECK(short_count(1.2e6) == "1.20M");
}

TEST_CASE("losses are shown with four decimals, or with three digits where these would hide them") {
  CHECK(measured(0) == "0.0000");
  CHECK(measured(0.12345) == "0.1235");
  CHECK(measured(0.001) == "0.0010");
  CHECK(measured(0.00012345) == "0.000123");
  CHECK(measured(-3.21987e-7) == "-3.22e-07");
  CHECK(measured(std::nan("")) == "nan");
}

TEST_CASE("elsewhere than on a terminal progress is plain lines, not too many") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    ConsoleObserver line(file);
    line.started(ten_epochs());
    for (int i = 0; i < 13; ++i) line.kept({"train", 1000 * i, 13000, 3 << 20, double(i)});
    line.kept({"train", 13000, 13000, 3 << 20, 12.5});
    RunProgress progress = some_progress();
    for (int i = 0; i < 25; ++i) {
      progress.seconds = i;
      line.progress(progress);
    }
    RunFinished finished;
    finished.reason = RunEnd::Interrupted;
    finished.iteration = 251;
    finished.weights = "w.safetensors";
    line.finished(finished);
  }
  const std::string text = content(file);
  std::fclose(file);
  // The start, samples, at 0, 10 and 20 s, the end, what training had reached, weights.
  CHECK(std::count(text.begin(), text.end(), '\n') == 9);
  CHECK(contains(text, "\n  training, by iteration 250: loss 0.1235\n"));
  CHECK_FALSE(contains(text, "nothing was validated"));  // nor does the graph say that anything is
  CHECK(contains(text, "\nreading samples of train: 77 %, 10.0k of 13.0k\n"));
  CHECK(contains(text, "\n13.0k samples of train stay on cpu:0, 3.0 MiB, read in 12.5 s\n"));
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.find("\033") == std::string::npos);
  CHECK(text.find("interrupted after 251 iterations") != std::string::npos);
  CHECK(text.find("weights: w.safetensors") != std::string::npos);
}

TEST_CASE("the first line has devices in ranges, and a note after it") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  ConsoleObserver line(file);
  RunStarted run = ten_epochs();
  run.devices = {"cuda:0", "cuda:1", "cuda:2", "cuda:5", "cuda:10"};
  run.note = "probably not meant";
  line.started(run);
  const std::string text = content(file);
  CHECK(text.find(" on cuda:0-2, cuda:5, cuda:10, 5 learners") != std::string::npos);
  CHECK(text.ends_with("\nnote: probably not meant\n"));
  std::fclose(file);
}

TEST_CASE("the end tells what was reached, and where nothing was validated") {
  const auto told = [](const std::function<void(ConsoleObserver&, RunFinished&)>& run) {
    std::FILE* file = std::tmpfile();
    REQUIRE(file != nullptr);
    ConsoleObserver line(file);
    RunStarted start = ten_epochs();
    start.validates = true;
    line.started(start);
    RunFinished end;
    end.reason = RunEnd::Complete;
    run(line, end);
    line.finished(end);
    std::string text = content(file);
    std::fclose(file);
    return text;
  };
  const std::string kNothing = "  nothing was validated: the run ended before its first validation did\n";
  CHECK(contains(told([](ConsoleObserver& line, RunFinished& end) {
                   line.progress(some_progress());
                   end.iteration = 260;
                 }),
                 "\n  training, by iteration 250: loss 0.1235\n" + kNothing));
  const std::string whole = told([](ConsoleObserver& line, RunFinished& end) {
    line.progress(some_progress());
    line.epoch({3, 300, 36, 12345, 0.1235, false, {}, true});
    end.iteration = 300;
    end.validated = true;
    end.last.epoch = 3;
    end.best = {{"accuracy", 0.975}};  // never of the loss
    end.best_metric = "loss";
    end.best_value = 0.25;
    end.best_epoch = 2;
  });
  CHECK_FALSE(contains(whole, "training, by"));
  CHECK_FALSE(contains(whole, kNothing));
  CHECK(contains(whole, "\n  best loss: 0.2500, epoch 2\n"));
  const std::string reached = told([](ConsoleObserver&, RunFinished& end) {
    end.reason = RunEnd::Until;
    end.iteration = 49;
    end.validated = true;
    end.last.epoch = end.weights_epoch = 4;
    end.last.iteration = end.weights_iteration = 40;
    end.weights = "u.safetensors";
  });
  CHECK(contains(reached, "target reached in epoch 4, iteration 40; trained 49 iterations in "));
  CHECK(contains(reached, "\n  weights: u.safetensors, of epoch 4, iteration 40\n"));
  // A rollback undoes an epoch's end and the reports after it.
  for (const int64_t iteration : {200, 260}) {
    const std::string back = told([&](ConsoleObserver& line, RunFinished& end) {
      line.epoch({2, 240, 36, 12345, 0.1235, false, {}, true});
      line.progress(some_progress());
      line.rolled_back({.reason = "nan", .path = "c", .iteration = 200});
      end.iteration = iteration;
    });
    CHECK(contains(back, "  training, by iteration 250: ") == (iteration == 260));
  }
}

TEST_CASE("what a memory limit costs is said after the first line") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  ConsoleObserver line(file);
  RunStarted run = ten_epochs();
  run.planned_peak_bytes = (int64_t{5} << 30) + (int64_t{921} << 20);
  run.recomputation = {int64_t{6} << 30, 31, 4404019200, 0.094};
  line.started(run);
  CHECK(content(file).ends_with(
      "\nmemory limit 6 GiB: 31 values (4.1 GiB) are computed again in each step, about 9 % more work; planned peak "
      "5.9 GiB\n"));
  std::fclose(file);
}

TEST_CASE("a rollback is said after its reason, which may have several lines") {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  ConsoleObserver line(file);
  line.rolled_back({.reason = "node 'a' makes 'a'\n  of 'x'",
                    .path = "c/35.safetensors",
                    .iteration = 35,
                    .times = 1,
                    .most = 3,
                    .rate_factor = 0.5});
  CHECK(content(file) ==
        "node 'a' makes 'a'\n  of 'x'\n"
        "back to iteration 35, from c/35.safetensors, with the learning rate x 0.5 (rollback 1 of at most 3)\n");
  std::fclose(file);
}

TEST_CASE("a pipe that nobody reads is waited for once; what it does not take is left out until it takes text again") {
  int ends[2] = {};
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  fcntl(ends[1], F_SETPIPE_SZ, 4096);
  std::FILE* const out = fdopen(ends[1], "w");
  ConsoleObserver line(out);
  const auto began = std::chrono::steady_clock::now();
  CheckpointSaved saved;
  for (int i = 0; i < 500; ++i) {
    saved.path = fmt::format("{}.safetensors", i);
    line.checkpoint(saved);
  }
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(10));
  const auto read_all = [&] {
    std::string text(1 << 16, '\0');
    text.resize(size_t(std::max<ssize_t>(0, read(ends[0], text.data(), text.size()))));
    return text;
  };
  const std::string before = read_all();
  CHECK(before.starts_with("saved 0.safetensors\nsaved 1.safetensors\n"));
  CHECK(before.find("saved 499") == std::string::npos);
  saved.path = "last.safetensors";
  line.checkpoint(saved);
  CHECK(read_all() == "\nsaved last.safetensors\n");
  std::fclose(out);
  close(ends[0]);
}

TEST_CASE("progress that cannot be written ends nothing") {
  std::FILE* file = std::fopen("/dev/full", "w");
  if (file == nullptr) {
    MESSAGE("SKIP: no /dev/full to fail on");
    return;
  }
  ConsoleObserver line(file);
  CHECK_NOTHROW(line.started(ten_epochs()));
  CHECK_NOTHROW(line.progress(some_progress()));
  CHECK_NOTHROW(line.finished({}));
  std::fclose(file);
}

TEST_CASE("the log is one object a line, event first") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("arbalest-log-" + std::to_string(getpid()))).string();
  Validated validated;
  validated.epoch = 1;
  validated.loss = 0.5;
  validated.metrics = {{"accuracy", 0.9125}, {"auc", 0.75}};
  validated.parts = {{"auc/0", 0.5}, {"auc/1", std::nan("")}};
  {
    JsonLog log(path);
    log.started(ten_epochs());
    log.kept({"train", 10, 60, 4096, 0.25});
    RunProgress progress = some_progress();
    progress.metrics = {{"accuracy", 0.5}};
    progress.missed = 3;
    log.progress(progress);
    EpochEnded epoch;
    epoch.loss = std::nan("");
    epoch.metrics = {{"accuracy", 0.625}};
    log.epoch(epoch);
    log.validation(validated);
    log.checkpoint({"w", 1, 100, 4096, 2.0});
    RunFinished finished;
    finished.reason = RunEnd::Until;
    finished.validated = true;
    finished.last = validated;
    finished.best = {{"accuracy", 0.95}};
    finished.targets = {{"accuracy >= 0.9", 1.5}, {"accuracy >= 0.99", -1}};
    finished.best_error = "no room";
    finished.trace_error = "no room either";
    finished.interrupted_by = "SIGINT";
    log.finished(finished);
    // Each event is in the file as soon as it is written.
    std::ifstream early(path);
    CHECK(std::count(std::istreambuf_iterator<char>(early), {}, '\n') == 6);
    log.failed({"boom", 1, 100, 3.0, "t.json.gz"});
  }
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    CHECK(line.rfind("{\"event\":", 0) == 0);
    lines.push_back(nlohmann::json::parse(line));
  }
  std::filesystem::remove(path);
  REQUIRE(lines.size() == 7);
  const char* events[] = {"start", "progress", "epoch", "validation", "checkpoint", "end", "error"};
  for (size_t i = 0; i < lines.size(); ++i) CHECK(lines[i].at("event") == events[i]);
  CHECK(lines[0].at("iterations_per_epoch") == 100);
  CHECK(lines[1].at("images_per_second") == 12345.0);
  CHECK(lines[1].at("loss") == 0.12345);
  CHECK(lines[2].at("loss").is_null());
  CHECK(lines[1].at("accuracy") == 0.5);
  CHECK(lines[1].at("missed") == 3);
  CHECK(lines[2].at("accuracy") == 0.625);
  CHECK(lines[3].at("accuracy") == 0.9125);
  CHECK(lines[3].at("auc/0") == 0.5);
  CHECK(lines[3].at("auc/1").is_null());
  CHECK(lines[4].at("bytes") == 4096);
  CHECK(lines[5].at("interrupted_by") == "SIGINT");
  CHECK(lines[6].at("trace") == "t.json.gz");
  CHECK(lines[5].at("accuracy") == 0.9125);
  CHECK(lines[5].at("best").at("accuracy") == 0.95);
  CHECK(lines[5].at("best_error") == "no room");
  CHECK(lines[5].at("trace_error") == "no room either");
  CHECK_FALSE(lines[0].contains("note"));
  CHECK(lines[5].at("targets")[0].at("seconds") == 1.5);
  CHECK(lines[5].at("targets")[1].at("seconds").is_null());
  CHECK(lines[6].at("message") == "boom");
}

TEST_CASE("the log's first line has the classes, and their names where they are few") {
  const TestFolder folder;
  const auto first_line = [&](const RunStarted& run) {
    const std::string path = folder / "log";
    JsonLog(path).started(run);
    std::ifstream file(path);
    return nlohmann::json::parse(file);
  };
  RunStarted run = ten_epochs();
  CHECK_FALSE(first_line(run).contains("classes"));
  run.classes = 2;
  CHECK(first_line(run).at("classes") == 2);
  CHECK_FALSE(first_line(run).contains("class_names"));
  run.class_names = {"cat", "dog"};
  CHECK(first_line(run).at("class_names") == run.class_names);
  run.class_names.resize(101);
  CHECK_FALSE(first_line(run).contains("class_names"));
  CHECK_FALSE(first_line(run).contains("memory_limit"));
  run.recomputation = {6000, 31, 4000, 0.25};
  CHECK(first_line(run).at("memory_limit") == nlohmann::json::parse(R"({"bytes": 6000, "values_computed_again": 31,
                                                                        "bytes_computed_again": 4000, "more_work": 0.25})"));
}

TEST_CASE("a log that cannot be created is an error, one that cannot be written is not") {
  CHECK_THROWS_AS(JsonLog("/nonexistent/log.jsonl"), RunError);
  if (!std::filesystem::exists("/dev/full")) {
    MESSAGE("SKIP: no /dev/full to fail on");
    return;
  }
  JsonLog log("/dev/full");
  CHECK_FALSE(log.failed());
  CHECK_NOTHROW(log.progress(some_progress()));
  CHECK(log.failed());
  CHECK_NOTHROW(log.progress(some_progress()));
}

TEST_CASE("lines that stay are wrapped at blanks, and no line is longer than the terminal") {
  CHECK(wrapped("one two three", 80) == "one two three");
  CHECK(fitted(std::string(100, ' ') + "\nlast\n", 20) == "\nlast\n");
  CHECK(wrapped("loss 0.1234  accuracy 0.9612  top5 0.9912", 30) == "loss 0.1234  accuracy 0.9612\n    top5 0.9912");
  CHECK(wrapped("abcdefghijklmnopqrstuvwxyz", 20) == "abcdefghijklmnopqrst\n    uvwxyz");
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += std::string(size_t(i * 7 % 31 + 1), i % 2 ? 'x' : '.') + (i % 3 ? " " : "\u00e4 ");
  for (size_t width = 20; width < 90; ++width) {
    std::istringstream lines(wrapped(text, width));
    std::string words;
    for (std::string line; std::getline(lines, line);) {
      const auto columns = std::count_if(line.begin(), line.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; });
      CHECK(size_t(columns) <= width);
      for (const char c : line) words += c == ' ' ? "" : std::string(1, c);
    }
    std::string expected = text;
    std::erase(expected, ' ');
    CHECK(words == expected);
  }
}

TEST_CASE("a name with an end of line in it does not look like a line of a run's results") {
  CHECK(shown_message("a: wrong") == "arbalest: a: wrong\n");
  CHECK(shown_message("") == "arbalest: \n");
  CHECK(shown_message("x\nepoch 99: done\033\n  last validation (epoch 99): loss 0.0\n      of 'y'") ==
        "arbalest: x\n    epoch 99: done\\x1b\n    last validation (epoch 99): loss 0.0\n      of 'y'\n");
}

TEST_CASE("names from files reach the terminal without control characters") {
  CHECK(printable("caf\u00e9 \u2192 \U0001f3f9") == "caf\u00e9 \u2192 \U0001f3f9");
  CHECK(printable("a\033[2Jb\nc\td\x7f") == "a\\x1b[2Jb\\x0ac\\x09d\\x7f");
  CHECK(printable("a\n\033", true) == "a\n\\x1b");
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\xc2\\x9b31m");  // the escape of C1
  CHECK(printable("\xff\xc3") == "\\xff\\xc3");
  CHECK(printable("\xc0\x80 \xed\xa0\x80") == "\\xc0\\x80 \\xed\\xa0\\x80");
  CHECK(printable("x\u202ey") == "x\\xe2\\x80\\xaey");
  // No characters, which XML refuses, and their neighbours.
  CHECK(printable("\uffff \ufffe \U0001fffe") == "\\xef\\xbf\\xbf \\xef\\xbf\\xbe \\xf0\\x9f\\xbf\\xbe");
  CHECK(printable("\ufdd0\ufdef") == "\\xef\\xb7\\x90\\xef\\xb7\\xaf");
  const std::string neighbours = "\ufdcf\ufdf0\ufffd\U0001fffd\U00020000\u0fff";
  CHECK(printable(neighbours) == neighbours);

  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  ConsoleObserver line(file);
  RunStarted run = ten_epochs();
  run.graph = "\033]0;owned\007.onnxtxt";
  line.started(run);
  RunProgress progress = some_progress();
  progress.metrics = {{"acc\033[31m", 0.5}};
  line.progress(progress);
  Validated validated;
  validated.metrics = progress.metrics;
  line.validation(validated);
  line.checkpoint({"w\033.safetensors", 1, 1, 1, 1});
  const std::string text = content(file);
  std::fclose(file);
  CHECK(text.find('\033') == std::string::npos);
  CHECK(text.find('\007') == std::string::npos);
  CHECK(text.find("acc\\x1b[31m 0.5000") != std::string::npos);
}

TEST_CASE("reports fit terminals of 44 columns and more, and lose nothing") {
  const TraceFile trace = test::steady_trace();
  Prepared prepared = prepare(test::tiny({}), test::on_cpus(2, 2));
  const Plan plan = make_plan(prepared.program, prepared.request);
  const auto words_of = [](const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
    std::sort(words.begin(), words.end());
    return words;
  };
  for (const std::string& report :
       {summarize(trace), summarize(trace, {.full = false, .each = true}), predict(trace, {parse_what_if("step*0.5")}),
        summarize_plan(plan), print_plan(plan)}) {
    for (size_t width = 44; width <= 200; ++width) {
      const std::string text = fitted(report, width);
      INFO(width, "\n", text);
      REQUIRE(words_of(text) == words_of(report));
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) REQUIRE(columns_of(line) <= width);
    }
    CHECK(fitted(report, 1000) == report);
  }
}

TEST_CASE(
    "a table that does not fit is narrower, or has a row's name above its cells, which stay below their headings") {
  const std::string table =
      "Tasks                     instances     mean, \u00b5s  every 100 ms\n"
      "  a task with a long name        12         3.50\n"
      "  b                               1      1234.00  rarely\n"
      "                          49.7 % idle: waiting for a task with a long name\n";
  CHECK(fitted(table, 52) ==
        "Tasks  every 100 ms        instances  mean, \u00b5s\n"
        "  a task with a long name         12      3.50\n"
        "  b                                1   1234.00\n"
        "    rarely\n"
        "    49.7 % idle: waiting for a task with a long name\n");
  CHECK(fitted(table, 30) ==
        "Tasks  every 100 ms\n"
        "  instances mean, \u00b5s\n"
        "  a task with a long name\n"
        "         12     3.50\n"
        "  b\n"
        "          1  1234.00\n"
        "    rarely\n"
        "    49.7 % idle: waiting for a\n"
        "      task with a long name\n");
}

TEST_CASE("a report is fitted where a terminal shows it") {
  const std::string report = "a sentence of more than forty-four columns, the first line of a report\n  and a line\n";
  const char* const before = std::getenv("TERM");
  const std::string terminal = before != nullptr ? before : "";
  setenv("TERM", "dumb", 1);  // no colours
  const Terminal narrow(44);
  put_report(narrow.out(), report);
  CHECK(std::regex_replace(narrow.shown(), std::regex("\r"), "") == fitted(report, 44));
  setenv("TERM", terminal.c_str(), 1);
  const TestFolder folder;
  const std::string path = (folder / "report").string();
  std::FILE* file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  put_report(file, report);
  std::fclose(file);
  std::ifstream written(path);
  CHECK(std::string(std::istreambuf_iterator<char>(written), {}) == report);
}

}  // namespace reporting_test
