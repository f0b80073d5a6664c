// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/plain_message.h"

namespace arbalest {
namespace {

void print_warning(const std::string& message) {
  put_within(std::chrono::seconds(1), stderr, shown_message(message));
}

std::atomic<MessageHandler> warning_handler = print_warning, end_handler = warn;

}  // namespace

MessageHandler set_warning_handler(MessageHandler handler) {
  return warning_handler.exchange(handler ? handler : print_warning);
}

MessageHandler set_end_handler(MessageHandler handler) {
  return end_handler.exchange(handler ? handler : warn);
}

void warn(const std::string& message) {
  warning_handler.load()(message);
}

void end_process(const std::string& message) {
  end_handler.load()(message);
  std::_Exit(EXIT_FAILURE);
}

void name_thread(const std::string& name) {
  constexpr size_t kMost = 15;  // bytes that Linux keeps
  pthread_setname_np(pthread_self(), name.substr(0, kMost).c_str());
}

}  // namespace arbalest
