#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes graph files a constant of templates.h: templates.py OUT.cpp FILE…"""
import pathlib
import sys

out, *paths = sys.argv[1:]
with open(out, "w", encoding="utf-8") as file:
    file.write('#include "tools/start/templates.h"\n\nnamespace arbalest {\n\n')
    file.write("const std::vector<Template> kTemplates = {\n")
    for path in map(pathlib.Path, paths):
        file.write(f'    {{"{path.stem}", R"_graph_({path.read_text(encoding="utf-8")})_graph_"}},\n')
    file.write("};\n\n}  // namespace arbalest\n")
