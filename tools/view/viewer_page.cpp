#include "tools/view/viewer_page.h"

#include <fmt/format.h>

#include "tools/view/page_parts.h"

namespace arbalest {
namespace {

// JSON that ends no script element, whatever it says.
std::string inert(const nlohmann::ordered_json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string viewer_page(const std::vector<ViewerData>& traces) {
  nlohmann::ordered_json heads = nlohmann::ordered_json::array();
  for (const ViewerData& trace : traces) heads.push_back(trace.head);
  std::string page = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  page +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n";
  page += "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Schedule</title>\n<style>\n";
  page += kPageStyle;
  page += "</style>\n</head>\n";
  page += kPageBody;
  page += "<script type=\"application/json\" id=\"heads\">" + inert(heads) + "</script>\n<script>\n";
  page += kPageScript;
  page += "</script>\n";
  for (size_t i = 0; i < traces.size(); ++i) {
    for (const auto& [name, column] : traces[i].columns) {
      page += fmt::format("<script type=\"text/plain\" id=\"trace{}-{}\">", i, name);
      page += column.encoded();
      page += "</script>\n";
    }
  }
  page += "</html>\n";
  return page;
}

}  // namespace arbalest
