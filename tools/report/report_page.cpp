// SPDX-License-Identifier: Apache-2.0
#include "tools/report/report_page.h"

#include "tools/report/page_parts.h"

namespace arbalest {

std::string report_page(const std::vector<RunLog>& runs) {
  HtmlPage page("Runs", kReportParts);
  page.add_json("runs", runs);
  page.add_script();
  return page.finish();
}

}  // namespace arbalest
