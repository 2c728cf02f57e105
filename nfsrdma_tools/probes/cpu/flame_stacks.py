# SPDX-License-Identifier: Apache-2.0
"""The flame graph of the probe set cpu, drawn by probes/cpu/flame_graph.py."""

from __future__ import annotations

from nfsrdma_tools.probes.cpu import layer_names as names
from nfsrdma_tools.probes.cpu import layers
from nfsrdma_tools.probes.cpu.attribution import Cpu, Seen
from nfsrdma_tools.probes.cpu.flame_graph import Step, draw

__all__ = ["flame"]


def flame(snapshot: Cpu) -> str:
    """An SVG of the stacks of the whole session, each sample counts as the sampling interval."""
    period = 1e9 / snapshot.rate if snapshot.rate else 0.0
    busy = {seen: n for seen, n in snapshot.stacks.items() if seen.where[0] != names.IDLE}
    remark = (
        f"{snapshot.host.wall_ns / 1e9:.1f} s, busy {snapshot.host.busy_ns / 1e9:.2f} s of"
        f" {snapshot.host.cpus} CPUs; {sum(busy.values())} samples at {snapshot.rate} Hz,"
        f" {snapshot.lost} lost"
    )
    paths = sorted((_path(seen), count * period) for seen, count in busy.items())
    return draw(paths, "CPU time by layer", remark)


def _path(seen: Seen) -> list[Step]:
    """The path from the thread to the running function, without what was interrupted.

    A function without a layer has the layer of its caller.
    """
    name = seen.where[0]
    stack = seen.stack[: len(layers.uninterrupted(seen.stack)) + 1]
    interrupted = len(stack) > len(layers.uninterrupted(stack))
    path = [("interrupts", names.INTERRUPTS) if interrupted else (seen.name, "")]
    for frame in reversed(stack):
        shown = f"{frame.function} [{frame.module}]" if frame.module else frame.function
        path.append((shown, layers.own_layer(frame) or path[-1][1]))
    return [*path[:-1], (path[-1][0], name)] if stack else [*path, ("user space", name)]
