#pragma once
// What commands that write a page share.

#include <initializer_list>
#include <string>
#include <string_view>

namespace arbalest {

// What a file is called in a page: its name without folders and these endings, each taken off once, in this order.
std::string name_without(const std::string& path, std::initializer_list<std::string_view> endings);

// Writes the page as a whole and says so on standard output. Throws RunError.
void write_page(const std::string& file, const std::string& page);

}  // namespace arbalest
