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

// A bar of shares, each { share, colour, title }.
export function bar(parts, width = "100%") {
  return el("div", { class: "bar", style: { width } }, ...parts.filter((part) => part.share > 0).map((part) =>
    el("span", { style: { width: 100 * part.share + "%", background: part.colour }, title: part.title })));
}
