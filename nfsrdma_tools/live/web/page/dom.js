// SPDX-License-Identifier: Apache-2.0
// DOM elements and formatted numbers. All text is set as textContent: no string becomes HTML.

export const get = (id) => document.getElementById(id);

export function element(tag, text = "", kind = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  if (kind) node.className = kind;
  return node;
}

// a question mark replaces control characters and lone surrogates
export const plain = (text) => String(text).replace(/[\p{Cc}\p{Cs}]/gu, "?");

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function short(value, unit = "") {
  if (value == null || !Number.isFinite(value)) return "";
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return `${(value / size).toPrecision(3)} ${letter}${unit}`;
  }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toPrecision(3)}${unit ? ` ${unit}` : ""}`;
}

export function time(micros) {
  if (micros == null || !Number.isFinite(micros)) return "";
  if (micros >= 1e6) return `${(micros / 1e6).toPrecision(3)} s`;
  if (micros >= 1e3) return `${(micros / 1e3).toPrecision(3)} ms`;
  return `${micros.toPrecision(3)} µs`;
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

// columns: [heading, row => text, "number" or "name"]; after: row => text of an extra line below the row
export function table(where, columns, rows, { chosen, choose, after } = {}) {
  const head = element("tr");
  columns.forEach(([name, , kind]) => head.append(element("th", name, kind || "")));
  const body = element("tbody");
  for (const row of rows) {
    const line = element("tr");
    columns.forEach(([, show, kind]) => line.append(element("td", plain(show(row) ?? ""), kind || "")));
    if (choose) {
      line.tabIndex = 0;
      line.addEventListener("click", () => choose(row));
      line.addEventListener("keydown", (event) => event.key === "Enter" && choose(row));
      if (chosen(row)) line.className = "chosen";
    }
    body.append(line);
    const below = after && after(row);
    if (below) {
      const sentence = element("tr", "", "sentence");
      const cell = element("td");
      cell.append(element("span", plain(below)));
      cell.colSpan = columns.length;
      sentence.append(cell);
      body.append(sentence);
    }
  }
  if (!rows.length) {
    const cell = element("td", "No data in the last interval.", "soft");
    cell.colSpan = columns.length;
    const line = element("tr");
    line.append(cell);
    body.append(line);
  }
  const top = element("thead");
  top.append(head);
  where.replaceChildren(top, body);
}
