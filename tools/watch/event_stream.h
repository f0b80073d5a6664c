#pragma once
// A file that is written while a run goes on, and that others read meanwhile.

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace arbalest {

class EventStream {
 public:
  // `what` is the file's word in messages: "log". Throws RunError where the file cannot be created.
  EventStream(const std::string& path, std::string what);

  // Flushed at once. A failure is reported once on standard error and ends the file, not the run.
  void write(std::string_view bytes);
  bool failed() const { return !file_; }

 private:
  std::string path_, what_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace arbalest
