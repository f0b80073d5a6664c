// SPDX-License-Identifier: Apache-2.0

// The source csv: photos that a table lists.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <set>

#include "base/error.h"
#include "io/open/open_source.h"
#include "io/sources/source.h"
#include "tests/io/test_folder.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using test::Redirected;

namespace csv_test {
namespace {

using Strings = std::vector<std::string>;

// A table in a folder, with its photos 0.jpg … 9.jpg.
class TestTable {
 public:
  explicit TestTable(const std::string& text) {
    folder_.write("table.csv", text);
    for (int i = 0; i < 10; ++i) folder_.write(std::to_string(i) + ".jpg", "photo " + std::to_string(i));
  }
  const TestFolder& folder() const { return folder_; }

  std::unique_ptr<Source> open(const std::string& options = "", const char* split = "train", uint64_t seed = 1) const {
    return open_source("csv:" + (folder_ / "table.csv").string() + options, split, seed);
  }
  std::string graph_error(const std::string& options = "", const char* split = "train") const {
    return message_of<GraphError>([&] { open(options, split); });
  }
  std::string run_error(const std::string& options = "", const char* split = "train") const {
    return message_of<RunError>([&] { open(options, split); });
  }

 private:
  TestFolder folder_;
};

template <typename T>
std::vector<T> labels(const Source& source) {
  std::vector<SampleRef> all;
  for (int64_t i = 0; i < source.size(); ++i) all.push_back({i, 0, uint64_t(i)});
  std::vector<T> values(size_t(source.size() * source.fields()[1].sample().elements()));
  std::byte* const fields[] = {nullptr, reinterpret_cast<std::byte*>(values.data())};
  source.fill(all, fields);
  return values;
}

std::string content(const Source& source, int64_t index) {
  std::vector<std::byte> bytes;
  source.read(index, 0, bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Strings contents(const Source& source) {
  Strings all;
  for (int64_t i = 0; i < source.size(); ++i) all.push_back(content(source, i));
  return all;
}

}  // namespace

TEST_CASE("csv: classes by name, splits by column, paths below the table's folder") {
  const TestTable table(
      "path,label,split\n"
      "0.jpg,dog,train\n1.jpg,Cat,Training\n2.jpg,emu,val\n3.jpg,dog,VALID\n\"4.jpg\",dog,validation\n5.jpg,Cat,"
      "train\n");
  const auto train = table.open(), validation = table.open("", "validation");
  CHECK(to_string(train->fields()) == "image string[], label int32[] of 3 classes");
  CHECK(train->class_names() == Strings{"Cat", "dog", "emu"});
  CHECK(labels<int32_t>(*train) == std::vector<int32_t>{1, 0, 0});
  CHECK(contents(*train) == Strings{"photo 0", "photo 1", "photo 5"});
  CHECK(validation->fields() == train->fields());
  CHECK(validation->class_names() == train->class_names());
  CHECK(labels<int32_t>(*validation) == std::vector<int32_t>{2, 1, 1});
  CHECK(contents(*table.open("", "test")) == contents(*validation));  // stands for what is there
  const std::string file = (table.folder() / "table.csv").string();
  CHECK(train->locate(2) == (table.folder() / "5.jpg").string() + " (" + file + ", line 7)");
  CHECK(train->describe() == "csv:" + file + " train: 3 samples of image string[], label int32[] of 3 classes");
}

TEST_CASE("csv: columns by option, and by names that are usual") {
  for (const char* name : {"path", "FILE", "filename", "Image", "Image Index"}) {
    const TestTable table(std::string("x,") + name + ",class\n1,3.jpg,a\n2,4.jpg,b\n");
    CHECK(table.open("?test=0.1")->size() == 2);
  }
  const TestTable table("photo,kind,other,path\n3.jpg,a,b,none\n4.jpg,b,b,none\n");
  CHECK(labels<int32_t>(*table.open("?path=photo&label=kind")) == std::vector<int32_t>{0, 1});
  CHECK(table.open("?path=photo&label=other", "train")->size() == 1);
  check_parts(table.graph_error("?path=poto"), {"option 'path' names column 'poto'", "did you mean 'photo'",
                                                "has the columns photo, kind, other, path"});
  check_parts(table.graph_error("?path=photo"), {"found no column 'label' or 'class'", "labels=COLUMN,COLUMN"});
  check_parts(TestTable("path,age,a,b,split\n0.jpg,1,0,1,train\n1.jpg,40,,1,train\n").graph_error(),
              {"found 2 columns of 0 and 1: labels=a,b; "});
  check_parts(TestTable("a,label\n").graph_error(), {"found no column path, file", "expected path=COLUMN"});
  check_parts(TestTable("length,width,label\n5.1,3.5,setosa\n").graph_error(), {"numbers to train on come as npy:"});
  for (const char* option : {"?label=label", "", "?labels=*"}) {
    check_parts(
        TestTable("path,label,label\n0.jpg,1,0\n").graph_error(option),
        {option[0] == '\0' ? "found two columns 'label'; expected that one of them is renamed in the file"
                           : "'label', which is there twice; expected that one of them is renamed in the file"});
  }
  check_parts(TestTable("path,Path,label\n0.jpg,1.jpg,0\n").graph_error(), {"found the columns 'path' and 'Path'"});
  CHECK(TestTable("path,Path,label\n0.jpg,1.jpg,0\n").open("?path=Path")->name(0).ends_with("/1.jpg"));
  CHECK(TestTable("path,label,note,note\n0.jpg,0,x,y\n").open()->size() == 1);  // nobody reads these
  for (const char* two : {"?label=kind&list=other", "?label=kind&labels=other", "?labels=kind&list=other"})
    check_parts(table.graph_error(two), {"several of the options 'label', 'labels' and 'list', expected one"});
  check_parts(table.graph_error("?labels=kind,other,kind"), {"option 'labels' names column 'kind' twice"});
  check_parts(table.graph_error("?labels=kind,ohter"), {"names column 'ohter'", "did you mean 'other'"});
  check_parts(table.graph_error("?label=kind&separator=;"), {"option 'separator' goes with 'list'"});
  check_parts(table.graph_error("?label=kind&none=x"), {"option 'none' goes with 'list'"});
  check_parts(table.graph_error("?label=kind&missing=x"), {"option 'missing' goes with 'labels'"});
  check_parts(table.graph_error("?list=kind&classes=3"), {"option 'classes' goes with 'label'"});
  check_parts(table.graph_error("?list=kind&separator="), {"option 'separator' is empty"});
  check_parts(table.graph_error("?labels=kind&check=2"), {"option 'check' is '2'"});
  check_parts(TestTable("path\n0.jpg\n").graph_error("?labels=*"), {"found no column besides path, split and group"});
  check_parts(message_of<GraphError>([] { open_source("csv:", "train", 1); }), {"'csv:PATH'"});
}

TEST_CASE("csv: classes that are whole numbers stay as they are") {
  const TestTable table("path,label\n0.jpg,2\n1.jpg,10\n2.jpg,0\n3.jpg,1\n4.jpg,2\n5.jpg,0\n6.jpg,1\n");
  check_parts(table.run_error(),
              {"column 'label' has class 10 (line 3), expected 0 to 3, as there are 4 classes", "classes=N"});
  const auto train = table.open("?classes=11&test=0.001");
  CHECK(train->fields()[1].classes == 11);
  CHECK(train->class_names().empty());
  check_parts(table.run_error("?classes=10"), {"has class 10 (line 3), expected 0 to 9"});
  const TestTable dense("path,label\n0.jpg,2\n1.jpg,0\n2.jpg,1\n");
  CHECK(labels<int32_t>(*dense.open()) == std::vector<int32_t>{2, 0, 1});
  CHECK(dense.open()->fields()[1].classes == 3);
  check_parts(TestTable("path,label\n0.jpg,-1\n1.jpg,0\n").run_error(), {"has class -1 (line 2), expected 0 to 1"});
  const TestTable from_one("path,label\n0.jpg,2\n1.jpg,3\n2.jpg,1\n");
  for (const char* options : {"", "?classes=3"}) {
    check_parts(
        from_one.run_error(options),
        {"column 'label' has classes 1 to 3, and none is 0; expected 0 to 2: take 1 from each, or classes=4 leaves"});
  }
  CHECK(from_one.open("?classes=4&test=0.001")->fields()[1].classes == 4);
  check_parts(TestTable("path,label\n0.jpg,1\n1.jpg,one\n").run_error("?classes=2"),
              {"has 'one' (line 3)", "'classes' is for whole numbers"});
  const TestTable names("path,label\n0.jpg,10\n1.jpg,9\n2.jpg,x\n3.jpg,01\n");  // one is no number: all are names
  CHECK(names.open()->class_names() == Strings{"01", "10", "9", "x"});
  check_parts(TestTable("path,label\n0.jpg,a\n1.jpg,\n").run_error(),
              {"line 3, column 'label': expected a class of at most 1000 bytes, found ''"});
}

TEST_CASE("csv: whole numbers written as floats are classes in their order, other spellings are told") {
  std::string table = "path,label\n";
  for (int i = 0; i < 12; ++i) {
    table += std::to_string(i % 10) + ".jpg," + std::to_string((i + 5) % 12) + (i % 2 ? ".0\n" : "\n");
  }
  const auto numbers = TestTable(table).open("?test=0.001");
  CHECK(numbers->class_names().empty());
  CHECK(numbers->fields()[1].classes == 12);
  const std::vector<int32_t> found = labels<int32_t>(*numbers);
  CHECK(std::set<int32_t>(found.begin(), found.end()).size() == found.size());
  // A number twice is one class, whatever its spelling.
  CHECK(TestTable("path,label\n0.jpg,0\n1.jpg,0.0\n2.jpg,1\n3.jpg,1.00\n").open()->fields()[1].classes == 2);
  const TestFolder folder;
  const Redirected told(folder / "told", stderr);
  CHECK(TestTable("path,label\n0.jpg,1\n1.jpg,01\n2.jpg,x\n").open()->class_names() == Strings{"01", "1", "x"});
  std::string all;
  for (const std::string& line : told.lines()) all += line;
  check_parts(all, {"has '1' (line 2) and '01' (line 3), which are one number and two classes"});
}

TEST_CASE("csv: numbers with fractions become names of classes, which is told") {
  const auto told_of = [](const std::string& rows) {
    const TestFolder folder;
    const Redirected told(folder / "told", stderr);
    TestTable("path,label\n" + rows).open();
    std::string all;
    for (const std::string& line : told.lines()) all += line;
    return all;
  };
  check_parts(told_of("0.jpg,0\n1.jpg,1.5\n2.jpg,2\n"),
              {"has '1.5' (line 3), a number that is not whole and becomes the name of a class"});
  CHECK(told_of("0.jpg,0\n1.jpg,1.0\n2.jpg,2\n") == "");
}

TEST_CASE("csv: a class that is missing is none") {
  for (const char* nan : {"nan", "NaN", " NAN "}) {
    check_parts(TestTable(std::string("path,label\n0.jpg,cat\n1.jpg,") + nan + "\n").run_error(),
                {"line 3, column 'label': expected a class; take rows without one out of the table", nan});
    check_parts(TestTable(std::string("path,l\n0.jpg,a|") + nan + "\n").run_error("?list=l"),
                {"line 2, column 'l': expected labels; none=TEXT names what stands for no label"});
  }
  CHECK(TestTable("path,l\n0.jpg,a|b\n1.jpg,nan\n").open("?list=l&none=nan")->class_names() == Strings{"a", "b"});
  check_parts(TestTable("path,label,who\n0.jpg,cat,nan\n").run_error("?group=who"), {"column 'who': expected a group"});
  for (const char* word : {"NA", "null", "None", "?"}) {
    check_parts(TestTable(std::string("path,label\n0.jpg,0\n1.jpg,10\n2.jpg,") + word + "\n").run_error(),
                {"column 'label' has '" + std::string(word) + "' (line 4), and whole numbers besides"});
    CHECK(TestTable(std::string("path,label\n0.jpg,zero\n1.jpg,") + word + "\n").open()->class_names().size() == 2);
  }
}

TEST_CASE("csv: a file in two splits is reported") {
  const TestFolder texts;
  const auto told = [&](const TestTable& table, const std::string& options, const char* split) {
    const Redirected errors(texts / "errors.txt", stderr);
    table.open(options, split);
    return errors.lines();
  };
  const TestTable table(
      "path,label,split\n0.jpg,a,train\n1.jpg,b,train\n./0.jpg,a,test\n2.jpg,a,test\n2.jpg,b,test\n1.jpg,a,val\n");
  const Strings lines = told(table, "", "train");
  REQUIRE(lines.size() == 2);
  check_parts(lines[1], {"table.csv': 1 file with different labels in one split: 2.jpg (lines 5 and 6)"});
  check_parts(lines[0], {"table.csv': 2 files in two splits: ", "0.jpg (lines 2 and 4)", "1.jpg (lines 3 and 7)"});
  CHECK(told(table, "", "test").empty());
  std::string twice = "path,label\n";  // of many that are there twice some are divided
  for (int i = 0; i < 15; ++i) twice += "0.jpg,a\n";
  check_parts(told(TestTable(twice), "?test=0.5", "train").at(0), {"1 file in two splits: 0.jpg (lines "});
  const TestTable several(
      "path,split,a,b\n0.jpg,train,1,0\n0.jpg,train,1,\n1.jpg,train,1,0\n1.jpg,train,1,0\n2.jpg,test,1,1\n");
  const Strings contradictory = told(several, "?labels=a,b", "train");
  REQUIRE(contradictory.size() == 1);
  check_parts(contradictory[0], {"1 file with different labels in one split: 0.jpg (lines 2 and 3)"});
  CHECK(told(TestTable("path,label,split\n0.jpg,a,train\n1.jpg,b,train\n2.jpg,a,test\n"), "", "train").empty());
}

TEST_CASE("csv: several labels with a column each, of which some are missing") {
  const TestTable table(
      "id,path,A,B,C,group,split\n"
      "0,0.jpg,1,0.0,TRUE,x,train\n0,1.jpg,,1.0,False,y,train\n0,2.jpg,0, 1 ,true,z,test\n");
  const auto train = table.open("?labels=A,B,C");
  CHECK(to_string(train->fields()) == "image string[], label float[3]");
  CHECK(train->class_names() == Strings{"A", "B", "C"});
  CHECK(labels<float>(*train) == std::vector<float>{1, 0, 1, -1, 1, 0});
  CHECK(labels<float>(*table.open("?labels=C,A", "test")) == std::vector<float>{1, 0});
  check_parts(table.run_error("?labels=*"), {"line 2, column 'group': expected 0, 1, 0.0", "found 'x'"});
  const auto all = table.open("?labels=*&group=group");
  CHECK(all->class_names() == Strings{"id", "A", "B", "C"});

  const TestTable wrong("path,A,B\n0.jpg,1,0\n1.jpg,0,-1.0\n2.jpg,1,1\n");
  check_parts(wrong.run_error("?labels=*"),
              {"line 3, column 'B': expected 0, 1, 0.0, 1.0, false, true, or nothing", "found '-1.0'"});
  CHECK(labels<float>(*wrong.open("?labels=*&missing=-1.0&test=0.001")).size() == 4);
  for (const char* value : {"2", "0.5", "yes", "-1", "nan", "1 0"})
    check_parts(
        TestTable(std::string("path,A\n0.jpg,") + value + "\n").run_error("?labels=A&missing=NA"),
        {"line 2, column 'A'", "or nothing or 'NA' for a label that is missing", std::string("found '") + value});
}

TEST_CASE("csv: labels listed in one column") {
  const TestTable table(
      "Image Index,Finding Labels,split\n0.jpg,Mass|Edema,train\n1.jpg,No Finding,train\n2.jpg,Effusion,test\n"
      "3.jpg,,train\n4.jpg, Mass ,train\n");
  const std::string options = "?list=Finding Labels&none=No Finding";
  const auto train = table.open(options);
  CHECK(to_string(train->fields()) == "image string[], label float[3]");
  CHECK(train->class_names() == Strings{"Edema", "Effusion", "Mass"});
  CHECK(labels<float>(*train) == std::vector<float>{1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1});
  CHECK(table.open("?list=Finding Labels")->class_names().size() == 4);
  CHECK(table.open(options, "test")->fields() == train->fields());
  const TestTable other("path,l,split\n0.jpg,a; b,train\n");
  CHECK(other.open("?list=l&separator=;")->class_names() == Strings{"a", "b"});
  for (const char* list : {"a||b", "|a", "a|", "a|No Finding"})
    check_parts(TestTable(std::string("path,l\n0.jpg,") + list + "\n").run_error("?list=l&none=No Finding"),
                {"line 2, column 'l'", std::string("found '") + list});
  check_parts(TestTable("path,l\n0.jpg,\n").run_error("?list=l"), {"column 'l' has no label in any row"});
}

TEST_CASE("csv: a seeded part of each class, or of groups, is held out") {
  std::string text = "path,label,patient,split\n";
  for (int i = 0; i < 100; ++i)
    text += "p" + std::to_string(i) + ".jpg," + (i < 20 ? "rare" : "usual") + ",patient " + std::to_string(i % 17) +
            ",train\n";
  const TestTable table(text);
  const auto where = [&](const std::string& options, const char* split, uint64_t seed = 1) {
    Strings all;
    const auto source = table.open(options, split, seed);
    for (int64_t i = 0; i < source->size(); ++i) all.push_back(source->locate(i));
    return all;
  };
  const std::string fraction = "?check=0&test=0.2";  // and the column 'split' says nothing
  const Strings train = where(fraction, "train"), test = where(fraction, "test");
  CHECK(test.size() == 20);
  CHECK(train.size() == 80);
  std::map<int32_t, int> counts;
  for (const int32_t label : labels<int32_t>(*table.open(fraction, "test"))) ++counts[label];
  CHECK(counts == std::map<int32_t, int>{{0, 4}, {1, 16}});
  std::set<std::string> all(train.begin(), train.end());
  all.insert(test.begin(), test.end());
  CHECK(all.size() == 100);
  CHECK(where(fraction, "test", 77) == test);
  CHECK(where(fraction, "validation") == test);
  CHECK(where(fraction + "&seed=5", "test") != test);

  const auto patients = [&](const char* split) {
    std::set<int> found;
    for (const std::string& place : where(fraction + "&group=patient", split))
      found.insert((std::stoi(place.substr(place.rfind(' '))) - 2) % 17);
    return found;
  };
  const std::set<int> of_train = patients("train"), of_test = patients("test");
  CHECK(of_train.size() + of_test.size() == 17);
  for (const int patient : of_test) CHECK_FALSE(of_train.contains(patient));
  CHECK(of_test.size() >= 3);
  CHECK(of_test.size() <= 5);
}

TEST_CASE("csv: folds keep groups together, by whichever option") {
  std::string text = "path,label,patient\n";
  for (int i = 0; i < 40; ++i) text += fmt::format("{}.jpg,{},p{}\n", i % 10, i % 2 == 0 ? "a" : "b", i % 7);
  const TestTable table(text);
  for (const std::string by : {"&group=patient", "&by=patient", "&limit=30&by=patient"}) {
    std::set<int> seen;
    int64_t samples = 0;
    for (int fold = 1; fold <= 3; ++fold) {
      const auto part = table.open(fmt::format("?check=0&test=0.1&folds=3&fold={}{}", fold, by), "test");
      std::set<int> patients;
      for (int64_t i = 0; i < part->size(); ++i) {
        const std::string place = part->locate(i);
        patients.insert((std::stoi(place.substr(place.rfind(' '))) - 2) % 7);
      }
      samples += part->size();
      for (const int patient : patients) CHECK(seen.insert(patient).second);
    }
    CHECK(samples > 20);
  }
  check_parts(table.graph_error("?folds=3&fold=1&by=pateint"), {"pateint"});
  check_parts(table.graph_error("?folds=3&fold=1&by=patient&group=patient"), {"expected one of both options"});
  check_parts(table.graph_error("?check=0&folds=9&fold=1&by=patient"), {"too few groups for 9 folds"});
}

TEST_CASE("csv: blanks around a class are no part of it") {
  const TestTable names("path,label\n0.jpg,cat\n1.jpg, cat\n2.jpg,dog\t\n3.jpg,dog\n");
  CHECK(names.open()->class_names() == Strings{"cat", "dog"});
  const TestTable numbers("path,label\n0.jpg,0\n1.jpg, 1\n2.jpg,1 \n3.jpg,0\n");
  CHECK(numbers.open()->class_names().empty());
  CHECK(numbers.open()->fields()[1].classes == 2);
}

TEST_CASE("csv: splits that cannot be") {
  const TestTable table("path,label,split,patient\n0.jpg,a,train,p\n1.jpg,b,train,q\n");
  check_parts(table.run_error("", "test"), {"none of the 2 rows is in the split, by column 'split'"});
  check_parts(TestTable("path,label,split\n0.jpg,a,dev\n").run_error(),
              {"line 2, column 'split': expected train, test or validation", "found 'dev'"});
  for (const char* option : {"test=0.5", "seed=3"})
    check_parts(table.graph_error(std::string("?split=split&") + option),
                {"divides a table without splits, and column 'split' says them"});
  check_parts(TestTable("path,label,split,patient\n0.jpg,a,train,p\n1.jpg,b,train,q\n2.jpg,b,test,p\n")
                  .run_error("?group=patient"),
              {"group 'p' is in train (line 2) and in test (line 4)"});
  check_parts(TestTable("path,label,patient\n0.jpg,a,\n").run_error("?group=patient"),
              {"line 2, column 'patient': expected a group"});
  check_parts(TestTable("path,label\n0.jpg,a\n").run_error("", "test"), {"none of the 1 rows is in the split"});
  check_parts(TestTable("path,label\n0.jpg,a\n,a\n").run_error(),
              {"line 3, column 'path': expected the path of an image"});
  check_parts(TestTable("path,label\n" + std::string(100'000, 'a') + ",a\n").run_error(),
              {"line 2, column 'path': expected the path of an image, less than 4096 bytes", "aa…'"});
  check_parts(TestTable("path,label\n0.jpg," + std::string(100'000, 'a') + "\n").run_error(),
              {"line 2, column 'label': expected a class of at most 1000 bytes", "aa…'"});
  check_parts(TestTable("path,label\n0.jpg, \n").run_error(),
              {"line 2, column 'label': expected a class", "found ' '"});
  check_parts(TestTable("path;label\n0.jpg;a\n").graph_error(),
              {"expected path=COLUMN, and commas between columns", "has the columns path;label"});
  check_parts(TestTable("path,label\n").run_error(), {"found no rows below the names of columns"});
  check_parts(TestTable("path,label\n0.jpg,a,b\n").run_error(), {"line 2: found 3 cells, expected 2"});
}

TEST_CASE("csv: whether files are there is looked at once, before a run") {
  std::string text = "path,label,split\n";
  for (int i = 0; i < 20; ++i) text += std::to_string(i) + ".jpg,a,train\n";
  text += "gone.jpg,a,test\n0.jpg,a,test\n";
  const TestTable table(text);
  table.folder().write("3.jpg", std::string());
  std::filesystem::create_directory(table.folder() / "12.jpg");
  const auto fault_of = [&](const char* split) {
    return message_of<RunError>([&] { table.open("", split)->check_files(); });
  };
  check_parts(fault_of("train"),
              {"11 of 20 files cannot be used", "3.jpg (", "line 5): an empty file", "10.jpg (",
               "line 12): No such file", "line 14): a folder", "; and 6 more; --skip-bad N goes on over"});
  check_parts(fault_of("test"), {"1 of 2 files cannot be used", "gone.jpg (", "line 22): No such file"});
  const auto train = table.open("?check=0");
  train->check_files();
  CHECK(train->size() == 20);
  check_parts(message_of<RunError>([&] { content(*train, 10); }), {"10.jpg: cannot be opened"});

  TestFolder photos;
  for (int i = 0; i < 20; ++i) photos.write(std::to_string(i) + ".jpg", "other " + std::to_string(i));
  CHECK(content(*table.open("?root=" + photos.string()), 2) == "other 2");
  const TestTable absolute("path,label\n" + (photos / "7.jpg").string() + ",a\n");
  CHECK(content(*absolute.open(), 0) == "other 7");
}

TEST_CASE("csv: of a limited split only those files are looked at that it has") {
  std::string text = "path,label,split\n";
  for (int i = 0; i < 19; ++i) text += std::to_string(i % 10) + ".jpg,a,train\n";
  const TestTable table(text + "gone.jpg,a,train\n");
  int refused = 0;
  for (int limit = 1; limit < 20; ++limit) {
    const auto few = table.open("?limit=" + std::to_string(limit));
    bool gone = false;
    for (int64_t i = 0; i < few->size(); ++i) gone = gone || few->name(i).ends_with("gone.jpg");
    CAPTURE(limit);
    if (gone) {
      check_parts(message_of<RunError>([&] { few->check_files(); }),
                  {"1 of " + std::to_string(limit) + " files", "gone"});
      ++refused;
    } else {
      few->check_files();
    }
  }
  CHECK(refused > 0);
  CHECK(refused < 19);
}

TEST_CASE("csv: the real X-rays") {
  const char* root = std::getenv("ARBALEST_SOURCE");
  const std::filesystem::path file = std::filesystem::path(root ? root : ".") / "../shared/data/xrays/labels.csv";
  if (!std::filesystem::exists(file)) {
    MESSAGE("SKIP: no X-rays in " << file.string());
    return;
  }
  const auto train = open_source("csv:" + file.string() + "?labels=*", "train", 1);
  CHECK(train->size() == 793);
  CHECK(train->class_names() == Strings{"pneumonia", "bacteria", "virus"});
  CHECK(open_source("csv:" + file.string() + "?labels=*", "test", 1)->size() == 210);
  CHECK(content(*train, 792).starts_with("\x89PNG"));
}

TEST_CASE("csv: blanks around names of columns and splits are left out, as around labels") {
  const TestTable table("path , label, split\n0.jpg, a ,train\n1.jpg,b, train \n2.jpg,a,\ttest\n");
  CHECK(table.open()->size() == 2);
  CHECK(table.open()->class_names() == Strings{"a", "b"});
  CHECK(table.open("?label=label", "test")->size() == 1);
}

}  // namespace csv_test
