// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ids that do not mix, and tables that take no ids but their own.

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace arbalest {

// The absence of an id, or of a plain index.
struct None {
  constexpr operator int32_t() const { return -1; }
};
inline constexpr None kNone;

// Always true: makes the constructor that takes any number the better one wherever it is written out.
template <class Number>
concept WrittenOut = std::integral<Number> && sizeof(Number) > 0;

// The place of an entry in the tables of one kind of things, or kNone. Ids of different tags neither convert nor
// compare. Constants convert to ids by themselves, other numbers if it is written out.
template <class Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr Id(None) {}
  template <std::integral Number>
  consteval Id(Number number) : number_(int32_t(number)) {}
  template <WrittenOut Number>
  explicit constexpr Id(Number number) : number_(int32_t(number)) {}
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) explicit constexpr operator Number() const { return Number(number_); }

  friend constexpr auto operator<=>(Id, Id) = default;
  constexpr Id& operator++() { return ++number_, *this; }
  constexpr Id& operator--() { return --number_, *this; }
  constexpr Id operator--(int) { return std::exchange(*this, Id(number_ - 1)); }
  constexpr Id& operator+=(int32_t places) { return number_ += places, *this; }
  friend constexpr Id operator+(Id id, int32_t places) { return id += places; }
  friend constexpr Id operator-(Id id, int32_t places) { return id += -places; }
  friend constexpr int32_t operator-(Id a, Id b) { return a.number_ - b.number_; }

  // As the number, for nlohmann::json.
  template <class Json>
  friend void to_json(Json& to, Id id) {
    to = id.number_;
  }
  template <class Json>
  friend void from_json(const Json& from, Id& id) {
    id.number_ = from.template get<int32_t>();
  }

 private:
  int32_t number_ = kNone;
};

// The ids from `first` to the one before `last`, for loops.
template <class Key>
struct IdRange {
  struct Iterator {
    Key id;
    constexpr Key operator*() const { return id; }
    constexpr Iterator& operator++() { return ++id, *this; }
    constexpr bool operator==(const Iterator&) const = default;
  };
  Key first, last;
  constexpr Iterator begin() const { return {first}; }
  constexpr Iterator end() const { return {last}; }
};

// A vector that is indexed by ids of one tag. Indices are checked when the standard library checks those of vectors
// (_GLIBCXX_ASSERTIONS: in debug builds and under sanitizers).
template <class Key, class T>
class Table : private std::vector<T> {
  using Entries = std::vector<T>;

 public:
  using Entries::assign, Entries::back, Entries::begin, Entries::clear, Entries::data, Entries::empty, Entries::end;
  using Entries::erase, Entries::front, Entries::insert, Entries::reserve, Entries::resize, Entries::size;
  using typename Entries::const_iterator, typename Entries::iterator, typename Entries::value_type;

  using Entries::Entries;
  Table() = default;
  explicit Table(Entries entries) : Entries(std::move(entries)) {}

  typename Entries::reference operator[](Key id) { return Entries::operator[](size_t(id)); }
  typename Entries::const_reference operator[](Key id) const { return Entries::operator[](size_t(id)); }
  typename Entries::const_reference at(Key id) const { return Entries::at(size_t(id)); }  // checked in every build

  Key push_back(T entry) {
    Entries::push_back(std::move(entry));
    return Key(size() - 1);
  }
  template <class... Arguments>
  Key emplace_back(Arguments&&... arguments) {
    Entries::emplace_back(std::forward<Arguments>(arguments)...);
    return Key(size() - 1);
  }

  IdRange<Key> ids() const { return {Key(0), end_id()}; }
  Key end_id() const { return Key(size()); }  // that the next entry gets
  Key id_of(const_iterator entry) const { return Key(entry - begin()); }
  bool contains(Key id) const { return id >= Key(0) && id < end_id(); }

  friend bool operator==(const Table&, const Table&) = default;
};

}  // namespace arbalest

template <class Tag>
struct std::hash<arbalest::Id<Tag>> {
  size_t operator()(arbalest::Id<Tag> id) const { return std::hash<int32_t>()(int32_t(id)); }
};
