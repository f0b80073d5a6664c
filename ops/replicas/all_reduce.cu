// SPDX-License-Identifier: Apache-2.0

// arbalest.AllReduce on CUDA: NCCL's.

#include "ops/cuda/cuda_math.cuh"
#include "ops/replicas/collective_context.h"

namespace arbalest {

using namespace cuda;

namespace {

// One group, so that no call waits for another device's. Input i may be output i.
void all_reduce(const CollectiveContext& collective, size_t count, ncclDataType_t type, ncclRedOp_t reduction,
                const KernelContext& context) {
  const ncclResult_t begun = ncclGroupStart();
  if (begun != ncclSuccess) fail_nccl(begun, "ncclGroupStart", collective.devices);
  ncclResult_t status = ncclSuccess;
  size_t i = 0;
  for (; i < collective.devices.size(); ++i) {
    const auto place = size_t(collective.places[i]);
    status = ncclAllReduce(context.inputs[place], context.outputs[place], count, type, reduction,
                           collective.communicators[i], collective.streams[i]);
    if (status != ncclSuccess && status != ncclInProgress) break;
  }
  if (i == collective.devices.size()) return collective.end_group("ncclGroupEnd after ncclAllReduce");
  ncclGroupEnd();  // closed whatever happened in it; the first error is the one to tell
  fail_nccl(status, "ncclAllReduce", {collective.devices[i]});
}

}  // namespace

void register_replicas_all_reduce_cuda(OpRegistry& registry) {
  registry.find("arbalest.AllReduce")->cuda = [](const KernelRequest& request) {
    const DataType element = request.inputs[0].dtype;
    if (element != DataType::Float32 && element != DataType::Float64) fail_type(request, element, "float and double");
    const ncclDataType_t type = element == DataType::Float64 ? ncclFloat64 : ncclFloat32;
    const auto count = size_t(request.inputs[0].elements());
    const ncclRedOp_t reduction = int_attribute(request.node, "mean") != 0 ? ncclAvg : ncclSum;
    const CollectiveContext& collective = collective_context(request);
    return make_kernel([=, &collective](const KernelContext& context) {
      if (count == 0) return;
      if (collective.aborted()) throw RunError("all_reduce: the communicators were aborted");
      all_reduce(collective, count, type, reduction, context);
    });
  };
}

}  // namespace arbalest
