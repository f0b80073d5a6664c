// SPDX-License-Identifier: Apache-2.0
#pragma once
// One HTML file with everything in it: no network, no server. Its content is data, never markup or script.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace arbalest {

// The parts of a page that bundle.py makes of its style sheets, body and modules when the library is built.
struct PageParts {
  std::string_view style, body, script;
};

std::string base64(std::string_view bytes);
std::string escaped(std::string_view text);  // as text of an element, or as an attribute in double quotes

// Builds a page; content stands in the file in the order in which it is added.
class HtmlPage {
 public:
  HtmlPage(std::string_view title, const PageParts& parts);

  void add_json(std::string_view id, const nlohmann::ordered_json& json);  // bytes that are not UTF-8 become U+FFFD
  void add_text(std::string_view id, std::string_view text);               // base64 or another text without '<'
  void add_script();                                                       // the script of the page's parts
  std::string finish();                                                    // the file; the object is empty afterwards

 private:
  PageParts parts_;
  std::string text_;
};

}  // namespace arbalest
