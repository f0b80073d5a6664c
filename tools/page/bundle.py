#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a page's parts (html_page.h) a constant: bundle.py OUT.cpp HEADER CONSTANT FILE…

The files are style sheets, one body (.html) and modules; HEADER declares the constant.

The modules come in the order in which they import each other and become one script: what they import from each other
is in one scope there, so that no two may declare the same name at their top level.
"""
import re
import sys


def script_of(paths):
    declared = {}
    parts = []
    for path in paths:
        text = open(path, encoding="utf-8").read()
        text = re.sub(r"^// SPDX-License-Identifier: .*\n+", "", text)
        text = re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"^export (?=(async )?(function|class|const|let)\b)", "", text, flags=re.MULTILINE)
        if re.search(r"^(import|export)\b", text, flags=re.MULTILINE):
            sys.exit(f"{path}: has an import or export that bundle.py does not know")
        for name in re.findall(r"^(?:async )?(?:function\*?|class|const|let) (\w+)", text, flags=re.MULTILINE):
            if name in declared:
                sys.exit(f"{path}: '{name}' is declared in {declared[name]} as well")
            declared[name] = path
        parts.append(text)
    script = '"use strict";\n(() => {\n' + "\n".join(parts) + "\nmain();\n})();\n"
    if "</script" in script:
        sys.exit("the script would end its own element: it has '</script' in it")
    return script


def literal(text):
    """Adjacent string literals, each short enough for any compiler."""
    data = text.encode("utf-8")
    lines = []
    for at in range(0, len(data), 100):
        piece = "".join(
            chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in data[at : at + 100])
        lines.append(f'    "{piece}"')
    return "\n".join(lines) or '    ""'


def main():
    out, header, constant, *paths = sys.argv[1:]
    content = {kind: [path for path in paths if path.endswith(kind)] for kind in (".css", ".html", ".js")}
    joined = lambda kind: "".join(open(path, encoding="utf-8").read() for path in content[kind])
    parts = [joined(".css"), joined(".html"), script_of(content[".js"])]
    with open(out, "w", encoding="ascii") as file:
        file.write(f'#include "{header}"\n\nnamespace arbalest {{\n\nconst PageParts {constant} = {{\n')
        file.write(",\n".join(literal(text) for text in parts))
        file.write("};\n\n}  // namespace arbalest\n")


main()
