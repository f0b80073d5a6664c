// SPDX-License-Identifier: Apache-2.0

// Ids and tables: what converts, what compares, and loops over ids.

#include "base/table.h"

#include <doctest/doctest.h>

#include <string>
#include <type_traits>
#include <unordered_map>

namespace arbalest::table_test {
namespace {

using ShipId = Id<struct ShipTag>;
using PortId = Id<struct PortTag>;

template <class A, class B>
concept Comparable = requires(A a, B b) {
  a == b;
};
template <class List, class Index>
concept Indexed = requires(List list, Index index) {
  list[index];
};

TEST_CASE("ids of different tables neither convert nor compare, and numbers become ids only if it is written") {
  CHECK(sizeof(ShipId) == sizeof(int32_t));
  CHECK(std::is_trivially_copyable_v<ShipId>);
  CHECK_FALSE(std::is_convertible_v<ShipId, PortId>);
  CHECK_FALSE(std::is_constructible_v<ShipId, PortId>);
  CHECK_FALSE(std::is_convertible_v<ShipId, int>);
  CHECK_FALSE(std::is_constructible_v<bool, ShipId>);
  CHECK_FALSE(Comparable<ShipId, PortId>);
  CHECK(Indexed<Table<ShipId, int>, ShipId>);
  CHECK_FALSE(Indexed<Table<ShipId, int>, PortId>);
  ShipId ship;
  CHECK(ship == kNone);
  const int64_t number = 3;
  ship = ShipId(number);
  CHECK(int64_t(ship) == 3);
  CHECK(ship + 2 == ShipId(5));
  ship = 4;  // a constant
  CHECK(ship > ShipId(number));
  CHECK(std::unordered_map<ShipId, int>{{4, 7}}.at(ship) == 7);
}

TEST_CASE("a table hands out its ids in order") {
  Table<ShipId, std::string> ships;
  CHECK(ships.empty());
  CHECK(ships.end_id() == ShipId(0));
  CHECK(ships.push_back("Arbella") == ShipId(0));
  CHECK(ships.emplace_back(3, 'x') == ShipId(1));
  CHECK(ships[1] == "xxx");
  CHECK(ships.contains(1));
  CHECK_FALSE(ships.contains(2));
  CHECK_FALSE(ships.contains(kNone));
  CHECK(ships.id_of(ships.begin() + 1) == ShipId(1));
  Table<ShipId, bool> afloat(ships.size(), false);
  afloat[0] = true;
  std::string names;
  for (const ShipId ship : ships.ids()) names += afloat[ship] ? ships[ship] : "-";
  CHECK(names == "Arbella-");
}

}  // namespace
}  // namespace arbalest::table_test
