// SPDX-License-Identifier: Apache-2.0
/* global uPlot */
// A card with a uPlot chart. Its legend follows the cursor; an empty chart shows the reason.
import { css, element, plain, short } from "./dom.js";

// as many as style.css has: layers of the CPU, and "busy"
const COLOURS = 20;
export const colour = (i) => css(`--c${i % COLOURS}`);

export function card(where, title) {
  const box = element("div", "", "chart");
  const plot = element("div", "", "plot");
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", title);
  const reason = element("p", "", "reason");
  const legend = element("ul", "", "legend");
  plot.append(reason);
  box.append(element("h2", title), plot, legend);
  where.append(box);
  return { box, plot, legend, reason };
}

// "" removes the reason
export function explain({ box, reason }, text) {
  reason.textContent = plain(text);
  box.classList.toggle("empty", Boolean(text));
}

export class Chart {
  constructor(where, title, { format = short, stacked = false, top = null } = {}) {
    Object.assign(this, card(where, title), { format, stacked, top, names: "", uplot: null, cursor: null });
    new ResizeObserver(() => this.resize()).observe(this.plot);
  }

  // times: seconds; lines: [[name, values], ...]; why: what to show if all values are 0 or absent
  draw(times, lines, why) {
    const empty = !lines.some(([, values]) => values.some(Boolean));
    explain(this, empty ? why : "");
    this.lines = lines.length ? lines : [["", times.map(() => null)]];
    const data = [times, ...(this.stacked ? stack(this.lines) : this.lines.map(([, v]) => v))];
    const names = this.lines.map(([name]) => name).join("\n") + css("--back");
    if (!this.uplot || names !== this.names) this.build(names, data);
    else this.uplot.setData(data);
    this.showValues();
  }

  build(names, data) {
    this.names = names;
    if (this.uplot) this.uplot.destroy();
    const axis = { stroke: css("--soft"), grid: { stroke: css("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const range = (u, low, high) => [0, this.top ?? (high > 0 ? high * 1.1 : 1)];
    const size = this.size();
    this.uplot = new uPlot({
      ...size,
      legend: { show: false },
      padding: [8, 30, 0, 0],
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range } },
      axes: [{ ...axis, size: 32, gap: 10, space: 70, values: (u, at) => at.map((t) => hours(t)) },
        { ...axis, size: 72, values: (u, at) => at.map((v) => this.format(v)) }],
      series: [{}, ...this.series()],
      hooks: { setCursor: [(u) => { this.cursor = u.cursor.idx; this.showValues(); }] },
    }, data, this.plot);
    this.keys();
  }

  series() {
    const options = this.lines.map((_, i) => ({ stroke: colour(i), width: this.stacked ? 0.5 : 1.6, points: { show: false },
      fill: this.stacked ? colour(i) : undefined, spanGaps: false }));
    return this.stacked ? options.reverse() : options;
  }

  keys() {
    this.values = this.lines.map(([name], i) => {
      const item = element("li");
      const mark = element("i");
      mark.style.background = colour(i);
      const value = element("span");
      item.append(mark, element("span", `${name} `), value);
      return { item, value };
    });
    this.legend.replaceChildren(...this.values.map((one) => one.item));
  }

  // the values at the cursor, or the newest ones
  showValues() {
    const last = this.lines[0][1].length - 1;
    const at = this.cursor ?? last;
    this.values.forEach(({ value }, i) => { value.textContent = this.format(this.lines[i][1][at]); });
  }

  size() {
    return { width: Math.max(this.plot.clientWidth, 120), height: Math.max(this.plot.clientHeight, 80) };
  }

  resize() {
    if (this.uplot && this.plot.clientWidth) this.uplot.setSize(this.size());
  }
}

const hours = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

// each line is the sum up to it; the highest comes first because uPlot draws it below the others
function stack(lines) {
  let below = null;
  const sums = lines.map(([, values]) => {
    below = values.map((v, i) => (v || 0) + (below ? below[i] : 0));
    return below;
  });
  return sums.reverse();
}
