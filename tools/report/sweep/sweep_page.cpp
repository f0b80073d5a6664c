// SPDX-License-Identifier: Apache-2.0
#include "tools/report/sweep/sweep_page.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "tools/report/sweep/page_parts.h"
#include "tools/report/sweep/sweep_data.h"
#include "tools/sweep/sweep_log.h"
#include "tools/watch/json_lines.h"

namespace arbalest {

namespace fs = std::filesystem;

bool is_sweep_folder(const std::string& path) {
  std::error_code unknown;
  return fs::is_directory(path, unknown);
}

std::string sweep_page(const std::string& folder) {
  const std::string path = sweep_log_path(folder);
  std::error_code unknown;
  if (!fs::exists(path, unknown)) {
    throw RunError(fmt::format("{}: found a folder {}, expected one that 'arbalest sweep' wrote, with sweep.jsonl",
                               folder, describe_folder(folder)));
  }
  HtmlPage page(fmt::format("{} · sweep", sweep_name(folder)), kSweepParts);
  const SweepRecord record = read_sweep_log(path);
  warn_of_faults(record.faults);
  page.add_json("sweep", sweep_data(record, folder));
  page.add_script();
  return page.finish();
}

std::string sweep_name(const std::string& folder) {
  std::error_code unknown;
  fs::path path = fs::weakly_canonical(folder, unknown);
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().empty() ? "sweep" : path.filename().string();
}

}  // namespace arbalest
