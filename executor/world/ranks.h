// SPDX-License-Identifier: Apache-2.0
#pragma once
// A world that has met: ranks hand each other small amounts of bytes, through rank 0, and learn when one of them is
// lost. Arrays of devices travel by other ways (executor/devices/rank_links.h).

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor/world/pauses.h"
#include "executor/world/rendezvous.h"
#include "executor/world/standstill.h"

namespace arbalest {

class Ranks {
 public:
  using Parts = std::vector<std::string>;  // by rank
  using Then = std::function<void(const Parts&)>;

  // Waits for all ranks: see meet().
  explicit Ranks(const WorldSettings& settings);
  ~Ranks();  // the others learn that this rank is gone; it counts as lost unless end() came before
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // Ranks count from 0 among those that are there; number() is as the launcher counts them, which never changes.
  int rank() const { return there_.rank; }
  int era() const { return there_.era; }  // how often ranks have counted anew
  int size() const { return int(there_.numbers.size()); }
  bool first() const { return own_.number == 0; }
  int number(int rank) const { return there_.numbers[size_t(rank)]; }
  const std::string& host(int rank) const { return own_.hosts[size_t(number(rank))]; }
  const WorldSettings& settings() const { return back_.settings; }
  const std::string& own_address() const { return own_.address; }     // an interface that other ranks reach
  std::string name(int rank) const { return name_of(number(rank)); }  // "rank 2 on node07", by its number
  std::string name_of(int number) const;
  int on_this_host() const;  // ranks, this one included

  // Each rank gives a part under the same key, and gets those of all. Throws RunError if a rank is lost.
  Parts exchange(const std::string& key, std::string part);
  // Does not wait: `then` is called once all parts are there, on any thread, one such call after the other. It must not
  // throw and is not called after forget(), or if a rank is lost.
  void exchange(const std::string& key, std::string part, Then then);
  // As the first, but only rank 0 gets the parts; elsewhere nothing is returned, and nothing waited for. Any thread may
  // call it, also while others exchange under other keys.
  Parts gather(const std::string& key, std::string part);
  void forget();  // calls that are still to come; waits for one under way

  // Rank 0's steady clock showed `there`, to within `error`, when this rank's showed `here`; all in ns.
  struct ClockReading {
    int64_t here = 0, there = 0, error = 0;
  };
  // Takes several round trips to rank 0, of which the shortest counts. Other ranks need not call it.
  ClockReading read_clock();

  // Raises a number that all ranks see; only the largest counts.
  void call(int64_t number);
  int64_t called() const { return called_.load(); }

  // `lost` is called once, on any thread, when a rank is lost or has failed; at once if that is known already. {}: no
  // more; waits for a call under way.
  void listen(std::function<void(const std::string& message)> lost);
  // Until {}: each sign of life tells how far this rank is. Rank 0 takes one for lost that stands still for too long.
  // `progress` is called on any thread, and what it says of waits is part of the message if a rank is lost.
  void watch(std::function<RankProgress()> progress);
  // At rank 0, a line for each rank: where it is, since when, and what it owes to whom.
  std::string places() const;
  std::optional<std::string> lost() const;
  bool over() const;  // nobody can go on: rank 0 is lost, or a rank has ended with an error
  // Waits until it is known which rank is lost, if something else suggests that one is; nothing if none is after all.
  // `longest`: by default loss_known_after().
  std::optional<std::string> find_out(std::optional<std::chrono::milliseconds> longest = {}) const;
  std::chrono::milliseconds loss_known_after() const;  // how long a rank that is no longer heard of is not lost yet

  // After a loss, or to take ranks back: goes on with the ranks that are left, which all call this, while nothing of
  // theirs is under way here. Parts that were on their way are forgotten, and ranks count anew. Returns once rank 0 has
  // heard of all of them, and throws RunError if rank 0 is lost, or if a rank has ended with an error.
  // `take_back`: at rank 0, takes in those that wait for it; the result is their numbers there.
  std::vector<int> go_on(bool take_back = false);

  // Ranks that come back, if WorldSettings::takes_back. Rank 0 keeps what all exchange until it calls begin(). A lost
  // rank that is started again meets rank 0 as it did at first, exchanges the same, with an answer that has its own
  // part and what the others gave then, and so finds for itself whether it fits. Its go_on() then waits to be taken in.
  void begin();
  bool returns() const;  // this rank comes back, and has not been taken in yet
  bool awaited() const;  // at rank 0: one waits to be taken in

  void fail(const std::string& message);  // this rank ends with an error, which the others hear
  void end();                             // waits until all ranks have come to their ends

 private:
  Ranks(const WorldSettings& settings, Met met);

  std::chrono::milliseconds silence() const;  // as WorldSettings has it
  std::chrono::milliseconds alive() const;    // from one sign of life to the next

  struct Waiting {
    Parts parts;
    std::vector<bool> here;
    size_t missing = 0;
    bool whole = true;  // all ranks get the parts
    Then then;
    int64_t forgotten = 0;                                // how often forget() had been called before
    bool awaited = false;                                 // a thread waits for it, so it is not forgotten
    SteadyTime since = std::chrono::steady_clock::now();  // once this rank's part is there, since when it is
  };

  using Connections = std::vector<std::shared_ptr<Connection>>;
  Connections connections() const;
  std::shared_ptr<Connection> connection(int number) const;
  bool is_past(int from, const std::shared_ptr<Connection>& connection) const;
  void end_threads(const Connections& connections);
  void receive(int from, const std::shared_ptr<Connection>& connection);
  void handle(int from, Connection& connection, Frame frame);
  void take_part(int from, const std::string& key, std::string part, bool whole, Then then, bool awaited = false);
  void finish(const std::string& key, Waiting waiting);
  enum class Outcome : uint8_t { Left, Over };  // others may go on, or nobody may
  struct Loss {
    std::string message;
    int from = 0;         // this connection's rank told, or ended
    int lost = kUnknown;  // the rank that is lost
    Outcome outcome = Outcome::Over;
    static constexpr int kUnknown = -1;
  };
  void lose(const Loss& loss);
  void begin_again(std::vector<int> numbers);
  void stay_alive();
  std::string own_silence() const;
  void show_life(Connection& connection, const std::optional<RankProgress>& progress);
  void look_for_standstill(std::optional<RankProgress> own);
  void look_for_dead_readers();
  std::string last_place(int lost) const;
  std::string own_wait(int lost) const;
  // Those that come back, at rank 0.
  void keep_door();
  void let_in(const Visitor& visitor, const std::shared_ptr<Connection>& connection);
  std::string why_not(const Visitor& visitor) const;
  bool visits(int number) const;
  void answer(int visitor, Connection& connection, Frame frame);
  bool leaves(int visitor, const std::string& why);
  void send(Connection& connection, Frame::Kind kind, std::string_view key, std::string_view bytes);
  std::vector<std::string> wait_for(const std::string& key, std::string part, bool whole);

  const struct Own {
    int number = 0;
    std::string address;
    std::vector<std::string> hosts;  // of all ranks, by number
  } own_;
  Connections connections_;  // as Met has them; changed under the mutex
  struct There {             // changed under the mutex, while this rank waits in go_on()
    int rank = 0, era = 0;
    std::vector<int> numbers;  // of all ranks that are there, in order
  } there_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // By key, the first one first: a rank may be ahead with gather(). Elsewhere than at rank 0 there is only `then`.
  std::map<std::string, std::deque<Waiting>> waiting_;
  struct Losses {
    std::optional<std::string> first;
    std::optional<std::string> over;  // why nobody can go on
    bool begun = false;               // rank 0 has said who is left
    // At rank 0, by number: which ranks are lost for good, and which have called go_on().
    std::vector<bool> gone, ready;
  } losses_;
  struct Visit {
    std::shared_ptr<Connection> connection;
    std::map<std::string, size_t> heard;  // parts, by key
    bool ready = false;                   // has called go_on()
  };
  struct Back {
    WorldSettings settings;
    std::unique_ptr<Listener> door;  // nullptr: no rank comes back
    bool begun = false, returns = false;
    std::map<std::string, std::vector<Parts>> told;  // what all exchanged before, by key
    std::map<int, Visit> visits;                     // by number
    std::thread keeper;                              // of the door
  } back_;
  struct Listening {
    std::mutex mutex;  // of the function, and of messages to others about a loss
    std::function<void(const std::string&)> lost;
  } listening_;
  struct Calls {
    std::mutex under_way;   // of a Then
    int64_t forgotten = 0;  // calls of forget(); changed under both mutexes
  } calls_;
  struct Reader {        // of a connection, as it was at the last look
    int64_t bytes = 0;   // that it had read
    int looks_down = 0;  // for how many looks the connection has been down
    int looks_same = 0;  // for how many looks it has read nothing
  };
  struct Watched {
    std::mutex mutex;  // of the function, while it is called
    std::function<RankProgress()> progress;
    Standstill standstill;          // by number, at rank 0 of all, elsewhere of rank 0; under mutex_
    std::map<int, Reader> readers;  // by number; the looking thread's
    Pauses pauses;                  // of the looking thread; under mutex_
  };
  mutable Watched watched_;
  std::atomic<int64_t> called_{0};
  std::atomic<bool> ended_{false}, closing_{false};
  std::vector<std::thread> threads_;
};

}  // namespace arbalest
