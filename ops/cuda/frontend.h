// SPDX-License-Identifier: Apache-2.0
#pragma once
// cudnn-frontend. Its engine for one norm of Blackwell GPUs, which Arbalest never asks for, compiles by NVRTC, which is
// opened late (late_functions.h): without a definition these references are null.

#pragma weak nvrtcCompileProgram
#pragma weak nvrtcCreateProgram
#pragma weak nvrtcDestroyProgram
#pragma weak nvrtcGetCUBIN
#pragma weak nvrtcGetCUBINSize
#pragma weak nvrtcGetErrorString
#pragma weak nvrtcGetProgramLog
#pragma weak nvrtcGetProgramLogSize

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
