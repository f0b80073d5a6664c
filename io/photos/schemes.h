// SPDX-License-Identifier: Apache-2.0
#pragma once
// This room's schemes; each is opened and described in the file named after it. Internal to io.

#include "io/sources/source_doc.h"

namespace arbalest {

DescribedScheme folder_scheme();
DescribedScheme csv_scheme();
DescribedScheme tar_scheme();

}  // namespace arbalest
