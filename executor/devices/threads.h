// SPDX-License-Identifier: Apache-2.0
#pragma once
// Starting threads, with an error that says for what one was wanted if the system refuses it.

#include <functional>
#include <string>
#include <system_error>
#include <thread>

namespace arbalest {

// Starts a thread: start_std_thread() unless a test passes another function.
using ThreadStarter = std::function<std::thread(std::function<void()>)>;
std::thread start_std_thread(std::function<void()> work);

// Throws RunError: "no thread could be started for WHAT: Resource temporarily unavailable; …".
[[noreturn]] void refuse_thread(const std::string& what, std::error_code error);
// Throws the same if the system refuses the thread.
std::thread start_thread(const std::string& what, std::function<void()> work,
                         const ThreadStarter& starter = start_std_thread);

// Throws the same unless `count` threads can run at the same time. Starts them and ends them again: for libraries that
// start threads of their own and cannot say that they failed. Calls share_arenas() of base/memory/address_space.h
// before.
void expect_threads(int count, const std::string& what, const ThreadStarter& starter = start_std_thread);

}  // namespace arbalest
