// SPDX-License-Identifier: Apache-2.0
#pragma once
// A file that is written while a run goes on, and that others read meanwhile.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace arbalest {

class EventStream {
 public:
  // `what` is the file's word in messages: "log"; `then`: what happens if it cannot be written. What the file holds
  // stays, and what is written goes after it. A pipe is waited for until somebody reads it, for five seconds at most.
  // Throws RunError if the file cannot be opened, OutputInUse if another process writes it.
  EventStream(const std::string& path, std::string what, std::string then = "training goes on");
  ~EventStream();
  EventStream(const EventStream&) = delete;
  EventStream& operator=(const EventStream&) = delete;

  bool empty() const;  // also a pipe or a device, which holds nothing

  // Cuts off all but so many bytes.
  void cut(int64_t bytes);

  // Written at once. A failure is reported once on standard error and ends the file, not the run; so does a pipe or a
  // terminal that takes nothing for ten seconds.
  void write(std::string_view bytes);
  bool failed() const { return failed_; }

 private:
  bool put(std::string_view bytes) const;

  std::string path_, what_, then_;
  int descriptor_ = -1;
  bool regular_ = false, failed_ = false;
};

// The offset in bytes after the last line that is wanted; −1: there is none. A last line without a line feed may be cut
// short and is not looked at.
int64_t end_of_line(const std::string& path, const std::function<bool(const std::string&)>& wanted);

}  // namespace arbalest
