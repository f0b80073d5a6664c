// SPDX-License-Identifier: Apache-2.0

// Data in the viewer's page: columns that decode to what was encoded, names that cannot be markup, and traces of runs
// that failed.

#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "tests/executor/trace/trace_fixture.h"
#include "tests/io/test_folder.h"
#include "tests/tools/redirected.h"
#include "tools/command/commands.h"
#include "tools/page/html_page.h"
#include "tools/page/page_file.h"
#include "tools/view/viewer_page.h"

using namespace arbalest;
using Json = nlohmann::ordered_json;

namespace viewer_data_test {
namespace {

std::string from_base64(const std::string& text) {
  static const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | uint32_t(digits.find(c));
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes += char(bits >> held & 255);
  }
  return bytes;
}

std::vector<uint64_t> numbers_of(const Column& column) {
  const std::string deflated = from_base64(column.encoded());
  std::string bytes(size_t(column.count()) * 10 + 16, '\0');
  uLongf size = bytes.size();
  REQUIRE(uncompress(reinterpret_cast<Bytef*>(bytes.data()), &size, reinterpret_cast<const Bytef*>(deflated.data()),
                     deflated.size()) == Z_OK);
  std::vector<uint64_t> numbers;
  uint64_t number = 0;
  int shift = 0;
  for (size_t i = 0; i < size; ++i) {
    number |= uint64_t(uint8_t(bytes[i]) & 127) << shift;
    shift += 7;
    if (uint8_t(bytes[i]) >= 128) continue;
    numbers.push_back(number);
    number = 0;
    shift = 0;
  }
  return numbers;
}

int64_t with_sign(uint64_t number) {
  return int64_t(number >> 1) ^ -int64_t(number & 1);
}

std::vector<TaskSpan> spans_of(const ViewerData& data) {
  std::map<std::string, std::vector<uint64_t>> columns;
  for (const auto& [name, column] : data.columns) columns[name] = numbers_of(column);
  const int64_t unit = data.head["unit_ns"];
  std::map<TaskId, int64_t> next;
  std::vector<TaskSpan> spans;
  for (const Json& row : data.head["rows"]) {
    int64_t ended = data.head["begin_ns"].get<int64_t>() / unit;
    TaskId task = 0;
    for (int64_t left = row["count"]; left > 0; --left) {
      const size_t i = spans.size();
      task += int32_t(with_sign(columns["task"][i]));
      TaskSpan span;
      span.task = task;
      span.instance = next[task] + with_sign(columns["instance"][i]);
      next[task] = span.instance + 1;
      const int64_t start = ended + with_sign(columns["gap"][i]);
      ended = start + int64_t(columns["duration"][i]);
      span.started = start * unit;
      span.ended = ended * unit;
      const auto known = [&](uint64_t number) { return number == 0 ? -1 : (start - with_sign(number - 1)) * unit; };
      span.ready = known(columns["ready"][i]);
      const uint64_t issued = columns["issued"][i];
      span.issued = issued == 0       ? -1
                    : span.ready >= 0 ? span.ready + with_sign(issued - 1) * unit
                                      : (start - with_sign(issued - 1)) * unit;
      spans.push_back(span);
    }
  }
  return spans;
}

std::vector<TaskSpan> sorted(std::vector<TaskSpan> spans) {
  std::sort(spans.begin(), spans.end(), [](const TaskSpan& a, const TaskSpan& b) {
    return std::tie(a.started, a.task, a.instance) < std::tie(b.started, b.task, b.instance);
  });
  return spans;
}

// Steps with two nodes each, two fills at once now and then, and what is unknown.
TraceFile rich_trace() {
  TraceFile trace = test::steady_trace();
  trace.launches = {"conv1", "conv1.grad_weight"};
  trace.operators = {"Conv", "arbalest.ConvGradWeight"};
  for (TaskSpan& span : trace.tasks) {
    if (span.task == 0 && span.instance % 3 == 2) span.started = span.issued = span.ready = span.started - 98'000;
    if (span.task == 1 && span.instance == 7) span.ready = span.issued = -1;
    if (span.task != 2) continue;
    trace.nodes.push_back({0, 2, span.instance, span.started + 10, span.started + 30'000});
    trace.nodes.push_back({1, 2, span.instance, span.started + 30'020, span.ended});
  }
  trace.sampling = {1,
                    "",
                    {1'000'100, 2'000'200, 3'000'300},
                    {{"GPU power", 0, "W", 700, {650.5, 120.25, 700}},
                     {"process memory", kNone, "B", 0, {2.0 * (1 << 30), 3.0 * (1 << 30), 1.0 * (1 << 30)}}}};
  trace.plan.arenas = {{"pinned", kNone, Arena::Memory::Pinned, 1 << 20}};
  trace.tasks.push_back({3, 0, 1'000'000, 1'000'500, 1'000'700, 1'003'000});
  std::stable_sort(trace.tasks.begin(), trace.tasks.end(),
                   [](const TaskSpan& a, const TaskSpan& b) { return a.started < b.started; });
  return trace;
}

// Its nodes timed after the run rather than recorded.
TraceFile timed_trace() {
  TraceFile trace = rich_trace();
  trace.nodes.clear();
  trace.timed = {{0, 2, 30'000}, {1, 2, 10'000}};
  return trace;
}

// The reference with which the page's tests (decode.test.js) compare what they decode.
Json fixture_of(const TraceFile& trace, const std::string& name) {
  const ViewerData data = viewer_data(trace, name);
  Json columns = Json::object(), spans = Json::array(), nodes = Json::array(), needed = Json::array();
  for (const auto& [name, column] : data.columns) columns[name] = column.encoded();
  for (const TaskSpan& span : trace.tasks) {
    spans.push_back({span.task, span.instance, span.ready, span.issued, span.started, span.ended});
  }
  for (const NodeSpan& node : trace.nodes) {
    nodes.push_back({node.launch, node.task, node.instance, node.started, node.ended});
  }
  for (const EdgeId id : trace.plan.edges.ids()) {
    for (int64_t n = 0; n < 4; ++n) {
      needed.push_back({id, n, std::max<int64_t>(-1, needed_instance(trace.plan, trace.plan.edges[id], n))});
    }
  }
  Json samples = {{"at", trace.sampling.at}, {"values", Json::array()}};
  for (const SampleSeries& series : trace.sampling.series) samples["values"].push_back(series.values);
  return {{"head", data.head}, {"columns", columns}, {"spans", spans},
          {"nodes", nodes},    {"needed", needed},   {"samples", samples}};
}

Json fixture() {
  return {{"traces", Json::array({fixture_of(rich_trace(), "rich"), fixture_of(timed_trace(), "timed")})}};
}

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

Json heads_of(const std::string& page) {
  const std::string begin = "id=\"heads\">";
  const size_t from = page.find(begin) + begin.size();
  return Json::parse(page.substr(from, page.find("</script>", from) - from));
}

}  // namespace

TEST_CASE("columns give back the instances") {
  const TraceFile trace = rich_trace();
  const ViewerData data = viewer_data(trace, "rich");
  CHECK(data.head["unit_ns"] == 1);
  const std::vector<TaskSpan> read = sorted(spans_of(data)), written = sorted(trace.tasks);
  REQUIRE(read.size() == written.size());
  for (size_t i = 0; i < read.size(); ++i) CHECK(read[i] == written[i]);
  CHECK(data.columns.at("node_launch").count() == 80);
}

TEST_CASE("columns hold numbers of any size") {
  Column column;
  const std::vector<int64_t> numbers = {0, -1, 1, 63, 64, -64, -65, INT32_MAX, INT64_MAX, INT64_MIN};
  for (const int64_t number : numbers) column.add_signed(number);
  const std::vector<uint64_t> read = numbers_of(column);
  REQUIRE(read.size() == numbers.size());
  for (size_t i = 0; i < read.size(); ++i) CHECK(with_sign(read[i]) == numbers[i]);
  CHECK(base64("") == "");
  CHECK(base64("a") == "YQ==");
  CHECK(base64("abc") == "YWJj");
}

TEST_CASE("in a row no instance overlaps another") {
  const ViewerData data = viewer_data(rich_trace(), "rich");
  const std::vector<TaskSpan> spans = spans_of(data);
  size_t at = 0, host = 0;
  for (const Json& row : data.head["rows"]) {
    host += row["lane"] == 0;
    for (int64_t i = 1; i < row["count"]; ++i) CHECK(spans[at + size_t(i) - 1].ended <= spans[at + size_t(i)].started);
    at += row["count"].get<size_t>();
  }
  CHECK(host == 2);
}

TEST_CASE("long traces are carried in coarser units") {
  TraceFile trace = test::steady_trace();
  const std::vector<TaskSpan> few = trace.tasks;
  const int64_t length = 4'000'000;
  for (int64_t turn = 1; trace.tasks.size() <= 200'000; ++turn) {
    for (TaskSpan span : few) {
      span.instance += turn * 40;
      for (int64_t* time : {&span.ready, &span.issued, &span.started, &span.ended}) *time += turn * length + 7;
      trace.tasks.push_back(span);
    }
  }
  trace.plan.clocks[0].ticks = 1'000'000;
  const ViewerData data = viewer_data(trace, "long");
  CHECK(data.head["unit_ns"] == 10);
  const std::vector<TaskSpan> read = sorted(spans_of(data)), written = sorted(trace.tasks);
  REQUIRE(read.size() == written.size());
  int64_t furthest = 0;
  for (size_t i = 0; i < read.size(); ++i) {
    furthest = std::max(
        {furthest, std::abs(read[i].started - written[i].started), std::abs(read[i].ended - written[i].ended)});
  }
  CHECK(furthest < 10);
}

TEST_CASE("names are data in the page, whatever they hold") {
  TraceFile trace = test::steady_trace();
  const std::string hostile = "</script><script>alert(1)</script><!-- \xE2\x80\xAE\xD7\xA9 \"quoted\\ \xff\xfe \n\x01";
  trace.graph = hostile;
  trace.plan.tasks[2].name = hostile;
  trace.plan.lanes[2].name = hostile;
  trace.plan.edges[0].what = hostile;
  const std::string plain = viewer_page({viewer_data(test::steady_trace(), "plain")});
  const std::string page = viewer_page({viewer_data(trace, hostile)});
  CHECK(count_of(page, "<script") == count_of(plain, "<script"));
  CHECK(count_of(page, "</script") == count_of(plain, "</script"));
  CHECK(count_of(page, "<!--") == count_of(plain, "<!--"));
  CHECK(std::all_of(page.begin(), page.end(), [](char c) { return c != '\x01' && c != '\xff'; }));
  const Json heads = heads_of(page);
  CHECK(heads[0]["tasks"][2]["name"].get<std::string>().starts_with(
      "</script><script>alert(1)</script><!-- \xE2\x80\xAE"));
}

TEST_CASE("a page asks for nothing from elsewhere") {
  const std::string page = viewer_page({viewer_data(test::steady_trace(), "steady")});
  for (const char* what : {"src=", "href=", "@import", "url(http", "fetch("})
    CHECK_MESSAGE(count_of(page, what) == 0, what);
  CHECK(count_of(page, "default-src 'none'") == 1);
}

TEST_CASE("traces of runs that failed open, and say so") {
  TraceFile nothing;
  nothing.plan = test::small_plan();
  nothing.unfinished = 3;
  const Json head = viewer_data(nothing, "nothing").head;
  CHECK(head["instances"] == 0);
  CHECK(head["verdict"]["sentence"].get<std::string>().find("No task") == 0);

  TraceFile cut = test::steady_trace();
  cut.tasks.resize(4);  // in the second iteration
  cut.unfinished = 2;
  const ViewerData data = viewer_data(cut, "cut");
  CHECK(data.head["unfinished"] == 2);
  CHECK(data.head["pays"]["measured_ns"] == 0);
  CHECK(spans_of(data).size() == 4);
  const Json heads = heads_of(viewer_page({viewer_data(nothing, "nothing"), data}));
  CHECK(heads.size() == 2);
}

TEST_CASE("the commands read trace files and say what they made of them") {
  const TestFolder folder;
  const std::string trace = folder / "run.trace.json.gz", other = folder / "other.json", page = folder / "page.html";
  write_trace(rich_trace(), trace);
  write_trace(rich_trace(), other);
  {
    const test::Redirected out(folder / "said");
    CHECK(command_view({{trace, other}, page}) == 0);
    REQUIRE(out.lines().size() == 1);
    CHECK(out.lines()[0].starts_with(page));
  }
  std::ostringstream text;
  text << std::ifstream(page).rdbuf();
  const Json heads = heads_of(text.str());
  REQUIRE(heads.size() == 2);
  CHECK(heads[0]["name"] == "run");
  CHECK(heads[1]["name"] == "other");

  const std::string sentence = heads[0]["verdict"]["sentence"];
  const auto lines_of = [&](TraceOptions options) {
    options.file = trace;
    const test::Redirected out(folder / "said");
    CHECK(command_trace(options) == 0);
    return out.lines();
  };
  const std::vector<std::string> brief = lines_of({}), full = lines_of({.full = true}), json = lines_of({.json = true});
  CHECK(brief[0] == sentence);
  CHECK(full[0] == sentence);
  CHECK(full.size() > brief.size());
  std::string all;
  for (const std::string& line : json) all += line;
  CHECK(Json::parse(all)["verdict"]["sentence"] == sentence);

  const std::string cut = folder / "cut.gz";
  std::ostringstream whole;
  whole << std::ifstream(trace).rdbuf();
  std::ofstream(cut) << whole.str().substr(0, whole.str().size() / 2);
  CHECK(message_of<RunError>([&] { command_view({{cut}, page}); }).find("cut.gz") != std::string::npos);
  CHECK(message_of<RunError>([&] { command_view({{folder / "none.gz"}, page}); }).find("none.gz") != std::string::npos);
}

TEST_CASE("files of the same name are kept apart by their paths") {
  const auto name_of = [](const std::string& path) { return name_without(path, {".gz"}); };
  CHECK(names_apart({"a/run.gz", "b/run.gz", "b/two.gz"}, name_of) ==
        std::vector<std::string>{"a/run.gz", "b/run.gz", "two"});
}

TEST_CASE("what the page's tests read is current") {
  const char* root = std::getenv("ARBALEST_SOURCE");
  const std::filesystem::path path = std::filesystem::path(root ? root : ".") / "tests/tools/view/fixture.json";
  const Json expected = fixture();
  if (std::getenv("ARBALEST_UPDATE_GOLDEN")) std::ofstream(path) << expected.dump() << '\n';
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  Json found = Json::parse(text.str());
  Json wanted = expected;
  // zlib's versions may compress differently, and predictions are tested elsewhere.
  for (Json* one : {&found, &wanted}) {
    for (Json& trace : (*one)["traces"]) {
      trace.erase("columns");
      trace["head"].erase("pays");
    }
  }
  CHECK_MESSAGE(found == wanted, path.string(), " is not current: set ARBALEST_UPDATE_GOLDEN=1 once");
}

}  // namespace viewer_data_test
