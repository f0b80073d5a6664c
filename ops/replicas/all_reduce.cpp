// SPDX-License-Identifier: Apache-2.0

// AllReduce: the sum, or the mean, of one array a device, on every device.

#include <fmt/format.h>

#include <algorithm>

#include "ops/cpu.h"
#include "ops/replicas/combine.h"
#include "ops/replicas/rank_exchange.h"

namespace arbalest {
namespace {

void infer_all_reduce(InferContext& context) {
  const TensorType type = replica_input(context);
  flag_attribute(context.node(), "mean");
  if (context.output_count() != context.input_count()) {
    context.fail(
        fmt::format("{} outputs; expected one for each of {} inputs", context.output_count(), context.input_count()));
  }
  for (size_t i = 0; i < context.output_count(); ++i) context.set_output(i, type);
}

template <typename T>
std::unique_ptr<Kernel> all_reduce_kernel(const KernelRequest& request) {
  const int64_t count = request.inputs[0].elements();
  const bool mean = int_attribute(request.node, "mean") != 0;
  const std::vector<T> shares(request.inputs.size(), mean ? T(1) / T(request.inputs.size()) : T(1));
  return make_kernel([=](const KernelContext& context) { combine<T>(context, count, shares, shares.size(), 0); });
}

// The sum over arrays of several processes. Each rank sums one range of all arrays, in the order of devices, so that
// the bits do not depend on how the devices are shared out among processes. Pieces of that range come to it from every
// array, and its sums go to all ranks.
template <typename T>
class RankSum {
 public:
  RankSum(RankExchange& ranks, int64_t count, std::vector<T> shares)
      : ranks_(ranks), count_(count), shares_(std::move(shares)), of_(ranks.ranks_of_arrays()) {
    if (of_.size() != shares_.size()) throw RunError("all_reduce: there is not one array for each device of the ranks");
    members_ = of_;
    std::sort(members_.begin(), members_.end());
    members_.erase(std::unique(members_.begin(), members_.end()), members_.end());
    place_ = std::find(members_.begin(), members_.end(), ranks.rank()) - members_.begin();
    const auto elsewhere = std::count_if(of_.begin(), of_.end(), [&](int rank) { return rank != ranks.rank(); });
    pieces_.resize(size_t(elsewhere) * size_t(end(place_) - begin(place_)));
  }

  void run(const KernelContext& context) {
    const int here = ranks_.rank();
    const int64_t own = begin(place_), length = end(place_) - own;
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    std::vector<RankExchange::Piece> sent, received;
    T* piece = pieces_.data();
    for (size_t i = 0; i < of_.size(); ++i) {
      if (of_[i] == here) {
        T* const array = static_cast<T*>(const_cast<void*>(context.inputs[i]));
        inputs.push_back(array + own);
        outputs.push_back(static_cast<T*>(context.outputs[i]) + own);
        for (int64_t place = 0; place < size(); ++place) add(sent, place, array);
      } else {
        inputs.push_back(piece);
        received.push_back({of_[i], piece, length * int64_t(sizeof(T))});
        piece += length;
      }
    }
    ranks_.exchange(sent, received);
    KernelContext range = context;
    range.inputs = inputs.data();
    range.outputs = outputs.data();
    combine<T>(range, length, shares_, outputs.size(), 0);
    spread(context);
  }

 private:
  // The range of the rank at a place among the members.
  int64_t size() const { return int64_t(members_.size()); }
  int64_t begin(int64_t place) const { return count_ * place / size(); }
  int64_t end(int64_t place) const { return begin(place + 1); }
  void add(std::vector<RankExchange::Piece>& pieces, int64_t place, T* array) const {
    if (place == place_) return;
    const int64_t bytes = (end(place) - begin(place)) * int64_t(sizeof(T));
    pieces.push_back({members_[size_t(place)], array + begin(place), bytes});
  }

  // The sums of this rank's range to the others, and theirs to all arrays here.
  void spread(const KernelContext& context) {
    const int here = ranks_.rank();
    std::vector<T*> arrays;
    for (size_t i = 0; i < of_.size(); ++i) {
      if (of_[i] == here) arrays.push_back(static_cast<T*>(context.outputs[i]));
    }
    std::vector<RankExchange::Piece> sent, received;
    for (int64_t place = 0; place < size(); ++place) {
      if (place == place_) continue;
      const int64_t bytes = (end(place_) - begin(place_)) * int64_t(sizeof(T));
      sent.push_back({members_[size_t(place)], arrays.front() + begin(place_), bytes});
      add(received, place, arrays.front());
    }
    ranks_.exchange(sent, received);
    for (size_t i = 1; i < arrays.size(); ++i) {
      std::copy_n(arrays.front(), begin(place_), arrays[i]);
      std::copy(arrays.front() + end(place_), arrays.front() + count_, arrays[i] + end(place_));
    }
  }

  RankExchange& ranks_;
  const int64_t count_;
  const std::vector<T> shares_;
  const std::vector<int>& of_;
  std::vector<int> members_;  // ranks that have arrays
  int64_t place_ = 0;         // of this rank among them
  std::vector<T> pieces_;     // of arrays elsewhere: this rank's range
};

template <typename T>
std::unique_ptr<Kernel> rank_sum_kernel(const KernelRequest& request) {
  const bool mean = int_attribute(request.node, "mean") != 0;
  const std::vector<T> shares(request.inputs.size(), mean ? T(1) / T(request.inputs.size()) : T(1));
  const auto sum =
      std::make_shared<RankSum<T>>(static_cast<RankExchange&>(*request.device), request.inputs[0].elements(), shares);
  return make_kernel([sum](const KernelContext& context) { sum->run(context); });
}

std::unique_ptr<Kernel> all_reduce_cpu(const KernelRequest& request) {
  if (request.device) {
    return request.inputs[0].dtype == DataType::Float64 ? rank_sum_kernel<double>(request)
                                                        : rank_sum_kernel<float>(request);
  }
  return request.inputs[0].dtype == DataType::Float64 ? all_reduce_kernel<double>(request)
                                                      : all_reduce_kernel<float>(request);
}

Cost all_reduce_cost(const Graph& graph, const Node& node) {
  return {double(node.inputs.size()) * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
}

std::vector<Sample> all_reduce_samples() {
  const auto sample = [](std::string name, const TensorType& type, int devices, int64_t mean = 0) {
    return Sample{.name = std::move(name),
                  .inputs = std::vector<Sample::Input>(size_t(devices), {type}),
                  .output_count = devices,
                  .attributes = {{"mean", mean}},
                  .tolerance = 1e-6};
  };
  return {sample("one device", {DataType::Float32, {5}}, 1), sample("two devices", {DataType::Float32, {100003}}, 2),
          sample("mean of three", {DataType::Float32, {1001}}, 3, 1),
          sample("images over eight devices", {DataType::Float32, {2, 3, 5, 7}}, 8),
          sample("17 devices, in double", {DataType::Float64, {1001}}, 17)};
}

}  // namespace

void register_replicas_all_reduce(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "AllReduce",
                .doc = "the sum, or the mean, of one array a device, on every device",
                .inputs = {{.name = "arrays", .arity = OperandSpec::Variadic}},
                .outputs = {{.name = "sums", .arity = OperandSpec::Variadic}},
                .attributes = {int_spec("mean", 0, "1: the sum divided by the number of devices")},
                .internal = true,
                .side_effect = true,
                .collective = true,
                .infer = infer_all_reduce,
                .cost = all_reduce_cost,
                .samples = all_reduce_samples,
                .cpu = all_reduce_cpu});
}

}  // namespace arbalest
