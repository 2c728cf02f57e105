// SPDX-License-Identifier: Apache-2.0
// Tables of the newest snapshot (snapshot.py) and the list of events. Columns have nfsiostat's names where it has the figure.
import { clock, element, get, plain, short, table, time } from "./dom.js";

const add = (list, key) => (list || []).reduce((have, one) => have + (one[key] || 0), 0);
const perSecond = (now, value) => (now.seconds ? value / now.seconds : 0);
const bytes = (now, value) => short(perSecond(now, value || 0), "B/s");
const kib = (size) => (size ? `${size / 1024}K` : "");

export function tables(now, who, choose) {
  get("host").textContent = plain(now.host || "this host");
  get("kernel").textContent = plain(`Linux ${now.kernel || "?"}`);
  document.title = `${plain(now.host || "")} · nfsrdma dashboard`;
  const all = now.mounts || [];
  const mount = all.find((m) => `mount:${m.directory}` === who) || (who === "" && all.length === 1 ? all[0] : null);
  get("limit").textContent = plain((all.length > 1 && mount && mount.limit) || "");
  for (const id of ["ops", "chunks"]) get(id).closest("section").hidden = !all.length;
  mounts(now, all, who, choose);
  server(now, who, choose);
  const shown = mount ? [mount] : who ? [] : all;
  operations(now, shown, who);
  connections(now, shown);
  chunks(now, shown);
  missing(now.missing || {});
}

function mounts(now, all, who, choose) {
  get("mounts-section").hidden = !all.length;
  const rpcs = (m) => add(m.ops, "count");
  table(get("mounts"), [
    ["mount", (m) => m.directory, "name"],
    ["read", (m) => bytes(now, m.read), "number"],
    ["write", (m) => bytes(now, m.written), "number"],
    ["ops/s", (m) => short(perSecond(now, rpcs(m))), "number"],
    ["avg exe", (m) => (rpcs(m) ? time((add(m.ops, "execute_ms") * 1000) / rpcs(m)) : ""), "number"],
    ["state", (m) => state(m)],
    ["transport", (m) => `${m.transport || "?"} v${m.vers || "?"}`],
    ["server", (m) => m.target, "name"],
    ["rsize", (m) => kib(m.rsize), "number"],
    ["read-ahead", (m) => (m.read_ahead_kb ? `${m.read_ahead_kb}K` : ""), "number"],
  ], all, {
    chosen: (m) => `mount:${m.directory}` === who,
    choose: (m) => choose(`mount:${m.directory}` === who ? "" : `mount:${m.directory}`),
    after: (m) => m.limit,
  });
}

function state(mount) {
  const down = (mount.xprts || []).filter((xprt) => xprt.connected === false).length;
  if (mount.waiting && mount.waiting.some((one) => one.seconds >= 5)) return "✖ stalled";
  if (down) return `✖ ${down} not connected`;
  return (mount.xprts || []).some((xprt) => xprt.connected) ? "✔ connected" : "";
}

function server(now, who, choose) {
  const nfsd = now.server;
  get("server-section").hidden = !nfsd;
  if (!nfsd) return;
  get("nfsd").textContent = plain(`nfsd: ${nfsd.threads || 0} threads, listeners ${(nfsd.listeners || []).join(", ") || "unknown"}, `
    + `${short(perSecond(now, nfsd.calls || 0))} ops/s, read ${bytes(now, nfsd.read)}, write ${bytes(now, nfsd.written)}`
    + threadless(now) + inUse(nfsd));
  get("nfsd-limit").textContent = plain(nfsd.limit || "");
  table(get("clients"), [
    ["client", (c) => c.peer, "name"],
    ["operation", (c) => c.procedure],
    ["ops/s", (c) => short(perSecond(now, answered(c))), "number"],
    ["RDMA Read", (c) => bytes(now, (c.counts || {}).read_bytes), "number"],
    ["RDMA Write", (c) => bytes(now, (c.counts || {}).written), "number"],
    ["avg time", (c) => time((c.ns || 0) / 1000 / ((c.counts || {}).calls || 1)), "number"],
  ], nfsd.clients || [], { chosen: (c) => `client:${c.peer}` === who, choose: (c) => choose(`client:${c.peer}`) });
  const left = nfsd.clients_left || 0;
  get("clients-left").textContent = left ? `${short(left)} more rows of clients, less busy` : "";
}

// Calls that nfsd or the module answered
const answered = ({ counts = {} }) => (counts.calls || 0) + (counts.threadless_hits || 0);

// READs that the module answered without nfsd, and the sums
export function threadless(now) {
  const { calls = 0, read = 0, threadless: { hits = 0, bytes: moved = 0 } = {} } = now.server;
  if (!hits) return "";
  return `, threadless ${short(perSecond(now, hits))} READs/s of ${bytes(now, moved)}; `
    + `in all ${short(perSecond(now, calls + hits))} ops/s, read ${bytes(now, read + moved)}`;
}

// what personalities other than read-write have in use
export function inUse(nfsd) {
  const all = [[nfsd.exposed, "B exposed"], [nfsd.dones_outstanding, " RDMA_DONEs outstanding"], [nfsd.lanes, " lanes"], [nfsd.granted, "B granted"]];
  return all.filter(([value]) => value).map(([value, what]) => `, ${short(value)}${what}`).join("");
}

// the figures of a connection's personality, for example "cache hits 3, cache misses 1"
export function figures(xprt) {
  const { gauges = {}, counters = {} } = xprt.personality || {};
  return Object.entries({ ...gauges, ...counters }).map(([what, n]) => `${what.replaceAll("_", " ")} ${short(n)}`).join(", ");
}

// the rows of all lists, added up by name
function byName(lists, name, keys) {
  const rows = new Map();
  for (const one of lists.flat()) {
    const row = rows.get(one[name]) || { name: one[name] };
    for (const [key, value] of Object.entries(keys(one))) row[key] = (row[key] || 0) + (value || 0);
    rows.set(one[name], row);
  }
  return [...rows.values()];
}

function operations(now, shown) {
  const rows = byName(shown.map((m) => m.ops || []), "name", ({ name, ...counts }) => counts);
  const total = (o) => (o.sent || 0) + (o.received || 0);
  const mean = (key) => (o) => (o.count ? time(((o[key] || 0) * 1000) / o.count) : "");
  table(get("ops"), [
    ["operation", (o) => o.name, "name"],
    ["ops/s", (o) => short(perSecond(now, o.count || 0)), "number"],
    ["bytes/s", (o) => bytes(now, total(o)), "number"],
    ["bytes/op", (o) => (o.count ? short(total(o) / o.count, "B") : ""), "number"],
    ["retrans", (o) => o.again || 0, "number"],
    ["avg RTT", mean("rtt_ms"), "number"],
    ["avg exe", mean("execute_ms"), "number"],
    ["avg queue", mean("queue_ms"), "number"],
    ["errors", (o) => o.errors || 0, "number"],
  ], rows.sort((a, b) => (b.execute_ms || 0) - (a.execute_ms || 0)));
}

function connections(now, shown) {
  const rows = shown.flatMap((m) => (m.xprts || []).map((xprt, i) => ({ ...xprt, mount: m.directory, i })));
  const credits = (x) => (x.credits && x.credits.granted ? `${x.credits.used || 0} of ${x.credits.granted}` : "");
  const ports = (now.ports || []).map((p) => ({ mount: `port ${p.name}`, kind: p.netdev, states: [p.state, p.physical] }));
  table(get("connections"), [
    ["mount or port", (x) => (x.i == null ? x.mount : `${x.mount} #${x.i}`), "name"],
    ["type", (x) => [x.kind, (x.personality || {}).name].filter(Boolean).join(" ")],
    ["server address", (x) => x.address || ""],
    ["state", (x) => (x.states || []).join(" ").toLowerCase()],
    ["credits", credits, "number"],
    ["slots", (x) => x.requests || "", "number"],
    ["pending", (x) => x.pending || "", "number"],
  ], [...ports, ...rows], { after: figures });
}

// how Calls and Replies travel (RFC 8166, section 3)
const WAYS = [["Call: inline", "calls_inline"], ["copied", "calls_pulled_up"], ["gathered", "calls_gathered"], ["Read", "calls_read"],
  ["Long", "calls_position_zero"], ["padded", "calls_padded"], ["Reply: inline", "replies_inline"], ["Write", "replies_write"],
  ["Reply chunk", "replies_reply"], ["lane", "replies_lane"], ["padded", "replies_padded"],
  ["optimistic", "replies_optimistic"]];

function chunks(now, shown) {
  const rows = byName(shown.map((m) => m.chunks || []), "procedure", (row) => row.counts || {});
  table(get("chunks"), [["operation", (row) => row.name, "name"],
    ...WAYS.map(([head, key]) => [head, (row) => (row[key] ? short(perSecond(now, row[key])) : ""), "number"])], rows);
}

function missing(sources) {
  const items = Object.entries(sources).map(([what, why]) => element("li", plain(`${what}: ${why}`)));
  get("missing").replaceChildren(...(items.length ? items : [element("li", "All metrics are available.", "soft")]));
}

let shownEvents = "";

export function showEvents(events) {
  const key = events.length ? `${events.length} ${events.at(-1).time} ${events.at(-1).what}` : "none";
  if (key === shownEvents) return;
  shownEvents = key;
  const items = events.slice(-200).reverse().map((event) => {
    const item = element("li");
    const kind = event.severity || "note";
    const sign = { error: "✖", warning: "▲", note: "•" }[kind] || "•";
    item.append(element("span", clock(event.time), "soft"), element("b", `${sign} ${plain(event.kind)}`, kind),
      element("span", plain(`${event.where} — ${event.what}`)));
    if (event.advice) item.append(element("p", plain(event.advice)));
    return item;
  });
  get("events").replaceChildren(...(items.length ? items : [element("li", "No events yet.", "soft")]));
}
