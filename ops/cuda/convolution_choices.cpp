// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/convolution_choices.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/number.h"

namespace arbalest {
namespace {

constexpr std::streamoff kLargest = 16 << 20;  // bytes of a file that is read: some hundred bytes a convolution

// A line of the file: key, index, engine and µs with tabs between them.
std::optional<std::pair<std::string, ConvolutionChoice>> read_line(std::string_view line) {
  std::array<std::string_view, 4> parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t tab = line.find('\t');
    if ((tab == line.npos) != (i + 1 == parts.size())) return std::nullopt;
    parts[i] = line.substr(0, tab);
    line.remove_prefix(i + 1 == parts.size() ? line.size() : tab + 1);
  }
  const auto index = read_number<int64_t>(parts[1]);
  const auto microseconds = finite_number(parts[3]);
  if (!index || *index < 0 || !microseconds || *microseconds < 0) return std::nullopt;
  return std::pair(std::string(parts[0]), ConvolutionChoice{*index, std::string(parts[2]), *microseconds});
}

}  // namespace

ConvolutionChoices::ConvolutionChoices(std::filesystem::path file) : file_(std::move(file)) {
  std::error_code unknown;
  if (!std::filesystem::is_regular_file(file_, unknown)) return;
  std::ifstream in(file_, std::ios::binary | std::ios::ate);
  if (!in || in.tellg() > kLargest) return;
  in.seekg(0);
  for (std::string line; std::getline(in, line) && !in.eof();) {  // the last line may be cut short
    if (auto known = read_line(line)) known_.insert_or_assign(std::move(known->first), std::move(known->second));
  }
}

// One write at the end of the file, so that processes may do so at the same time.
void ConvolutionChoices::keep(const std::string& key, const ConvolutionChoice& choice) const {
  if (file_.empty() || choice.index < 0) return;  // that there is none may be for want of memory
  const std::string line = fmt::format("{}\t{}\t{}\t{}\n", key, choice.index, choice.engine, choice.microseconds);
  const std::string_view text = std::string_view(line).substr(0, line.size() - 1);
  if (text.find('\n') != text.npos || !read_line(text)) return;
  std::error_code failure;
  std::filesystem::create_directories(file_.parent_path(), failure);
  const int file = open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, line.data(), line.size());
  close(file);
}

double ConvolutionChoices::known_microseconds(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  return found == known_.end() ? 0 : found->second.microseconds;
}

int64_t ConvolutionChoices::timed() {
  const std::lock_guard lock(mutex_);
  return timed_;
}

ConvolutionChoice ConvolutionChoices::find(const std::string& key,
                                           const std::function<bool(const ConvolutionChoice&)>& fits,
                                           const std::function<ConvolutionChoice()>& choose) {
  std::optional<ConvolutionChoice> refused;
  std::unique_lock lock(mutex_);
  for (;;) {
    chosen_.wait(lock, [&] { return !choosing_.contains(key); });
    const auto found = known_.find(key);
    if (found == known_.end() || found->second == refused) break;
    const ConvolutionChoice choice = found->second;
    lock.unlock();
    if (choice.index < 0 || fits(choice)) return choice;
    refused = choice;
    lock.lock();
  }
  choosing_.insert(key);
  lock.unlock();
  std::optional<ConvolutionChoice> choice;
  const auto end = [&] {
    lock.lock();
    choosing_.erase(key);
    chosen_.notify_all();
  };
  try {
    choice = choose();
  } catch (...) {
    end();
    throw;
  }
  end();
  timed_ += choice->microseconds > 0 ? 1 : 0;
  known_[key] = *choice;
  keep(key, *choice);
  return *choice;
}

}  // namespace arbalest
