// SPDX-License-Identifier: Apache-2.0

// The source folder: photos in a folder for each class.

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "io/open/open_source.h"
#include "io/sources/passed_over.h"
#include "io/sources/source.h"
#include "tests/io/batch.h"
#include "tests/io/test_folder.h"
#include "tests/tools/redirected.h"

using namespace arbalest;
using arbalest::test::labels;

namespace folder_test {
namespace {

std::unique_ptr<Source> open(const TestFolder& folder, const char* split = "train", const std::string& options = "") {
  return open_source("folder:" + folder.string() + options, split, 1);
}

std::string run_error(const TestFolder& folder, const char* split = "train") {
  return message_of<RunError>([&] { open(folder, split); });
}

// Paths relative to the test's folder, in the source's order.
std::vector<std::string> paths(const TestFolder& folder, const Source& source) {
  std::vector<std::string> all;
  for (int64_t i = 0; i < source.size(); ++i) all.push_back(source.locate(i).substr(folder.string().size() + 1));
  return all;
}

std::string content(const Source& source, int64_t index) {
  std::vector<std::byte> bytes(100);
  source.read(index, 0, bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

using Strings = std::vector<std::string>;
using test::Redirected;

// `count` photos in each of the folders.
void write_photos(const TestFolder& folder, const Strings& classes, int count) {
  for (const std::string& name : classes)
    for (int i = 0; i < count; ++i) folder.write(name + "/" + std::to_string(i) + ".jpg", std::string("x"));
}

}  // namespace

TEST_CASE("folder: splits, classes, nested folders, and what is no photo") {
  TestFolder folder;
  folder.write("train/dog/2.PNG", std::string("dog 2"));
  folder.write("train/dog/10.jpeg", std::string("dog 10"));
  folder.write("train/Cat/deep/er/a.WebP", std::string("cat deep"));
  folder.write("train/Cat/b.JPG", std::string("cat b"));
  folder.write("train/Cat/.hidden.jpg", std::string("no"));
  folder.write("train/Cat/.hidden/c.jpg", std::string("no"));
  folder.write("train/Cat/notes.txt", std::string("no"));
  folder.write("train/Cat/jpg", std::string("no"));
  folder.write("train/emu/e.jpg", std::string("emu"));
  folder.write("train/.ipynb_checkpoints/x.jpg", std::string("no"));
  folder.write("test/dog/t.jpg", std::string("test dog"));
  folder.write("test/emu/readme", std::string("no"));

  const auto train = open(folder);
  CHECK(train->class_names() == Strings{"Cat", "dog", "emu"});
  CHECK(to_string(train->fields()) == "image string[], label int32[] of 3 classes");
  CHECK(paths(folder, *train) == Strings{"train/Cat/b.JPG", "train/Cat/deep/er/a.WebP", "train/dog/10.jpeg",
                                         "train/dog/2.PNG", "train/emu/e.jpg"});
  CHECK(labels(*train) == std::vector<int32_t>{0, 0, 1, 1, 2});
  CHECK(content(*train, 1) == "cat deep");
  CHECK(content(*train, 4) == "emu");
  CHECK(train->describe() ==
        "folder:" + folder.string() +
            " train: 5 samples of image string[], label int32[] of 3 classes; 2 other files ignored");

  const auto test = open(folder, "test");  // its class keeps its number
  CHECK(test->fields() == train->fields());
  CHECK(test->class_names() == train->class_names());
  CHECK(paths(folder, *test) == Strings{"test/dog/t.jpg"});
  CHECK(labels(*test) == std::vector<int32_t>{1});
  check_parts(test->describe(), {"test: 1 samples", "1 other file ignored"});
  CHECK(train->passed_over() == PassedOver{{".txt", 1}, {"", 1}});
  CHECK(test->passed_over() == PassedOver{{"", 1}});
  const auto validation = open(folder, "validation");  // stands for what is there
  CHECK(paths(folder, *validation) == paths(folder, *test));
  check_parts(validation->describe(), {"validation (folder 'test'): "});
}

TEST_CASE("folder: validation under all its names, with test and instead of it") {
  for (const std::string name : {"val", "valid", "validation"}) {
    TestFolder folder;
    write_photos(folder, {"train/a", name + "/a"}, 3);
    for (const char* split : {"test", "validation"})
      CHECK(paths(folder, *open(folder, split)) == Strings{name + "/a/0.jpg", name + "/a/1.jpg", name + "/a/2.jpg"});
    write_photos(folder, {"test/a"}, 1);
    CHECK(paths(folder, *open(folder, "test")) == Strings{"test/a/0.jpg"});
    CHECK(open(folder, "validation")->size() == 3);
  }
  TestFolder folder;
  write_photos(folder, {"train/a", "val/a", "valid/a"}, 1);
  check_parts(run_error(folder), {"found folders val and valid", "expected one for validation"});
}

TEST_CASE("folder: a seeded fraction of each class is held out, whatever the run's seed") {
  TestFolder folder;
  write_photos(folder, {"a"}, 50);
  write_photos(folder, {"b/deep", "c"}, 5);
  write_photos(folder, {"pair"}, 2);
  write_photos(folder, {"single"}, 1);
  const auto train = open(folder), test = open(folder, "test");
  CHECK(train->class_names() == Strings{"a", "b", "c", "pair", "single"});
  CHECK(test->class_names() == train->class_names());
  std::map<int32_t, int> counts;
  for (const int32_t label : labels(*test)) ++counts[label];
  CHECK(counts == std::map<int32_t, int>{{0, 10}, {1, 1}, {2, 1}, {3, 1}});
  counts.clear();
  for (const int32_t label : labels(*train)) ++counts[label];
  CHECK(counts == std::map<int32_t, int>{{0, 40}, {1, 4}, {2, 4}, {3, 1}, {4, 1}});
  const Strings of_train = paths(folder, *train), of_test = paths(folder, *test);
  std::set<std::string> all(of_train.begin(), of_train.end());
  all.insert(of_test.begin(), of_test.end());
  CHECK(all.size() == 63);
  CHECK(paths(folder, *open(folder, "validation")) == of_test);
  CHECK(paths(folder, *open_source("folder:" + folder.string(), "test", 99)) == of_test);
  CHECK(paths(folder, *open(folder, "test", "?seed=1")) != of_test);
  CHECK(paths(folder, *open(folder, "test", "?test=0.2&seed=0")) == of_test);
  CHECK(open(folder, "test", "?test=0.5")->size() == 25 + 3 + 3 + 1);
  CHECK(open(folder, "test", "?test=0.29")->size() == 15 + 1 + 1 + 1);  // of 50: 14.5, and less in doubles
  CHECK(open(folder, "test", "?test=0.999")->size() == 49 + 4 + 4 + 1);

  // One more photo moves none of the others by more than its own place.
  folder.write("a/more.jpg", std::string("x"));
  const Strings now = paths(folder, *open(folder, "test"));
  int64_t kept = 0;
  for (const std::string& path : of_test) kept += std::count(now.begin(), now.end(), path);
  CHECK(kept >= int64_t(of_test.size()) - 1);
}

TEST_CASE("folder: splits are known by other names and letters too") {
  TestFolder folder;
  write_photos(folder, {"Training/a", "Training/b"}, 2);
  write_photos(folder, {"Testing/b", "VALID/a"}, 1);
  CHECK(open(folder)->class_names() == Strings{"a", "b"});
  CHECK(open(folder)->size() == 4);
  CHECK(paths(folder, *open(folder, "test")) == Strings{"Testing/b/0.jpg"});
  CHECK(paths(folder, *open(folder, "validation")) == Strings{"VALID/a/0.jpg"});
  write_photos(folder, {"train/a"}, 1);
  check_parts(run_error(folder), {"found folders Training and train", "expected one for training"});

  TestFolder vehicles;  // of classes
  write_photos(vehicles, {"car", "train"}, 5);
  CHECK(open(vehicles)->class_names() == Strings{"car", "train"});
}

TEST_CASE("folder: links are followed, and loops end") {
  TestFolder folder, elsewhere;
  elsewhere.write("one.jpg", std::string("one"));
  elsewhere.write("more/two.jpg", std::string("two"));
  write_photos(folder, {"a", "b"}, 2);
  std::filesystem::create_symlink(elsewhere / "one.jpg", folder / "a/link.jpg");
  std::filesystem::create_directory_symlink(elsewhere / "more", folder / "a/linked");
  std::filesystem::create_directory_symlink(folder / "a", folder / "a/loop");
  std::filesystem::create_directory_symlink("..", folder / "b/up");
  std::filesystem::create_directory_symlink(elsewhere / "more", folder / "class");
  std::filesystem::create_symlink("nowhere", folder / "a/README");
  const auto train = open(folder, "train", "?test=0.01");
  const auto test = open(folder, "test", "?test=0.01");
  CHECK(train->class_names() == Strings{"a", "b", "class"});
  CHECK(train->size() + test->size() == 4 + 2 + 1);  // b/up leads to what is in a, and is left out
}

TEST_CASE("folder: a link to a folder above is no class, and no class leads up by its place") {
  TestFolder folder, elsewhere;
  write_photos(folder, {"photos/a", "photos/b"}, 2);
  std::filesystem::create_directory_symlink(".", folder / "photos/all");
  std::filesystem::create_directory_symlink("..", folder / "photos/up");
  std::filesystem::create_directory_symlink(folder / "photos", folder / "photos/whole");
  elsewhere.write("c/one.jpg", std::string("one"));
  std::filesystem::create_directory_symlink(folder / "photos", elsewhere / "c/back");
  std::filesystem::create_directory_symlink(elsewhere / "c", folder / "photos/c");
  const auto open_part = [&](const char* split) {
    return open_source("folder:" + (folder / "photos").string() + "?test=0.01", split, 1);
  };
  const auto train = open_part("train"), test = open_part("test");
  CHECK(train->class_names() == Strings{"a", "b", "c"});
  CHECK(train->size() + test->size() == 4 + 1);
}

TEST_CASE("folder: a link that leads nowhere is an image that is missing") {
  TestFolder folder;
  write_photos(folder, {"train/a", "test/a"}, 2);
  std::filesystem::create_symlink("nowhere", folder / "train/a/broken.jpg");
  const auto train = open(folder);
  CHECK(train->size() == 3);
  check_parts(message_of<RunError>([&] { train->check_files(); }),
              {"1 of 3 files cannot be used; ", "a/broken.jpg: No such file", "--skip-bad N"});
  open(folder, "test")->check_files();
}

TEST_CASE("folder: what cannot be split says what was found and expected") {
  TestFolder folder;
  check_parts(run_error(folder), {folder.string(), "which is empty", "expected a folder for each class", "train and"});
  check_parts(message_of<RunError>([&] { open_source("folder:" + folder.string() + "/none", "train", 1); }),
              {"none: cannot be listed: No such file"});
  folder.write("photo.jpg", std::string("x"));
  check_parts(run_error(folder), {"found 1 image in '" + folder.string() + "' itself, and no folder of a class; ",
                                  "expected a folder for each class"});
  folder.write(".DS_Store", std::string("x"));  // no message lists it
  write_photos(folder, {"train/a"}, 2);
  check_parts(run_error(folder), {"which holds photo.jpg, train/", "one of test, validation, val, valid"});
  write_photos(folder, {"test/a", "test/z", "test/y"}, 1);
  check_parts(run_error(folder, "test"), {"test' has 2 classes that '", "train' has not: y, z"});
  CHECK(open(folder)->size() == 2);  // training itself is whole
  std::filesystem::remove_all(folder / "test/z");
  std::filesystem::remove_all(folder / "test/y");
  for (const char* option : {"test=0.1", "seed=3"})
    check_parts(message_of<GraphError>([&] { open(folder, "train", std::string("?") + option); }),
                {"divides a folder without splits", "has train and test"});
  folder.write("train/b/notes.txt", std::string("x"));
  check_parts(run_error(folder),
              {"class 'b' has no images", ".jpg, .jpeg, .jpe, .jfif, .png, .webp, .bmp, .gif, .tif or .tiff",
               "which holds notes.txt"});
  std::filesystem::remove_all(folder / "train/b");
  std::filesystem::remove(folder / "test/a/0.jpg");
  check_parts(run_error(folder, "test"), {"found no images in", "test', which holds a/"});
  check_parts(message_of<GraphError>([&] { open(folder, "tests"); }), {"train or test or validation"});
}

TEST_CASE("folder: fractions that are none, and classes too small for one") {
  TestFolder folder;
  write_photos(folder, {"a", "b"}, 1);
  CHECK(open(folder)->size() == 2);
  check_parts(run_error(folder, "test"),
              {"found no images for split 'test': each class in '", "' has only one, which is for training"});
  for (const char* fraction : {"0", "1", "-0.1", "nan", "x", "", "0.2x"})
    check_parts(message_of<GraphError>([&] { open(folder, "train", std::string("?test=") + fraction); }),
                {"option 'test' is '", "expected a number between 0 and 1"});
  check_parts(message_of<GraphError>([&] { open(folder, "train", "?seed=-1"); }), {"option 'seed' is '-1'"});
}

TEST_CASE("folder: all that is an image by its name is taken, and all else is counted") {
  TestFolder folder;
  const Strings images = {"0.jpg", "1.jpeg", "2.jpe", "3.JFIF", "4.png", "5.webp", "6.bmp", "7.gif", "8.tif", "9.Tiff"};
  for (const std::string& name : images) folder.write("train/a/" + name, std::string("x"));
  for (const char* name : {"a.heic", "b.HEIC", "c.heic", "d.txt", "e.tiff2", "f.1", "g.", "h", "i.a b", "j.mp4",
                           "k.cr2", "l.nef", "m.nef", "scan.2023.05"}) {
    folder.write(std::string("train/a/") + name, std::string("x"));
  }
  folder.write("test/a/0.jpg", std::string("x"));
  const auto train = open(folder, "train", "?limit=4");
  CHECK(open(folder)->size() == 10);
  CHECK(train->passed_over() ==
        PassedOver{{".heic", 3}, {".txt", 1}, {".tiff2", 1}, {"", 5}, {".mp4", 1}, {".cr2", 1}, {".nef", 2}});
  CHECK(to_string(train->passed_over()) ==
        "14 files were passed over: 5 without an ending, 3 .heic, 2 .nef, 1 .cr2, "
        "1 .mp4, 1 .tiff2, 1 of other kinds");
  CHECK(to_string(PassedOver{{".txt", 1}}) == "1 file was passed over: 1 .txt");
  CHECK(open(folder, "test")->passed_over().empty());
}

TEST_CASE("folder: photos next to the classes, and classes with nothing to test, are warned of") {
  TestFolder folder;
  for (const char* file :
       {"train/a/1.jpg", "train/b/2.jpg", "test/a/3.jpg", "beside.jpg", "test/x.png", "test/y.PNG"}) {
    folder.write(file, std::string("photo"));
  }
  const std::string source = "folder:" + folder.string();
  const auto warnings = [&](const char* split) {
    const Redirected errors(folder / ".errors", stderr);
    open_source(source, split, 1);
    return errors.lines();
  };
  CHECK(warnings("train") == Strings{"arbalest: source '" + source +
                                     " train': 1 image next to the folders of classes is in no class and ignored"});
  CHECK(warnings("test") == Strings{"arbalest: source '" + source +
                                        " test': 3 images next to the folders of classes are in no class and ignored",
                                    "arbalest: source '" + source + " test': 1 of 2 classes have no sample: b"});
}

TEST_CASE("folder: of a limited split bytes, labels, names and places fit") {
  TestFolder folder;
  for (const char* name : {"a", "b", "c"})
    for (int i = 0; i < 100; ++i) {
      const std::string path = std::string(name) + "/" + std::to_string(i) + ".jpg";
      folder.write(path, path);
    }
  const auto some = open(folder, "train", "?limit=60");
  REQUIRE(some->size() == 60);
  CHECK(some->class_names() == Strings{"a", "b", "c"});
  const std::vector<int32_t> classes = labels(*some);
  const Strings places = paths(folder, *some);
  for (size_t i = 0; i < 60; ++i) {
    CHECK(content(*some, int64_t(i)) == places[i]);
    CHECK(classes[i] == places[i][0] - 'a');
  }
  for (const int32_t label : {0, 1, 2}) CHECK(std::count(classes.begin(), classes.end(), label) > 10);
}

TEST_CASE("folder: one class is reported, and a folder too high or too low is named with the one that is meant") {
  const TestFolder folder;
  write_photos(folder, {"set/cat", "set/dog"}, 2);
  const auto said = [&](const std::string& inside, const std::string& split = "train") {
    const Redirected standard_error(folder / "said", stderr);
    open_source("folder:" + (folder / inside).string() + "?test=0.5", split, 1);
    return standard_error.lines();
  };
  CHECK(said("set").empty());
  const std::string set = (folder / "set").string();
  CHECK(said("") == Strings{"arbalest: source 'folder:" + folder.string() +
                            "/?test=0.5 train': found one class, 'set'; expected a folder for each class in '" +
                            folder.string() + "/'; classes seem to be in '" + set + "': folder:" + set + "?test=0.5"});
  check_parts(
      message_of<RunError>([&] { said("set/cat"); }),
      {"expected a folder for each class", "; classes seem to be in '" + set + "': folder:" + set + "?test=0.5"});
  // Folders around that are not classes alone are not meant.
  write_photos(folder, {"set/notes/deep"}, 1);
  CHECK_FALSE(message_of<RunError>([&] { said("set/cat"); }).find("seem to be in") != std::string::npos);
  write_photos(folder, {"alone/only"}, 2);
  const Strings alone = said("alone", "test");
  REQUIRE(alone.size() == 1);
  CHECK(alone[0].ends_with("found one class, 'only'; expected a folder for each class in '" +
                           (folder / "alone").string() + "'"));
}

TEST_CASE("folder: splits whose images are in no class's folder are told so") {
  const TestFolder folder;
  write_photos(folder, {"train", "test"}, 3);
  for (const char* split : {"train", "test"}) {
    check_parts(run_error(folder, split), {"found 3 images in '" + (folder / "train").string() +
                                           "' itself, and no folder of a class; expected the "
                                           "images in a folder for each class: '" +
                                           (folder / "train/CLASS").string() + "'"});
  }
  std::filesystem::remove_all(folder / "train");
  write_photos(folder, {"train/a", "train/b"}, 2);
  check_parts(run_error(folder, "test"), {"found 3 images in '" + (folder / "test").string() + "' itself"});
  CHECK(open(folder)->size() == 4);
}

TEST_CASE("folder: a photo that is gone by the time it is read") {
  TestFolder folder;
  write_photos(folder, {"a"}, 3);
  const auto train = open(folder);
  std::filesystem::remove(train->locate(0));
  check_parts(message_of<RunError>([&] { content(*train, 0); }), {"cannot be opened: No such file"});
  CHECK(content(*train, 1) == "x");
}

TEST_CASE("folder: the real Caltech-101") {
  const char* root = std::getenv("ARBALEST_SOURCE");
  const std::filesystem::path folder = std::filesystem::path(root ? root : ".") / "../shared/data/caltech101";
  if (!std::filesystem::exists(folder)) {
    MESSAGE("SKIP: no Caltech-101 in " << folder.string());
    return;
  }
  const auto train = open_source("folder:" + folder.string(), "train", 1);
  CHECK(train->size() == 2020);
  CHECK(train->class_names().size() == 101);
  CHECK(open_source("folder:" + folder.string(), "test", 1)->size() == 505);
  CHECK(content(*train, 2019).starts_with("\xff\xd8"));
}

}  // namespace folder_test
