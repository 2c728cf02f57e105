# SPDX-License-Identifier: Apache-2.0
"""Which layer a stack of kernel functions works for, and for which side (client or server).

The innermost function that has a layer decides.  Locks, allocations, checksums and the like have
no layer: they count for their caller.  Work in an interrupt does not count for the interrupted
thread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from nfsrdma_tools.probes.cpu import layer_names as names

__all__ = [
    "NEITHER",
    "SERVER",
    "SIDES",
    "Frame",
    "layer",
    "module_layer",
    "side",
    "uninterrupted",
]

CLIENT, SERVER, NEITHER = "client", "server", "neither"
SIDES = (CLIENT, SERVER, NEITHER)


class Frame(NamedTuple):
    """A kernel function, and its module ("" for the kernel itself)."""

    function: str
    module: str = ""


# below an emulated NIC or a modelled card these layers do the work of a card
_OFFLOADED = {names.TCP_IP, names.COPIES, names.NIC}
_CARDS = {names.EMULATED, names.CARD}
_SERVER = re.compile(r"(?:svc|nfsd|nfr_svc|cache_|exp_|auth_domain)")
_CLIENT = re.compile(r"(?:rpc|xprt|xdr_buf_pages|call_|frwr_|nfr_client)")
_PROGRAM = re.compile(r"entry_SYSCALL|do_syscall|el0t?_|asm_exc_page_fault|ret_to_user")


def layer(frames: Sequence[Frame]) -> str:
    """The layer that a kernel stack, innermost frame first, works for.

    A stack without frames is a program in user space.
    """
    if not frames:
        return names.APPLICATION
    inside = uninterrupted(frames)
    if any(names.HALTED.match(frame.function.lstrip("_")) for frame in inside[:3]):
        return names.IDLE
    strong = [found for found in map(_strong, inside) if found]
    if strong:
        above = next((found for found in strong if found not in _OFFLOADED), "")
        return above if above in _CARDS else strong[0]
    if any(names.ROOTS.match(frame.function) for frame in inside[:2]):
        return names.SCHEDULING
    weak = next((found for found in map(_weak, inside) if found), "")
    return weak or (_edge(frames[len(inside)]) if len(inside) < len(frames) else names.UNATTRIBUTED)


def side(frames: Sequence[Frame], nfsd: bool = False) -> str:
    """Whether a stack is the client's, the server's or shared; ``nfsd``: a thread of nfsd.

    A program in user space is always a client.
    """
    if not frames:
        return CLIENT
    inside = uninterrupted(frames)
    if len(inside) == len(frames) and nfsd:
        return SERVER
    known = next((found for found in map(_side, inside) if found), "")
    is_program = len(inside) == len(frames) and _PROGRAM.match(frames[-1].function.lstrip("_"))
    return known or (CLIENT if is_program or _faulted(frames, inside) else NEITHER)


def uninterrupted(frames: Sequence[Frame]) -> list[Frame]:
    """The innermost functions, up to the entry of an interrupt or fault."""
    return list(takewhile(lambda frame: not _edge(frame), frames))


def module_layer(module: str) -> str:
    """The layer of a kernel module; "" if it has none."""
    return next((name for name, known in names.MODULES.items() if known.fullmatch(module)), "")


def _faulted(frames: Sequence[Frame], inside: Sequence[Frame]) -> bool:
    return len(inside) < len(frames) and _edge(frames[len(inside)]) == names.MEMORY


@cache
def _edge(frame: Frame) -> str:
    return "" if frame.module else _first(names.EDGES, frame)


@cache
def _strong(frame: Frame) -> str:
    if frame.module:
        return module_layer(frame.module)
    return _first(names.FUNCTIONS, frame)


@cache
def _weak(frame: Frame) -> str:
    if frame.module:
        return "" if names.TRANSPARENT.fullmatch(frame.module) else names.OTHER
    return _first(names.WEAK, frame)


@cache
def _side(frame: Frame) -> str:
    name = frame.function.lstrip("_")
    if frame.module == "nfsd" or (frame.module and _SERVER.match(name)):
        return SERVER
    module = module_layer(frame.module) if frame.module else ""
    return CLIENT if module == names.NFS or (module and _CLIENT.match(name)) else ""


def _first(table: dict[str, re.Pattern[str]], frame: Frame) -> str:
    name = frame.function.lstrip("_")
    return next((found for found, pattern in table.items() if pattern.match(name)), "")
