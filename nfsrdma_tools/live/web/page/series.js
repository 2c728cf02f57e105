// SPDX-License-Identifier: Apache-2.0
// The lines of the charts, from frames (live/web/broadcast.py): rates per second and means per RPC.

// old frames have the busiest mounts and clients, and the sums of the others: one of those is unknown there
const hidden = (frame, who) => who && !(frame.subjects || {})[who] && (frame.subjects || {})[`${who.split(":")[0]}:(others)`];
const sum = (frames, who, key) => frames.map((f) => (hidden(f, who) ? null : total(f, who, key)));

// the entries of one mount, client or server; "" selects all mounts
export function selected(frame, who) {
  const all = frame.subjects || {};
  if (who) return all[who] ? [all[who]] : [];
  return Object.keys(all).filter((name) => name.startsWith("mount:")).map((name) => all[name]);
}

function total(frame, who, key) {
  return selected(frame, who).reduce((have, one) => have + (one[key] || 0), 0);
}

// the counts of all selected entries, added up by name
export function together(frame, who, key) {
  const whole = {};
  for (const one of selected(frame, who)) {
    for (const [name, count] of Object.entries(one[key] || {})) whole[name] = (whole[name] || 0) + count;
  }
  return whole;
}

const perSecond = (frames, values) => values.map((v, i) => (v === null ? null : frames[i].seconds ? v / frames[i].seconds : 0));
export const rate = (frames, who, key) => perSecond(frames, sum(frames, who, key));

const PHASES = ["slot", "queue", "marshal", "network_and_server", "reply", "wake_up", "decode", "read_in", "nfsd", "write_out", "send",
  "RTT", "rest of exe"];

// mean microseconds per RPC by phase: from probes if there are any, else nfsiostat's times from mountstats
export function phases(frames, who) {
  const probed = frames.some((f) => total(f, who, "probed"));
  const lines = new Map();
  frames.forEach((frame, i) => {
    const parts = probed ? probedPhases(frame, who) : countedPhases(frame, who);
    for (const [name, value] of Object.entries(parts)) {
      if (!lines.has(name)) lines.set(name, new Array(frames.length).fill(0));
      lines.get(name)[i] = value;
    }
  });
  const order = (name) => PHASES.indexOf(name);
  return [...lines].sort(([a], [b]) => order(a) - order(b)).map(([name, values]) => [name.replaceAll("_", " "), values]);
}

function probedPhases(frame, who) {
  // a Send has a time only if the server requested its completion
  const count = (name) => total(frame, who, name === "send" ? "sends" : "probed");
  const parts = together(frame, who, "phases");
  return Object.fromEntries(Object.entries(parts).map(([n, ns]) => [n, count(n) ? ns / count(n) / 1e3 : 0]));
}

function countedPhases(frame, who) {
  const rpcs = total(frame, who, "rpcs");
  if (!rpcs) return {};
  const [all, queue, answer] = ["execute_ms", "queue_ms", "rtt_ms"].map((key) => (total(frame, who, key) * 1e3) / rpcs);
  return { queue, RTT: answer, "rest of exe": Math.max(all - queue - answer, 0) };
}

// percent of all CPUs by layer; the sampler reads layers less often than it makes frames
export function layers(frames) {
  const lines = new Map();
  let last = null;
  frames.forEach((frame, i) => {
    const cpu = frame.cpu || {};
    if (cpu.layers) last = cpu;
    const parts = last ? Object.entries(last.layers).map(([name, ns]) => [name, ns / last.layers_cpus_ns]) : [["busy", cpu.cpus_ns ? cpu.busy_ns / cpu.cpus_ns : 0]];
    for (const [name, share] of parts) {
      if (!lines.has(name)) lines.set(name, new Array(frames.length).fill(0));
      lines.get(name)[i] = share * 100;
    }
  });
  const order = (name) => (LAYERS.includes(name) ? LAYERS.indexOf(name) : -1);
  return [...lines].sort(([a], [b]) => order(a) - order(b));
}

// the same names in the same order as probes/cpu_layers.py, without idle, which is no work
export const LAYERS = ["application", "VFS and page cache", "nfs", "sunrpc", "transport", "RDMA core", "NIC driver", "emulated NIC",
  "card model", "TCP/IP", "copies", "nfsd", "export file system", "scheduling", "interrupts", "memory", "other kernel", "tracing", "unattributed"];

// the sum over these connections, or over all if numbers is null; mounts may share a connection
export function credits(frames, numbers, key) {
  return frames.map((f) => {
    const all = f.credits || {};
    const names = (numbers || Object.keys(all)).filter((name) => all[name]);
    return names.length ? names.reduce((have, name) => have + (all[name][key] || 0), 0) : null;
  });
}

export function regions(frames, who) {
  const names = ["mapped", "remote_invalidations", "local_invalidations"];
  const all = frames.map((f) => together(f, who, "regions"));
  return names.map((name) => [name.replaceAll("_", " "), perSecond(frames, all.map((one) => one[name] || 0))]);
}
