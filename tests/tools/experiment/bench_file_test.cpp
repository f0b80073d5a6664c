// SPDX-License-Identifier: Apache-2.0

// Bench files: what is read, what is refused and where, and the cells that they state.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/io/test_folder.h"
#include "tools/experiment/cells/cells.h"
#include "tools/experiment/cells/expression.h"

using namespace arbalest;

namespace bench_file_test {
namespace {

using Texts = std::vector<std::string>;

BenchFile read(const std::string& text, const Texts& changes = {}) {
  const TestFolder folder;
  return read_bench_file(folder.write("b.toml", text).string(), changes);
}

// The error's text behind the folder, as in "b.toml:2:1: …".
std::string fault(const std::string& text, const Texts& changes = {}) {
  try {
    expand(read(text, changes));
  } catch (const GraphError& error) {
    const std::string what = error.what();
    return what.find("b.toml") == what.npos ? what : what.substr(what.find("b.toml"));
  }
  return "no error";
}

Texts names(const BenchCells& cells) {
  Texts all;
  for (const BenchCell& cell : cells.cells) all.push_back(cell.name);
  return all;
}

const std::string kGraph = "[settings]\ngraph = \"g.onnxtxt\"\n";

void check_fault(const std::string& text, const std::string& part, const Texts& changes = {}) {
  const std::string found = fault(text, changes);
  CHECK_MESSAGE(found.find(part) != found.npos, found, "\nhas no\n", part);
}

}  // namespace

TEST_CASE("lists of a bench file multiply, the last changes fastest, and cells are named by what varies") {
  const BenchCells cells = expand(read(kGraph + "batch = [16, 64]\ndevices = \"cpu:0\"\nlearners = [1, 2, 4]\n"));
  CHECK(names(cells) == Texts{"batch 16, learners 1", "batch 16, learners 2", "batch 16, learners 4",
                              "batch 64, learners 1", "batch 64, learners 2", "batch 64, learners 4"});
  CHECK(cells.cells[1].settings.at("devices") == "cpu:0");
  CHECK(cells.cells[5].place == std::vector<size_t>{0, 1, 0, 2});
  for (const BenchCell& cell : cells.cells) {
    CHECK(std::count_if(cells.cells.begin(), cells.cells.end(), [&](auto& other) { return other.id == cell.id; }) == 1);
  }
}

TEST_CASE("lists that go together are one axis, and multiply with others") {
  const BenchCells cells = expand(
      read("[[together]]\ngraph = [\"a.onnxtxt\", \"b.onnxtxt\"]\ntrain.epochs = [3, 5.5]\n[settings]\nlearners = [1, "
           "2]\n"));
  CHECK(names(cells) ==
        Texts{"graph a, learners 1", "graph a, learners 2", "graph b, learners 1", "graph b, learners 2"});
  CHECK(cells.cells[2].settings.at("train.epochs") == "5.5");
  CHECK(cells.cells[0].settings.at("graph").ends_with("/a.onnxtxt"));  // next to the file
}

TEST_CASE("a change of lists that go together is a list as long, or a value for all places") {
  const std::string text =
      kGraph + "[[together]]\nbatch = [8, 16]\ntrain.lr = [0.1, 0.2]\n[[together]]\nlearners = [1, 2, 3]\n";
  const auto settings = [&](const Texts& changes) { return expand(read(text, changes)).cells.back().settings; };
  CHECK(settings({"batch=[32, 64]"}).at("batch") == "64");
  CHECK(settings({"train.lr=0.5"}).at("train.lr") == "0.5");
  CHECK(expand(read(text, {"train.lr=0.5"})).cells.size() == 6);
  CHECK(settings({"learners=[4, 5, 6]"}).at("learners") == "6");
  CHECK(settings({"train.epochs=7"}).at("train.epochs") == "7");  // in [settings]
  check_fault(text, "lists that go together are equally long", {"batch=[32, 64, 128]"});
}

TEST_CASE("cells of lists that go together are named by as few of them as tell them apart") {
  const BenchCells cells = expand(
      read("[[together]]\ngraph = [\"a.onnxtxt\", \"a.onnxtxt\", \"b.onnxtxt\"]\nbatch = [8, 16, 16]\n"
           "data = [\"folder:photos\", \"folder:photos\", \"folder:xrays\"]\npeer.model = [\"r\", \"s\", \"t\"]\n"));
  CHECK(names(cells) == Texts{"batch 8, graph a", "batch 16, graph a", "batch 16, graph b"});
  CHECK(words_of(cells.cells[0].settings, true).size() == 5);  // peer.model is no word of arbalest
  const BenchCells machines = expand(read(kGraph + "[[together]]\nmachine = [\"a\", \"b\"]\nprice = [1, 2]\n"
                                                   "devices = [\"cuda:0-1\", \"cuda:0\"]\n"));
  CHECK(names(machines) == Texts{"machine a", "machine b"});
  CHECK(words_of(machines.cells[0].settings, true) ==
        words_of({{"graph", machines.cells[0].settings.at("graph")}, {"devices", "cuda:0-1"}}, true));
  CHECK(names(expand(read(kGraph + "[[together]]\nmachine = [\"a\", \"a\"]\nprice = [1, 2]\nlearners = [1, 2]\n"))) ==
        Texts{"learners 1", "learners 2"});
}

TEST_CASE("settings are derived in whatever order they need each other") {
  const BenchCells cells = expand(read(kGraph + "learners = [1, 4]\ndevices = \"cpu:0,2-3\"\n[derived]\n"
                                                "train.lr = \"0.1 * train.warmup\"\n"
                                                "train.warmup = \"learners * device_count\"\n"
                                                "strategy = \"'ssgd'\"\n"));
  CHECK(cells.cells[0].settings.at("train.lr") == "0.30000000000000004");
  CHECK(cells.cells[1].settings.at("train.warmup") == "12");
  CHECK(cells.cells[1].settings.at("strategy") == "ssgd");
  check_fault(kGraph + "[derived]\ntrain.lr = \"train.warmup\"\ntrain.warmup = \"train.lr + 1\"\n",
              "b.toml:4:12: [derived]: train.lr follows from itself");
}

TEST_CASE("what is excluded has a reason, and an exclusion without effect is found") {
  const BenchCells cells = expand(read(kGraph + "batch = [16, 64]\nlearners = [1, 2]\n"
                                                "[[exclude]]\nwhen = \"batch * learners > 100\"\nreason = \"large\"\n"
                                                "[[exclude]]\nwhen = \"learners == 3\"\nreason = \"odd\"\n"));
  CHECK(cells.cells.size() == 3);
  REQUIRE(cells.excluded.size() == 1);
  CHECK(cells.excluded[0].name == "batch 64, learners 2");
  CHECK(cells.excluded[0].reason == "large");
  REQUIRE(cells.idle.size() == 1);
  CHECK(cells.idle[0].line == 8);
  check_fault(kGraph + "[[exclude]]\nwhen = \"1\"\nreason = \"all\"\n", "all 1 combinations are excluded");
}

TEST_CASE("another program has a cell wherever its condition holds") {
  const BenchCells cells = expand(read(kGraph + "learners = [1, 2]\n[peer.torch]\ncommand = \"t {learners} {seed}\"\n"
                                                "when = \"learners == 1\"\n"));
  CHECK(names(cells) == Texts{"learners 1", "learners 1, torch", "learners 2"});
  CHECK(cells.cells[1].peer == "torch");
  CHECK(fill_in("t {learners} {graph} {\"a\"}", {{"learners", "2"}, {"graph", "a b"}}, {}) == "t 2 'a b' {\"a\"}");
  const Settings settings = {{"lr", "1e-05"}, {"batch", "064"}, {"devices", "cpu:0-1"}, {"name", "it's"}};
  CHECK(fill_in("${lr} {lr} {batch} {device_count} { lr } {1} {} {lr", settings, {}) ==
        "${lr} 1e-05 064 2 { lr } {1} {} {lr");
  CHECK(fill_in("{name}{lr", settings, {}) == "'it'\\''s'{lr");
  CHECK(fill_in(std::string(100'000, '{'), settings, {}).size() == 100'000);
  CHECK(fill_in("{" + std::string(100'000, 'a'), settings, {}).size() == 100'001);
  CHECK_THROWS_WITH_AS(fill_in("t {learnres}", {{"learners", "2"}}, Position{"f", 3, 1}),
                       "f:3:1: 'learnres' is no setting here; expected one of device_count, learners; did you mean "
                       "'learners'?",
                       GraphError);
}

TEST_CASE("the command line states settings in place of the file's") {
  const std::string text = kGraph + "learners = [1, 2]\n[derived]\ntrain.lr = \"0.1\"\n";
  CHECK(names(expand(read(text, {"learners=[4, 8]"}))) == Texts{"learners 4", "learners 8"});
  CHECK(expand(read(text, {"train.lr=0.5"})).cells[0].settings.at("train.lr") == "0.5");
  CHECK(expand(read(text, {"data=folder:a b"})).cells[0].settings.at("data") == "folder:a b");
  CHECK(read(text, {"throughput.repetitions=7"}).throughput->repetitions == 7);
  check_fault(text, "--set: unknown setting 'lerners'", {"lerners=2"});
  check_fault(text, "--set 'learners': expected NAME=VALUE", {"learners"});
  check_fault(text, "--set: repetitions: found 0, expected a whole number from 1 to 1000",
              {"throughput.repetitions=0"});
}

TEST_CASE("faults of a bench file name line and column, what was found and what was expected") {
  check_fault("[settings\n", "b.toml:1:10: ");
  check_fault("learners = 2\n", "b.toml:1:12: unknown key 'learners'; expected title, settings, together");
  check_fault("[settings]\nlearners = 2\n", "'graph' is missing in [settings]");
  check_fault(kGraph + "lerners = 2\n", "b.toml:3:11: unknown setting 'lerners'");
  check_fault(kGraph + "lerners = 2\n", "did you mean 'learners'?");
  check_fault(kGraph + "learners = []\n", "b.toml:3:12: learners: the list is empty");
  check_fault(kGraph + "learners = [1, 2, 1]\n", "b.toml:3:19: learners: 1 is listed twice");
  check_fault(kGraph + "pixels.size = [32, 32]\n",
              "pixels.size: 32 is listed twice; an attribute that is a list is a text: \"[1, 2]\"");
  check_fault(kGraph + "batch = peer.size\n", "could not determine value type; texts and expressions stand in quotes");
  check_fault(kGraph + "learners = 2026-01-01\n", "b.toml:3:12: learners: found a TOML date, expected a number");
  check_fault(kGraph + "seed = [1, 2]\n", "expected seeds = [1, 2, 3] in [accuracy]");
  check_fault(kGraph + "[derived]\ngraph = \"'b'\"\n", "graph: is stated twice");
  check_fault(kGraph + "[[together]]\nbatch = [1, 2]\nlearners = [1, 2, 3]\n",
              "b.toml:5:12: [[together]]: learners has 3 values and batch has 2");
  check_fault(kGraph + "[together]\nbatch = [1, 2]\n", "'together': found a TOML table, expected tables, [[together]]");
  check_fault(kGraph + "[[exclude]]\nwhen = \"learners == 1\"\n", "b.toml:3:1: [[exclude]]: 'reason' is missing");
  check_fault(kGraph + "[throughput]\nwindow = \"soon\"\n", "b.toml:4:10: window: found 'soon', expected a time");
  check_fault(kGraph + "[throughput]\nwindos = 3\n",
              "unknown key 'windos'; expected repetitions, windows, window, warmup");
  check_fault(kGraph + "[accuracy]\nseeds = [1, 1]\n", "b.toml:4:9: seeds: a number is named twice");
  check_fault(kGraph + "[accuracy]\nbetter = \"more\"\n", "better: found 'more', expected \"higher\" or \"lower\"");
  check_fault(kGraph + "[compare]\nby = \"learners\"\nagainst = 1\n", "'learners' is no setting that the file lists");
  check_fault(kGraph + "learners = [1, 2]\n[compare]\nby = \"learners\"\nagainst = 3\n",
              "b.toml:4:1: [compare]: against: found 3, expected a value of learners: 1, 2");
  check_fault(kGraph + "[peer.torch]\ncommand = \"t\"\n[compare]\nby = \"peer\"\nagainst = \"jax\"\n",
              "against: found jax, expected a value of peer: arbalest, torch");
  const std::string price_of = "[price]\ncurrency = \"EUR\"\nsource = \"s\"\n";
  check_fault(kGraph + price_of + "date = \"yesterday\"\nper_hour = 2\n", "found 'yesterday', expected a date");
  check_fault(kGraph + price_of + "date = 2026-01-01\nperhour = 2\n", "unknown key 'perhour'");
  check_fault(kGraph + price_of +
                  "date = 2026-01-01\nper_hour = 2\n[price.spot]\nper_hour = 1\n"
                  "interruptions_per_hour = 10\nlost = \"10m\"\n",
              "interruptions lose 6000 s of each hour");
  check_fault(kGraph + "[price]\ncurrency = \"EUR\"\nper_hour = 2\ndate = 2026-01-01\n",
              "[price]: 'source' is missing");
  check_fault(kGraph + "[slurm]\napptainer = \"a\"\npyxis = \"b\"\n", "expected one of them");
  check_fault(kGraph + "[derived]\ntrain.lr = \"0.1 *\"\n",
              "b.toml:4:12: expression '0.1 *': found its end after 5 characters, expected a value");
  check_fault(kGraph + "[[together]]\nbatch = [1, 2, 1]\nlearners = [1, 1, 1]\n", "two combinations are the same: ");
  check_fault(kGraph + "[accuracy]\nmllog = true\n", "'accuracy.mllog': found a TOML boolean, expected a table");
  CHECK_FALSE(read(kGraph + "[accuracy]\n").accuracy->mllog);
  CHECK(read(kGraph + "[accuracy.mllog]\nsubmission_org = \"A lab\"\ncache_clear = true\n").accuracy->mllog ==
        std::vector<std::string>{"cache_clear=true", "submission_org=A lab"});
  check_fault(kGraph + "[accuracy]\nseeds = [1.5]\n", "seeds: found 1.5, expected whole numbers from 0 on");
  CHECK(read(kGraph + "[accuracy]\nseeds = [9007199254740993]\n").accuracy->seeds.front() == 9007199254740993);
  check_fault(kGraph + "[peer.\"\"]\ncommand = \"t\"\n", "[peer.\"\"]: expected another program's name");
  check_fault(kGraph + "[peer.arbalest]\ncommand = \"t\"\n", "[peer.\"arbalest\"]: expected another");
  check_fault(kGraph + "[derived]\ntrain.lr = \"1 / 0\"\n",
              "b.toml:4:12: [derived]: train.lr: found inf, expected a finite number");
  const std::string price = "[price]\ncurrency = \"EUR\"\nsource = \"s\"\ndate = 2026-01-01\n";
  check_fault(kGraph + price + "per_hour = 0\n", "b.toml:3:1: g: per_hour: found 0, expected more than 0");
  check_fault(kGraph + price + "per_hour = 1\n[price.spot]\nper_hour = \"0 - 1\"\n", "found -1, expected more than 0");
  std::string long_list = "[1", deep;
  for (int i = 2; i <= 20'000; ++i) long_list += ", " + std::to_string(i);
  check_fault(kGraph + "batch = " + long_list + "]\n", "batch: found 20000 values, and 10000 are the most");
  for (int i = 0; i < 30; ++i) deep += "a.";
  check_fault(kGraph + deep + "b = 1\n", "settings stand in more than 16 tables, one in the other");
  check_fault(
      kGraph + "batch = " + long_list.substr(0, long_list.find(", 1001,")) + "]\n[throughput]\nrepetitions = 101\n",
      "take more than 100000 trials, 101 each");
  std::string many = kGraph;
  for (const char* name : {"batch", "learners", "threads"}) {
    many += std::string(name) + " = [";
    for (int i = 1; i <= 30; ++i) many += std::to_string(i) + ", ";
    many += "]\n";
  }
  check_fault(many, "the lists up to here make 27000 combinations, and 10000 are the most");
}

TEST_CASE("hosts and images of a step that cannot be are refused before anything runs") {
  check_fault(kGraph + "hosts = [1, -2]\n", "hosts -2: hosts: found '-2', expected a whole number from 1 to");
  check_fault(kGraph + "hosts = \"two\"\n", "hosts: found 'two', expected a whole number from 1 to");
  check_fault(kGraph + "batch_total = 16\nlearners = [2, 3]\n",
              "learners 3: batch_total: found 16, expected a multiple of the 3 learners");
}

TEST_CASE("expressions have the usual order, and say where they are wrong") {
  const auto value_of = [](const std::string& name) -> ExpressionValue {
    if (name == "a.b") return 3.0;
    if (name == "s") return std::string("sma");
    throw GraphError("no " + name);
  };
  const auto number = [&](const char* text) { return number_of(text, value_of); };
  CHECK(number("1 + 2 * a.b - -4 / 2") == 9);
  CHECK(number("(1 + 2) * 3") == 9);
  CHECK(number("min(3, max(1, 2), 5)") == 2);
  CHECK(number("sqrt(16) + log2(8) + floor(2.7) + ceil(0.1) + round(0.6)") == 11);
  CHECK(number("s == 'sma' and not a.b > 3 or 0") == 1);
  CHECK(number("s != \"sma\" or a.b <= 2") == 0);
  CHECK(number("1e-3 * 2") == doctest::Approx(0.002));
  CHECK_THROWS_WITH_AS(number("1 / 0"), "expression '1 / 0': found inf, expected a finite number", GraphError);
  CHECK_THROWS_WITH_AS(number("s * 2"), "expression 's * 2': found the text 'sma', expected a number", GraphError);
  CHECK_THROWS_WITH_AS(number("1 2"), "expression '1 2': found '2' after 2 characters, expected an operator or the end",
                       GraphError);
  CHECK_THROWS_WITH_AS(number("(1"), "expression '(1': found its end after 2 characters, expected ')'", GraphError);
  CHECK_THROWS_WITH_AS(number("sqrt(1, 2)"), "expression 'sqrt(1, 2)': sqrt takes one value, found 2", GraphError);
  CHECK_THROWS_AS(number("'a"), GraphError);
  const std::string brackets(50, '('), ends(50, ')');
  CHECK(number((brackets + "1" + ends).c_str()) == 1);
  for (const char* repeated : {"(", "-", "not ", "min("}) {
    std::string nested;
    for (int i = 0; i < 100'000; ++i) nested += repeated;
    CHECK_THROWS_AS(number((nested + "1").c_str()), GraphError);
  }
  CHECK_THROWS_AS(number("1 $ 2"), GraphError);
  CHECK_THROWS_AS(number(""), GraphError);
  CHECK_THROWS_AS(number("1..2"), GraphError);
  CHECK(text_of(0.1) == "0.1");
  CHECK(text_of(64) == "64");
}

TEST_CASE("the experiments in examples/bench state cells, of graphs that are there, and exclude nothing in vain") {
  const char* root = std::getenv("ARBALEST_SOURCE");
  if (!root) {
    MESSAGE("SKIP: ARBALEST_SOURCE is not set");
    return;
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(root) / "examples/bench")) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    CAPTURE(entry.path());
    const BenchFile file = read_bench_file(entry.path().string());
    const BenchCells cells = expand(file);
    CHECK_FALSE(file.title.empty());
    CHECK(cells.idle.empty());
    for (const BenchCell& cell : cells.cells) CHECK(std::filesystem::exists(cell.settings.at("graph")));
  }
  CHECK(files >= 7);
}

TEST_CASE("settings become words of run and of bench scaling") {
  const Settings settings = {
      {"graph", "g"},    {"batch", "8"},         {"learners", "2"}, {"epochs", "3"}, {"deterministic", "true"},
      {"train.lr", "1"}, {"devices", "cpu:0-1"}, {"peer", "x"}};
  CHECK(words_of(settings, true) == Texts{"g", "--set", "prefetch.batch=8", "--deterministic", "--devices", "cpu:0-1",
                                          "--epochs", "3", "--learners", "2", "--set", "train.lr=1"});
  CHECK(words_of(settings, false) == Texts{"g", "--set", "prefetch.batch=8", "--deterministic", "--devices", "cpu:0-1",
                                           "--learners", "2", "--set", "train.lr=1", "--device-counts", "2"});
  Settings hosts = settings;
  hosts["hosts"] = "3";
  CHECK(words_of(hosts, false).back() == "6");  // all devices of all hosts
  hosts["batch_total"] = "48";
  const Texts words = words_of(hosts, false);
  CHECK(words.at(words.size() - 3) == "prefetch.batch=4");  // of twelve learners
}

}  // namespace bench_file_test
