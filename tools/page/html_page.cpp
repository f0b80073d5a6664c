// SPDX-License-Identifier: Apache-2.0
#include "tools/page/html_page.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <utility>

namespace arbalest {

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const auto byte = [&](size_t i) { return at + i < bytes.size() ? uint32_t(uint8_t(bytes[at + i])) : 0; };
    const uint32_t three = byte(0) << 16 | byte(1) << 8 | byte(2);
    text += kDigits[three >> 18];
    text += kDigits[three >> 12 & 63];
    text += at + 1 < bytes.size() ? kDigits[three >> 6 & 63] : '=';
    text += at + 2 < bytes.size() ? kDigits[three & 63] : '=';
  }
  return text;
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += c;
    }
  }
  return safe;
}

HtmlPage::HtmlPage(std::string_view title, const PageParts& parts) : parts_(parts) {
  text_ = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  text_ +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n";
  text_ += fmt::format("<meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n<style>\n",
                       escaped(title));
  text_ += parts.style;
  text_ += "</style>\n</head>\n";
  text_ += parts.body;
}

// A '<' within JSON stands in a string, where it may be written as an escape: no element ends early.
void HtmlPage::add_json(std::string_view id, const nlohmann::ordered_json& json) {
  fmt::format_to(std::back_inserter(text_), "<script type=\"application/json\" id=\"{}\">", id);
  for (const char c : json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)) {
    if (c == '<') {
      text_ += "\\u003c";
    } else {
      text_ += c;
    }
  }
  text_ += "</script>\n";
}

void HtmlPage::add_text(std::string_view id, std::string_view text) {
  fmt::format_to(std::back_inserter(text_), "<script type=\"text/plain\" id=\"{}\">", id);
  text_ += text;
  text_ += "</script>\n";
}

void HtmlPage::add_script() {
  text_ += "<script>\n";
  text_ += parts_.script;
  text_ += "</script>\n";
}

std::string HtmlPage::finish() {
  text_ += "</html>\n";
  return std::exchange(text_, {});
}

}  // namespace arbalest
