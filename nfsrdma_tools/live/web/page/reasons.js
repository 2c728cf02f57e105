// SPDX-License-Identifier: Apache-2.0
// Why a chart is empty: one sentence for each chart, shown in its place.

const RDMA = ["rdma", "nfsrdma"];
const SERVER_SIDE = /^(client|server):/;

// state: frames, now and who; period: the text of the chosen time span
export function reasons({ frames, now, who }, period) {
  if (!frames.length || !now) return everywhere("Waiting for the first snapshot.");
  const missing = now.missing || {};
  const place = where(who);
  const idle = `No RPCs ${place} in the last ${period}.`;
  const probes = missing.probes ? `Probes are unavailable: ${missing.probes}.` : "";
  const some = Object.keys(missing).some((name) => name.includes(":")) ? " Some probes are not attached: see Unavailable metrics." : "";
  const client = SERVER_SIDE.test(who) ? "Only clients count this: it is shown for mounts." : "";
  const rdma = (what) => (overTcp(now, who) ? `Only RDMA mounts ${what}.` : "");
  return {
    bytes: `No data was read or written ${place} in the last ${period}.`,
    rpcs: idle,
    phases: idle,
    cpu: missing.CPU ? `CPU time is unavailable: ${missing.CPU}.` : `All CPUs were idle in the last ${period}.`,
    times: probes || idle + some,
    sizes: client || rdma("have chunks") || probes || `No chunks ${place} in the last ${period}: no message needed one.${some}`,
    credits: client || rdma("have credits") || probes || `No credits are known ${place}: the kernel does not report them.${some}`,
    regions: client || rdma("register memory") || probes || `No memory was registered ${place} in the last ${period}.${some}`,
  };
}

function everywhere(text) {
  return Object.fromEntries(["bytes", "rpcs", "phases", "cpu", "times", "sizes", "credits", "regions"].map((name) => [name, text]));
}

function where(who) {
  if (who.startsWith("client:")) return `from client ${who.slice("client:".length)}`;
  if (who === "server:") return "to this server";
  return who ? "on this mount" : "on any mount";
}

// whether there are mounts to show, and none of them uses RDMA
function overTcp(now, who) {
  const shown = (now.mounts || []).filter((mount) => !who || `mount:${mount.directory}` === who);
  return shown.length > 0 && !shown.some((mount) => RDMA.includes(mount.transport));
}
