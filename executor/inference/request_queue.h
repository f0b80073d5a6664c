// SPDX-License-Identifier: Apache-2.0
#pragma once
// The queue of a predictor: requests that wait, free slots of devices, and batches under way. It handles samples as
// bytes and knows nothing of models. Any thread may call any function.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace arbalest {

class RequestQueue {
 public:
  struct Request {
    std::vector<const std::byte*> fields;  // the samples of each of the predictor's fields
    int64_t samples = 0, taken = 0, done = 0;
    std::vector<float> rows;
    std::promise<void> finished;
  };
  // Samples first … first + count − 1 of a request, in rows from `at` on of a batch.
  struct Piece {
    std::shared_ptr<Request> request;
    int64_t first = 0, count = 0, at = 0;
  };
  struct Batch {
    int32_t device = 0;
    int64_t tick = 0;
    std::vector<Piece> pieces;  // none: there is nothing to fill
  };

  // `batch`: samples of a batch.
  explicit RequestQueue(int64_t batch) : batch_(batch) {}

  // Throws the error that fail() was called with.
  void push(const std::shared_ptr<Request>& request);

  // The slot of the device's batch `tick` may be filled.
  void open(int32_t device, int64_t tick);

  // The next batch that there are samples for, on the device that has been free the longest; it is under way from then
  // on. A device runs its batches in order, so only the earliest of its open slots gets any.
  Batch take();

  // None: the batch has failed.
  std::vector<Piece> under_way(int32_t device, int64_t tick);

  // The batch's rows are where they belong.
  void finish(int32_t device, int64_t tick);

  // Returns when nothing is asked any more, or nothing can be answered.
  void wait();

  // Every request that is not done fails, and all that come.
  void fail(const std::exception_ptr& error);

 private:
  const int64_t batch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Request>> waiting_;
  std::deque<Batch> open_;                                               // in the order in which they became free
  std::map<int32_t, int64_t> next_;                                      // the tick of each device that is to be filled
  std::map<std::pair<int32_t, int64_t>, std::vector<Piece>> under_way_;  // by device and tick
  std::exception_ptr error_;
};

}  // namespace arbalest
