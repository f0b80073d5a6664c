// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared libraries that are opened when the first of their functions is called: large ones take the loader longer than
// all the rest of a command, which may need none of them, or run where they are not installed.

#include <atomic>
#include <mutex>

namespace arbalest {

class LateLibrary {
 public:
  constexpr LateLibrary(const char* name, int version) : name_(name), version_(version) {}  // libNAME.so.VERSION

  // The address of a function. Opens the library if no call has done so; it stays open until the process ends. Throws
  // RunError with the file's name if the loader finds no such library, or if that lacks the function.
  void* address(const char* function);

 private:
  const char* name_;
  int version_;
  std::mutex opening_;
  void* handle_ = nullptr;
};

// A function of such a library, to be called as the library declares it. May be called from several threads.
template <typename Function>
class LateFunction;

template <typename Result, typename... Operands>
class LateFunction<Result(Operands...)> {
 public:
  constexpr LateFunction(LateLibrary& library, const char* name) : library_(library), name_(name) {}

  Result operator()(Operands... operands) const {
    auto* function = function_.load(std::memory_order_acquire);
    if (function == nullptr) {
      function = reinterpret_cast<Result (*)(Operands...)>(library_.address(name_));
      function_.store(function, std::memory_order_release);
    }
    return function(operands...);
  }

 private:
  LateLibrary& library_;
  const char* name_;
  mutable std::atomic<Result (*)(Operands...)> function_ = nullptr;
};

}  // namespace arbalest
