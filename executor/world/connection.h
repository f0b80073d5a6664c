// SPDX-License-Identifier: Apache-2.0
#pragma once
// A TCP connection between two ranks, which carries frames: a kind, a key and bytes.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

namespace arbalest {

struct Frame {
  enum class Kind : uint8_t {
    Challenge,
    Hello,
    Welcome,
    Refused,
    Begin,
    Alive,
    Part,
    Whole,
    Call,
    Clock,
    GoesOn,
    Failed,
    Bye,
    Progress
  };
  static constexpr const char* kInterrupt = "interrupt";  // key of one that Failed because it was asked to end
  Kind kind = Kind::Alive;
  std::string key, bytes;
};

using SteadyTime = std::chrono::steady_clock::time_point;
int64_t steady_ns();  // of that clock

class Connection {
 public:
  explicit Connection(int descriptor);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Reads and writes that take longer than this without a byte fail.
  void set_patience(std::chrono::milliseconds longest);
  // Any thread may send; one at a time receives. Throws RunError, which says how the connection ended. A frame with
  // more than `most` bytes is an error, and its memory grows only as the bytes come.
  void send(Frame::Kind kind, std::string_view key = {}, std::string_view bytes = {});
  Frame receive(uint64_t most);
  // Sends a frame if that takes no time: bytes that are under way are a sign of life as well.
  void show_life(Frame::Kind kind = Frame::Kind::Alive, std::string_view key = {}, std::string_view bytes = {});
  // Sends a frame of the kind Failed if that takes no time. Nothing is to follow it: it may be cut short.
  void send_last_words(std::string_view message);
  // A frame that has not come by then is an error, however its bytes come.
  void set_deadline(std::optional<SteadyTime> until) { deadline_ = until; }
  bool silent() const;  // the other end has not closed it, and nothing is there to read
  void shut_down();     // ends calls that wait on other threads
  bool is_down() const { return down_.load(); }
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }  // so far
  std::string local_address() const;                                                  // of this end, without the port
  bool within_host() const;  // both ends have the same address, or loopback ones

 private:
  void write_all(const char* from, size_t bytes);
  void read_all(char* to, size_t bytes);

  const int descriptor_;
  std::chrono::milliseconds patience_{0};
  std::optional<SteadyTime> deadline_;
  std::mutex sending_;
  std::atomic<bool> down_{false};
  std::atomic<int64_t> bytes_read_{0};
};

// Connects to a host's port, trying again until the deadline, or until a stop is requested. `host`: a name or an
// address, or several with commas between them. Throws RunError with the reasons of the last failures.
std::unique_ptr<Connection> connect_to(const std::string& host, int port, SteadyTime until,
                                       const std::stop_token& stop = {});

// The addresses of this host that others may reach: "192.0.2.2, fd00::2".
std::string own_addresses();

// Why others may not find this host by `host`, as in connect_to(); "": one of its addresses is one of this host's.
// "10.99.1.1 is no address of this host, which has 192.0.2.2, fd00::2".
std::string not_this_host(const std::string& host);

// A port that waits for connections.
class Listener {
 public:
  // Only of this host if is_loopback(host), at the first of its addresses that can be had; of all interfaces otherwise.
  // Throws RunError if the port is in use.
  Listener(const std::string& host, int port);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // nullptr: nobody came. Throws RunError if the system has no place for the connection of one who came.
  std::unique_ptr<Connection> accept(std::chrono::milliseconds longest);

 private:
  int descriptor_ = -1;
};

}  // namespace arbalest
