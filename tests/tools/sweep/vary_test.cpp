// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/vary.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "base/error.h"

using namespace arbalest;

namespace vary_test {
namespace {

std::vector<std::string> texts(const std::vector<std::string>& varied, int64_t samples = 0, uint64_t seed = 1) {
  std::vector<VariedSettings> all;
  for (const std::string& text : varied) all.push_back(parse_varied(text));
  std::vector<std::string> trials;
  for (const TrialSettings& settings : combinations(all, samples, seed)) trials.push_back(to_string(settings));
  return trials;
}

std::string fault(const std::vector<std::string>& varied, int64_t samples = 0) {
  try {
    texts(varied, samples);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("vary: lists multiply, the last changes fastest") {
  CHECK(texts({"train.lr=0.1,0.2", "seed=1..3"}) ==
        std::vector<std::string>{"train.lr 0.1, seed 1", "train.lr 0.1, seed 2", "train.lr 0.1, seed 3",
                                 "train.lr 0.2, seed 1", "train.lr 0.2, seed 2", "train.lr 0.2, seed 3"});
  CHECK(texts({"train.lr=log(1e-3,10,5)"}) ==
        std::vector<std::string>{"train.lr 0.001", "train.lr 0.01", "train.lr 0.1", "train.lr 1", "train.lr 10"});
  CHECK(texts({"x=linear(1,2,3)"}) == std::vector<std::string>{"x 1", "x 1.5", "x 2"});
  CHECK(texts({"a.lr+b.lr=1+10,2+20"}) == std::vector<std::string>{"a.lr 1, b.lr 10", "a.lr 2, b.lr 20"});
  CHECK(texts({"seed=1..3,7"}) == std::vector<std::string>{"seed 1", "seed 2", "seed 3", "seed 7"});
  CHECK(texts({"weights=../a.safetensors,../b.safetensors"}).size() == 2);  // no range
}

TEST_CASE("vary: names that change together are one entry, at the place of the first") {
  CHECK(joined_names({"a", "b", "c", "d"}, {{"d", "b"}, {"x", "y"}}) ==
        std::vector<SettingNames>{{"a"}, {"b", "d"}, {"c"}});
  CHECK(joined_names({"a"}, {}) == std::vector<SettingNames>{{"a"}});
}

TEST_CASE("vary: a value in brackets or quotes is one value") {
  using Texts = std::vector<std::string>;
  CHECK(texts({"train.milestones=[10,20],[15,25]"}) == Texts{"train.milestones [10,20]", "train.milestones [15,25]"});
  CHECK(texts({"loss.class_weights=[1,2.5],[1,1]"}) == Texts{"loss.class_weights [1,2.5]", "loss.class_weights [1,1]"});
  CHECK(texts({"x=[[1,2],[3]],[]"}) == Texts{"x [[1,2],[3]]", "x []"});
  CHECK(texts({"x.names=[\"a,b]\",\"c\"],[\"d\"]"}) == Texts{"x.names [\"a,b]\",\"c\"]", "x.names [\"d\"]"});
  CHECK(texts({"prefetch.source=\"csv:a,b\",csv:c"}) == Texts{"prefetch.source \"csv:a,b\"", "prefetch.source csv:c"});
  CHECK(texts({"x.t=\"a\\\",b\",c"}) == Texts{"x.t \"a\\\",b\"", "x.t c"});
  CHECK(texts({"weights=\"a,b\",c"}) == Texts{"weights a,b", "weights c"});  // an option has no quotes
  CHECK(texts({"a.m+b.m=[1,2]+\"x+y,z\",[3]+w"}) == Texts{"a.m [1,2], b.m \"x+y,z\"", "a.m [3], b.m w"});
  CHECK(texts({"a.m+b.m=1+[2,3],4+[5]"}) == Texts{"a.m 1, b.m [2,3]", "a.m 4, b.m [5]"});
  CHECK(texts({"weights=a[1,a[2"}) == Texts{"weights a[1", "weights a[2"});  // begins with no bracket
}

TEST_CASE("vary: blanks around values are none of them") {
  using Texts = std::vector<std::string>;
  CHECK(texts({"train.lr = 0.1, 0.2"}) == Texts{"train.lr 0.1", "train.lr 0.2"});
  CHECK(texts({"a.m+b.m = [1, 2] + x, [3] + \" y, z\""}) == Texts{"a.m [1, 2], b.m x", "a.m [3], b.m \" y, z\""});
  CHECK(texts({"train.lr=log( 1e-3, 10, 3 )"}) == Texts{"train.lr 0.001", "train.lr 0.1", "train.lr 10"});
  CHECK(texts({"seed = 1..2"}) == Texts{"seed 1", "seed 2"});
  CHECK(fault({"train.lr=0.1, 0.1"}).find("found 0.1 twice") != std::string::npos);
}

TEST_CASE("vary: combinations are drawn, the same ones for a seed") {
  const std::vector<std::string> varied = {"train.lr=log(1e-4,1)", "train.momentum=0.8,0.9", "seed=1..2"};
  const auto drawn = texts(varied, 50);
  CHECK(drawn.size() == 100);  // seeds repeat each
  CHECK(drawn == texts(varied, 50));
  CHECK(drawn != texts(varied, 50, 2));
  CHECK(std::set<std::string>(drawn.begin(), drawn.end()).size() == 100);
  // On a log scale half of them are below the middle; a setting that is added leaves the others as they were.
  int below = 0, first = 0;
  for (const TrialSettings& settings : combinations({parse_varied(varied[0]), parse_varied(varied[1])}, 1000, 1)) {
    const double rate = std::stod(settings[0].second);
    CHECK(rate >= 1e-4);
    CHECK(rate <= 1);
    below += rate < 1e-2;
    first += settings[1].second == "0.8";
  }
  CHECK(below > 450);
  CHECK(below < 550);
  CHECK(first > 450);
  CHECK(first < 550);
  const auto alone = combinations({parse_varied(varied[0])}, 20, 1);
  const auto with = combinations({parse_varied("x=uniform(0,1)"), parse_varied(varied[0])}, 20, 1);
  for (size_t i = 0; i < 20; ++i) CHECK(alone[i][0] == with[i][1]);
}

TEST_CASE("vary: no combination is drawn twice as long as there are others") {
  const std::vector<std::string> lists = {"train.lr=0.1,0.2,0.3,0.4,0.5", "units=8,16", "seed=1..2"};
  const auto drawn = texts(lists, 10);
  CHECK(std::set<std::string>(drawn.begin(), drawn.end()).size() == 20);
  CHECK(fault(lists, 11).find("--samples 11: --vary has 10 different combinations") != std::string::npos);
  CHECK(fault({"x=uniform(1,1.002)"}, 9).find("--samples 9: --vary has 3 different combinations") != std::string::npos);
}

TEST_CASE("vary: faults say what was found and expected") {
  const auto says = [](const std::string& text, const std::string& part) {
    const std::string message = fault({text});
    CHECK_MESSAGE(message.find(part) != message.npos, text, ": ", message);
  };
  says("train.lr", "expected NAME=VALUES");
  says("=1", "expected NAME=VALUES");
  says("train.lr=", "expected NAME=VALUES");
  says("train.lr=1,,2", "a value on each side of ','");
  says("a+b=1+2,3", "2 values with '+' between them, found '3'");
  says("a+=1+2", "a name on each side of '+'");
  says("x=[1,2],[3", "a ']' for each '['");
  says("x=\"a,b", "a '\"' for each '\"'");
  says("x=[1,2],[1,2]", "different values, found [1,2] twice");
  says("a+b=1..3", "expected lists");
  says("seed=3..1", "the smaller first");
  says("seed=1..99999999", "at most 10000");
  says("lr=log(0,1,3)", "positive numbers");
  says("lr=log(1,0.1,3)", "the smaller number first");
  says("lr=log(1,x,3)", "found 'x'");
  says("lr=log(1,2,2.5)", "a whole number");
  says("lr=linear(1,2)", "linear(FROM,TO,COUNT)");
  says("lr=log(1,2,3", "a ')' at the end");
  says("seed=1-3", "FROM..TO for whole numbers");
  says("lr=0.01:0.1", "linear(FROM,TO,COUNT) or log(FROM,TO,COUNT) for others");
  says("lr=0.1,0.2,0.1", "different values, found 0.1 twice");
  says("seed=1,01", "different values, found 01 twice");
  says("a+b=1+2,1+2", "different values, found 1+2 twice");
  says("lr=uniform(1,2)", "expected --samples N, or a count, as in lr=linear(1,2,5)");
  CHECK(fault({"lr=1,2", "lr=3"}).find("'lr' is given twice") != std::string::npos);
  CHECK(fault({"a=1..10000", "b=1,2"}).find("more than 10000 trials") != std::string::npos);
  CHECK(fault({"lr=uniform(0,1)"}, 10'001).find("more than 10000 trials") != std::string::npos);
}

}  // namespace vary_test
