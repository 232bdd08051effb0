// Elements: what a page shows, described anew each time and put into the document with as few changes as possible.
//
// All text becomes text nodes, and only the attributes named here are ever set: whatever a name or an answer says, it is
// shown and nothing else.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "path", "line", "rect", "text", "title"]);
const ATTRIBUTES = new Set([
  "aria-busy", "aria-hidden", "aria-label", "aria-labelledby", "class", "colspan", "d", "data-label", "data-state", "height", "href",
  "id", "max", "open", "preserveAspectRatio", "role", "scope", "tabindex", "text-anchor", "title", "value",
  "vector-effect", "viewBox", "width", "x", "x1", "x2", "y", "y1", "y2",
]);
const HERE = /^[/#](?![/\\])/;
const NODE = /^http:\/\/(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:.]+\]):\d{1,5}\/$/i;

/** An element's description. `key` in `attributes` says which element of the last time it is. Empty children are left out. */
export function h(tag, attributes, ...children) {
  const { key, ...rest } = attributes ?? {};
  const kept = children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);
  return { tag, key, attributes: rest, children: kept };
}

/** Make `parent` hold exactly these descriptions and texts. */
export function show(parent, ...children) {
  const wanted = h("", null, ...children).children;
  const before = new Map();
  for (const node of parent.childNodes) if (node.shown?.key !== undefined) before.set(node.shown.key, node);
  let at = parent.firstChild;
  for (const one of wanted) {
    const known = one.key !== undefined ? before.get(one.key) : at?.shown?.key === undefined ? at : null;
    const node = known && fits(known, one) ? known : made(one);
    if (one.key !== undefined) before.delete(one.key);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
    fill(node, one);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function fits(node, one) {
  if (typeof one !== "object") return node.nodeType === Node.TEXT_NODE;
  return node.nodeType === Node.ELEMENT_NODE && node.localName === one.tag;
}

function made(one) {
  if (typeof one !== "object") return document.createTextNode("");
  return DRAWN.has(one.tag) ? document.createElementNS(SVG, one.tag) : document.createElement(one.tag);
}

function fill(node, one) {
  if (typeof one !== "object") {
    const text = String(one);
    if (node.data !== text) node.data = text;
    return;
  }
  const last = node.shown?.attributes ?? {};
  for (const name in last) if (!(name in one.attributes)) node.removeAttribute(name);
  for (const [name, value] of Object.entries(one.attributes)) set(node, name, value);
  node.shown = { key: one.key, attributes: one.attributes };
  show(node, one.children);
}

function set(node, name, value) {
  if (!ATTRIBUTES.has(name)) throw new Error(`no attribute ${name} is set here`);
  if (value === null || value === undefined || value === false) return node.removeAttribute(name);
  const text = value === true ? "" : String(value);
  if (name === "href" && !HERE.test(text) && !NODE.test(text)) return node.removeAttribute(name);
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/** A table. `columns`: [title, class?]; rows: [key, cells], a cell being a text, a description, or several. */
export function table(label, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "none" }, empty);
  // With their roles said, since on a small screen the rows are laid out as blocks and would lose them.
  const head = columns.map(([title, kind]) => h("th", { scope: "col", role: "columnheader", class: kind }, title));
  const body = rows.map(([key, cells, kind]) =>
    h("tr", { key, role: "row", class: kind }, cells.map((cell, i) => {
      const [title, align] = columns[i];
      if (i === 0) return h("th", { scope: "row", role: "rowheader", class: align }, cell);
      return h("td", { role: "cell", class: align, "data-label": title }, cell);
    })));
  // It can be scrolled sideways on a small screen, and so it must be reachable by keys.
  return h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `Table: ${label}` },
    h("table", { role: "table" }, h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)), h("tbody", { role: "rowgroup" }, body)));
}

/** A name on few lines, whatever its length. */
export function name(text) {
  return h("span", { class: "name", title: text }, text);
}

/** A link to a request's account. */
export function whyLink(rid) {
  return h("a", { href: `/why/${encodeURIComponent(rid)}`, class: "rid", title: rid }, rid);
}
