// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpoints are written during training, by a thread of their own: one at a time, so that at most one lies in memory.
// If several ranks train together, each writes its part. Rank 0's file takes its place once all parts are there, so a
// checkpoint is whole or not there.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "executor/training/checkpoint_folder.h"

namespace arbalest {

class CheckpointWriter {
 public:
  struct Job {
    std::shared_ptr<const CheckpointLayout> layout;
    Checkpoint checkpoint;
    std::function<void()> before;  // called before the file is there
    // Those that write a part each; nullptr: this process writes all. `rank`: this one's when the job was made.
    std::shared_ptr<Ranks> ranks;
    int rank = 0;
    std::string name = {};  // of this rank, then too: ranks may be counted anew before the job is done
    // How long rank 0 waits until it sees a part that a rank has named, and until it warns of the others.
    std::chrono::seconds patience = std::chrono::seconds(60);
  };

  // `best`: the iteration of the best validation so far, for what is kept; any thread may call it. Throws RunError
  // if the system refuses a thread.
  CheckpointWriter(std::shared_ptr<const CheckpointFolder> folder, int64_t keep, std::function<int64_t()> best);
  ~CheckpointWriter();  // after what is under way has been written

  std::string path_of(int64_t iteration) const { return folder_->path_of(iteration).string(); }
  bool busy();
  void write(Job job);  // waits for the one before
  void wait();          // until nothing is under way
  // The reason why the latest checkpoint, or at another rank than the first its part, could not be written; "": it was
  // written. A failure is also reported on standard error, unless a value is not finite (see NotFinite).
  std::string error();
  // The first checkpoint that was not written because what it would have held is not finite, since this was asked for.
  // Rank 0 alone has it, whichever rank's values they are.
  struct NotFinite {
    std::string array;  // as CheckpointLayout::not_finite() names it
    int64_t iteration;
  };
  std::optional<NotFinite> take_not_finite();
  bool found_not_finite() const { return found_not_finite_.load(); }

 private:
  void serve();
  void write_now(Job job);
  void write_with_others(const std::filesystem::path& path, Job job) const;

  const std::shared_ptr<const CheckpointFolder> folder_;
  const int64_t keep_;
  const std::function<int64_t()> best_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Job> job_;
  bool writing_ = false, closed_ = false;
  std::string error_;
  std::optional<NotFinite> not_finite_;
  std::atomic<bool> found_not_finite_ = false;  // there is one, for those who ask often
  std::thread thread_;                          // last: it uses the others
};

}  // namespace arbalest
