// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/compiled_kernel.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/error.h"
#include "base/files/cache_folder.h"
#include "base/random.h"
#include "ops/cuda/cuda_context.h"

namespace arbalest {
namespace {

void check_nvrtc(nvrtcResult status, const char* call) {
  if (status != NVRTC_SUCCESS) throw RunError(fmt::format("{}: {}", call, nvrtcGetErrorString(status)));
}
#define NVRTC_CHECK(call) check_nvrtc((call), #call)

class NvrtcProgram {
 public:
  explicit NvrtcProgram(const std::string& source) {
    NVRTC_CHECK(nvrtcCreateProgram(&program_, source.c_str(), "region.cu", 0, nullptr, nullptr));
  }
  ~NvrtcProgram() { nvrtcDestroyProgram(&program_); }
  NvrtcProgram(const NvrtcProgram&) = delete;
  NvrtcProgram& operator=(const NvrtcProgram&) = delete;

  std::string compile(const std::string& architecture, bool rough) {
    const std::string arch = "--gpu-architecture=" + architecture;
    const char* exact = rough ? "false" : "true";
    const std::string quotients = fmt::format("--prec-div={}", exact), roots = fmt::format("--prec-sqrt={}", exact);
    const char* options[] = {arch.c_str(), "--std=c++17", "-default-device", quotients.c_str(), roots.c_str()};
    if (nvrtcCompileProgram(program_, int(std::size(options)), options) != NVRTC_SUCCESS) {
      size_t size = 0;
      NVRTC_CHECK(nvrtcGetProgramLogSize(program_, &size));
      std::string log(size, '\0');
      NVRTC_CHECK(nvrtcGetProgramLog(program_, log.data()));
      throw RunError(fmt::format("a kernel does not compile for {}: {}", architecture, log.c_str()));
    }
    size_t size = 0;
    NVRTC_CHECK(nvrtcGetCUBINSize(program_, &size));
    std::string code(size, '\0');
    NVRTC_CHECK(nvrtcGetCUBIN(program_, code.data()));
    return code;
  }

 private:
  nvrtcProgram program_ = nullptr;
};

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Under a name of its own first, so that other processes find all of it or nothing. What cannot be kept is made again.
void keep(const std::filesystem::path& path, const std::string& code) {
  std::error_code failure;
  std::filesystem::create_directories(path.parent_path(), failure);
  const std::filesystem::path partial = fmt::format("{}.{}", path.string(), getpid());
  std::ofstream file(partial, std::ios::binary);
  file.write(code.data(), std::streamsize(code.size()));
  file.close();
  if (file) std::filesystem::rename(partial, path, failure);
  if (!file || failure) std::filesystem::remove(partial, failure);
}

}  // namespace

std::string compile_cuda(const std::string& source, const std::string& architecture, bool rough) {
  return NvrtcProgram(source).compile(architecture, rough);
}

CompiledKernel::CompiledKernel(const std::string& source, const char* function, bool rough) {
  int device = 0, major = 0, minor = 0, version[2] = {};
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  NVRTC_CHECK(nvrtcVersion(&version[0], &version[1]));
  early_ = major >= 9;
  const std::string architecture = fmt::format("sm_{}{}", major, minor), key = source + (rough ? "rough" : "exact");
  const std::filesystem::path folder = cache_folder();
  const std::filesystem::path path = folder / "kernels" /
                                     fmt::format("{:016x}{:016x}-{}-nvrtc{}.{}.cubin", hash_name(key),
                                                 hash_name(key + architecture), architecture, version[0], version[1]);
  const auto load = [&](const std::string& code) {
    return cudaLibraryLoadData(&library_, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  };
  std::string code = folder.empty() ? std::string() : read_all(path);
  if (code.empty() || load(code) != cudaSuccess) {
    cudaGetLastError();  // of a damaged file, which is written anew
    code = compile_cuda(source, architecture, rough);
    if (!folder.empty()) keep(path, code);
    CUDA_CHECK(load(code));
  }
  CUDA_CHECK(cudaLibraryGetKernel(&kernel_, library_, function));
}

CompiledKernel::~CompiledKernel() {
  if (library_) cudaLibraryUnload(library_);
}

void CompiledKernel::launch(unsigned blocks, unsigned threads, cudaStream_t stream, void** arguments) const {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = early_ ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel_), arguments));
}

}  // namespace arbalest
