// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/rank_links.h"

#include "base/error.h"

#ifdef ARBALEST_GLOO
#include <fmt/format.h>
#include <gloo/common/logging.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>

#include "executor/devices/open_files.h"
#include "executor/devices/threads.h"

namespace arbalest {
namespace {

constexpr auto kConnecting = std::chrono::seconds(4), kGivesUp = 5 * kConnecting;  // Gloo's own, for each rank
constexpr int kOwnFiles = 8;  // that Gloo opens, apart from connections
constexpr auto kSoon = std::chrono::milliseconds(3000);
// Ranks may be as far apart as one of them writes a file or makes kernels. Whether a rank is still there is for Ranks
// to say, which aborts what waits for it.
constexpr auto kUnlimited = std::chrono::hours(24 * 7);

// Shared by the thread that connects and the one that waits for it.
struct Meeting {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::string> own;  // a key and a value, which wait for those of the other ranks
  std::map<std::string, std::vector<char>> values;
  bool given_up = false, over = false;
  std::exception_ptr error;
};

// Gloo's store, for addresses: every rank sets the same keys in the same order.
class AddressStore final : public gloo::rendezvous::Store {
 public:
  explicit AddressStore(Meeting& meeting) : meeting_(meeting) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    std::unique_lock lock(meeting_.mutex);
    meeting_.own = key + '\n' + std::string(data.begin(), data.end());
    meeting_.changed.notify_all();
    meeting_.changed.wait(lock, [this] { return !meeting_.own || meeting_.given_up; });
    if (meeting_.given_up) throw RunError("connecting was given up");
  }
  std::vector<char> get(const std::string& key) override {
    const std::scoped_lock lock(meeting_.mutex);
    return meeting_.values[key];
  }
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

 private:
  Meeting& meeting_;
};

using GlooContext = std::shared_ptr<gloo::rendezvous::Context>;

// Exchanges addresses with the other ranks until all are connected, or one is lost.
void wait_for_all(Ranks& ranks, Meeting& meeting) {
  constexpr auto kLook = std::chrono::milliseconds(10);
  std::unique_lock lock(meeting.mutex);
  for (;;) {
    meeting.changed.wait_for(lock, kLook, [&] { return meeting.own || meeting.over; });
    if (meeting.error) std::rethrow_exception(meeting.error);
    if (meeting.over) return;
    if (const std::optional<std::string> lost = ranks.lost()) throw RunError(*lost);
    if (!meeting.own) continue;
    const std::string own = *meeting.own;
    lock.unlock();
    const Ranks::Parts parts = ranks.exchange("addresses", own);
    lock.lock();
    for (const std::string& part : parts) {
      const size_t end = std::min(part.find('\n'), part.size());
      const std::string value = part.substr(std::min(end + 1, part.size()));
      meeting.values[part.substr(0, end)].assign(value.begin(), value.end());
    }
    meeting.own.reset();
    meeting.changed.notify_all();
  }
}

std::shared_ptr<gloo::transport::Device> device_at(const std::string& address) {
  try {
    return gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(address.c_str()));
  } catch (const gloo::EnforceNotMet& error) {
    throw RunError(fmt::format("Gloo cannot use {}, an address of this host: {}", address, error.what()));
  }
}

// Gloo waits for a rank that is gone as long as for one that is slow, and cannot be called off. So it connects on a
// thread of its own, which ends by its limit of time if nobody waits for it any more.
GlooContext connected(Ranks& ranks) {
  expect_open_files(ranks.size() + kOwnFiles, fmt::format("a connection with each of {} ranks", ranks.size()));
  auto context = std::make_shared<gloo::rendezvous::Context>(ranks.rank(), ranks.size());
  context->setTimeout(kConnecting);
  std::shared_ptr<gloo::transport::Device> device = device_at(ranks.own_address());
  const auto meeting = std::make_shared<Meeting>();
  start_thread("connecting ranks", [meeting, context, device]() mutable {
    std::exception_ptr error;
    try {
      AddressStore store(*meeting);
      context->connectFullMesh(store, device);
    } catch (...) {
      error = std::current_exception();
    }
    context.reset();  // its owner, if it has one, lets it go
    device.reset();
    const std::scoped_lock lock(meeting->mutex);
    meeting->error = error;
    meeting->over = true;
    meeting->changed.notify_all();
  }).detach();
  device.reset();
  try {
    wait_for_all(ranks, *meeting);
  } catch (...) {
    const std::scoped_lock lock(meeting->mutex);
    meeting->given_up = true;
    meeting->changed.notify_all();
    throw;
  }
  return context;
}

using RankBuffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

struct GlooTransport {
  explicit GlooTransport(Ranks& ranks)
      : context(connected(ranks)), sent(size_t(ranks.size())), received(size_t(ranks.size())) {}

  // Nothing is sent or received any more, so that the memory of pieces may go. Gloo would go on with those that other
  // ranks still send.
  void close() const {
    for (int rank = 0; rank < context->size; ++rank) {
      if (rank != context->rank) context->getPair(rank)->close();
    }
  }

  const GlooContext context;
  std::vector<uint64_t> sent, received;  // pieces so far, by rank: Gloo's number for the next
  std::mutex mutex;
  std::vector<RankBuffer> under_way;
  bool aborted = false;
};

class GlooLinks final : public RankLinks {
 public:
  GlooLinks(std::shared_ptr<Ranks> ranks, std::vector<int> ranks_of_arrays);
  void exchange(const std::vector<Piece>& sent, const std::vector<Piece>& received) override;
  void abort() override;

 private:
  std::unique_ptr<GlooTransport> transport_;
};

GlooLinks::GlooLinks(std::shared_ptr<Ranks> ranks, std::vector<int> ranks_of_arrays)
    : RankLinks(std::move(ranks), std::move(ranks_of_arrays)) {
  const auto fail = [this](const std::exception& error) {
    // A rank that has ended is known soon. One whose host is gone may be known after Gloo has given up.
    const auto longest = std::max<std::chrono::milliseconds>(kSoon, ranks_->loss_known_after() - kGivesUp);
    throw RunError(ranks_->find_out(longest).value_or(
        fmt::format("the ranks cannot be connected by Gloo, from {}: {}; expected that each reaches the others at any "
                    "TCP port: does a firewall keep them apart?",
                    ranks_->own_address(), error.what())));
  };
  try {
    transport_ = std::make_unique<GlooTransport>(*ranks_);
  } catch (const gloo::EnforceNotMet& error) {
    fail(error);
  } catch (const gloo::Exception& error) {
    fail(error);
  }
}

void GlooLinks::exchange(const std::vector<Piece>& sent, const std::vector<Piece>& received) {
  GlooTransport& transport = *transport_;
  const auto begin = [&](const Piece& piece) -> gloo::transport::UnboundBuffer* {
    if (piece.bytes == 0) return nullptr;
    transport.under_way.push_back(transport.context->createUnboundBuffer(piece.data, size_t(piece.bytes)));
    return transport.under_way.back().get();
  };
  const auto fail = [&](const std::string& what) { throw RunError(ranks_->find_out().value_or(what)); };
  try {
    std::vector<gloo::transport::UnboundBuffer*> receiving, sending;
    {
      const std::scoped_lock lock(transport.mutex);
      if (transport.aborted) throw RunError("the ranks' connections were aborted");
      for (const Piece& piece : received) {
        auto* const buffer = receiving.emplace_back(begin(piece));
        if (buffer) buffer->recv(piece.rank, transport.received[size_t(piece.rank)]++);
      }
      for (const Piece& piece : sent) {
        auto* const buffer = sending.emplace_back(begin(piece));
        if (buffer) buffer->send(piece.rank, transport.sent[size_t(piece.rank)]++);
      }
    }
    bool whole = true;
    for (auto* buffer : sending) whole = whole && (!buffer || buffer->waitSend(kUnlimited));
    for (auto* buffer : receiving) whole = whole && (!buffer || buffer->waitRecv(kUnlimited));
    if (!whole) transport.close();
    const std::scoped_lock lock(transport.mutex);
    transport.under_way.clear();
    if (!whole) throw RunError("the ranks' connections were aborted");
  } catch (const gloo::Exception& error) {
    transport.close();
    fail(fmt::format("Gloo: {}", error.what()));
  }
}

void GlooLinks::abort() {
  const std::scoped_lock lock(transport_->mutex);
  transport_->aborted = true;
  for (const RankBuffer& buffer : transport_->under_way) {
    buffer->abortWaitSend();
    buffer->abortWaitRecv();
  }
}

}  // namespace

std::shared_ptr<RankLinks> make_gloo_links(std::shared_ptr<Ranks> ranks, std::vector<int> ranks_of_arrays) {
  return std::make_shared<GlooLinks>(std::move(ranks), std::move(ranks_of_arrays));
}

}  // namespace arbalest
#else

namespace arbalest {

std::shared_ptr<RankLinks> make_gloo_links(std::shared_ptr<Ranks>, std::vector<int>) {
  throw RunError(
      "collectives of several processes on CPUs: this build has no Gloo; expected one with -Dgloo=enabled, which needs "
      "libgloo-dev");
}

}  // namespace arbalest
#endif
