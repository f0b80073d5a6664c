#pragma once
// The total amount of memory, free or not.

#include <cstdint>

namespace arbalest {

int64_t cuda_device_memory(int index);  // in bytes; −1: unknown
int64_t host_memory();                  // of the machine, in bytes; −1: unknown

}  // namespace arbalest
