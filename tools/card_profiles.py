# SPDX-License-Identifier: Apache-2.0
"""The profiles of the modelled card as kmod/card/profile.c has them, and their table."""

from __future__ import annotations

import errno
import re
from pathlib import Path

from distribution_tables import table as _table

from nfsrdma_tools.module_source import card_profiles

FOLDER = Path(__file__).parents[1] / "kmod" / "card"
NONE = 2**32 - 1
"""CARD_NO_LKEY."""
ROWS = {
    "requests in a queue, `max_qp_wr`": "max_wr",
    "elements of a send request, `max_send_sge`": "send_sge",
    "elements of a receive, `max_recv_sge`": "recv_sge",
    "elements of a Read, `max_sge_rd`": "read_sge",
    "bytes of inline data": "inline_data",
    "pages of a region, `max_fast_reg_page_list_len`": "pages",
    "Reads as responder, `max_qp_rd_atom`": "reads_in",
    "Reads as requester, `max_qp_init_rd_atom`": "reads_out",
    "MiB of an element, with `--dma`": "segment",
    "regions with gaps": "gaps",
    "reserved key": "lkey",
    "queues have no more slots than requested": "exact",
    "slots are free after a poll": "frees_at_poll",
    "no inline data for the kernel": "drops_inline",
    "no Send with immediate data": "refuses_immediate",
    "fence": "fences",
    "late flush, ms": "flush_delay",
    "`strict_keys`": "strict_keys",
    "`cached_state`": "cached_state",
    "firmware stops: modify a queue pair": "stopped_modify",
    "firmware stops: destroy a queue pair": "stopped_destroy",
    "firmware stops: destroy a region": "stopped_dereg",
    "firmware stops: a modification that fails flushes": "stopped_flushes",
    "driver notices: post": "failed_post",
    "driver notices: modify a queue pair": "failed_modify",
    "driver notices: destroy a region": "failed_dereg",
    "driver notices: it flushes": "failed_flushes",
    "driver notices: event `DEVICE_FATAL`": "failed_device",
    "driver notices: event `QP_FATAL` of each queue pair": "failed_qps",
}
"""Members of the table by the names of the rows."""
_CONSTANTS = {"true": 1, "false": 0, "SZ_1G": 2**30, "SZ_2G": 2**31}
_CONSTANTS |= {"U32_MAX": 2**32 - 1, "U64_MAX": 2**64 - 1}
# a profile in the array, what the profiles of a family share, and a member of either
_PROFILE = re.compile(r"^\t\{\n(.*?)^\t\},$", re.MULTILINE | re.DOTALL)
_FAMILY = re.compile(r"^#define (CARD_\w+)\s+\\\n(.*?[^\\])$", re.MULTILINE | re.DOTALL)
_IN_FAMILY = re.compile(r"^\t\t(CARD_\w+),$", re.MULTILINE)
_MEMBER = re.compile(r"^\t+\.(\w+) = ([^,\n]+)(?:,\s*\\?)?$", re.MULTILINE)
_DEFINE = re.compile(r"^#define (CARD_\w+)\s+(.+)$", re.MULTILINE)
_FIELD = re.compile(r"^\t(?:u32|bool|int) (\w+);$", re.MULTILINE)


def read() -> dict[str, dict[str, int]]:
    """All members of each profile, by the names of both."""
    header = (FOLDER / "card.h").read_text()
    constants = dict(_CONSTANTS)
    for name, text in _DEFINE.findall(header):
        if re.fullmatch(r"\w+|\(1U? << \d+\)", text):
            constants[name] = _value(text, constants)
    absent = dict.fromkeys(members(), 0)
    return {
        name: absent | {member: _value(text, constants) for member, text in (shared | own).items()}
        for name, (shared, own) in stated().items()
    }


def stated() -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """The members that each profile shares with its family, and its own, as the source has them."""
    text = (FOLDER / "profile.c").read_text()
    families = {name: dict(_MEMBER.findall(body)) for name, body in _FAMILY.findall(text)}
    profiles = {}
    for name, body in zip(card_profiles(), _PROFILE.findall(text), strict=True):
        own = dict(_MEMBER.findall(body))
        del own["name"]
        family = _IN_FAMILY.search(body)
        profiles[name] = (families[family[1]] if family else {}, own)
    return profiles


def drivers() -> list[str]:
    """The profiles of real cards."""
    return [name for name in read() if name != "model"]


def members() -> list[str]:
    """The members of struct card_profile but its name."""
    text = (FOLDER / "card.h").read_text()
    return _FIELD.findall(text[text.index("struct card_profile {") :].partition("\n};")[0])


def _value(text: str, constants: dict[str, int]) -> int:
    """The value of a number, a constant, a negative errno or a shift."""
    if shift := re.fullmatch(r"\(1U? << (\d+)\)", text):
        return 1 << int(shift[1])
    if text.startswith("-E"):
        return -int(getattr(errno, text[1:]))
    return constants[text] if text in constants else int(text, 0)


def table() -> str:
    """Each limit and behaviour of each profile."""
    profiles = read()
    rows = [
        (label, *(_cell(member, profile[member]) for profile in profiles.values()))
        for label, member in ROWS.items()
    ]
    return _table(("", *profiles), rows)


def _cell(member: str, value: int) -> str:
    if member in _flags():
        return "yes" if value else ""
    if member == "lkey":
        return "none" if value == NONE else f"{value:#x}" if value else "0"
    if member.startswith(("stopped_", "failed_")):
        return f"`{errno.errorcode[-value]}`" if value else "0"
    return f"{round(value / 2**20) if member == 'segment' else value:,}"


def _flags() -> list[str]:
    text = (FOLDER / "card.h").read_text()
    return re.findall(r"^\tbool (\w+);$", text[text.index("struct card_profile {") :], re.MULTILINE)
