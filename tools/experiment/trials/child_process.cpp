// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/trials/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/error.h"

namespace arbalest {
namespace {

constexpr size_t kMostErrors = 64 << 10;
constexpr size_t kMostOutput = 64 << 20;

constexpr std::chrono::seconds kGrace{1};      // for what is in the pipes once the process has ended
constexpr std::chrono::seconds kPatience{30};  // after SIGTERM

// Both ends of a pipe.
class Pipe {
 public:
  Pipe() {
    if (pipe2(ends_.data(), O_CLOEXEC) != 0) throw RunError(fmt::format("no pipe: {}", std::strerror(errno)));
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int end(size_t which) const { return ends_[which]; }
  void close_end(size_t which) {
    if (ends_[which] >= 0) close(ends_[which]);
    ends_[which] = -1;
  }

  // Appends what is there to the text; closes the end for reading once nobody writes.
  void drain(std::string& text) {
    std::array<char, 1 << 14> bytes{};
    const ssize_t count = read(ends_[0], bytes.data(), bytes.size());
    if (count > 0) text.append(bytes.data(), size_t(count));
    if (count == 0 || (count < 0 && errno != EINTR)) close_end(0);
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

// Becomes the program; calls only what is safe after a fork of a process with threads.
[[noreturn]] void become(const char* program, char* const* words, int output, int errors, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGPIPE}) ::signal(signal, SIG_DFL);
  const int nothing = open("/dev/null", O_RDONLY);  // a terminal would stop a group in the background
  if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0) _exit(1);
  if (nothing != STDIN_FILENO) close(nothing);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  execv(program, words);
  const char* const why = std::strerror(errno);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, why, std::strlen(why));
  _exit(127);
}

bool has_ended(const std::string& program, pid_t child, int& status) {
  const pid_t found = waitpid(child, &status, WNOHANG);
  if (found < 0 && errno != EINTR) {
    throw RunError(fmt::format("{}: how it ended is unknown: {}", program, std::strerror(errno)));
  }
  return found == child;
}

}  // namespace

ChildEnd run_child(const std::string& program, const std::vector<std::string>& words, const std::stop_token& stop) {
  Pipe output, errors;
  std::vector<char*> arguments = {const_cast<char*>(program.c_str())};
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw RunError(fmt::format("{}: cannot be started: {}", program, std::strerror(errno)));
  if (child == 0) become(program.c_str(), arguments.data(), output.end(1), errors.end(1), parent);
  setpgid(child, child);  // here as well, for either may be first
  output.close_end(1);
  errors.close_end(1);
  ChildEnd end;
  int status = 0;
  std::optional<std::chrono::steady_clock::time_point> asked, ended;
  while (!ended || output.end(0) >= 0 || errors.end(0) >= 0) {
    const auto now = std::chrono::steady_clock::now();
    if (!ended && has_ended(program, child, status)) ended = now;
    if (ended && now - *ended > kGrace) {  // others that it has started hold the pipes
      kill(-child, SIGKILL);
      break;
    }
    if (stop.stop_requested() && !asked) {
      asked = now;
      kill(-child, SIGTERM);
    }
    if (!ended && asked && now - *asked > kPatience) kill(-child, SIGKILL);
    const bool closed = output.end(0) < 0 && errors.end(0) < 0;
    std::array<pollfd, 2> ready = {pollfd{output.end(0), POLLIN, 0}, pollfd{errors.end(0), POLLIN, 0}};
    if (poll(ready.data(), ready.size(), closed ? 5 : 100) <= 0) continue;
    if (ready[0].revents != 0) output.drain(end.output);
    if (ready[1].revents != 0) errors.drain(end.errors);
    if (end.errors.size() > kMostErrors) end.errors.erase(0, end.errors.size() - kMostErrors);
    if (end.output.size() > kMostOutput) {
      kill(-child, SIGKILL);
      output.close_end(0);
    }
  }
  end.seconds = std::chrono::duration<double>(*ended - begin).count();
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  if (WIFEXITED(status)) end.status = WEXITSTATUS(status);
  return end;
}

}  // namespace arbalest
