# SPDX-License-Identifier: Apache-2.0
"""The last hour in frames: merging old frames keeps their sums."""

import gzip
import json
import os
import subprocess
import sys
import zlib
from dataclasses import replace

from unit.live.snapshots_made import (
    SENDS,
    a_thousand_clients,
    mount,
    served,
    served_threadless,
    snapshot,
    xprt,
)

from nfsrdma_tools.live.snapshot import Credits
from nfsrdma_tools.live.top.screens import host_text
from nfsrdma_tools.live.web.broadcast import Frame, History, Hub, frame, merged


def test_a_frame_has_the_figures_of_the_charts() -> None:
    figures = frame(snapshot(server=served()))
    mount = figures["subjects"]["mount:/mnt"]
    assert (mount["read"], mount["rpcs"], mount["execute_ms"]) == (6553600, 105, 205)
    assert mount["phases"]["network_and_server"] == 190_000_000
    # slots 30 and 40 begin at 384 and 2048 units of 1024 ns
    assert (mount["times"], mount["sizes"]) == ({"9": 20, "12": 75, "15": 5}, {"17": 100})
    assert figures["credits"] == {"3": {"granted": 64, "used": 3}}
    client = figures["subjects"]["client:10.9.1.11"]
    assert client["rpcs"] == 40
    assert client["phases"] == figures["subjects"]["server:"]["phases"]


def test_a_frame_of_the_server_has_its_threadless_reads() -> None:
    subjects = frame(snapshot(server=served_threadless()))["subjects"]
    assert (subjects["server:"]["read"], subjects["server:"]["rpcs"]) == (2744320, 75)
    client = subjects["client:10.9.1.11"]
    assert (client["read"], client["rpcs"], client["probed"]) == (2744320, 70, 40)
    (row,) = (line for line in str(host_text(snapshot(server=served_threadless()))).splitlines()
              if "threads on" in line)  # fmt: skip
    assert row == (
        "nfsd: 8 threads on tcp 2049, rdma 20049; 45 Calls/s, reads 2.62MB/s, writes 0B/s; "
        "threadless 30 READs/s, 123kB/s; in all 75 Calls/s, reads 2.74MB/s"
    )


def test_credits_are_counted_once_per_connection() -> None:
    xprts = (xprt(), xprt(number=4, credits=Credits(32, 32)))
    mounts = (mount(xprts=xprts), mount("/a", xprts=xprts))
    figures = frame(snapshot(1, mounts))
    assert figures["credits"] == {"3": {"granted": 64, "used": 3}, "4": {"granted": 32, "used": 32}}


def test_all_credits_were_in_use_if_calls_waited() -> None:
    single, double = (xprt(number=3),), (xprt(number=4), xprt(number=5))
    mounts = (mount(xprts=single), mount("/a", xprts=single, credit_waits=2),
              mount("/b", xprts=double, credit_waits=2))  # fmt: skip
    connections = frame(snapshot(1, mounts))["credits"]
    # with two connections, the one on which they waited is unknown
    assert {name: each["used"] for name, each in connections.items()} == {"3": 64, "4": 3, "5": 3}


def test_a_merged_frame_has_the_sums() -> None:
    whole = merged([frame(snapshot(1)), frame(snapshot(2))])
    assert (whole["time"], whole["seconds"]) == (snapshot(2).time, 2.0)
    assert whole["subjects"]["mount:/mnt"]["times"] == {"9": 40, "12": 150, "15": 10}
    assert whole["credits"]["3"]["granted"] == 64


def test_the_history_keeps_one_hour() -> None:
    history = History()
    for number in range(5000):
        taken = snapshot(number)
        history.add(taken.seconds, frame(taken))
    frames = [json.loads(zlib.decompress(each)) for each in history.kept()]
    assert frames[-1]["time"] - frames[0]["time"] <= 3610
    assert len(frames) < 1000
    inside = [f for f in frames if f["time"] > frames[-1]["time"] - 3500]
    seconds = round(sum(f["seconds"] for f in inside))
    assert sum(f["subjects"]["mount:/mnt"]["rpcs"] for f in inside) == 105 * seconds


def many(number: int, mounts: int = 500) -> Frame:
    """A frame of busy mounts of as many servers; those with low numbers are the busiest."""
    (row,) = frame(snapshot(1))["subjects"].values()
    row = {key: value for key, value in row.items() if key not in ("read", "rpcs")}
    subjects = {
        f"mount:/data/projects/m{n}": {
            **row, "read": 2 * 10**9 // (n + 1) + 7919 * number % 104729, "rpcs": 100 + n % 7,
        }
        for n in range(mounts)
    }  # fmt: skip
    return {
        "time": float(number), "seconds": 1.0, "subjects": subjects,
        "cpu": {"busy_ns": number, "cpus_ns": 10**9},
        "credits": {str(n): {"granted": 128, "used": n % 128} for n in range(mounts)},
    }  # fmt: skip


def test_broadcast_of_an_hour_of_many_mounts_is_small() -> None:
    hub, frames = Hub(), [many(number) for number in range(5)]
    for number in range(720):
        hub._history.add(1.0, {**frames[number % 5], "time": float(number)})
    kept = hub._history.kept()
    # ten minutes of frames, and 50 minutes of merged ones
    share = (610 + 300) / len(kept)
    assert sum(map(len, kept)) * share < 10 << 20
    past = hub.past()
    # the text lives while it is sent
    assert len(past) * share < 25 << 20
    assert len(gzip.compress(past, 1)) * share < 5 << 20
    sent_frames = json.loads(past)["frames"]
    for edge in (sent_frames[0], sent_frames[-1]):
        assert len(edge["subjects"]) == len(edge["credits"]) == 21
        assert {f"mount:/data/projects/m{n}" for n in range(20)} < set(edge["subjects"])
        assert edge["credits"].keys() >= {"127", "255", "383", "(others)"}
    # the sums are those of all mounts
    total = sum(row["read"] for row in sent_frames[-1]["subjects"].values())
    assert total == sum(row["read"] for row in frames[719 % 5]["subjects"].values())
    rpcs = sum(row["rpcs"] for f in sent_frames for row in f["subjects"].values())
    per_second = sum(row["rpcs"] for row in frames[0]["subjects"].values())
    assert rpcs == per_second * round(sum(f["seconds"] for f in sent_frames))


RESIDENT = """
import pathlib, random, re
from unit.live.web.test_history import many
from nfsrdma_tools.live.web.broadcast import Hub

def status(name):
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(name + r":\\s+([0-9]+) kB", text)[1])

hub, frames, rng = Hub(), [many(number) for number in range(5)], random.Random(1)
hub.past()
before = status("VmRSS")
for number in range(900):
    new = frames[number % 5]
    for row in new["subjects"].values():
        row["read"] = rng.randrange(1 << 31)
    hub._history.add(1.0, {**new, "time": float(number)})
past = hub.past()
print(len(hub._history.kept()), len(past), status("VmHWM") - before)
"""


def test_the_history_of_many_mounts_is_small_in_memory() -> None:
    # the paths of pytest, which a new process does not have
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True,
                          check=True, env=environment)  # fmt: skip
    kept, text, peak_kb = map(int, done.stdout.split())
    # an hour has 300 more frames than these; past() is the larger part of the peak
    assert (kept + 300) / kept * peak_kb < 40 << 10
    assert peak_kb << 10 > text


def test_names_that_come_and_go_take_no_memory() -> None:
    hub = Hub()
    for number in range(150):
        new = many(number, 30)
        rows = new["subjects"].items()
        new["subjects"] = {f"{name}-{number}": row for name, row in rows}
        hub._history.add(1.0, new)
    assert len(hub._history._busiest["mount:"]._activity) <= 4096
    assert len(json.loads(hub.past())["frames"][-1]["subjects"]) == 21


def test_a_clock_that_steps_back_does_not_make_the_history_longer() -> None:
    hub, long = Hub(), 9000
    for number in range(long):
        taken = snapshot(number, ())
        hub.deliver(replace(taken, time=taken.time - 86400) if number > long // 2 else taken)
    assert len(json.loads(hub.past())["frames"]) < 1000


def test_a_send_phase_is_a_mean_over_sends() -> None:
    assert SENDS.clients[0].means == {"nfsd": 1000, "send": 3000}
    assert "nfsd 1 us, send 3 us" in str(host_text(snapshot(server=SENDS)))
    subjects = frame(snapshot(server=SENDS))["subjects"]
    assert (subjects["client:10.0.0.1"]["sends"], subjects["server:"]["sends"]) == (10, 10)


def test_a_frame_of_a_thousand_clients_has_the_busiest_and_the_sums_of_the_others() -> None:
    whole, history = frame(a_thousand_clients()), History()
    history.add(1, whole)
    sent = history.thinned(whole, 100)["subjects"]
    names = [name for name in sent if name.startswith("client:")]
    assert len(names) == 101
    assert sum(sent[name]["rpcs"] for name in names) == 4000 * 40
    assert sent["server:"] == whole["subjects"]["server:"]
    # the frame itself stays whole
    assert len(whole["subjects"]) == 1002
