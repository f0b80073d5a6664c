// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/setting.h"
#include "base/time/deadlines.h"
#include "executor/devices/rank_links.h"

#ifdef ARBALEST_MPI
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>

namespace arbalest {
namespace {

// MPI's start waits for all processes of its launcher, and nothing calls it off. So the process ends if a rank is lost
// meanwhile, or after the time that ranks wait for each other. Returns once all have come to the start.
TimedLook watch_start(Ranks& ranks) {
  ranks.exchange("MPI begins", "");
  const auto began = std::chrono::steady_clock::now();
  return look_each(std::chrono::duration<double>(0.1), [&ranks, began] {
    if (const auto lost = ranks.lost()) end_process(*lost);
    const double patience = ranks.settings().patience;
    if (std::chrono::steady_clock::now() - began < std::chrono::duration<double>(patience)) return;
    end_process(fmt::format(
        "{}: MPI has not started for {:g} s, although all {} ranks have come to that; it waits for every "
        "process of its launcher, also for one that is no rank; a longer {} gives it more time",
        set_to(SettingKey::Collectives, "mpi"), patience, ranks.size(), name_of(SettingKey::RendezvousTimeout)));
  });
}

// MPI of this process, which begins with its first links and ends when the process does.
class Mpi {
 public:
  static Mpi& of_process(Ranks& ranks) {
    static Mpi mpi(ranks);
    return mpi;
  }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  MPI_Comm ranks() const { return ranks_; }
  // Ranks make their links in the same order, so the same ones have the same tag.
  int next_tag() { return tag_++; }
  // From now on something may be under way whose memory goes. The process then ends without MPI_Finalize(), which would
  // wait for other ranks. The launcher takes that for a failure and ends these.
  void give_up() { given_up_ = true; }

  static void check(int code) {
    if (code == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    throw RunError(fmt::format("MPI: {}", std::string(text.data(), size_t(length))));
  }

 private:
  explicit Mpi(Ranks& ranks) {
    const TimedLook watching = watch_start(ranks);
    int begun = 0, level = 0;
    MPI_Initialized(&begun);
    if (begun) {
      MPI_Query_thread(&level);
    } else {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
      ends_ = true;
    }
    if (level < MPI_THREAD_MULTIPLE) {
      throw RunError(set_to(SettingKey::Collectives, "mpi") +
                     ": MPI was begun for calls of one thread; expected MPI_THREAD_MULTIPLE");
    }
    check(MPI_Comm_dup(MPI_COMM_WORLD, &ranks_));
    MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
  }
  ~Mpi() {
    if (ends_ && !given_up_) MPI_Finalize();
  }

  MPI_Comm ranks_ = MPI_COMM_NULL;
  bool ends_ = false;
  std::atomic<bool> given_up_{false};
  std::atomic<int> tag_{0};
};

class MpiLinks final : public RankLinks {
 public:
  MpiLinks(std::shared_ptr<Ranks> ranks, std::vector<int> ranks_of_arrays)
      : RankLinks(std::move(ranks), std::move(ranks_of_arrays)), mpi_(Mpi::of_process(*ranks_)), tag_(mpi_.next_tag()) {
    int rank = 0, size = 0;
    MPI_Comm_rank(mpi_.ranks(), &rank);
    MPI_Comm_size(mpi_.ranks(), &size);
    if (rank == ranks_->rank() && size == ranks_->size()) return;
    throw RunError(fmt::format("{}: MPI takes this process for rank {} of {}; expected rank {} of {}",
                               set_to(SettingKey::Collectives, "mpi"), rank, size, ranks_->rank(), ranks_->size()));
  }
  ~MpiLinks() override {
    if (ranks_->lost()) mpi_.give_up();
  }

  void exchange(const std::vector<Piece>& sent, const std::vector<Piece>& received) override {
    std::vector<MPI_Request> requests;
    const auto begin = [&](const Piece& piece, const auto& start) {
      constexpr int64_t kMost = int64_t{1} << 30;  // bytes of a message, whose count is an int
      for (int64_t at = 0; at < piece.bytes; at += kMost) {
        const int bytes = int(std::min(kMost, piece.bytes - at));
        MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
        Mpi::check(
            start(static_cast<char*>(piece.data) + at, bytes, MPI_BYTE, piece.rank, tag_, mpi_.ranks(), &request));
      }
    };
    try {
      if (aborted_.load()) throw RunError("the ranks' connections were aborted");
      for (const Piece& piece : received) begin(piece, MPI_Irecv);
      for (const Piece& piece : sent) begin(piece, MPI_Isend);
      wait_for(requests);
    } catch (const RunError& error) {
      mpi_.give_up();
      throw RunError(ranks_->find_out().value_or(error.what()));
    }
  }
  void abort() override { aborted_ = true; }

 private:
  // MPI's own waits keep a processor busy and cannot be called off. This one takes up to a sixteenth longer. It does
  // not yield, which on a busy machine costs a whole time slice.
  void wait_for(std::vector<MPI_Request>& requests) const {
    using Clock = std::chrono::steady_clock;
    constexpr Clock::duration kShortest = std::chrono::microseconds(20);
    constexpr Clock::duration kLongest = std::chrono::milliseconds(4);  // else looking counts as work: see Standstill
    for (const Clock::time_point began = Clock::now();;) {
      if (aborted_.load()) throw RunError("the ranks' connections were aborted");
      int over = 0;
      Mpi::check(MPI_Testall(int(requests.size()), requests.data(), &over, MPI_STATUSES_IGNORE));
      if (over) return;
      std::this_thread::sleep_for(std::clamp((Clock::now() - began) / 16, kShortest, kLongest));
    }
  }

  Mpi& mpi_;
  const int tag_;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::shared_ptr<RankLinks> make_mpi_links(std::shared_ptr<Ranks> ranks, std::vector<int> ranks_of_arrays) {
  return std::make_shared<MpiLinks>(std::move(ranks), std::move(ranks_of_arrays));
}

}  // namespace arbalest
#else

namespace arbalest {

std::shared_ptr<RankLinks> make_mpi_links(std::shared_ptr<Ranks>, std::vector<int>) {
  throw RunError(set_to(SettingKey::Collectives, "mpi") +
                 ": this build has no MPI; expected one with -Dmpi=enabled, which needs libopenmpi-dev");
}

}  // namespace arbalest
#endif
