// SPDX-License-Identifier: Apache-2.0

// A library with the functions of NVML that the sampler uses, for the test of what is read through them. It has one
// GPU, without a clock of its memory, whose power rises with each look.

#include <cstdlib>
#include <cstring>

extern "C" {

int nvmlInit_v2() {
  return 0;
}
int nvmlShutdown() {
  return 0;
}
const char* nvmlErrorString(int status) {
  return status == 6 ? "Not Found" : "Not Supported";
}
int nvmlSystemGetDriverVersion(char* version, unsigned size) {
  std::strncpy(version, "580.65.06", size);
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  static int gpu;
  *device = &gpu;
  return std::strcmp(id, "0000:1b:00.0") == 0 ? 0 : 6;
}
// With NVML_FAKE_LOOKS in the environment, the GPU is idle after so many looks.
int nvmlDeviceGetUtilizationRates(void*, unsigned* rates) {
  static int looks = 0;
  const char* most = std::getenv("NVML_FAKE_LOOKS");
  looks = most ? looks + 1 : 0;
  rates[0] = most && looks > std::atoi(most) ? 0 : 87;
  rates[1] = 40;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 100ull << 30;
  memory[1] = 58ull << 30;
  memory[2] = 42ull << 30;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  static unsigned looks = 0;
  *milliwatts = 500'000 + 1000 * looks++;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  *milliwatts = 700'000;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned* megahertz) {
  *megahertz = 1755;
  return type == 1 ? 0 : 3;
}
int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
  static unsigned long long looks = 0;
  *millijoules = 1'000'000 + 500'000 * looks++;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x4 | 0x40;  // its power cap, which any load meets, and its temperature
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int type, unsigned* megahertz) {
  *megahertz = 1980;
  return type == 1 ? 0 : 3;
}
}
