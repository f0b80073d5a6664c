// SPDX-License-Identifier: Apache-2.0

// `arbalest run --checkpoint` and `arbalest resume`: what goes on, what is refused, and what the log tells.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "executor/training/checkpoint_folder.h"
#include "io/formats/safetensors.h"
#include "tests/io/test_folder.h"
#include "tests/tools/command_line.h"
#include "tests/tools/redirected.h"
#include "tools/command/commands.h"

using namespace arbalest;
using namespace arbalest::test;

namespace fs = std::filesystem;

namespace resume_command_test {
namespace {

constexpr const char* kGraph =
    "<ir_version: 8, opset_import: [\"\" : 17, \"arbalest\" : 1]>\n"
    "g () => () {\n"
    "  image, label = arbalest.Prefetch <source = \"synthetic:?shape=1x16x16&classes=10&size=100&test=40&delay=500\", "
    "batch = 4> ()\n"
    "  x = arbalest.Augment <pad = 2> (image)\n"
    "  logits = arbalest.Linear <units = 10> (x)\n"
    "  loss = arbalest.SoftmaxCrossEntropy (logits, label)\n"
    "  accuracy = arbalest.Accuracy (logits, label)\n"
    "  trained = arbalest.Train <lr = 0.02, momentum = 0.9> (loss)\n"
    "  report = arbalest.Validate <batch = 20> (trained, loss, accuracy)\n"
    "}\n";

struct Place {
  const TestFolder folder;
  std::string graph = folder.write("g.onnxtxt", std::string(kGraph)).string();
  std::string log = (folder / "log").string(), weights = (folder / "w").string(), checkpoints = (folder / "c").string(),
              events = (folder / "events").string(), mllog = (folder / "mllog").string();

  const char *devices = "cpu:0", *learners = "2", *epochs = "20";

  int run(std::vector<const char*> more = {}) const {
    std::vector<const char*> words = {"run", graph.c_str(), "--deterministic", "--epochs", epochs, "--threads", "2"};
    words.insert(words.end(), {"--devices", devices, "--learners", learners, "--save", weights.c_str()});
    words.insert(words.end(), {"--log", log.c_str(), "--tensorboard", events.c_str()});
    words.insert(words.end(), {"--mllog", mllog.c_str()});
    words.insert(words.end(), {"--checkpoint", checkpoints.c_str(), "--checkpoint-every", "7it"});
    words.insert(words.end(), more.begin(), more.end());
    const Command command = parse(words);
    REQUIRE(options_if<RunOptions>(command));
    return command_run(options_of<RunOptions>(command));
  }
};

// Events of the run without what depends on time, as the moments of checkpoints do if the disk is slow.
std::multiset<std::string> told(const std::string& log) {
  std::multiset<std::string> events;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    nlohmann::json event = nlohmann::json::parse(line);
    if (event["event"] == "start" || event["event"] == "resume" || event.contains("whole")) continue;
    for (const char* key :
         {"seconds", "setup_seconds", "images_per_second", "late_batches", "path", "checkpoint", "weights"}) {
      event.erase(key);
    }
    events.insert(event.dump());
  }
  return events;
}

// The keys of MLPerf's log without those of checkpoints. Validations end while the next epoch trains, so that the order
// is not the same in all runs.
std::multiset<std::string> keys_of(const std::string& mllog) {
  std::multiset<std::string> keys;
  std::ifstream file(mllog);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json event = nlohmann::json::parse(line.substr(line.find('{')));
    if (event["key"] != "checkpoint") keys.insert(event["key"].get<std::string>() + event["metadata"].dump());
  }
  return keys;
}

std::string refused(const std::function<void()>& run) {
  try {
    run();
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a run that goes on has the weights and the log of one that was not ended") {
  const Place whole;
  REQUIRE(whole.run({"--checkpoint-keep", "100"}) == kDone);
  const std::vector<fs::path> checkpoints = checkpoints_in(whole.checkpoints);
  REQUIRE(checkpoints.size() > 2);  // of 240 iterations, after each seventh, but fewer if the disk is slow
  const std::multiset<std::string> expected = told(whole.log);
  for (const size_t i : {size_t{1}, checkpoints.size() - 1}) {
    const Place part;
    fs::create_directories(part.checkpoints);
    fs::copy(checkpoints[i], part.checkpoints);
    fs::copy(whole.log, part.log);  // of a run that was ended later than its checkpoint
    fs::copy(whole.mllog, part.mllog);
    CHECK(part.run({"--resume", "--checkpoint-keep", "100"}) == kDone);
    CHECK(read_file(part.weights) == read_file(whole.weights));
    CHECK(told(part.log) == expected);
    CHECK(keys_of(part.mllog) == keys_of(whole.mllog));
  }
  // Nothing is left to train: the run ends as it did, and its log is not told anything twice.
  CHECK(whole.run({"--resume", "--checkpoint-keep", "100"}) == kDone);
  CHECK(told(whole.log) == expected);
}

TEST_CASE("resume takes the command line from the checkpoint") {
  const Place place;
  REQUIRE(place.run({"--checkpoint-keep", "100"}) == kDone);
  const std::vector<uint8_t> weights = read_file(place.weights);
  const std::multiset<std::string> expected = told(place.log);
  fs::remove(place.weights);
  std::vector<fs::path> files = checkpoints_in(place.checkpoints);
  files.pop_back();
  for (const fs::path& file : files) fs::remove(file);
  CHECK(command_resume({place.checkpoints}) == kDone);
  CHECK(read_file(place.weights) == weights);
  CHECK(told(place.log) == expected);
  const std::string other = (place.folder / "other").string();
  CHECK(refused([&] { command_resume({other}); }) ==
        other + ": found nothing, expected the folder of a run's checkpoints");
  fs::create_directory(other);
  CHECK(refused([&] { command_resume({other}); }) == other + ": the folder has no checkpoint to go on from");
  CHECK(refused([&] { command_resume({place.graph}); }) ==
        place.graph + ": found no folder, expected the folder of a run's checkpoints");
}

TEST_CASE("resume takes up an option of the world that is given with its default") {
  const auto given = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"arbalest", "resume", "c"});
    const Command command = parse_command_line(int(words.size()), words.data());
    return options_if<ResumeOptions>(command)->given;
  };
  CHECK(given({}).empty());
  CHECK(given({"--collectives", "gloo", "--lost-after", "15"}) ==
        std::set<std::string>{"--collectives", "--lost-after"});
}

TEST_CASE("a run whose checkpoints cannot be read is refused before anything is written") {
  const Place place;
  REQUIRE(place.run({"--iterations", "14"}) == kDone);
  const std::vector<uint8_t> weights = read_file(place.weights), log = read_file(place.log);
  for (const fs::path& path : checkpoints_in(place.checkpoints)) fs::resize_file(path, 100);
  const std::string message = refused([&] { place.run({"--iterations", "14", "--resume"}); });
  CHECK(message.find("none can be read, so that no run goes on: ") != message.npos);
  CHECK(refused([&] { command_resume({place.checkpoints}); }) == message);
  CHECK(read_file(place.weights) == weights);
  CHECK(read_file(place.log) == log);
  for (const fs::path& path : checkpoints_in(place.checkpoints)) fs::remove(path);
  CHECK(place.run({"--iterations", "14", "--resume"}) == kDone);
}

TEST_CASE("resume of a moved project names the command that goes on with it") {
  const Place place;
  const fs::path was = place.folder / "was";
  fs::create_directory(was);
  const fs::path here = fs::current_path();
  fs::current_path(was);
  RunOptions options = options_of<RunOptions>(parse({"run", place.graph.c_str(), "--iterations", "3", "--checkpoint",
                                                     place.checkpoints.c_str(), "--devices", "cpu:0"}));
  options.command_line = {"arbalest", "run", "a graph.onnxtxt", "--checkpoint", "c"};
  CHECK(command_run(options) == kDone);
  fs::current_path(here);
  fs::remove_all(was);
  const std::string message = message_of<RunError>([&] { command_resume({place.checkpoints}); });
  CHECK(message.ends_with("by the run's own command: arbalest run 'a graph.onnxtxt' --checkpoint " + place.checkpoints +
                          " --resume"));
}

TEST_CASE("other files of a run may lie in the folder of its checkpoints, and next to it") {
  Place place;
  place.checkpoints = (place.folder / "runs/a").string();
  place.log = (place.folder / "runs/a.jsonl").string();
  place.weights = (place.folder / "runs/a/w").string();
  CHECK(place.run({"--iterations", "7"}) == kDone);
  CHECK(fs::is_regular_file(place.log));
  CHECK(fs::is_regular_file(place.weights));
}

TEST_CASE("a checkpoint of another run is refused, with what is different") {
  const Place place;
  REQUIRE(place.run() == kDone);
  const std::string log = [&] {
    std::ifstream file(place.log);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }();
  const auto different = [&](std::vector<const char*> more) {
    more.push_back("--resume");
    return refused([&] { place.run(more); });
  };
  CHECK(different({"--seed", "2"}).find("seed: 1 in the checkpoint, 2 here") != std::string::npos);
  CHECK(different({"--set", "train.lr=0.03"}).find("the graph, only here: trained: ") != std::string::npos);
  CHECK(different({"--set", "train.lr=0.03"}).find("the run began with it, and add: --change train.lr=0.03") !=
        std::string::npos);
  CHECK(different({"--set", "train.lr=0.03", "--set", "train.epochs=7"})
            .find("--change train.lr=0.03 --change train.epochs=7") != std::string::npos);
  CHECK(different({"--set", "train.momentum=0.5"}).find("--change") == std::string::npos);
  CHECK(different({"--set", "prefetch.batch=5"}).find("batch: 4 in the checkpoint, 5 here") != std::string::npos);
  CHECK(different({"--strategy", "ssgd"}).find("strategy: the graph's in the checkpoint, ssgd here") !=
        std::string::npos);
  CHECK(different({"--without", "keep_maxima,fuse_relu"})
            .find("without: nothing in the checkpoint, fuse_relu,keep_maxima "
                  "here") != std::string::npos);
  CHECK(different({"--set", "prefetch.source=\"synthetic:?shape=1x16x16&classes=10&size=120&test=40&delay=500\""})
            .find("training data: ") != std::string::npos);
  CHECK(refused([&] { place.run(); }).find("has checkpoints of a run") != std::string::npos);
  std::ifstream file(place.log);
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == log);  // as it was
}

TEST_CASE("a run does not go on with other constants") {
  Place place;
  std::string text = kGraph;
  const std::string before = "logits = arbalest.Linear <units = 10> (x)\n";
  text.replace(text.find(before), before.size(),
               "scores = arbalest.Linear <units = 10> (x)\n  two = Constant <value_floats = [2.0]> ()\n"
               "  logits = Mul (scores, two)\n");
  std::ofstream(place.graph) << text;
  place.epochs = "1";
  REQUIRE(place.run() == kDone);
  text.replace(text.find("[2.0]"), 5, "[3.0]");
  std::ofstream(place.graph) << text;
  CHECK(refused([&] { place.run({"--resume"}); }).find("the checkpoint is of another run") != std::string::npos);
}

TEST_CASE("a run goes on without the passes that it was started without") {
  const Place place;
  REQUIRE(place.run({"--without", "fuse_relu", "--iterations", "30"}) == kDone);
  CHECK(refused([&] { place.run({"--resume"}); }).find("without: fuse_relu in the checkpoint, nothing here") !=
        std::string::npos);
  CHECK(place.run({"--without", "fuse_relu", "--resume", "--iterations", "60"}) == kDone);
  CHECK(command_resume({place.checkpoints}) == kDone);  // takes the option from the checkpoint
}

TEST_CASE("a run goes on with another number of learners or devices, and from there as any other") {
  for (const auto& [devices, learners] : {std::pair{"cpu:0", "3"}, {"cpu:0", "1"}, {"cpu:0,cpu:1", "2"}}) {
    Place place;
    CHECK(place.run({"--time-limit", "0.02s"}) == kInterrupted);
    place.devices = devices;
    place.learners = learners;
    const std::vector<const char*> words = {"--resume", "--checkpoint-keep", "100"};
    REQUIRE(place.run(words) == kDone);
    const std::vector<fs::path> files = checkpoints_in(place.checkpoints);
    REQUIRE(files.size() > 3);
    CHECK(read_checkpoint(files[0]).checkpoint.position.epoch == 20);
    const std::vector<uint8_t> weights = read_file(place.weights);
    for (const fs::path& file : files) {
      if (file != files[files.size() / 2]) fs::remove(file);
    }
    REQUIRE(place.run(words) == kDone);
    CHECK(read_file(place.weights) == weights);
  }
}

TEST_CASE("a run that goes on within an epoch with other learners tells how long its epochs are") {
  Place place;
  place.epochs = "3";
  REQUIRE(place.run({"--iterations", "7"}) == kDone);  // of 12 an epoch
  place.learners = "1";
  REQUIRE(place.run({"--resume"}) == kDone);
  std::ifstream file(place.log);
  std::vector<int64_t> per_epoch;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json event = nlohmann::json::parse(line);
    if (event.contains("iterations_per_epoch")) per_epoch.push_back(event["iterations_per_epoch"].get<int64_t>());
  }
  CHECK(per_epoch == std::vector<int64_t>{12, 25});
}

TEST_CASE("a run that is complete goes on where more epochs are asked for, and is refused where fewer are") {
  Place place, whole;
  place.epochs = "2";
  REQUIRE(place.run() == kDone);
  place.epochs = whole.epochs = "3";
  REQUIRE(place.run({"--resume"}) == kDone);
  REQUIRE(whole.run() == kDone);
  CHECK(read_file(place.weights) == read_file(whole.weights));
  place.epochs = "1";
  CHECK(refused([&] { place.run({"--resume"}); }) == "the checkpoint is after iteration 36, and the run ends after 12");
}

TEST_CASE("a run that ended before its first validation goes on, and is validated") {
  for (const char* strategy : {"sma", "papa"}) {
    CAPTURE(strategy);
    Place part, whole;
    part.epochs = whole.epochs = "2";
    REQUIRE(whole.run({"--strategy", strategy}) == kDone);
    REQUIRE(part.run({"--strategy", strategy, "--iterations", "3"}) == kDone);  // of 12 an epoch
    REQUIRE(part.run({"--strategy", strategy, "--resume"}) == kDone);
    CHECK(read_file(part.weights) == read_file(whole.weights));
  }
}

TEST_CASE("a run that goes on says that its log is new, and that other weights are not read") {
  Place place;
  place.epochs = "2";
  REQUIRE(place.run() == kDone);
  place.epochs = "3";
  fs::remove(place.log);
  const test::Redirected errors(place.folder / "errors", stderr);
  // The name is in the run's command line, as that of what it saves.
  CHECK(place.run({"--resume", "--weights", place.weights.c_str()}) == kDone);
  std::string all;
  for (const std::string& line : errors.lines()) all += line + "\n";
  CHECK(all.find("is new; what the run logged up to iteration 24 is not in it") != std::string::npos);
  CHECK(all.find("--weights " + place.weights + ": is not read, because the run goes on with the weights of ") !=
        std::string::npos);
}

TEST_CASE("a run that goes on has another learning rate where that is asked for, and from there on") {
  Place place, whole;
  place.learners = whole.learners = "1";
  place.epochs = "2";
  REQUIRE(place.run() == kDone);
  place.epochs = "3";
  REQUIRE(place.run({"--resume", "--change", "train.lr=0.01"}) == kDone);
  const auto last_line = [&](const char* event) {
    nlohmann::json found;
    std::ifstream file(place.log);
    for (std::string line; std::getline(file, line);) {
      nlohmann::json json = nlohmann::json::parse(line);
      if (json.at("event") == event) found = std::move(json);
    }
    return found;
  };
  CHECK(last_line("resume").at("changes") == nlohmann::json::array({"train.lr=0.01"}));
  CHECK(last_line("resume").at("attributes").at("train.lr") == 0.01);
  CHECK(last_line("resume").at("note").get<std::string>().find("changed since the run began: train.lr=0.01") == 0);
  CHECK(last_line("progress").at("learning_rate").get<double>() == doctest::Approx(0.01));
  CHECK(newest_checkpoint(place.checkpoints)->checkpoint.changes == std::vector<std::string>{"train.lr=0.01"});
  whole.epochs = "3";  // the same rates by a schedule
  REQUIRE(whole.run({"--set", "train.schedule=multistep", "--set", "train.milestones=2", "--set", "train.gamma=0.5"}) ==
          kDone);
  const TensorFile mine = read_safetensors(place.weights), other = read_safetensors(whole.weights);
  REQUIRE(mine.tensors.size() == other.tensors.size());
  for (size_t i = 0; i < mine.tensors.size(); ++i) CHECK(mine.tensors[i].bytes == other.tensors[i].bytes);

  place.epochs = "4";  // the run's own command line, as a batch queue repeats it
  REQUIRE(place.run({"--resume"}) == kDone);
  CHECK(last_line("progress").at("learning_rate").get<double>() == doctest::Approx(0.01));
  const auto different = [&](const char* change) {
    return refused([&] { place.run({"--resume", "--change", change}); });
  };
  CHECK(different("train.momentum=0.5")
            .find("--change train.momentum=0.5: expected a number of the learning rate's "
                  "schedule: train.lr, train.lr_end") == 0);
  CHECK(different("prefetch.batch=8").find("expected a number of the learning rate's schedule") != std::string::npos);
  CHECK(different("train.rate=1").find("--change train.rate=1: ") == 0);
  CHECK(different("train.lr=-1").find("'lr' is -1") != std::string::npos);
  CHECK(fault({"run", "g", "--checkpoint", "c", "--change", "train.lr=1"}) ==
        "arbalest: --change needs --resume; a run that starts takes --set\n");
  CHECK(command_resume({place.checkpoints, {"train.lr=0.005"}}) == kDone);  // complete, and with the rate all the same
  CHECK(last_line("resume").at("attributes").at("train.lr") == 0.005);
}

TEST_CASE("a run that goes on with more epochs says what that makes of a schedule of the run's length") {
  Place place;
  place.epochs = "2";
  const std::vector<const char*> words = {"--resume", "--set", "train.schedule=cosine"};
  REQUIRE(place.run(words) == kDone);
  place.epochs = "4";
  const auto note = [&](std::vector<const char*> more) {
    more.insert(more.end(), words.begin(), words.end());
    fs::copy(place.checkpoints, place.folder / "kept", fs::copy_options::recursive);
    REQUIRE(place.run(more) == kDone);
    fs::remove_all(place.checkpoints);
    fs::rename(place.folder / "kept", place.checkpoints);
    std::string found;
    std::ifstream file(place.log);
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      if (json.at("event") == "resume") found = json.value("note", "");
    }
    return found;
  };
  CHECK(note({}).find("the learning rate goes on with 0.01 and was 0: its schedule is as long as the run, 4 epochs now "
                      "and 2 before; --change train.epochs=2 keeps it") == 0);
  CHECK(note({"--change", "train.epochs=2"}).find("goes on with") == std::string::npos);
}

TEST_CASE("intervals of checkpoints and limits of time are checked") {
  const auto of = [](const char* option, const char* text) {
    return fault({"run", "g", "--checkpoint", "c", option, text});
  };
  CHECK(of("--checkpoint-every", "10").find("expected a time, iterations or epochs, as in 90s, 10m") !=
        std::string::npos);
  for (const char* none : {"0it", "0s", "-1ep", "1000000000000it"}) {
    CHECK(of("--checkpoint-every", none).find("expected a number above 0, and no more than 1e+09") !=
          std::string::npos);
  }
  CHECK(of("--checkpoint-every", "1.5it").find("expected a whole number") != std::string::npos);
  for (const char* none : {"2 h", "nan", "", "h", "-1s", "0", "30s1m", "1m30", "1h2h", "inf"}) {
    CHECK(
        of("--time-limit", none).find("expected a time from 0.001 to 1e+09 seconds, as in 90, 90s, 1m30s, 2h or 1d") !=
        std::string::npos);
  }
  const auto limit = [](const char* text) {
    return options_of<RunOptions>(parse({"run", "g", "--time-limit", text})).session.length.seconds;
  };
  CHECK(limit("90") == 90);
  CHECK(limit("90s") == 90);
  CHECK(limit("1m30s") == 90);
  CHECK(limit("1.5h") == 5400);
  CHECK(limit("1d2h3m4s") == 93784);
  CHECK(limit("250ms") == 0.25);
  const RunOptions run = options_of<RunOptions>(parse({"run", "g", "--checkpoint", "c", "--checkpoint-every", "1h30m",
                                                       "--read-timeout", "2m", "--device-timeout", "1m30s"}));
  CHECK(run.session.checkpoints.seconds == 5400);
  CHECK(run.session.execution.read_timeout == 120);
  CHECK(run.session.execution.device_timeout == 90);
  CHECK(fault({"run", "g", "--resume"}) == "arbalest: --resume needs --checkpoint DIR\n");
  CHECK(fault({"resume", "c", "--epochs", "3"}).find("resume takes no --epochs: ") != std::string::npos);
  CHECK(fault({"resume", "c", "--resume"}) ==
        "arbalest: resume takes no --resume: it repeats the run's own command line\n");
  CHECK(fault({"resume", "c", "--lerners"}).find("unknown option '--lerners'") != std::string::npos);
  const Command command = parse({"run", "g", "--checkpoint", "c", "--checkpoint-every", "2ep", "--time-limit", "1.5h"});
  REQUIRE(options_if<RunOptions>(command));
  const SessionOptions& session = options_of<RunOptions>(command).session;
  CHECK(session.checkpoints.epochs == 2);
  CHECK(session.checkpoints.iterations == 0);
  CHECK(session.length.seconds == 5400);
}

TEST_CASE("a run whose loss is not finite goes back to a checkpoint, and its log says so") {
  const Place place;
  // The decay alone makes weights grow in each update, until the rate is lowered.
  CHECK(place.run({"--set", "train.weight_decay=300", "--on-nan", "rollback", "--nan-rate-factor", "0.05"}) == kDone);
  std::vector<nlohmann::json> back;
  std::ifstream file(place.log);
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json event = nlohmann::json::parse(line);
    if (event["event"] == "rollback") back.push_back(event);
  }
  REQUIRE_FALSE(back.empty());
  // A validation under way may be the first to find it.
  const std::string reason = back[0]["reason"];
  CHECK((reason.find("no longer finite after iteration") != reason.npos ||
         reason.find("the loss of the validation after iteration") != reason.npos));
  CHECK(back[0]["iteration"] < back[0]["from_iteration"]);
  CHECK(back[0]["rate_factor"] == 0.05);
  CHECK(back[0]["times"] == 1);
  CHECK(back.back()["times"] == back.size());
  CHECK(back[0]["checkpoint"].get<std::string>().starts_with(place.checkpoints));
}

TEST_CASE("what becomes of a loss that is not finite is checked") {
  CHECK(fault({"run", "g", "--on-nan", "rolback"}) ==
        "arbalest: --on-nan: found 'rolback'; expected stop, rollback or skip; did you mean 'rollback'?\n");
  CHECK(fault({"run", "g", "--on-nan", "rollback"}) == "arbalest: --on-nan rollback needs --checkpoint DIR\n");
  CHECK(fault({"run", "g", "--nan-rollbacks", "2"}) == "arbalest: --nan-rollbacks needs --on-nan rollback\n");
  CHECK(fault({"run", "g", "--plateau-factor", "0.5"}) == "arbalest: --plateau-factor needs --plateau N\n");
  CHECK(fault({"run", "g", "--checkpoint", "c", "--on-nan", "rollback", "--nan-rate-factor", "2"}).find("found '2'") !=
        std::string::npos);
}

TEST_CASE("a limit of time ends a run with a checkpoint, and the run goes on from there") {
  const Place whole, part;
  REQUIRE(whole.run() == kDone);
  CHECK(part.run({"--time-limit", "0.001s"}) == kInterrupted);
  CHECK(checkpoints_in(part.checkpoints).size() == 1);
  CHECK(part.run({"--resume"}) == kDone);
  CHECK(read_file(part.weights) == read_file(whole.weights));
}

}  // namespace resume_command_test
