// SPDX-License-Identifier: Apache-2.0

// arbalest data: the content of a data set, and the same photos in tar archives.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/plain_message.h"
#include "executor/console/progress_text.h"
#include "executor/console/terminal.h"
#include "executor/session/output_paths.h"
#include "executor/session/session.h"
#include "io/open/open_source.h"
#include "io/sources/passed_over.h"
#include "io/sources/source.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_binding.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/data/contact_sheet.h"
#include "tools/data/pack.h"
#include "tools/data/survey.h"
#include "tools/data/survey_text.h"

namespace arbalest {
namespace {

constexpr uint64_t kSeed = 1;  // of sources that make their samples

struct OpenSplit {
  std::string name;
  std::unique_ptr<Source> source;
};

// The splits that there are, and why others cannot be opened.
struct OpenSplits {
  std::vector<OpenSplit> open;
  std::vector<std::string> missing;  // "test: none: the reason"
  std::vector<std::string> broken;   // "test: cannot be opened: the reason"
};

// Opens the splits asked for, or else train and test. A data set may have only one of these; if its files are at fault
// (RunError), a split exists but is broken. Throws if a split that was asked for cannot be opened, or if none can.
OpenSplits open_splits(const std::string& text, const std::vector<std::string>& asked) {
  OpenSplits splits;
  if (!asked.empty()) {
    for (const std::string& name : asked) splits.open.push_back({name, open_source(text, name, kSeed)});
    return splits;
  }
  std::exception_ptr first;
  for (const char* name : {"train", "test"}) {
    try {
      splits.open.push_back({name, open_source(text, name, kSeed)});
    } catch (const MissingSplit& error) {
      splits.missing.push_back(fmt::format("{}: none: {}", name, error.what()));
      if (!first) first = std::current_exception();
    } catch (const std::exception& error) {
      splits.broken.push_back(fmt::format("{}: cannot be opened: {}", name, plain_message(error)));
      if (!first) first = std::current_exception();
    }
  }
  if (splits.open.empty()) std::rethrow_exception(first);
  return splits;
}

// The files that two classes of a split share, or two splits, for all pairs of splits.
std::vector<SharedFiles> find_shared(const std::vector<OpenSplit>& splits, const std::vector<SplitSurvey>& found) {
  std::vector<SharedFiles> all;
  for (size_t other = 0; other < found.size(); ++other) {
    all.push_back(files_of_two_classes(found[other], *splits[other].source));
    if (all.back().files == 0) all.pop_back();
    for (size_t one = 0; one < other; ++one) {
      all.push_back(shared_files(found[one], *splits[one].source, found[other], *splits[other].source));
      if (all.back().files == 0) all.pop_back();
    }
  }
  return all;
}

void print_missing(const OpenSplits& splits) {
  for (const std::string& why : splits.missing) fmt::print("{}\n", printable(why));
  for (const std::string& why : splits.broken) fmt::print(stderr, "arbalest: {}\n", printable(why));
}

// How far a command is, on a terminal; the line goes when it is done.
class CountLine {
 public:
  explicit CountLine(std::string what) : what_(std::move(what)), drawn_(can_redraw(stderr)) {}
  ~CountLine() {
    if (drawn_) fmt::print(stderr, "\r\x1b[K");
  }
  void show(int64_t done, int64_t total) const {
    if (!drawn_) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const double rate = double(done) / std::max(seconds, 1e-3);
    fmt::print(stderr, "\r\x1b[K{}  {} of {}  {} images/s  ETA {}", what_, done, total, short_count(rate),
               clock_time(done > 0 ? double(total - done) / rate : -1));
    std::fflush(stderr);
  }

 private:
  std::string what_;
  bool drawn_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void print_legend(const ContactSheet& sheet, const SplitSurvey& survey, const std::string& path) {
  fmt::print("{}: {} × {} samples of {}", printable(path), sheet.columns, sheet.rows, survey.split);
  const bool page = path.ends_with(".html"), all = int64_t(sheet.classes.size()) == sheet.all_classes;
  if (!all) fmt::print("; {} of {} classes, evenly spread", sheet.classes.size(), sheet.all_classes);
  if (!all && !page) fmt::print(" (a file that ends in .html has all of them)");
  if (!sheet.classes.empty() && !page) fmt::print("; rows, from the top:");
  for (size_t row = 0; row < sheet.classes.size() && !page; ++row) {
    fmt::print("{} {}", row ? "," : "", printable(survey.class_names[size_t(sheet.classes[row])]));
  }
  fmt::print("\n");
}

void bind_splits(CLI::App& command, std::vector<std::string>& splits) {
  command.add_option("--split", splits, "of the source; otherwise train and test, where they are; repeatable")
      ->type_name("NAME")
      ->take_all()
      ->allow_extra_args(false)
      ->check(not_empty());
}

void bind_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "that read and decode; 0: one a core")
      ->default_val(0)
      ->type_name("N")
      ->check(whole(OptionRanges::kThreads));
}

void bind_data(CLI::App& command, DataOptions& options) {
  command.add_option("SOURCE", options.source, "as a graph's Prefetch has it: folder:DIR, csv:FILE, mnist:DIR")
      ->type_name("");
  bind_splits(command, options.splits);
  command.add_option("--limit", options.limit, "samples of a split to look at, evenly spread; 0: all")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(0));
  bind_threads(command, options.threads);
  command
      .add_option("--contact-sheet", options.contact_sheet,
                  "show samples of the first split here, a row a class (.html; .png or .jpg: 40 classes)")
      ->type_name("FILE")
      ->check(not_empty());
  command.add_flag("--json", options.json, "as JSON");
  command.footer(
      "Reads and decodes every image, and all numbers of arrays. Mean and deviation weigh all images the same, as "
      "images of one size do.\n"
      "The exit status is 1 where a file cannot be read or decoded, a label is no class, a number is not finite, or a "
      "split cannot be opened.");
}

void bind_pack(CLI::App& command, PackCommandOptions& options) {
  PackOptions& pack = options.pack;
  command.add_option("SOURCE", pack.source, "photos that are files, each with a class: folder:DIR, csv:FILE")
      ->type_name("");
  command.add_option("DIR", pack.folder, "where DIR/SPLIT-0000.tar, … go")->type_name("");
  bind_splits(command, options.splits);
  const auto number = [&](const char* name, auto& value, int64_t least, int64_t most, const char* description) {
    return command.add_option(name, value, description)->type_name("N")->check(whole(least, most));
  };
  number(
      "--shorter-side", pack.shorter_side, 1, 65535,
      "pixels; larger images are scaled to it and stored as JPEGs. Otherwise all files are decoded, to see that they "
      "are whole, and stored as they are");
  number("--quality", options.quality, 1, 100, "of these JPEGs; 90 unless given");
  number("--shard-mib", pack.shard_mib, 1, 1 << 20, "that an archive has at most")->capture_default_str();
  number("--skip-bad", pack.skip_bad, 0, std::numeric_limits<int64_t>::max(),
         "files that may be left out because they cannot be read")
      ->capture_default_str();
  command.add_option("--seed", pack.seed, "of the order")->capture_default_str()->type_name("N");
  bind_threads(command, pack.threads);
  command.footer(
      "Writes DIR/SPLIT-0000.tar, …, shuffled, DIR/classes.txt and DIR/SPLIT.shards, the list of finished archives.\n"
      "After an interruption the same command checks what is there and goes on. To train from it:\n"
      "--set 'prefetch.source=tar:DIR/{split}-*.tar'.");
}

}  // namespace

int command_data(const DataOptions& options) {
  tell_of_many_threads(options.threads);
  const OpenSplits splits = open_splits(options.source, options.splits);
  if (!options.contact_sheet.empty()) check_contact_sheet(*splits.open[0].source, options.contact_sheet);
  const auto held = hold_outputs({{"--contact-sheet", options.contact_sheet}});
  const SurveyOptions how{options.limit, thread_count(options.threads)};
  std::vector<SplitSurvey> found;
  for (const OpenSplit& split : splits.open) {
    const CountLine line(split.name);
    const auto show = [&](int64_t done, int64_t total) { line.show(done, total); };
    found.push_back(survey(*split.source, split.name, how, show));
  }
  const std::vector<SharedFiles> shared = find_shared(splits.open, found);
  ContactSheet sheet;
  if (!options.contact_sheet.empty()) {
    sheet = write_contact_sheet(*splits.open[0].source, found[0], options.contact_sheet, how.threads);
  }
  if (options.json) {
    nlohmann::ordered_json report = {{"source", options.source}, {"splits", nlohmann::ordered_json::array()}};
    for (const SplitSurvey& split : found) report["splits"].push_back(survey_json(split, how.threads));
    for (const SharedFiles& files : shared) report["shared"].push_back(shared_json(files));
    for (const std::string& why : splits.missing) report["missing"].push_back(why);
    for (const std::string& why : splits.broken) report["broken"].push_back(why);
    if (!options.contact_sheet.empty()) report["contact_sheet_classes"] = sheet.classes;
    fmt::print("{}\n", report.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    for (const SplitSurvey& split : found) fmt::print("{}", survey_text(split, how.threads));
    for (const SharedFiles& files : shared) fmt::print("{}", shared_text(files));
    print_missing(splits);
    if (!options.contact_sheet.empty()) print_legend(sheet, found[0], options.contact_sheet);
  }
  const bool sound = std::all_of(found.begin(), found.end(),
                                 [](const auto& split) { return split.unreadable.empty() && split.faulty.empty(); });
  return sound && splits.broken.empty() ? kDone : kFailed;
}

int command_pack(const PackCommandOptions& options) {
  tell_of_many_threads(options.pack.threads);
  const OpenSplits splits = open_splits(options.pack.source, options.splits);
  const InterruptHandler interrupt(
      "\narbalest: ending with the archives that are finished; once more to stop at once\n");
  for (const OpenSplit& split : splits.open) {
    warn_of_passed_over(options.pack.source + " " + split.name, split.source->passed_over());
    PackOptions how = options.pack;
    how.split = split.name;
    how.threads = thread_count(how.threads);
    PackResult result;
    {
      const CountLine line(split.name);
      result = pack(
          *split.source, how, interrupt.token(),
          [&](const PackProgress& progress) { line.show(progress.done, progress.total); },
          [](const std::string& where, const std::string& why) {
            fmt::print(stderr, "skipped {}: {}\n", printable(where), printable(why));
          });
    }
    if (result.interrupted) {
      fmt::print("{}: interrupted after {} finished shards; the same command goes on\n", split.name,
                 result.progress.shards);
      return kInterrupted;
    }
    fmt::print("{}: {} samples in {} shard{} of {}{}{}, {:.1f} MiB written\n", split.name,
               result.progress.total - result.skipped, result.progress.shards, result.progress.shards == 1 ? "" : "s",
               printable(how.folder), result.kept_shards ? fmt::format(", {} there already", result.kept_shards) : "",
               result.skipped ? fmt::format(", {} unreadable left out", result.skipped) : "",
               double(result.progress.bytes) / (1 << 20));
  }
  print_missing(splits);
  return splits.broken.empty() ? kDone : kFailed;
}

void declare_data(Subcommands& commands) {
  const auto data = commands.add<DataOptions>("data", "look at a data set, or pack it", command_data);
  bind_data(data.app, data.options);
  data.check = [&app = data.app, &options = data.options] { require(options.source, "SOURCE", app); };
  const auto pack = commands.add<PackCommandOptions>(
      "pack", "write photos into tar archives, which the source tar: reads", command_pack, &data.app);
  bind_pack(pack.app, pack.options);
  pack.check = [&app = pack.app, &options = pack.options] {
    require(options.pack.source, "SOURCE", app);
    require(options.pack.folder, "DIR", app);
    if (options.quality && options.pack.shorter_side == 0) throw GraphError("--quality needs --shorter-side");
    options.pack.quality = options.quality.value_or(options.pack.quality);
  };
}

}  // namespace arbalest
