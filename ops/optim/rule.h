#pragma once
// What an optimiser writes itself: the update of one element, as a functor that compiles for the CPU and for CUDA.
//
//   template <typename T>                     // float; double on the CPU
//   struct Rule {
//     static constexpr int kSlots = …;        // as OptimizerSpec::slots has
//     static Rule of(const Node& update);     // from the attributes of the operator
//     ARBALEST_HOST_DEVICE Rule at(int32_t updates) const;  // once a kernel's thread, with StepScalars::updates
//     ARBALEST_HOST_DEVICE void operator()(T rate, T decay, T gradient, T& w, T (&slots)[kSlots]) const;
//   };
//
// Averaging, restarts, clipping, parameter groups and lowered weights are written once for all: update_cpu.h and
// update.cuh.

#include "graph/host_device.h"
