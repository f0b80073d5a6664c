// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of operators that give truth values.

#include "ops/math/logic.h"

#include "ops/cuda/elements.cuh"
#include "ops/math/elementwise.h"
#include "ops/math/strided.cuh"
#include "ops/names.h"

namespace arbalest {

using namespace cuda;

namespace {

// One kernel for all relations, so that few are compiled.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    relation_kernel(int64_t count, Strided walk, bool small, Relation relation, const T* a, const T* b, bool* out) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    int64_t offset[2];
    find_offsets<2>(walk, small, i, offset);
    out[i] = holds(relation, number(a[offset[0]]), number(b[offset[1]]));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    question_kernel(int64_t count, Question question, bool negative, bool positive, const T* x, bool* out) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    out[i] = answer(question, negative, positive, number(x[i]));
  }
}

KernelFactory relation_factory(Relation relation) {
  using In = BinaryInput;
  return [relation](const KernelRequest& request) {
    const Strided walk(elementwise::walked_types(request));
    const int64_t count = request.outputs[0].elements();
    const int multiprocessors = multiprocessors_of(request);
    return with_element(request, request.inputs[In::A].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel([=](const KernelContext& c) {
        if (count == 0) return;
        relation_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
            count, walk, count < (int64_t{1} << 31), relation, input<T>(c, In::A), input<T>(c, In::B),
            output<bool>(c, 0));
        check_launch("comparison");
      });
    });
  };
}

template <typename T>
std::unique_ptr<Kernel> make_question(const KernelRequest& request, Question question) {
  const bool infinite = question == Question::IsInf;
  const bool negative = infinite && int_attribute(request.node, "detect_negative") != 0;
  const bool positive = infinite && int_attribute(request.node, "detect_positive") != 0;
  const int64_t count = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  return make_kernel([=](const KernelContext& c) {
    if (count == 0) return;
    question_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(
        count, question, negative, positive, input<T>(c, 0), output<bool>(c, 0));
    check_launch("question");
  });
}

KernelFactory question_factory(Question question) {
  return [question](const KernelRequest& request) {
    if (question == Question::Not) return make_question<bool>(request, question);
    return with_type(request, request.inputs[0].dtype,
                     [&](auto element) { return make_question<decltype(element)>(request, question); });
  };
}

}  // namespace

void register_math_logic_cuda(OpRegistry& registry) {
  for (const RelationLine& line : kRelations) registry.find(line.name)->cuda = relation_factory(line.relation);
  for (const QuestionLine& line : kQuestions) registry.find(line.name)->cuda = question_factory(line.question);
}

}  // namespace arbalest
