// SPDX-License-Identifier: Apache-2.0
// Fetches the last hour once, then receives snapshots as server-sent events; draws the selection.
import { Chart } from "./charts.js";
import { element, get, plain, short, time } from "./dom.js";
import { Heat } from "./heat.js";
import { reasons } from "./reasons.js";
import * as series from "./series.js";
import { tables, showEvents } from "./tables.js";

const HOUR = 3600, KEPT = 4500, EVENTS = 500;
const SERVER_SIDE = /^(client|server):/;
const state = { frames: [], events: [], now: null, who: "", paused: false, due: false };
const bytes = (value) => short(value, "B/s");
const percent = (value) => (value == null ? "" : `${value.toPrecision(3)} %`);
const power = (slot) => time(1.024 * 2 ** slot);
const size = (slot) => (slot >= 20 ? `${2 ** (slot - 20)} MiB` : slot >= 10 ? `${2 ** (slot - 10)} KiB` : `${2 ** slot} B`);

const where = get("charts");
const charts = {
  bytes: new Chart(where, "Throughput", { format: bytes }),
  rpcs: new Chart(where, "Operations (ops/s)"),
  phases: new Chart(where, "Average time of an RPC by phase", { format: time, stacked: true }),
  cpu: new Chart(where, "CPU time of the host by layer", { format: percent, stacked: true, top: 100 }),
  times: new Heat(where, "Distribution of RPC times", power),
  sizes: new Heat(where, "Distribution of chunk sizes", size),
  credits: new Chart(where, "Credits"),
  regions: new Chart(where, "Memory registrations per second"),
};

// the frames of the chosen time span
function chosen() {
  const newest = state.frames.length ? state.frames.at(-1).time : 0;
  return state.frames.filter((frame) => frame.time > newest - Number(get("span").value));
}

function draw() {
  state.due = false;
  const frames = chosen(), who = state.who;
  const times = frames.map((frame) => frame.time), seconds = frames.map((frame) => frame.seconds);
  const why = reasons({ ...state, frames }, get("span").selectedOptions[0].text);
  charts.bytes.draw(times, [["read", series.rate(frames, who, "read")], ["write", series.rate(frames, who, "written")]], why.bytes);
  charts.rpcs.draw(times, [["ops/s", series.rate(frames, who, "rpcs")]], why.rpcs);
  charts.phases.draw(times, series.phases(frames, who), why.phases);
  charts.cpu.draw(times, series.layers(frames), why.cpu);
  const credits = (key) => (SERVER_SIDE.test(who) ? times.map(() => null) : series.credits(frames, connections(who), key));
  charts.credits.draw(times, [["granted", credits("granted")], ["used", credits("used")]], why.credits);
  charts.regions.draw(times, series.regions(frames, who), why.regions);
  charts.times.draw(times, frames.map((frame) => series.together(frame, who, "times")), seconds, why.times);
  charts.sizes.draw(times, frames.map((frame) => series.together(frame, who, "sizes")), seconds, why.sizes);
  if (state.now) tables(state.now, state.who, choose);
  showEvents(state.events);
}

// the numbers of a mount's connections; null for all mounts
function connections(who) {
  const mount = ((state.now || {}).mounts || []).find((m) => `mount:${m.directory}` === who);
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

// the choices: mounts, the server here and its clients
function options() {
  const now = state.now || {};
  const choices = [["", "all mounts"], ...(now.mounts || []).map((m) => [`mount:${m.directory}`, m.directory])];
  if (now.server) {
    const peers = new Set((now.server.clients || []).map((client) => client.peer));
    choices.push(["server:", "this server"], ...[...peers].map((peer) => [`client:${peer}`, `client ${peer}`]));
  }
  if (!choices.some(([value]) => value === state.who)) choices.push([state.who, `${state.who.slice(state.who.indexOf(":") + 1)} (idle)`]);
  const select = get("who");
  const have = [...select.options].map((option) => option.value).join("\n");
  if (have !== choices.map(([value]) => value).join("\n")) {
    select.replaceChildren(...choices.map(([value, name]) => {
      const option = element("option", plain(name));
      option.value = value;
      return option;
    }));
  }
  select.value = state.who;
}

// the time axis ascends: if the host's clock was set back, the frames of the time to come again go
function add(frame) {
  while (state.frames.length && state.frames.at(-1).time >= frame.time) state.frames.pop();
  state.frames.push(frame);
}

function take({ frame, now }) {
  add(frame);
  if (state.frames.length > KEPT || frame.time - state.frames[0].time > HOUR) state.frames.shift();
  state.events.push(...(now.events || []));
  state.events.splice(0, Math.max(state.events.length - EVENTS, 0));
  const first = !state.now;
  state.now = now;
  // on a host without mounts, show the server
  if (first && !now.mounts.length && now.server) state.who = "server:";
  if (!state.paused) options();
  soon();
}

function status(text, kind) {
  get("link").textContent = text;
  get("link").className = `badge ${kind}`;
}

async function past() {
  const answer = await fetch("/past");
  const { frames, events } = await answer.json();
  Object.assign(state, { frames: [], events });
  frames.forEach(add);
  soon();
}

function listen() {
  const source = new EventSource("/events");
  source.addEventListener("open", () => { status("live", "good"); past().catch(() => status("live, history failed", "warning")); });
  source.addEventListener("message", (event) => take(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    status("disconnected", "error");
    // after an answer like 503 the browser does not reconnect by itself
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
// tests read this
window.nfsrdma = state;
listen();
