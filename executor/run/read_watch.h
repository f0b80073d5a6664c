// SPDX-License-Identifier: Apache-2.0
#pragma once
// Records which samples are being read, and since when. A file on a disk or a server that no longer answers would hold
// up a run for ever, with no hint of which file it is.

#include <chrono>
#include <list>
#include <mutex>
#include <optional>
#include <string>

#include "io/sources/source.h"

namespace arbalest {

// Any thread may call.
class ReadWatch {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `limit`: seconds after which reading one sample, or a part of a batch from a source that has no files, is late; 0:
  // never.
  explicit ReadWatch(double limit) : limit_(limit) {}

 private:
  struct Entry {
    const Source* source;
    SampleRef sample;   // the first
    size_t count;       // of samples
    double waited = 0;  // seconds, by those who looked
  };

 public:
  // A thread reads from when this is made until it is gone.
  class Reading {
   public:
    Reading(ReadWatch* watch, const Source& source, const SampleRef& sample, size_t count = 1);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    ReadWatch* const watch_;
    std::list<Entry>::iterator entry_;
  };

  // A message about a read that is late, with its file, or nothing. Between two calls at most a second counts: while
  // the process itself stood still (stopped, or its machine asleep), it awaited nothing.
  std::optional<std::string> late(Time now = std::chrono::steady_clock::now());

 private:
  const double limit_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // one a thread that reads
  std::optional<Time> last_;
};

}  // namespace arbalest
