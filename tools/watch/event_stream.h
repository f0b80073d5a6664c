#pragma once
// A file that is written while a run goes on, and that others read meanwhile.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace arbalest {

class EventStream {
 public:
  // `what` is the file's word in messages: "log". With `goes_on` what the file holds stays, and is written on. Throws
  // RunError where the file cannot be created.
  EventStream(const std::string& path, std::string what, bool goes_on = false);

  // Cuts off all but so many bytes.
  void cut(int64_t bytes);

  // Flushed at once. A failure is reported once on standard error and ends the file, not the run.
  void write(std::string_view bytes);
  bool failed() const { return !file_; }

 private:
  std::string path_, what_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace arbalest
