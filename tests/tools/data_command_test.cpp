// SPDX-License-Identifier: Apache-2.0

// arbalest data: the content of a data set, contact sheets, and photos packed into tar archives.

#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/output_lock.h"
#include "io/formats/safetensors.h"
#include "io/images/image.h"
#include "io/open/open_source.h"
#include "tests/io/image_files.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"
#include "tools/data/pack.h"

using namespace arbalest;
using namespace arbalest::test;

namespace data_command_test {
namespace {

using Json = nlohmann::ordered_json;

TestImage filled(int width, int height, std::vector<uint8_t> colour) {
  TestImage image{width, height, int(colour.size()), 8, {}};
  for (int i = 0; i < width * height; ++i) image.bytes.insert(image.bytes.end(), colour.begin(), colour.end());
  return image;
}

// Two classes of training, three files and two, and a test split of one of each.
struct Photos {
  TestFolder folder;
  std::string source = "folder:" + folder.string() + "/set", out = folder / "out";

  Photos() {
    folder.write("set/train/cat/a.png", encode_png(filled(40, 20, {51, 102, 255})));
    folder.write("set/train/cat/b.png", encode_png(filled(10, 30, {153})));
    folder.write("set/train/cat/c.jpg", encode_jpeg(filled(64, 48, {0, 0, 0}), {.orientation = 6}));
    folder.write("set/train/dog/d.png", encode_png(filled(16, 16, {255, 255, 255})));
    folder.write("set/train/dog/e.webp", encode_webp(filled(20, 24, {0, 0, 0})));
    folder.write("set/test/cat/f.png", encode_png(filled(8, 8, {0, 0, 0})));
    folder.write("set/test/dog/g.png", encode_png(filled(8, 8, {0, 0, 0})));
  }

  void break_one() const { folder.write("set/train/cat/broken.jpg", std::string("no photo")); }

  // The exit status, and what was printed.
  std::pair<int, std::string> look(std::vector<const char*> words) const {
    words.insert(words.begin(), {"data", source.c_str()});
    const Command command = parse(words);
    REQUIRE(options_if<DataOptions>(command));
    const Redirected output(folder / "out.txt");
    const int status = command_data(options_of<DataOptions>(command));
    std::string text;
    for (const std::string& line : output.lines()) text += line + "\n";
    return {status, text};
  }

  std::pair<int, std::string> pack(std::vector<const char*> words = {}) const {
    words.insert(words.begin(), {"data", "pack", source.c_str(), out.c_str(), "--threads", "2"});
    const Command command = parse(words);
    REQUIRE(options_if<PackCommandOptions>(command));
    const Redirected output(folder / "out.txt");
    const int status = command_pack(options_of<PackCommandOptions>(command));
    std::string text;
    for (const std::string& line : output.lines()) text += line + "\n";
    return {status, text};
  }
};

struct Member {
  std::string name, content;
};

// The members of a ustar archive, by the fields that POSIX states.
std::vector<Member> members(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string archive{std::istreambuf_iterator<char>(in), {}};
  REQUIRE(archive.size() % 512 == 0);
  std::vector<Member> found;
  size_t at = 0;
  while (archive.at(at) != '\0') {
    const std::string header = archive.substr(at, 512);
    CHECK(header.substr(257, 6) == std::string("ustar\0", 6));
    CHECK(header[156] == '0');
    unsigned sum = 8 * ' ';
    for (size_t i = 0; i < 512; ++i) sum += i >= 148 && i < 156 ? 0 : uint8_t(header[i]);
    CHECK(std::strtoul(header.substr(148, 6).c_str(), nullptr, 8) == sum);
    const size_t size = std::strtoul(header.substr(124, 11).c_str(), nullptr, 8);
    found.push_back({header.c_str(), archive.substr(at + 512, size)});
    at += 512 + (size + 511) / 512 * 512;
  }
  CHECK(archive.size() - at == 1024);
  CHECK(archive.find_first_not_of('\0', at) == archive.npos);
  return found;
}

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("data: sizes, kinds, classes and the mean of what is there") {
  const Photos photos;
  const auto [status, text] = photos.look({"--json", "--threads", "2"});
  CHECK(status == kDone);
  const Json report = Json::parse(text), train = report["splits"][0];
  CHECK(train["split"] == "train");
  CHECK(train["samples"] == 5);
  CHECK(train["classes"].dump() == R"([{"name":"cat","samples":3},{"name":"dog","samples":2}])");
  const Json& images = train["images"];
  CHECK(images["jpeg"] == 1);
  CHECK(images["png"] == 3);
  CHECK(images["webp"] == 1);
  CHECK(images["grey"] == 1);
  CHECK(images["colour"] == 4);
  CHECK(images["turned"] == 1);
  CHECK(images["width"].dump() == R"({"min":10,"median":20,"max":48})");  // the JPEG is 48 × 64 upright
  CHECK(images["height"].dump() == R"({"min":16,"median":24,"max":64})");
  CHECK(images["shorter_side"].dump() == R"({"min":10,"median":20,"max":48})");
  // Images weigh the same whatever their sizes: (51, 102, 255), three times 153, black, white, black.
  const double channels[3][5] = {{0.2, 0.6, 0, 1, 0}, {0.4, 0.6, 0, 1, 0}, {1, 0.6, 0, 1, 0}};
  for (size_t c = 0; c < 3; ++c) {
    double mean = 0, square = 0;
    for (const double value : channels[c]) mean += value / 5, square += value * value / 5;
    CHECK(images["mean"][c].get<double>() == doctest::Approx(mean).epsilon(1e-6));
    CHECK(images["std"][c].get<double>() == doctest::Approx(std::sqrt(square - mean * mean)).epsilon(1e-6));
  }
  CHECK(train["unreadable"].empty());
  CHECK(report["splits"][1]["samples"] == 2);
  CHECK_FALSE(report.contains("missing"));
}

TEST_CASE("data: what people read, and samples that are chosen") {
  const Photos photos;
  auto [status, text] = photos.look({"--split", "train", "--limit", "2"});
  CHECK(status == kDone);
  check_parts(text, {"train\n", "samples      5, of which 2 were looked at", "label int32[] of 2 classes",
                     "  samples    cat 3, dog 2", "Augment      mean = [", "], std = [", "images/s with"});
  CHECK(text.find("test") == text.npos);
  std::tie(status, text) = photos.look({"--split", "test"});
  check_parts(text, {"images       2 PNG, 2 colour", "size         8 × 8 pixels", "mean = [0.0000, 0.0000, 0.0000]"});
}

TEST_CASE("data: a file that cannot be read is reported with its reason, and is a failure") {
  const Photos photos;
  photos.break_one();
  auto [status, text] = photos.look({});
  CHECK(status == kFailed);
  check_parts(text, {"unreadable   1\n", "/set/train/cat/broken.jpg: "});
  std::tie(status, text) = photos.look({"--json"});
  CHECK(status == kFailed);
  const Json train = Json::parse(text)["splits"][0];
  REQUIRE(train["unreadable"].size() == 1);
  CHECK(train["unreadable"][0]["sample"].get<std::string>().ends_with("cat/broken.jpg"));
  CHECK(train["images"]["jpeg"] == 1);

  std::filesystem::create_symlink("nowhere", photos.folder / "set/train/cat/gone.jpg");
  check_parts(photos.look({}).second, {"unreadable   2\n", "/set/train/cat/gone.jpg: cannot be opened: No such file"});
}

TEST_CASE("data: what is passed over, other kinds of images, and files that two splits share") {
  const Photos photos;
  const FileBytes shared = encode_bmp(filled(12, 12, {9, 8, 7})),
                  frames = encode_gif(filled(12, 12, {3}), {.frames = 2});
  photos.folder.write("set/train/cat/h.bmp", shared);
  photos.folder.write("set/train/cat/i.gif", frames);
  photos.folder.write("set/train/dog/j.tif", encode_tiff(filled(12, 12, {1}), {.photometric = 1}));
  photos.folder.write("set/train/dog/k.heic", std::string("x"));
  photos.folder.write("set/test/dog/copy.bmp", shared);
  std::filesystem::create_symlink(photos.folder / "set/train/cat/i.gif", photos.folder / "set/test/cat/link.gif");
  auto [status, text] = photos.look({});
  CHECK(status == kDone);
  check_parts(text, {"  1 file was passed over: 1 .heic\n", "3 PNG, 1 WebP, 1 BMP, 1 GIF, 1 TIFF, ",
                     "1 of several frames or pages, of which the first is taken",
                     "2 files of test are in train as well: ", "set/test/dog/copy.bmp as ", "set/train/cat/h.bmp",
                     "set/test/cat/link.gif as "});
  std::tie(status, text) = photos.look({"--json"});
  const Json report = Json::parse(text);
  CHECK(report["splits"][0]["passed_over"].dump() == R"({".heic":1})");
  CHECK(report["splits"][1]["passed_over"].dump() == "{}");
  CHECK(report["splits"][0]["images"]["tiff"] == 1);
  CHECK(report["splits"][0]["images"]["several"] == 1);
  REQUIRE(report["shared"].size() == 2);
  CHECK(report["shared"][0]["splits"].dump() == R"(["test","test"])");  // f.png and g.png are black alike
  CHECK(report["shared"][0]["files"] == 1);
  CHECK(report["shared"][1]["splits"].dump() == R"(["train","test"])");
  CHECK(report["shared"][1]["files"] == 2);
  CHECK(report["shared"][1]["names"].size() == 2);

  photos.folder.write("set/train/dog/other.bmp", shared);
  std::tie(status, text) = photos.look({});
  check_parts(text,
              {"1 file of train is in another class as well: ", "set/train/dog/other.bmp as ", "set/train/cat/h.bmp"});
}

TEST_CASE("data: arrays, several labels, and sources without images or without a split") {
  Photos photos;
  photos.source = "glyphs:?train=50&test=20&size=16";
  CHECK(photos.look({"--threads", "2"}).second.find("images       50 arrays, 50 grey\n  size         16 × 16") !=
        std::string::npos);

  photos.folder.write("t.csv", std::string("path,a,b,split\nset/train/cat/a.png,1,0,train\n") +
                                   "set/train/cat/b.png,0,,train\nset/train/dog/d.png,1,1,train\n");
  photos.source = "csv:" + photos.folder.string() + "/t.csv?labels=a,b";
  const auto [status, text] = photos.look({});
  CHECK(status == kDone);
  check_parts(text, {"a: 2 positive, 1 negative\n", "b: 1 positive, 1 negative, 1 missing\n", "\ntest: none: "});

  std::filesystem::create_directory(photos.folder / "arrays");
  TensorFile arrays;
  arrays.tensors.push_back({"image", DataType::Uint8, {2, 4, 5, 3}, std::vector<uint8_t>(120)});
  write_safetensors(photos.folder / "arrays/train.safetensors", arrays);
  photos.source = "tensors:" + photos.folder.string() + "/arrays";
  check_parts(photos.look({}).second, {"'image' seems to be height, width, channels"});

  photos.source = "folder:" + photos.folder.string() + "/nowhere";
  CHECK_THROWS_AS(photos.look({}), RunError);
  photos.source = "folder:" + photos.folder.string() + "/set";
  CHECK_THROWS_AS(photos.look({"--split", "tests"}), GraphError);
}

TEST_CASE("data: arrays have counts of labels and ranges of values, and faults that 'check' finds") {
  Photos photos;
  photos.source = "tensors:" + (photos.folder / "arrays").string();
  std::filesystem::create_directory(photos.folder / "arrays");
  const auto write = [&](const std::vector<float>& x, const std::vector<int32_t>& label) {
    const auto bytes_of = [](const auto& values) {
      const auto bytes = std::as_bytes(std::span(values));
      const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
      return std::vector<uint8_t>(first, first + bytes.size());
    };
    const auto samples = int64_t(label.size());
    TensorFile arrays;
    arrays.tensors.push_back({"x", DataType::Float32, {samples, int64_t(x.size()) / samples}, bytes_of(x)});
    arrays.tensors.push_back({"label", DataType::Int32, {samples}, bytes_of(label)});
    write_safetensors(photos.folder / "arrays/train.safetensors", arrays);
  };
  write({-2, 4, 0, 0, 1, 3}, {0, 2, 2});
  auto [status, text] = photos.look({});
  CHECK(status == kDone);
  check_parts(text, {"  classes      3\n    samples    0 1, 1 0, 2 2\n",
                     "  values       x: -2 … 4 (least, most), mean 1, deviation 2\n"});
  write({-2, 4, 0, std::nanf(""), 1, INFINITY}, {1, -1, 2});
  std::tie(status, text) = photos.look({"--threads", "2"});
  CHECK(status == kFailed);
  check_parts(text, {"values       x: -2 … 4 (least, most), mean 0.75, deviation ", "  faulty       3\n",
                     "    sample 1: 'label' is -1, expected a class from 0 on; ",
                     "    sample 1: field 'x' holds nan at element 1 of 2\n",
                     "    sample 2: field 'x' holds an infinity at element 1 of 2\n",
                     "  note         labels are 1 to 2, and none is 0: "});
  std::tie(status, text) = photos.look({"--json"});
  CHECK(status == kFailed);
  const Json train = Json::parse(text)["splits"][0];
  CHECK(train["faulty"].size() == 3);
  CHECK(train["classes"].dump() == R"([{"name":"0","samples":0},{"name":"1","samples":1},{"name":"2","samples":1}])");
  CHECK(train["values"][0]["max"] == 4);

  const std::string graph = photos.folder.write("g.onnxtxt",
                                                "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
                                                "net () => (float loss)\n{\nx, label = arbalest.Prefetch <source = \"" +
                                                    photos.source +
                                                    "\", batch = 2> ()\n"
                                                    "logits = arbalest.Linear <units = 3> (x)\n"
                                                    "loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
                                                    "trained = arbalest.Train <lr = 0.01> (loss)\n}\n");
  const auto checked = [&] {
    const Command command = parse({"check", graph.c_str()});
    const Redirected output(photos.folder / "out.txt");
    command_check(options_of<CheckOptions>(command));
    std::string all;
    for (const std::string& line : output.lines()) all += line + "\n";
    return all;
  };
  check_parts(message_of<RunError>(checked), {"sample 1 of split 'train': 'label' is -1"});
  write({-2, 4, 0, std::nanf(""), 1, INFINITY}, {1, 1, 2});
  check_parts(message_of<RunError>(checked), {"field 'x' of sample 1 of split 'train' holds nan at element 1 of 2"});
  write({-2, 4, 0, 0, 1, 1}, {1, 2, 3});
  check_parts(message_of<RunError>(checked),
              {"'label' is 3; node 'loss' ", "; labels are 1 to 3, and none is 0: classes are counted from 0"});
  write({-2, 4, 0, 0, 1, 1}, {1, 2, 2});
  check_parts(checked(), {"  note        labels are 1 to 2, and none is 0: classes are counted from 0, so that one has "
                          "no sample; if yours are counted from 1, take 1 from each (in NumPy: labels - 1)\n"});
  write({-2, 4, 0, 0, 1, 1}, {1, 2, 0});
  CHECK(checked().find("  note") == std::string::npos);
}

TEST_CASE("data: a contact sheet has a row a class, and dark red where a file cannot be read") {
  const Photos photos;
  photos.break_one();
  const std::string path = photos.folder / "sheet.png";
  const auto [status, text] = photos.look({"--contact-sheet", path.c_str()});
  CHECK(text.find("8 × 2 samples of train; rows, from the top: cat, dog\n") != std::string::npos);
  const std::string file = content(path);
  ImageDecoder decoder;
  const ImageInfo info = decoder.open(std::as_bytes(std::span(file)));
  REQUIRE(info.width == 4 + 8 * 100);
  REQUIRE(info.height == 4 + 2 * 100);
  std::vector<uint8_t> pixels(size_t(info.width * info.height * 3));
  PreparationTimes times;
  decoder.decode({0, 0, double(info.width), double(info.height)}, info.height, info.width, 3, pixels.data(), times);
  const auto tile = [&](int column, int row) {  // its middle
    const uint8_t* pixel = &pixels[size_t(((4 + row * 100 + 48) * info.width + 4 + column * 100 + 48) * 3)];
    return std::vector<int>(pixel, pixel + 3);
  };
  CHECK(tile(0, 0) == std::vector<int>{51, 102, 255});
  CHECK(tile(1, 0) == std::vector<int>{153, 153, 153});
  CHECK(tile(2, 0) == std::vector<int>{112, 16, 16});  // broken.jpg
  CHECK(tile(3, 0) == std::vector<int>{0, 0, 0});
  CHECK(tile(4, 0) == std::vector<int>{24, 24, 24});  // nothing
  const std::string jpeg = photos.folder / "sheet.jpg";
  photos.look({"--contact-sheet", jpeg.c_str()});
  const std::string written = content(jpeg);
  CHECK(image_info(std::as_bytes(std::span(written))).format == ImageFormat::Jpeg);
  CHECK_THROWS_AS(photos.look({"--contact-sheet", "sheet.gif"}), GraphError);
  CHECK(tile(0, 1) == std::vector<int>{255, 255, 255});
}

TEST_CASE("data: a contact sheet that is a page has all classes by their names, and says what cannot be read") {
  const Photos photos;
  photos.break_one();
  for (int i = 0; i < 45; ++i) {
    photos.folder.write(fmt::format("set/train/kind {:02}/h.png", i), encode_png(filled(8, 4, {uint8_t(i), 0, 0})));
  }
  const std::string path = photos.folder / "sheet.html";
  const auto [status, text] = photos.look({"--contact-sheet", path.c_str()});
  CHECK(text.find("8 × 47 samples of train\n") != std::string::npos);
  const std::string page = content(path), start = "<script type=\"application/json\" id=\"sheet-data\">";
  const size_t from = page.find(start) + start.size();
  const Json sheet = Json::parse(page.substr(from, page.find("</script>", from) - from));
  CHECK(sheet["classes"] == 47);
  CHECK(sheet["samples"] == 51);
  REQUIRE(sheet["rows"].size() == 47);
  CHECK(sheet["rows"][0]["name"] == "cat");
  CHECK(sheet["rows"][0]["count"] == 4);
  CHECK(sheet["rows"][46]["name"] == "kind 44");
  const Json& cats = sheet["rows"][0]["samples"];
  REQUIRE(cats.size() == 4);
  CHECK(cats[0]["name"].get<std::string>().ends_with("cat/a.png"));
  CHECK(cats[0]["image"].get<std::string>().starts_with("/9j/"));  // a JPEG
  CHECK_FALSE(cats[2].contains("image"));
  CHECK(cats[2]["name"].get<std::string>().ends_with("cat/broken.jpg"));
  CHECK(cats[2]["fault"].get<std::string>().starts_with("not an image"));

  const std::string picture = photos.folder / "sheet.png";
  const std::string said = photos.look({"--contact-sheet", picture.c_str()}).second;
  CHECK(
      said.find("8 × 40 samples of train; 40 of 47 classes, evenly spread (a file that ends in .html has all of them); "
                "rows, from the top: cat, dog, kind 00,") != std::string::npos);
}

TEST_CASE("data pack: members are the files as they are, shuffled the same each time") {
  const Photos photos;
  CHECK(photos.pack().second.find("train: 5 samples in 1 shard of ") == 0);
  CHECK(content(photos.out + "/classes.txt") == "cat\ndog\n");
  const std::vector<Member> found = members(photos.out + "/train-0000.tar");
  REQUIRE(found.size() == 10);
  const std::map<std::string, std::string> files = {{"00000000.png", "cat/a.png"},
                                                    {"00000001.png", "cat/b.png"},
                                                    {"00000002.jpg", "cat/c.jpg"},
                                                    {"00000003.png", "dog/d.png"},
                                                    {"00000004.webp", "dog/e.webp"}};
  std::vector<std::string> order;
  for (size_t i = 0; i < found.size(); i += 2) {
    REQUIRE(files.count(found[i].name) == 1);
    const std::string& file = files.at(found[i].name);
    order.push_back(file);
    CHECK(found[i].content == content(photos.folder / ("set/train/" + file)));
    CHECK(found[i + 1].name == found[i].name.substr(0, 8) + ".cls");
    CHECK(found[i + 1].content == (file.starts_with("cat") ? "0" : "1"));
  }
  CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
  CHECK(members(photos.out + "/test-0000.tar").size() == 4);
  const std::string before = content(photos.out + "/train-0000.tar");
  std::filesystem::remove_all(photos.out);
  photos.pack({"--split", "train"});
  CHECK(content(photos.out + "/train-0000.tar") == before);
  CHECK_FALSE(std::filesystem::exists(photos.out + "/test-0000.tar"));
}

TEST_CASE("data pack: names of classes beyond ASCII, and such as cannot be a line") {
  const Photos photos;
  for (const char* split : {"train", "test"}) {
    photos.folder.write(fmt::format("set/{}/café/h.png", split), encode_png(filled(8, 8, {0})));
  }
  const auto [status, text] = photos.pack();
  CHECK(status == 0);
  CHECK(text.find("test: 3 samples in 1 shard of ") != text.npos);
  CHECK(content(photos.out + "/classes.txt") == "café\ncat\ndog\n");
  CHECK(open_source("tar:" + photos.out + "/{split}-*.tar", "test", 1)->class_names()[0] == "café");

  const Photos other;
  other.folder.write("set/train/a\nb/h.png", encode_png(filled(8, 8, {0})));
  CHECK_THROWS_WITH_AS(other.pack(), "class 'a\nb' has a line end in its name, and classes.txt a name a line",
                       GraphError);
}

TEST_CASE("data pack: larger images are scaled and become JPEGs") {
  const Photos photos;
  photos.pack({"--shorter-side", "16", "--quality", "95", "--split", "train"});
  std::map<std::string, std::string> found;
  for (const Member& member : members(photos.out + "/train-0000.tar")) found[member.name] = member.content;
  const auto info = [&](const std::string& name) { return image_info(std::as_bytes(std::span(found.at(name)))); };
  CHECK(info("00000000.jpg").width == 32);
  CHECK(info("00000000.jpg").height == 16);
  CHECK(info("00000002.jpg").width == 16);  // upright
  CHECK(info("00000002.jpg").height == 21);
  CHECK(info("00000002.jpg").orientation == 1);
  CHECK(info("00000004.jpg").format == ImageFormat::Jpeg);
  // Not larger: as they are.
  CHECK(found.at("00000001.png") == content(photos.folder / "set/train/cat/b.png"));
  CHECK(found.at("00000003.png") == content(photos.folder / "set/train/dog/d.png"));
  CHECK(fault({"data", "pack", "folder:x", "y", "--quality", "90"}).find("--quality needs --shorter-side") !=
        std::string::npos);
}

TEST_CASE("data pack: shards are checked, and what is not as listed is written anew") {
  const Photos photos;
  // Noise, so that a shard of 1 MiB holds one or two.
  for (int i = 0; i < 5; ++i) {
    photos.folder.write("set/train/cat/noise" + std::to_string(i) + ".png",
                        encode_png(test_image(400, 400, 3, 200, uint64_t(i))));
  }
  const auto pack = [&] { return photos.pack({"--shard-mib", "1", "--split", "train"}).second; };
  pack();
  std::map<std::string, std::string> first;
  for (const auto& entry : std::filesystem::directory_iterator(photos.out)) {
    first[entry.path().filename()] = content(entry.path());
    CHECK(entry.file_size() <= 1 << 20);
  }
  REQUIRE(first.count("train-0002.tar") == 1);
  int samples = 0;
  for (const auto& [name, bytes] : first) {
    if (name.ends_with(".tar")) samples += int(members(photos.out + "/" + name).size()) / 2;
  }
  CHECK(samples == 10);
  const uLong sum =
      crc32_z(0, reinterpret_cast<const Bytef*>(first["train-0001.tar"].data()), first["train-0001.tar"].size());
  const auto expect_same = [&] {
    for (const auto& [name, bytes] : first) CHECK_MESSAGE(content(photos.out + "/" + name) == bytes, name);
  };
  CHECK(first["train.shards"].find(fmt::format("\"crc32\":\"{:08x}\"", sum)) != std::string::npos);

  CHECK(pack().find("there already, 0.0 MiB written") != std::string::npos);
  std::string damaged = first["train-0001.tar"];
  damaged[700] = char(damaged[700] ^ 1);
  photos.folder.write("out/train-0001.tar", damaged);
  CHECK(pack().find(", 1 there already, ") != std::string::npos);
  expect_same();
  std::filesystem::remove(photos.out + "/train-0002.tar");
  CHECK(pack().find(", 2 there already, ") != std::string::npos);
  expect_same();

  CHECK_THROWS_AS(photos.pack({"--shard-mib", "2", "--split", "train"}), GraphError);
  photos.folder.write("out/classes.txt", std::string("cat\n"));
  CHECK_THROWS_AS(pack(), GraphError);
}

TEST_CASE("data pack: a split is packed by one process at a time") {
  const Photos photos;
  std::filesystem::create_directory(photos.out);
  {
    const OutputLock held(photos.out + "/train.shards");
    check_parts(message_of<OutputInUse>([&] {
                  photos.pack({"--split", "train"});
                }),
                {"train.shards: ", " writes this file"});
    CHECK(photos.pack({"--split", "test"}).first == kDone);
  }
  CHECK(photos.pack({"--split", "train"}).first == kDone);
}

TEST_CASE("data pack: archives of others are not replaced") {
  const Photos photos;
  photos.folder.write("out/train-7.tar", std::string("of another"));
  CHECK_THROWS_WITH_AS(
      photos.pack(),
      (photos.out + ": has train-7.tar, and no train.shards, which 'arbalest data pack' writes next to "
                    "its archives; give another folder")
          .c_str(),
      GraphError);
  CHECK_FALSE(std::filesystem::exists(photos.out + "/classes.txt"));
  std::filesystem::remove(photos.out + "/train-7.tar");

  // An archive that was finished just before an interruption is listed nowhere, and made again.
  photos.pack({"--split", "train"});
  const std::string list = content(photos.out + "/train.shards");
  photos.folder.write("out/train.shards", list.substr(0, list.find('\n') + 1));
  CHECK(photos.pack({"--split", "train"}).second.find("train: 5 samples in 1 shard of ") == 0);
  CHECK(content(photos.out + "/train.shards") == list);
}

TEST_CASE("data pack: an interruption leaves whole shards, and the next call goes on") {
  const Photos photos;
  for (int i = 0; i < 40; ++i) {
    photos.folder.write(fmt::format("set/train/cat/noise{:02}.png", i),
                        encode_png(test_image(300, 300, 3, 200, uint64_t(i))));
  }
  const auto source = open_source(photos.source, "train", 1);
  PackOptions options;
  options.source = photos.source;
  options.folder = photos.out;
  options.split = "train";
  options.shard_mib = 1;
  std::stop_source stop;
  const auto stop_early = [&](const PackProgress& progress) {
    if (progress.shards >= 2) stop.request_stop();
  };
  const auto nothing = [](const std::string&, const std::string&) {};
  const PackResult begun = pack(*source, options, stop.get_token(), stop_early, nothing);
  REQUIRE(begun.interrupted);
  const int64_t finished = begun.progress.shards;
  REQUIRE(finished >= 2);
  check_parts(
      message_of<RunError>([&] { open_source("tar:" + photos.out + "/{split}-*.tar", "train", 1); }),
      {fmt::format("train.shards' lists {} shards with ", finished), " of 45 samples: packing was not finished"});
  int64_t archives = 0;
  for (const auto& entry : std::filesystem::directory_iterator(photos.out)) {
    archives += entry.path().extension() == ".tar";
  }
  CHECK(archives == finished);
  const PackResult ended = pack(
      *source, options, {}, [](const PackProgress&) {}, nothing);
  CHECK_FALSE(ended.interrupted);
  CHECK(ended.kept_shards == finished);
  std::map<std::string, int> keys;
  for (int64_t shard = 0; shard < ended.progress.shards; ++shard) {
    for (const Member& member : members(fmt::format("{}/train-{:04}.tar", photos.out, shard))) ++keys[member.name];
  }
  CHECK(keys.size() == 90);
  CHECK(open_source("tar:" + photos.out + "/{split}-*.tar", "train", 1)->size() == 45);
  CHECK(std::all_of(keys.begin(), keys.end(), [](const auto& key) { return key.second == 1; }));
}

TEST_CASE("data pack: files that cannot be read end it unless they may be left out") {
  const Photos photos;
  photos.break_one();
  check_parts(message_of<RunError>([&] { photos.pack(); }), {"cat/broken.jpg", "--skip-bad N goes on over"});
  const Redirected errors(photos.folder / "errors.txt", stderr);
  const auto [status, text] = photos.pack({"--skip-bad", "1", "--split", "train"});
  CHECK(status == kDone);
  CHECK(text.find("train: 5 samples in 1 shard of ") == 0);
  CHECK(text.find(", 1 unreadable left out, ") != text.npos);
  CHECK(errors.lines().at(0).find("broken.jpg") != std::string::npos);
}

TEST_CASE("data pack: a set is finished, too, where the samples after its last shard are left out") {
  const Photos photos;
  photos.break_one();
  const Redirected errors(photos.folder / "errors.txt", stderr);
  photos.pack({"--skip-bad", "1", "--split", "train"});
  // The list as earlier versions left it if the last sample cannot be read.
  std::string list = content(photos.out + "/train.shards");
  for (const auto& [from, to] : {std::pair{"\"next\":6", "\"next\":5"}, {"\"skipped\":1", "\"skipped\":0"}}) {
    REQUIRE(list.find(from) != list.npos);
    list.replace(list.find(from), std::string(from).size(), to);
  }
  photos.folder.write("out/train.shards", list);
  const std::string source = "tar:" + photos.out + "/{split}-*.tar";
  CHECK(open_source(source, "train", 1)->size() == 5);
  REQUIRE(errors.lines().size() > 0);
  check_parts(errors.lines().back(),
              {"/train.shards' lists 5 of 6 samples, and its last shard has room: the others could "
               "not be read; the same 'arbalest data pack' again lists them as left out"});
  // A shard that is full ended before the next sample: packing was not finished.
  photos.folder.write("out/train.shards",
                      std::string(list).replace(list.find("\"shard_mib\":256"), 15, "\"shard_mib\":0"));
  check_parts(message_of<RunError>([&] { open_source(source, "train", 1); }), {"lists 1 shard with 5 of 6 samples"});
  photos.folder.write("out/train.shards", list);
  for (const char* name : {"a.png", "b.png", "c.jpg"})
    photos.folder.write(std::string("set/train/cat/") + name, std::string("no photo"));
  for (const char* name : {"d.png", "e.webp"})
    photos.folder.write(std::string("set/train/dog/") + name, std::string("no photo"));
  photos.pack({"--skip-bad", "9", "--split", "train"});  // whichever sample is the last
  CHECK(open_source(source, "train", 1)->size() == 5);
}

TEST_CASE("data pack: files that are not whole are found, though they are stored as they are") {
  const Photos photos;
  const std::string whole = content(photos.folder / "set/train/cat/c.jpg");
  photos.folder.write("set/train/cat/cut.jpg", whole.substr(0, whole.size() - 20));
  CHECK(image_info(std::as_bytes(std::span(whole).first(whole.size() - 20))).width == 48);  // its header is sound
  check_parts(message_of<RunError>([&] { photos.pack({"--split", "train"}); }), {"cat/cut.jpg: ", "--skip-bad N"});
  const Redirected errors(photos.folder / "errors.txt", stderr);
  const auto [status, text] = photos.pack({"--skip-bad", "1", "--split", "train"});
  CHECK(status == kDone);
  CHECK(text.find("train: 5 samples in 1 shard of ") == 0);
  CHECK(text.find(", 1 unreadable left out, ") != text.npos);
}

TEST_CASE("data: a split that is there and cannot be opened is a failure, one that is not there is none") {
  const Photos photos;
  photos.folder.write("set/test/owl/h.png", encode_png(filled(8, 8, {0, 0, 0})));  // a class that training has not
  const Redirected errors(photos.folder / "errors.txt", stderr);
  auto [status, text] = photos.look({});
  CHECK(status == kFailed);
  CHECK(text.find("samples      5") != text.npos);
  REQUIRE(errors.lines().size() == 1);
  check_parts(errors.lines()[0], {"arbalest: test: cannot be opened: ", "1 class that ", "owl"});
  CHECK(photos.look({"--split", "train"}).first == kDone);
  CHECK_THROWS_AS(photos.look({"--split", "test"}), RunError);
  CHECK(photos.pack().first == kFailed);
  CHECK_FALSE(std::filesystem::exists(photos.out + "/test-0000.tar"));
  std::tie(status, text) = photos.look({"--json"});
  CHECK(Json::parse(text)["broken"].size() == 1);
}

TEST_CASE("data pack: sources without photos that are files are refused") {
  Photos photos;
  photos.source = "glyphs:?train=50&test=20&size=16";
  check_parts(message_of<GraphError>([&] { photos.pack(); }),
              {"image uint8[1,16,16]", "expected photos that are files"});
}

}  // namespace data_command_test
