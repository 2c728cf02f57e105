# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma top``, ``dashboard`` and ``exporter``: live figures of mounts and servers."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nfsrdma_tools.cli.options import Procfs, Rootfs, Sysfs, flag, option
from nfsrdma_tools.errors import UsageError, printable
from nfsrdma_tools.live.prometheus.families import COLLECTORS, MOST_SERIES

if TYPE_CHECKING:
    from nfsrdma_tools.live.feed import FeedOptions
    from nfsrdma_tools.live.snapshot import Client, Event, Mount, Snapshot

__all__ = ["dashboard", "exporter", "frame", "top"]

_DASHBOARD_PORT = 8949
# not registered: in 2023, Prometheus' list of default ports had none left from 9100 to 9999, and a
# TACACS exporter uses 9949. 29949 is below Linux's ephemeral ports (from 32768)
_EXPORTER_PORT = 29949

_Interval = Annotated[
    float, option("SECONDS", "Time between snapshots.", "--interval", "-i", least=0.1)
]
_Stall = Annotated[float, option("SECONDS", "Age of an RPC that is reported as a stall.", least=1)]
_Probes = Annotated[bool, flag("Attach the eBPF probes (default: on).", "--probes/--no-probes")]
_Record = Annotated[
    Path | None, option("FILE", "Write all snapshots to a new FILE (default: none).")
]
_Replay = Annotated[
    Path | None, option("FILE", "Show the snapshots in FILE (default: those of this host).")
]
_Token = Annotated[
    Path | None,
    option(
        "FILE",
        "Require the token in FILE, which only its owner may read (default: on loopback no "
        "token, else a random one that the command prints).",
    ),
]
_Config = Annotated[
    Path | None,
    option(
        "FILE",
        "Use TLS and basic authentication as configured in FILE, in the format of "
        "Prometheus' exporter toolkit. It is read once, at the start (default: no TLS).",
        "--web.config.file",
    ),
]
_MaxSeries = Annotated[
    int,
    option(
        "N",
        "Export up to N series; nfsrdma_series_dropped_total counts what is left out.",
        "--max-series",
        least=1000,
    ),
]
_DisableDefaults = Annotated[
    bool, flag("Turn off collectors that are not named.", "--collector.disable-defaults")
]


def _listen(port: int) -> Any:
    return option(
        "[HOST]:PORT",
        "Listen on HOST, or on all addresses without HOST; repeat it for more addresses "
        f"(default: 127.0.0.1:{port}).",
        "--web.listen-address",
    )


_DashboardListen = Annotated[list[str] | None, _listen(_DASHBOARD_PORT)]
_ExporterListen = Annotated[list[str] | None, _listen(_EXPORTER_PORT)]


def dashboard(
    listen: _DashboardListen = None,
    config: _Config = None,
    token: _Token = None,
    interval: _Interval = 1.0,
    stall: _Stall = 5.0,
    probes: _Probes = True,
    record: _Record = None,
    replay: _Replay = None,
) -> None:
    """Serve a web page with mounts, clients and bottlenecks.

    The page shows the last hour; /metrics has metrics for Prometheus.

    From another host, use ssh -L 8949:127.0.0.1:8949 HOST. Beyond loopback, the dashboard requires
    the token that it prints, --token FILE, or the authentication in --web.config.file. Without
    TLS, both travel in clear text.
    """
    from nfsrdma_tools.live.feed import FeedOptions

    addresses = listen or [f"127.0.0.1:{_DASHBOARD_PORT}"]
    options = FeedOptions(interval, stall, probes, record, replay)
    _serve(options, addresses, token=token, config=config)


def _with_collectors(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command an option per collector, None if it is not on the command line."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [p for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD]
    for name, content in COLLECTORS.items():
        option = flag(
            f"Export {content} (default: on).", f"--collector.{name}/--no-collector.{name}"
        )
        annotation = Annotated[bool | None, option]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(f"collector_{name}", kind, default=None, annotation=annotation)
        )
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


@_with_collectors
def exporter(
    listen: _ExporterListen = None,
    config: _Config = None,
    token: _Token = None,
    interval: _Interval = 5.0,
    stall: _Stall = 5.0,
    probes: _Probes = True,
    procfs: Procfs = None,
    sysfs: Sysfs = None,
    rootfs: Rootfs = None,
    max_series: _MaxSeries = MOST_SERIES,
    disable_defaults: _DisableDefaults = False,
    **collectors: bool | None,
) -> None:
    """Serve metrics to Prometheus at /metrics.

    Beyond loopback, the exporter requires the token that it prints, --token FILE, or the
    authentication in --web.config.file. All collectors are on by default; the probes of a collector
    that is off are not attached. In a container, --path.procfs and --path.sysfs name the mounted
    /proc and /sys of the host.
    """
    from nfsrdma_tools.host.machine import host_of_container
    from nfsrdma_tools.live.collect.probe_statistics import SETS
    from nfsrdma_tools.live.feed import FeedOptions

    chosen = {name: collectors[f"collector_{name}"] for name in COLLECTORS}
    names = tuple(n for n, on in chosen.items() if (not disable_defaults if on is None else on))
    sets = tuple(name for name in SETS if name in names)
    addresses = listen or [f"127.0.0.1:{_EXPORTER_PORT}"]
    machine = host_of_container(procfs, sysfs, rootfs)
    options = FeedOptions(interval, stall, probes, probe_sets=sets, machine=machine)
    _serve(
        options, addresses,
        token=token, config=config, page=False, collectors=names, max_series=max_series,
    )  # fmt: skip


def _serve(options: FeedOptions, addresses: list[str], **more: Any) -> None:
    from nfsrdma_tools.live.collect.namespace import described_namespace
    from nfsrdma_tools.live.web.server import Service, parse_address, serve

    service = Service([parse_address(address) for address in addresses], **more)
    # in a container, the mounts may be others than meant
    notes = [] if service.page else [printable(described_namespace(options.machine))]

    def report(line: str) -> None:
        while notes:
            print(f"nfsrdma: {notes.pop()}", file=sys.stderr)
        print(line, flush=True)

    serve(options, service, report)


_Row = tuple[str, ...]
_MOUNTS: _Row = ("MOUNT", "TRANSPORT", "READ/s", "WRITE/s", "OPS/s", "EXE", "BOTTLENECK")
_CLIENTS: _Row = ("CLIENT", "PROCEDURE", "CALLS/s", "FETCHED/s", "WRITTEN/s", "MEAN")
# the first two columns of both tables are names
_NAMES = 2


def top(
    batch: Annotated[
        bool, flag("Print frames of text; needs no terminal.", "--batch", "-b")
    ] = False,
    count: Annotated[
        int | None,
        option(
            "N",
            "Stop after N frames, with --batch (default: run until Ctrl-C).",
            "--count",
            "-c",
            "-n",
            least=1,
        ),
    ] = None,
    interval: _Interval = 1.0,
    stall: _Stall = 5.0,
    probes: _Probes = True,
    record: _Record = None,
    replay: _Replay = None,
    as_json: Annotated[
        bool, flag("Print a line of JSON per frame, with --batch.", "--json", "-j")
    ] = False,
) -> None:
    """Show mounts, clients and bottlenecks, live.

    Press ? for the keys.  With --batch, print frames instead, as top(1) does.  Root and bcc add
    probes; unavailable metrics are listed.
    """
    from nfsrdma_tools.live.feed import FeedOptions

    options = FeedOptions(interval, stall, probes, record, replay, pending_rpcs=True)
    if batch:
        _print(options, count, as_json)
        return
    if count or as_json:
        raise UsageError("--count and --json need --batch", "add -b")
    from nfsrdma_tools.live.top.app import run

    run(options)


def _print(options: FeedOptions, count: int | None, as_json: bool) -> None:
    from nfsrdma_tools.cli.output import print_line
    from nfsrdma_tools.live.feed import snapshots
    from nfsrdma_tools.live.snapshot_json import to_plain

    try:
        for snapshot in snapshots(options, count):
            if as_json:
                print_line(to_plain(snapshot))
            else:
                print(*frame(snapshot), sep="\n", flush=True)
    except KeyboardInterrupt:
        # without a count, Ctrl-C is how it ends
        if count:
            raise


def frame(snapshot: Snapshot) -> list[str]:
    """The lines of a frame: host, mounts, clients of the server, events, unavailable metrics."""
    clients = snapshot.server.clients if snapshot.server else ()
    served = snapshot.server.limit if snapshot.server else ""
    held = snapshot.server.held if snapshot.server else ()
    busiest = sorted(
        snapshot.mounts, key=lambda mount: (-mount.read - mount.written, mount.directory)
    )
    return [
        _head(snapshot),
        *_table([_MOUNTS, *(_mount(mount, snapshot.seconds) for mount in busiest)]),
        *(_table([_CLIENTS, *(_client(c, snapshot.seconds) for c in clients)]) if clients else ()),
        *([printable(f"nfsd: {served}")] if served else ()),
        *(printable(f"nfsd: pending: {rpc}") for rpc in held),
        *map(_event, snapshot.events),
        *(printable(f"unavailable: {metric}: {why}") for metric, why in snapshot.missing.items()),
        "",
    ]


def _head(snapshot: Snapshot) -> str:
    from nfsrdma_tools.live.top.figures import cpu_figures

    at = time.strftime("%H:%M:%S", time.localtime(snapshot.time))
    cpu = cpu_figures(snapshot.processors)
    words = [at, snapshot.host, f"Linux {snapshot.kernel}", cpu]
    if snapshot.server:
        words.append(f"nfsd {_rate(snapshot.server.calls, snapshot.seconds)} Calls/s")
    down = ", ".join(port.name for port in snapshot.ports if not port.active)
    words += [f"down: {down}"] if down else []
    return printable("  ".join(words))


def _rate(amount: float, seconds: float) -> str:
    from nfsrdma_tools.live.top.figures import rate

    return rate(amount, seconds) or "0"


def _mount(mount: Mount, seconds: float) -> _Row:
    from nfsrdma_tools.live.top.figures import span

    rates = (_rate(amount, seconds) for amount in (mount.read, mount.written, mount.rpcs))
    transport = f"{mount.transport} {mount.vers}"
    return (mount.directory, transport, *rates, span(mount.mean_ms) or "-", mount.limit)


def _client(client: Client, seconds: float) -> _Row:
    from nfsrdma_tools.live.top.figures import span

    counts, calls = client.counts, client.counts.get("calls", 0)
    amounts = (calls, counts.get("read_bytes", 0), counts.get("written", 0))
    mean = span(client.ns / calls / 1e6) if calls else "-"
    return (client.peer, client.procedure, *(_rate(amount, seconds) for amount in amounts), mean)


def _event(event: Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.time))
    return printable(f"{at} {event.severity}: {event.kind} {event.where}: {event.what}")


def _table(rows: list[_Row]) -> list[str]:
    """Aligned rows: names and the last column of mounts to the left, numbers to the right."""
    from nfsrdma_tools.cli.output import aligned

    numbers = {at for at, head in enumerate(rows[0]) if at >= _NAMES and head != _MOUNTS[-1]}
    return aligned(rows, numbers)
