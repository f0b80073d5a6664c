// SPDX-License-Identifier: Apache-2.0

// Making elements. Text is only ever text: nothing that a trace holds becomes markup.

export function el(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "style") Object.assign(element.style, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function link(text, action, title) {
  return el("button", { class: "link", type: "button", onclick: action, title }, text);
}

// A table: heads are [text, "left" or "right"], cells are texts or elements.
export function table(heads, rows, options = {}) {
  const cell = (tag, content, at) => el(tag, { class: heads[at][1] }, content);
  return el("table", options,
    el("thead", {}, el("tr", {}, ...heads.map((head, at) => cell("th", head[0], at)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((content, at) => cell("td", content, at))))));
}

// A table whose lines are sorted by a click on a column's head. Cells are { show, by }, a number or a name, and columns
// without a heading are not sorted by. Numbers begin with the greatest; a second click turns the order round. `sorted`:
// { at, up } as it is at first, and as `keep` gets it after each click; `optionsOf` a row are those of its line.
export function sortedTable(heads, rows, sorted, keep = () => {}, optionsOf = () => ({})) {
  const order = () => {
    const { at, up } = sorted, sign = up ? 1 : -1;
    return at === undefined ? rows : [...rows].sort((a, b) => sign * byValue(a[at].by, b[at].by));
  };
  const lines = new Map(rows.map((row) => [row, el("tr", optionsOf(row), ...row.map(({ show }, at) => el("td", { class: heads[at][1] }, show)))]));
  const cells = heads.map(([text, side], at) => el("th", { class: side }, text === "" ? "" : el("button", { class: "sort", type: "button", title: "sort by it", onclick: () => {
    const name = typeof rows[0]?.[at].by === "string";
    sorted = { at, up: sorted.at === at ? !sorted.up : name };
    keep(sorted);
    place();
  } }, text)));
  const body = el("tbody", {});
  const place = () => {
    body.replaceChildren(...order().map((row) => lines.get(row)));
    cells.forEach((cell, at) => (at === sorted.at ? cell.setAttribute("aria-sort", sorted.up ? "ascending" : "descending") : cell.removeAttribute("aria-sort")));
  };
  place();
  return el("table", {}, el("thead", {}, el("tr", {}, ...cells)), body);
}

// The order of two cells: of names as people count, "conv2" before "conv10".
export function byValue(a, b) {
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b || 0;
}

// A bar of shares, each { share, colour, title }.
export function bar(parts, width = "100%") {
  return el("div", { class: "bar", style: { width } }, ...parts.filter((part) => part.share > 0).map((part) =>
    el("span", { style: { width: 100 * part.share + "%", background: part.colour }, title: part.title })));
}
