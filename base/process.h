// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two things that the library does for the whole process: it warns, and it ends the process if a thread hangs in a
// call that nobody can end (a read from a server that is gone, a call for a GPU). The program decides how, as with
// std::set_terminate().

#include <string>

namespace arbalest {

// Any thread may call it, and several at once. It must not throw.
using MessageHandler = void (*)(const std::string& message);

// Sets the handler of warnings and returns the former one; nullptr restores the default, which writes "arbalest:
// MESSAGE" to standard error. If that cannot be written (a terminal that was closed, or that has been stopped for a
// second), the warning is lost and the run goes on.
MessageHandler set_warning_handler(MessageHandler handler);

// Sets the handler that ends the process and returns the former one; nullptr restores the default, which warns. After
// the handler returns, the process ends with status 1, without destructors and without functions of std::atexit().
MessageHandler set_end_handler(MessageHandler handler);

// Passes `message` to the handler of warnings.
void warn(const std::string& message);

// Passes `message` to the handler that ends the process, then ends it.
[[noreturn]] void end_process(const std::string& message);

// Names the calling thread, as debuggers and `top -H` show it: the first 15 bytes of `name`.
void name_thread(const std::string& name);

}  // namespace arbalest
