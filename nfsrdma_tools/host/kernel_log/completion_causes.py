# SPDX-License-Identifier: Apache-2.0
"""The cause of a failed work completion for mounts and servers, by enum ib_wc_status."""

from __future__ import annotations

from typing import NamedTuple

from nfsrdma_tools.host.kernel_log.known_message import Where

__all__ = ["Cause", "cause"]


class Cause(NamedTuple):
    """What a status means, where its cause is, and the next step."""

    text: str
    where: Where
    next_step: str


_PEER_LOG = "the peer's log"
_BOTH_LOGS = "read the log of the peer, too"
_OF_REQUEST = {
    2: Cause(
        "The device refused work of this host: a fault of the driver, or of its caller.",
        "this host",
        "report the record",
    ),
    4: Cause(
        "The work used memory of this host that is not registered.",
        "this host",
        "report the record",
    ),
    5: Cause(
        "The connection had ended, and this work was flushed. The first error before it tells why.",
        "",
        "look for the first error of this queue pair",
    ),
    6: Cause(
        "Memory was not registered, or a key was used again too early.",
        "this host",
        "report the record",
    ),
    7: Cause("The peer sent an unexpected response.", "peer", _BOTH_LOGS),
    9: Cause(
        "The peer refused a message that is longer than its buffer, or malformed.",
        "peer",
        _PEER_LOG,
    ),
    10: Cause(
        "The peer refused the key of its memory: the peer had withdrawn its memory, or never"
        " granted it. The connection ended.",
        "peer",
        "look at the peer of that connection (its log, at that time), not at cable or switch",
    ),
    11: Cause("The peer failed to carry out the request.", "peer", _PEER_LOG),
    12: Cause(
        "No answer came: the link is down, the peer is gone, or packets are lost.",
        "path",
        "nfsrdma doctor; look at the counters of the link and of the switch",
    ),
    13: Cause(
        "The peer had no buffer for a message in time.", "peer", "the peer's load, and its log"
    ),
    16: Cause("The peer aborted the operation.", "peer", _PEER_LOG),
    19: Cause("The device failed.", "device", "read the messages of the device before it"),
    20: Cause(
        "No answer came: the link is down, the peer is gone, or packets are lost.",
        "path",
        "nfsrdma doctor; look at the counters of the link and of the switch",
    ),
    21: Cause("The driver reports no details.", "", _BOTH_LOGS),
}
_OF_RESPONSE = {
    1: Cause(
        "The peer sent a message longer than the buffer for it.", "peer", "compare the inline sizes"
    ),
    8: Cause(
        "The peer used a key of this host's memory that is not valid: withdrawn, or wrong.",
        "",
        "look at both ends' logs of that time",
    ),
    9: Cause("The peer sent a malformed request.", "peer", _PEER_LOG),
}


def cause(number: int, is_response: bool) -> Cause | None:
    """The cause of a status; ``is_response`` if the peer's request failed here."""
    tables = (_OF_RESPONSE, _OF_REQUEST) if is_response else (_OF_REQUEST, _OF_RESPONSE)
    return tables[0].get(number) or tables[1].get(number)
