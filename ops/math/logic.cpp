// SPDX-License-Identifier: Apache-2.0

// Operators that give truth values: comparisons, And, Or, Xor, Not, IsNaN, IsInf. Nothing flows back through them.

#include "ops/math/logic.h"

#include <fmt/format.h>

#include "ops/math/elementwise.h"
#include "ops/math/elementwise_cpu.h"
#include "ops/names.h"

namespace arbalest {
namespace {

struct Holds {
  Relation relation;
  template <typename W>
  bool operator()(W a, W b) const {
    return holds(relation, a, b);
  }
};

struct Answer {
  Question question;
  bool negative, positive;
  template <typename W>
  bool operator()(W x) const {
    return answer(question, negative, positive, x);
  }
};

bool takes_truth(Relation relation) {
  return relation == Relation::And || relation == Relation::Or || relation == Relation::Xor;
}

const TensorType& truth_input(const InferContext& context, size_t i) {
  const TensorType& type = context.input(i);
  if (type.dtype != DataType::Bool) {
    context.fail(fmt::format("{} is {}; expected bool", input_name(context, i), to_string(type)));
  }
  return type;
}

void infer_relation(InferContext& context, Relation relation) {
  using In = BinaryInput;
  if (takes_truth(relation)) {
    truth_input(context, In::A);
  } else if (relation != Relation::Equal) {
    number_input(context, In::A);
  }
  expect_input(context, In::B, {context.input(In::A).dtype, context.input(In::B).shape}, "elements of the type of 'A'");
  context.set_output(0, elementwise::broadcast_type(context, {0, 1}, DataType::Bool));
}

KernelFactory relation_kernel(Relation relation) {
  using In = BinaryInput;
  return [relation](const KernelRequest& request) {
    return dispatch_element(request.inputs[In::A].dtype, [&](auto element) {
      using T = decltype(element);
      return make_kernel([walk = Strided(elementwise::walked_types(request)), relation,
                          count = request.outputs[0].elements()](const KernelContext& c) {
        map_strided(walk, count, Holds{relation}, output<bool>(c, 0), input<T>(c, In::A), input<T>(c, In::B));
      });
    });
  };
}

void infer_question(InferContext& context, Question question) {
  TensorType type = question == Question::Not ? truth_input(context, 0) : floating_input(context, 0);
  if (question == Question::IsInf) {
    flag_attribute(context.node(), "detect_negative");
    flag_attribute(context.node(), "detect_positive");
  }
  type.dtype = DataType::Bool;
  context.set_output(0, type);
}

KernelFactory question_kernel(Question question) {
  return [question](const KernelRequest& request) {
    const bool infinite = question == Question::IsInf;
    const Answer answer{question, infinite && int_attribute(request.node, "detect_negative") != 0,
                        infinite && int_attribute(request.node, "detect_positive") != 0};
    return dispatch_element(request.inputs[0].dtype, [&](auto element) {
      using T = decltype(element);
      return make_kernel([walk = Strided(elementwise::walked_types(request)), answer,
                          count = request.outputs[0].elements()](const KernelContext& c) {
        map_strided(walk, count, answer, output<bool>(c, 0), input<T>(c, 0));
      });
    });
  };
}

std::vector<Sample> relation_samples(Relation relation) {
  std::vector<Sample> samples;
  const auto add = [&](DataType type, const Shape& a, const Shape& b) {
    const double high = type == DataType::Bool ? 1 : 3;
    samples.push_back({.name = fmt::format("{} {} and {}", name_of(type), to_string(a), to_string(b)),
                       .inputs = {{{type, a}, 0, high}, {{type, b}, 0, high}},
                       .tolerance = 0});
  };
  std::vector<DataType> types = {DataType::Bool};
  if (!takes_truth(relation)) {
    types = {DataType::Float32, DataType::Bfloat16, DataType::Uint8, DataType::Int32, DataType::Int64};
  }
  for (const DataType type : types) {
    add(type, {3, 5}, {3, 5});
    add(type, {2, 7, 5, 3}, {7, 1, 1});
    add(type, {4, 1}, {1, 300});
    add(type, {}, {2, 3});
    add(type, {0, 3}, {3});
  }
  return samples;
}

std::vector<Sample> question_samples(Question question) {
  std::vector<Sample> samples;
  const DataType type = question == Question::Not ? DataType::Bool : DataType::Float32;
  for (const Shape& shape : {Shape{}, Shape{3, 5}, Shape{2, 7, 5, 3}, Shape{0, 2}}) {
    samples.push_back({.name = to_string(shape), .inputs = {{{type, shape}, 0, 1}}, .tolerance = 0});
  }
  return samples;
}

}  // namespace

void register_math_logic(OpRegistry& registry) {
  for (const RelationLine& line : kRelations) {
    registry.add({.domain = "",
                  .name = std::string(line.name),
                  .doc = std::string(line.doc),
                  .inputs = {{.name = "A"}, {.name = "B"}},
                  .outputs = {{.name = "C"}},
                  .layout = std::nullopt,
                  .infer = [r = line.relation](InferContext& c) { infer_relation(c, r); },
                  .cost = elementwise_cost(1),
                  .samples = [r = line.relation] { return relation_samples(r); },
                  .cpu = relation_kernel(line.relation)});
  }
  for (const QuestionLine& line : kQuestions) {
    Op op{.domain = "",
          .name = std::string(line.name),
          .doc = std::string(line.doc),
          .inputs = {{.name = "X"}},
          .outputs = {{.name = "Y"}},
          .layout = std::nullopt,
          .infer = [q = line.question](InferContext& c) { infer_question(c, q); },
          .cost = elementwise_cost(1),
          .samples = [q = line.question] { return question_samples(q); },
          .cpu = question_kernel(line.question)};
    if (line.question == Question::IsInf) {
      op.attributes = {int_spec("detect_negative", 1, "0: −∞ does not count"),
                       int_spec("detect_positive", 1, "0: ∞ does not count")};
    }
    registry.add(std::move(op));
  }
}

}  // namespace arbalest
