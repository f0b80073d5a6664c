// SPDX-License-Identifier: Apache-2.0
#pragma once
// The functions of cuBLASLt and NVRTC that Arbalest calls. Nine tenths of the addresses that the loader would fill in
// are theirs. Within arbalest the names hide those of the libraries' headers, so that calls are written as usual.

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include "base/late_library.h"

// cudnn-frontend calls NVRTC in an engine that Arbalest never asks for: without a definition these references are null.
#pragma weak nvrtcCompileProgram
#pragma weak nvrtcCreateProgram
#pragma weak nvrtcDestroyProgram
#pragma weak nvrtcGetCUBIN
#pragma weak nvrtcGetCUBINSize
#pragma weak nvrtcGetErrorString
#pragma weak nvrtcGetProgramLog
#pragma weak nvrtcGetProgramLogSize

namespace arbalest {

inline constinit LateLibrary cublas_lt_library("cublasLt", CUBLAS_VER_MAJOR);
inline constinit LateLibrary nvrtc_library("nvrtc", CUDART_VERSION / 1000);

#define ARBALEST_LATE(library, name) inline constinit const LateFunction<decltype(::name)> name(library, #name)

ARBALEST_LATE(cublas_lt_library, cublasLtCreate);
ARBALEST_LATE(cublas_lt_library, cublasLtDestroy);
ARBALEST_LATE(cublas_lt_library, cublasLtGetStatusName);
ARBALEST_LATE(cublas_lt_library, cublasLtGetStatusString);
ARBALEST_LATE(cublas_lt_library, cublasLtGetVersion);
ARBALEST_LATE(cublas_lt_library, cublasLtMatmul);
ARBALEST_LATE(cublas_lt_library, cublasLtMatmulAlgoConfigGetAttribute);
ARBALEST_LATE(cublas_lt_library, cublasLtMatmulAlgoGetHeuristic);
ARBALEST_LATE(cublas_lt_library, cublasLtMatmulDescCreate);
ARBALEST_LATE(cublas_lt_library, cublasLtMatmulDescDestroy);
ARBALEST_LATE(cublas_lt_library, cublasLtMatmulDescSetAttribute);
ARBALEST_LATE(cublas_lt_library, cublasLtMatmulPreferenceCreate);
ARBALEST_LATE(cublas_lt_library, cublasLtMatmulPreferenceDestroy);
ARBALEST_LATE(cublas_lt_library, cublasLtMatmulPreferenceSetAttribute);
ARBALEST_LATE(cublas_lt_library, cublasLtMatrixLayoutCreate);
ARBALEST_LATE(cublas_lt_library, cublasLtMatrixLayoutDestroy);
ARBALEST_LATE(cublas_lt_library, cublasLtMatrixLayoutSetAttribute);

ARBALEST_LATE(nvrtc_library, nvrtcCompileProgram);
ARBALEST_LATE(nvrtc_library, nvrtcCreateProgram);
ARBALEST_LATE(nvrtc_library, nvrtcDestroyProgram);
ARBALEST_LATE(nvrtc_library, nvrtcGetCUBIN);
ARBALEST_LATE(nvrtc_library, nvrtcGetCUBINSize);
ARBALEST_LATE(nvrtc_library, nvrtcGetErrorString);
ARBALEST_LATE(nvrtc_library, nvrtcGetProgramLog);
ARBALEST_LATE(nvrtc_library, nvrtcGetProgramLogSize);
ARBALEST_LATE(nvrtc_library, nvrtcVersion);

#undef ARBALEST_LATE

}  // namespace arbalest
