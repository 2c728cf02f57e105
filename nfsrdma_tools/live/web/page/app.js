// SPDX-License-Identifier: Apache-2.0
// Asks for the last hour once, then listens; draws what is chosen.
import { Chart } from "./charts.js";
import { element, get, plain, short, time } from "./dom.js";
import { Heat } from "./heat.js";
import * as series from "./series.js";
import { tables, tellEvents } from "./tables.js";

const HOUR = 3600, KEPT = 4500, EVENTS = 500;
const state = { frames: [], events: [], now: null, who: "", paused: false, due: false };
const bytes = (value) => short(value, "B/s");
const percent = (value) => (value == null ? "" : `${value.toPrecision(3)} %`);
const power = (slot) => time(1.024 * 2 ** slot);
const size = (slot) => (slot >= 20 ? `${2 ** (slot - 20)} MiB` : slot >= 10 ? `${2 ** (slot - 10)} KiB` : `${2 ** slot} B`);

const where = get("charts");
const charts = {
  bytes: new Chart(where, "Throughput", { format: bytes }),
  rpcs: new Chart(where, "RPCs each second"),
  phases: new Chart(where, "Where an RPC's time goes, mean", { format: time, stacked: true }),
  cpu: new Chart(where, "CPU of the host by layer", { format: percent, stacked: true, top: 100 }),
  times: new Heat(where, "Times of RPCs", power, "probes, or no RPCs"),
  sizes: new Heat(where, "Sizes of chunks", size, "probes, or no chunks"),
  credits: new Chart(where, "Credits"),
  regions: new Chart(where, "Memory regions each second"),
};

function chosen() {
  const newest = state.frames.length ? state.frames.at(-1).t : 0;
  return state.frames.filter((frame) => frame.t > newest - Number(get("span").value));
}

function draw() {
  state.due = false;
  const frames = chosen(), who = state.who;
  const times = frames.map((frame) => frame.t), seconds = frames.map((frame) => frame.s);
  charts.bytes.draw(times, [["read", series.rate(frames, who, "r")], ["written", series.rate(frames, who, "w")]]);
  charts.rpcs.draw(times, [["RPCs", series.rate(frames, who, "n")]]);
  charts.phases.draw(times, series.phases(frames, who));
  charts.cpu.draw(times, series.layers(frames));
  const numbers = connections(who);
  charts.credits.draw(times, [["granted", series.credits(frames, numbers, "granted")], ["used", series.credits(frames, numbers, "used")]]);
  charts.regions.draw(times, series.regions(frames, who));
  charts.times.draw(times, frames.map((frame) => series.together(frame, who, "l")), seconds);
  charts.sizes.draw(times, frames.map((frame) => series.together(frame, who, "z")), seconds);
  const any = (key) => frames.some((frame) => Object.keys(series.together(frame, who, key)).length);
  charts.credits.box.hidden = !frames.some((frame) => Object.keys(frame.max || {}).length) || /^[cs]:/.test(who);
  charts.regions.box.hidden = !any("g");
  charts.sizes.box.hidden = !any("z");
  charts.times.box.hidden = !any("l");
  if (state.now) tables(state.now, state.who, choose);
  tellEvents(state.events);
}

// the numbers of a mount's connections; null for all mounts
function connections(who) {
  const mount = ((state.now || {}).mounts || []).find((m) => `m:${m.directory}` === who);
  return who ? ((mount || {}).xprts || []).map((x) => String(x.number || 0)) : null;
}

function soon() {
  if (state.due || state.paused || document.hidden) return;
  state.due = true;
  requestAnimationFrame(draw);
}

function choose(who) {
  state.who = who;
  options();
  soon();
}

// what can be chosen: mounts, and clients of a server
function options() {
  const now = state.now || {};
  const found = [["", "all mounts"], ...(now.mounts || []).map((m) => [`m:${m.directory}`, m.directory])];
  if (now.server) {
    const peers = new Set((now.server.clients || []).map((client) => client.peer));
    found.push(["s:", "the server here"], ...[...peers].map((peer) => [`c:${peer}`, `client ${peer}`]));
  }
  if (!found.some(([value]) => value === state.who)) found.push([state.who, `${state.who.slice(2)} (nothing now)`]);
  const select = get("who");
  const have = [...select.options].map((option) => option.value).join("\n");
  if (have !== found.map(([value]) => value).join("\n")) {
    select.replaceChildren(...found.map(([value, name]) => {
      const option = element("option", plain(name));
      option.value = value;
      return option;
    }));
  }
  select.value = state.who;
}

function take({ frame, now }) {
  state.frames.push(frame);
  if (state.frames.length > KEPT || frame.t - state.frames[0].t > HOUR) state.frames.shift();
  state.events.push(...(now.events || []));
  state.events.splice(0, Math.max(state.events.length - EVENTS, 0));
  const first = !state.now;
  state.now = now;
  // a host that only serves is shown as a server
  if (first && !now.mounts.length && now.server) state.who = "s:";
  if (!state.paused) options();
  soon();
}

function tell(text, kind) {
  get("link").textContent = text;
  get("link").className = `badge ${kind}`;
}

async function past() {
  const answer = await fetch("/past");
  const { frames, events } = await answer.json();
  Object.assign(state, { frames, events });
  soon();
}

function listen() {
  const source = new EventSource("/events");
  source.addEventListener("open", () => { tell("live", "good"); past().catch(() => tell("no history", "warning")); });
  source.addEventListener("message", (event) => take(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    tell("not connected", "error");
    // what the browser gives up, like an answer 503, it does not try again by itself
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
}

get("who").addEventListener("change", (event) => choose(event.target.value));
get("span").addEventListener("change", soon);
get("pause").addEventListener("click", () => {
  state.paused = !state.paused;
  get("pause").setAttribute("aria-pressed", String(state.paused));
  soon();
});
document.addEventListener("visibilitychange", soon);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);
// tests read what is drawn
window.nfsrdma = state;
listen();
