# SPDX-License-Identifier: Apache-2.0
"""One kind of message that `nfsrdma explain` recognizes, and parts that patterns share."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["DEVICE", "ERROR", "IB", "PCI", "PEER", "KnownMessage", "Recovery", "Severity", "Where"]

Severity = Literal["error", "warning", "information"]

Recovery = Literal["yes", "no", "unknown"]
"""Whether the host recovers from it without a restart."""

Where = Literal["", "peer", "path", "this host", "device"]
"""Where the cause is: at the peer, on the way to it, in this host's software, in its device."""


class KnownMessage(NamedTuple):
    """One kind of message.

    ``pattern`` matches the whole text after the time and the host.  Its group ``subject`` is the
    server, device or module; messages with different subjects are counted apart.  The groups
    ``error`` and ``completion`` are an error number and the status of a work completion; ``status``
    is a driver's own status, a key of ``statuses``.  Of a completion, ``qp`` is the number of the
    queue pair (``qp_hex`` in hexadecimal), ``vendor`` the vendor's syndrome in hexadecimal, and
    ``response`` is there if the peer's request failed here.
    """

    name: str
    severity: Severity
    """error: something failed; warning: something may be wrong, ``doubt`` names what is not known;
    information: it happens on healthy machines."""
    pattern: str
    meaning: str
    next_step: str
    """One command where there is one; {subject} stands for the subject.  Empty: nothing to do."""
    source: str
    doubt: str = ""
    ended_by: str = ""
    """The message after which this one, with the same subject, is information."""
    failed_by: str = ""
    """Of a reset: the message of the same subject which says that it failed."""
    numbers: tuple[tuple[int, str], ...] = ()
    """Meanings of error numbers in this message, where ERRORS is too general."""
    program: bool = False
    """Printed by a program, not by the kernel."""
    where: Where = ""
    """Where the cause is; a status of a completion says it better."""
    recovers: Recovery | None = None
    """Of a reset, and of what ends a connection: whether it works again without a restart."""
    statuses: tuple[tuple[str, int], ...] = ()
    """Numbers in enum ib_wc_status by the driver's own status."""
    continues: bool = False
    """Another line of the record that a line of the same name began."""
    quiet: bool = False
    """Not shown: it only ends another message."""


PEER = r"(?P<subject>\S{1,128})"
DEVICE = r"(?P<subject>[\w.:-]{1,64})"
ERROR = r"(?P<error>-?\d{1,10})"
# dev_err() and its kin: driver and device, then the ib_device, then the function and the process
IB = rf"(?:\S{{1,40}} ){{0,2}}{DEVICE}: (?:\w{{1,64}}:(?:\d+:\(pid \d+\):)? )?"
PCI = rf"\S{{1,40}} {DEVICE}: (?:\S{{1,64}} )?(?:\w{{1,64}}:\d+:\(pid \d+\): )?"
