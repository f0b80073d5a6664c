// SPDX-License-Identifier: Apache-2.0

// As much of a browser's document as a page needs to draw itself and to hear clicks.

class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: new Map(), listeners: new Map(), style: {}, dataset: {}, hidden: false, className: "" });
    this.classList = { add: (name) => (this.className += ` ${name}`) };
  }
  append(...children) {
    this.children.push(...children.map((child) => (child instanceof Element ? child : String(child))));
  }
  replaceChildren(...children) {
    this.children = [];
    this.append(...children);
  }
  setAttribute(name, value) {
    this.attributes.set(name, String(value));
  }
  getAttribute(name) {
    return this.attributes.get(name) ?? null;
  }
  removeAttribute(name) {
    this.attributes.delete(name);
  }
  addEventListener(name, listener) {
    this.listeners.set(name, listener);
  }
  focus() {}
  get id() {
    return this.getAttribute("id") ?? "";
  }
  get classes() {
    return `${this.className} ${this.getAttribute("class") ?? ""}`.split(" ").filter((name) => name);
  }
  get textContent() {
    return this.children.map((child) => (child instanceof Element ? child.textContent : child)).join("");
  }
  click() {
    this.listeners.get("click")({ stopPropagation: () => {} });
  }
  // All elements inside that pass.
  all(passes) {
    return this.children.filter((child) => child instanceof Element).flatMap((child) => [...(passes(child) ? [child] : []), ...child.all(passes)]);
  }
}

// Makes the globals of a page whose body has elements of these names, and the data as JSON in that of its name.
export function openPage(names, data) {
  const body = new Element("body"), root = new Element("html");
  for (const name of names) {
    const element = new Element("div");
    element.setAttribute("id", name);
    if (name in data) element.append(JSON.stringify(data[name]));
    body.append(element);
  }
  const find = (id) => body.all((element) => element.id === id)[0] ?? null;
  globalThis.document = { documentElement: root, activeElement: body, getElementById: find, createElement: (tag) => new Element(tag), createElementNS: (_, tag) => new Element(tag) };
  globalThis.window = {};
  globalThis.addEventListener = () => {};
  globalThis.matchMedia = () => ({ matches: false });
  return { find, all: (passes) => body.all(passes), window: globalThis.window };
}
