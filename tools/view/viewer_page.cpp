// SPDX-License-Identifier: Apache-2.0
#include "tools/view/viewer_page.h"

#include <fmt/format.h>

#include "tools/view/page_parts.h"

namespace arbalest {

// The columns stand after the script, so that the verdict is seen before they arrive.
std::string viewer_page(const std::vector<ViewerData>& traces) {
  nlohmann::ordered_json heads = nlohmann::ordered_json::array();
  for (const ViewerData& trace : traces) heads.push_back(trace.head);
  HtmlPage page("Schedule", kViewerParts);
  page.add_json("heads", heads);
  page.add_script();
  for (size_t i = 0; i < traces.size(); ++i) {
    for (const auto& [name, column] : traces[i].columns) {
      page.add_text(fmt::format("trace{}-{}", i, name), column.encoded());
    }
  }
  return page.finish();
}

}  // namespace arbalest
