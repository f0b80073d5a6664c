// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operators with boolean results: their functions and the tables of them.

#include <cstdint>
#include <string_view>

#include "base/host_device.h"

namespace arbalest {

enum class Relation : uint8_t { Equal, Greater, GreaterOrEqual, Less, LessOrEqual, And, Or, Xor };

// Truth values are 0 and 1, so that Xor is their difference.
template <typename W>
ARBALEST_HOST_DEVICE inline bool holds(Relation relation, W a, W b) {
  switch (relation) {
    case Relation::Equal: return a == b;
    case Relation::Greater: return a > b;
    case Relation::GreaterOrEqual: return a >= b;
    case Relation::Less: return a < b;
    case Relation::LessOrEqual: return a <= b;
    case Relation::And: return a != W(0) && b != W(0);
    case Relation::Or: return a != W(0) || b != W(0);
    case Relation::Xor: return a != b;
  }
  return false;
}

// Predicates of one element.
enum class Question : uint8_t { Not, IsNaN, IsInf };

// `negative`, `positive`: which infinities count.
template <typename W>
ARBALEST_HOST_DEVICE inline bool answer(Question question, bool negative, bool positive, W x) {
  switch (question) {
    case Question::Not: return x == W(0);
    case Question::IsNaN: return x != x;
    case Question::IsInf: return x - x != x - x && x == x && (x < W(0) ? negative : positive);
  }
  return false;
}

struct RelationLine {
  std::string_view name, doc;
  Relation relation;
};
inline constexpr RelationLine kRelations[] = {
    {"Equal", "whether A equals B, broadcast", Relation::Equal},
    {"Greater", "whether A is greater than B, broadcast", Relation::Greater},
    {"GreaterOrEqual", "whether A is greater than B or equals it, broadcast", Relation::GreaterOrEqual},
    {"Less", "whether A is less than B, broadcast", Relation::Less},
    {"LessOrEqual", "whether A is less than B or equals it, broadcast", Relation::LessOrEqual},
    {"And", "whether A and B are both true, broadcast", Relation::And},
    {"Or", "whether A or B is true, broadcast", Relation::Or},
    {"Xor", "whether one of A and B is true, and not both, broadcast", Relation::Xor}};

struct QuestionLine {
  std::string_view name, doc;
  Question question;
};
inline constexpr QuestionLine kQuestions[] = {{"Not", "whether X is false", Question::Not},
                                              {"IsNaN", "whether X is not a number", Question::IsNaN},
                                              {"IsInf", "whether X is infinite", Question::IsInf}};

}  // namespace arbalest
