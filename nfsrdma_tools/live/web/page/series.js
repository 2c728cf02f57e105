// SPDX-License-Identifier: Apache-2.0
// What charts draw, out of frames (live/web/history.py): numbers per second, or of each RPC.

const sum = (frames, who, key) => frames.map((f) => total(f, who, key));

// of "" all mounts together
export function each(frame, who) {
  const all = frame.who || {};
  if (who) return all[who] ? [all[who]] : [];
  return Object.keys(all).filter((name) => name.startsWith("m:")).map((name) => all[name]);
}

function total(frame, who, key) {
  return each(frame, who).reduce((have, one) => have + (one[key] || 0), 0);
}

export function together(frame, who, key) {
  const whole = {};
  for (const one of each(frame, who)) {
    for (const [name, count] of Object.entries(one[key] || {})) whole[name] = (whole[name] || 0) + count;
  }
  return whole;
}

const perSecond = (frames, values) => values.map((v, i) => (frames[i].s ? v / frames[i].s : 0));
export const rate = (frames, who, key) => perSecond(frames, sum(frames, who, key));

const PHASES = ["slot", "queue", "marshal", "wire", "reply", "wake_up", "decode", "read_in", "nfsd", "write_out", "send"];

// mean microseconds of an RPC by phase: the probes' phases, or what mountstats tells
export function phases(frames, who) {
  const probed = frames.some((f) => total(f, who, "k"));
  const found = new Map();
  frames.forEach((frame, i) => {
    const parts = probed ? probedPhases(frame, who) : countedPhases(frame, who);
    for (const [name, value] of Object.entries(parts)) {
      if (!found.has(name)) found.set(name, new Array(frames.length).fill(0));
      found.get(name)[i] = value;
    }
  });
  const order = (name) => PHASES.indexOf(name);
  return [...found].sort(([a], [b]) => order(a) - order(b));
}

function probedPhases(frame, who) {
  // a Send has a time only if its completion was asked for
  const count = (name) => total(frame, who, name === "send" ? "e" : "k");
  const parts = together(frame, who, "p");
  return Object.fromEntries(Object.entries(parts).map(([n, ns]) => [n, count(n) ? ns / count(n) / 1e3 : 0]));
}

function countedPhases(frame, who) {
  const n = total(frame, who, "n");
  if (!n) return {};
  const [all, queue, answer] = ["x", "q", "a"].map((key) => (total(frame, who, key) * 1e3) / n);
  return { "before it is sent": queue, "wire and server": answer, "after": Math.max(all - queue - answer, 0) };
}

// shares of all CPUs by layer; layers are counted less often than frames come
export function layers(frames) {
  const found = new Map();
  let last = null;
  frames.forEach((frame, i) => {
    const cpu = frame.cpu || {};
    if (cpu.L) last = cpu;
    const parts = last ? Object.entries(last.L).map(([n, ns]) => [n, ns / last.lw]) : [["busy", cpu.w ? cpu.b / cpu.w : 0]];
    for (const [name, share] of parts) {
      if (!found.has(name)) found.set(name, new Array(frames.length).fill(0));
      found.get(name)[i] = share * 100;
    }
  });
  const order = (name) => (LAYERS.includes(name) ? LAYERS.indexOf(name) : -1);
  return [...found].sort(([a], [b]) => order(a) - order(b));
}

// probes/cpu/layer_names.py has the same, in the same order
const LAYERS = ["application", "VFS and page cache", "nfs", "sunrpc", "transport", "RDMA core", "NIC driver", "emulated NIC",
  "TCP/IP", "copies", "nfsd", "export file system", "scheduling", "interrupts", "memory", "other kernel", "tracing", "unattributed"];

// of these connections, or of all; mounts may share one
export function credits(frames, numbers, key) {
  return frames.map((f) => {
    const all = f.max || {};
    const found = (numbers || Object.keys(all)).filter((name) => all[name]);
    return found.length ? found.reduce((have, name) => have + (all[name][key] || 0), 0) : null;
  });
}

export function regions(frames, who) {
  const names = ["mapped", "remote_invalidations", "local_invalidations"];
  const all = frames.map((f) => together(f, who, "g"));
  return names.map((name) => [name.replaceAll("_", " "), perSecond(frames, all.map((one) => one[name] || 0))]);
}
