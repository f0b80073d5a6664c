// SPDX-License-Identifier: Apache-2.0
#include "executor/world/connection.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "executor/world/world.h"

namespace arbalest {
namespace {

constexpr size_t kHeader = 16, kLongestKey = 256, kStep = 1 << 20;
constexpr uint16_t kMark = 0xA6B5;  // of a frame: another program's bytes are recognised by it

struct Addresses {
  Addresses(const std::string& host, int port, bool passive) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = passive ? AI_PASSIVE : 0;
    const int status = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &first);
    if (status != 0) throw RunError(fmt::format("{}: {}", host, gai_strerror(status)));
  }
  ~Addresses() { freeaddrinfo(first); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  addrinfo* first = nullptr;
};

// The header of a frame: mark, kind, bytes of the key (16 bits each, one unused), bytes (64 bits); in this machine's
// byte order.
using Header = std::array<char, kHeader>;

Header header_of(Frame::Kind kind, uint16_t key_bytes, uint64_t bytes) {
  Header header{};
  const auto number = uint16_t(kind);
  std::memcpy(header.data(), &kMark, sizeof kMark);
  std::memcpy(header.data() + 2, &number, sizeof number);
  std::memcpy(header.data() + 4, &key_bytes, sizeof key_bytes);
  std::memcpy(header.data() + 8, &bytes, sizeof bytes);
  return header;
}

// A small frame as a whole.
std::string frame_of(Frame::Kind kind, std::string_view key, std::string_view bytes) {
  const std::string_view name = key.substr(0, kLongestKey);
  const Header header = header_of(kind, uint16_t(name.size()), bytes.size());
  std::string frame(header.data(), header.size());
  return frame.append(name).append(bytes);
}

// "192.0.2.2"; "": it is of no kind that is known.
std::string text_of(const sockaddr* address, socklen_t bytes) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(address, bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  const std::string found = text.data(), mapped = "::ffff:";  // of a socket that takes both kinds of addresses
  return found.starts_with(mapped) ? found.substr(mapped.size()) : found;
}

int open_socket(const addrinfo& address) {
  return socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
}

}  // namespace

int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Connection::Connection(int descriptor) : descriptor_(descriptor) {
  const int on = 1;
  setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

Connection::~Connection() {
  close(descriptor_);
}

void Connection::set_patience(std::chrono::milliseconds longest) {
  patience_ = longest;
  const timeval time{longest.count() / 1000, longest.count() % 1000 * 1000};
  setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

void Connection::write_all(const char* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t written = ::send(descriptor_, from, bytes, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) throw RunError("it takes no bytes any more");
    if (written < 0) throw RunError(fmt::format("its connection has ended: {}", std::strerror(errno)));
    from += written;
    bytes -= size_t(written);
  }
}

void Connection::read_all(char* to, size_t bytes) {
  while (bytes > 0) {
    if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) throw RunError("its bytes come too slowly");
    const ssize_t read = recv(descriptor_, to, bytes, 0);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      throw RunError(fmt::format("nothing was heard of it for {:g} s", double(patience_.count()) / 1000));
    }
    if (read < 0) throw RunError(fmt::format("its connection has ended: {}", std::strerror(errno)));
    if (read == 0) throw RunError("its connection has ended");
    to += read;
    bytes -= size_t(read);
    bytes_read_.fetch_add(read, std::memory_order_relaxed);
  }
}

void Connection::send(Frame::Kind kind, std::string_view key, std::string_view bytes) {
  const std::string_view name = key.substr(0, kLongestKey);
  const Header header = header_of(kind, uint16_t(name.size()), bytes.size());
  const std::scoped_lock lock(sending_);
  write_all(header.data(), header.size());
  write_all(name.data(), name.size());
  write_all(bytes.data(), bytes.size());
}

void Connection::show_life(Frame::Kind kind, std::string_view key, std::string_view bytes) {
  const std::unique_lock lock(sending_, std::try_to_lock);
  if (!lock) return;
  const std::string frame = frame_of(kind, key, bytes);
  const ssize_t written = ::send(descriptor_, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (written < 0) throw RunError(fmt::format("its connection has ended: {}", std::strerror(errno)));
  write_all(frame.data() + written, frame.size() - size_t(written));
}

void Connection::send_last_words(std::string_view message) {
  const std::unique_lock lock(sending_, std::try_to_lock);
  if (!lock) return;
  const std::string frame = frame_of(Frame::Kind::Failed, {}, message);
  ::send(descriptor_, frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

bool Connection::silent() const {
  char byte = 0;
  const ssize_t read = recv(descriptor_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

Frame Connection::receive(uint64_t most) {
  std::array<char, kHeader> header{};
  read_all(header.data(), header.size());
  uint16_t mark = 0, number = 0, key_bytes = 0;
  uint64_t size = 0;
  std::memcpy(&mark, header.data(), sizeof mark);
  std::memcpy(&number, header.data() + 2, sizeof number);
  std::memcpy(&key_bytes, header.data() + 4, sizeof key_bytes);
  std::memcpy(&size, header.data() + 8, sizeof size);
  if (mark != kMark || number > uint16_t(Frame::Kind::Progress) || key_bytes > kLongestKey || size > most) {
    throw RunError("it sent bytes that are no frame of ours");
  }
  Frame frame{Frame::Kind(number), std::string(key_bytes, 0), {}};
  read_all(frame.key.data(), key_bytes);
  while (frame.bytes.size() < size) {
    const size_t before = frame.bytes.size(), step = std::min<uint64_t>(kStep, size - before);
    frame.bytes.resize(before + step);
    read_all(frame.bytes.data() + before, step);
  }
  return frame;
}

void Connection::shut_down() {
  down_.store(true);
  shutdown(descriptor_, SHUT_RDWR);
}

std::string Connection::local_address() const {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return {};
  return text_of(reinterpret_cast<sockaddr*>(&address), bytes);
}

bool Connection::within_host() const {
  const std::string own = local_address();
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (getpeername(descriptor_, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return is_loopback(own);
  return is_loopback(own) || text_of(reinterpret_cast<sockaddr*>(&address), bytes) == own;
}

std::string own_addresses() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::vector<std::string> found;
  for (const ifaddrs* each = all; each; each = each->ifa_next) {
    const int family = each->ifa_addr ? each->ifa_addr->sa_family : AF_UNSPEC;
    if ((family != AF_INET && family != AF_INET6) || (each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const std::string text = text_of(each->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!text.empty() && text.find('%') == text.npos) found.push_back(text);  // without those of one link alone
  }
  freeifaddrs(all);
  return fmt::format("{}", fmt::join(found, ", "));
}

std::string not_this_host(const std::string& host) {
  std::string reason = fmt::format("{} is no address of this host, which has ", host);
  for (const std::string& word : words_of_list(host)) {
    try {
      const Addresses addresses(word, 0, false);
      for (const addrinfo* address = addresses.first; address; address = address->ai_next) {
        const int descriptor = open_socket(*address);
        const bool here = descriptor >= 0 && bind(descriptor, address->ai_addr, address->ai_addrlen) == 0;
        if (descriptor >= 0) close(descriptor);
        if (here) return "";
      }
    } catch (const RunError& error) {
      reason = fmt::format("{}; this host has ", error.what());  // which names it
    }
  }
  return fmt::format("{}{}", reason, own_addresses());
}

std::unique_ptr<Connection> connect_to(const std::string& host, int port, SteadyTime until,
                                       const std::stop_token& stop) {
  constexpr auto kPause = std::chrono::milliseconds(100), kLongest = std::chrono::milliseconds(3000);
  for (;;) {
    std::vector<std::string> reasons;
    for (const std::string& word : words_of_list(host)) {
      try {
        const Addresses addresses(word, port, false);
        for (const addrinfo* address = addresses.first; address; address = address->ai_next) {
          const int descriptor = open_socket(*address);
          if (descriptor < 0) continue;
          auto connection = std::make_unique<Connection>(descriptor);
          connection->set_patience(kLongest);  // of connect() as well
          const std::stop_callback interrupt(stop, [trying = connection.get()] { trying->shut_down(); });
          if (connect(descriptor, address->ai_addr, address->ai_addrlen) == 0) return connection;
          const std::string why = errno == EINPROGRESS ? "no answer" : std::strerror(errno);
          const std::string text = text_of(address->ai_addr, address->ai_addrlen);
          const char* own = is_loopback(text) && !is_loopback(host) ? ", which is this host itself" : "";
          reasons.push_back(text == host ? why : fmt::format("{}{}: {}", text, own, why));
        }
      } catch (const RunError& error) {  // a name that is not known yet
        reasons.emplace_back(error.what());
      }
    }
    if (stop.stop_requested() || std::chrono::steady_clock::now() >= until) {
      throw RunError(reasons.empty() ? "no address" : fmt::format("{}", fmt::join(reasons, ", ")));
    }
    std::this_thread::sleep_for(kPause);
  }
}

Listener::Listener(const std::string& host, int port) {
  constexpr int kWaiting = 1024;
  const bool here = is_loopback(host);
  std::string reason;
  bool in_use = false;
  for (const std::string& word : here ? words_of_list(host) : std::vector<std::string>{""}) {
    const Addresses addresses(word, port, !here);
    std::vector<const addrinfo*> all;
    for (const addrinfo* address = addresses.first; address; address = address->ai_next) all.push_back(address);
    // A socket of IPv6 takes addresses of both kinds.
    std::stable_partition(all.begin(), all.end(), [](const addrinfo* each) { return each->ai_family == AF_INET6; });
    for (const addrinfo* address : all) {
      descriptor_ = open_socket(*address);
      if (descriptor_ < 0) continue;
      const int on = 1, off = 0;
      setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      if (address->ai_family == AF_INET6) setsockopt(descriptor_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
      if (bind(descriptor_, address->ai_addr, address->ai_addrlen) == 0 && listen(descriptor_, kWaiting) == 0) return;
      reason = std::strerror(errno);
      in_use = errno == EADDRINUSE;
      close(descriptor_);
      descriptor_ = -1;
    }
  }
  const char* help = in_use ? "; expected a free port: is rank 0 running already?" : "";
  throw RunError(fmt::format("rank 0 cannot wait for the others at {}:{}: {}{}", host, port, reason, help));
}

Listener::~Listener() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::unique_ptr<Connection> Listener::accept(std::chrono::milliseconds longest) {
  pollfd waiting{descriptor_, POLLIN, 0};
  if (poll(&waiting, 1, int(longest.count())) <= 0) return nullptr;
  const int descriptor = accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
  if (descriptor >= 0) return std::make_unique<Connection>(descriptor);
  if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    throw RunError(fmt::format("no more connections can be taken in: {}{}", std::strerror(errno),
                               errno == EMFILE ? "; expected a higher limit on them (ulimit -n)" : ""));
  }
  return nullptr;  // it is gone again
}

}  // namespace arbalest
