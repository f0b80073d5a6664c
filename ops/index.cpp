// The operators of this build: ops/index.def lists them, one line a family.

#include "graph/op.h"

namespace arbalest {

#define ARBALEST_HOST_OP(family) void register_##family(OpRegistry&);
#ifdef ARBALEST_CUDA
#define ARBALEST_OP(family) ARBALEST_HOST_OP(family) void register_##family##_cuda(OpRegistry&);
#else
#define ARBALEST_OP(family) ARBALEST_HOST_OP(family)
#endif
#include "ops/index.def"
#undef ARBALEST_OP
#undef ARBALEST_HOST_OP

const OpRegistry& builtin_ops() {
  static const OpRegistry registry = [] {
    OpRegistry ops;
#define ARBALEST_HOST_OP(family) register_##family(ops);
#ifdef ARBALEST_CUDA
#define ARBALEST_OP(family) ARBALEST_HOST_OP(family) register_##family##_cuda(ops);
#else
#define ARBALEST_OP(family) ARBALEST_HOST_OP(family)
#endif
#include "ops/index.def"
#undef ARBALEST_OP
#undef ARBALEST_HOST_OP
    return ops;
  }();
  return registry;
}

}  // namespace arbalest
