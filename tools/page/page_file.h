#pragma once
// What commands that write a page share.

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace arbalest {

// What a file is called in a page: its name without folders and these endings, each taken off once, in this order.
std::string name_without(const std::string& path, std::initializer_list<std::string_view> endings);

// What files are called beside each other: by `name_of` their path, and by the path itself where others have that name.
std::vector<std::string> names_apart(const std::vector<std::string>& paths,
                                     const std::function<std::string(const std::string&)>& name_of);

// Writes the page as a whole and says so on standard output. Throws RunError.
void write_page(const std::string& file, const std::string& page);

}  // namespace arbalest
