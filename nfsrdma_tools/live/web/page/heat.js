// SPDX-License-Identifier: Apache-2.0
// A histogram over time: one column per time step, one row per power of two, darker for higher counts.
import { css, element } from "./dom.js";
import { card, explain } from "./charts.js";

const LEFT = 72, BOTTOM = 20, COLUMNS = 150;

export class Heat {
  // label(n): the upper end of row n, as text
  constructor(where, title, label) {
    Object.assign(this, card(where, title), { label });
    this.canvas = element("canvas", "", "heat");
    this.plot.append(this.canvas);
    new ResizeObserver(() => this.frames && this.draw(...this.frames)).observe(this.plot);
  }

  // rows: a {slot: count} per time; seconds: the length of each time step; why: shown if there are no counts
  draw(times, rows, seconds, why) {
    this.frames = [times, rows, seconds, why];
    const slots = rows.flatMap((row) => Object.keys(row).map(Number));
    explain(this, slots.length ? "" : why);
    const [low, high] = slots.length ? [Math.max(Math.min(...slots) - 1, 0), Math.max(...slots) + 1] : [0, 8];
    const context = this.fit();
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    context.clearRect(0, 0, width, height);
    if (times.length) this.cells(context, columns(times, rows, seconds), { low, high, width, height });
    this.axes(context, { low, high, width, height, times });
    const most = rows.length ? Object.entries(rows.at(-1)).sort((a, b) => b[1] - a[1])[0] : null;
    this.legend.replaceChildren(element("li", most ? `most frequent now: up to ${this.label(Number(most[0]))}` : "", "soft"));
  }

  fit() {
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [this.plot.clientWidth * scale, this.plot.clientHeight * scale].map(Math.round);
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const context = this.canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    return context;
  }

  cells(context, steps, { low, high, width, height }) {
    const wide = (width - LEFT) / steps.length, tall = (height - BOTTOM) / (high - low + 1);
    const most = Math.max(...steps.flatMap((row) => Object.values(row)), 1e-9);
    steps.forEach((row, i) => {
      for (const [slot, rate] of Object.entries(row)) {
        const strength = 0.12 + 0.88 * (Math.log1p(rate) / Math.log1p(most));
        context.fillStyle = `rgba(${css("--heat")}, ${strength})`;
        context.fillRect(LEFT + i * wide, (high - slot) * tall, Math.ceil(wide), Math.ceil(tall));
      }
    });
  }

  axes(context, { low, high, width, height, times }) {
    const tall = (height - BOTTOM) / (high - low + 1);
    const step = Math.max(Math.ceil(18 / tall), 1);
    context.fillStyle = css("--soft");
    context.font = "12px system-ui";
    context.textAlign = "right";
    for (let slot = low; slot <= high; slot += step) context.fillText(this.label(slot), LEFT - 6, (high - slot) * tall + Math.min(tall, 12));
    if (!times.length) return;
    context.textAlign = "left";
    context.fillText(hours(times[0]), LEFT, height - 5);
    context.textAlign = "right";
    context.fillText(hours(times.at(-1)), width, height - 5);
  }
}

const hours = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

// counts per second in COLUMNS columns of equal time; a time step longer than a column fills several
function columns(times, rows, seconds) {
  const first = times[0] - seconds[0], length = times.at(-1) - first || 1;
  const count = COLUMNS, wide = length / count;
  const steps = Array.from({ length: count }, () => ({ row: {}, seconds: 0 }));
  times.forEach((time, i) => {
    const from = Math.max(Math.floor((time - seconds[i] - first) / wide), 0);
    const to = Math.min(Math.max(Math.ceil((time - first) / wide), from + 1), count);
    for (let c = from; c < to; c += 1) {
      steps[c].seconds += seconds[i] / (to - from);
      for (const [slot, n] of Object.entries(rows[i])) steps[c].row[slot] = (steps[c].row[slot] || 0) + n / (to - from);
    }
  });
  return steps.map(({ row, seconds: long }) => Object.fromEntries(Object.entries(row).map(([s, n]) => [s, n / (long || 1)])));
}
