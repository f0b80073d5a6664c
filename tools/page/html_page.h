#pragma once
// One HTML file with everything in it: no network, no server. What it carries is data, never markup or script.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace arbalest {

// What bundle.py makes of a page's style sheets, body and modules when the library is built.
struct PageParts {
  std::string_view style, body, script;
};

std::string base64(std::string_view bytes);

// What is added stands in the file in that order.
class HtmlPage {
 public:
  HtmlPage(std::string_view title, const PageParts& parts);

  void add_json(std::string_view id, const nlohmann::ordered_json& json);  // bytes that are no UTF-8 become U+FFFD
  void add_text(std::string_view id, std::string_view text);               // base64 or the like: without '<'
  void add_script();                                                       // that of the page's parts
  std::string finish();                                                    // the file; the object is empty afterwards

 private:
  PageParts parts_;
  std::string text_;
};

}  // namespace arbalest
