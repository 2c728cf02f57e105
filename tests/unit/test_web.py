# SPDX-License-Identifier: Apache-2.0
"""The dashboard's server on a socket: what it answers, to whom, and what it does with abuse."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from snapshots_made import HOSTILE, hostile, snapshot

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.live.prometheus.metrics import Metrics
from nfsrdma_tools.live.web.access_control import COOKIE, is_loopback
from nfsrdma_tools.live.web.access_token import token_for
from nfsrdma_tools.live.web.application import application
from nfsrdma_tools.live.web.broadcast import Hub
from nfsrdma_tools.live.web.http_server import Patient, bound, server

TOKEN = "a-word-that-is-long-enough"  # noqa: S105
FILES = ("/", "/app.js", "/charts.js", "/dom.js", "/heat.js", "/icon.svg", "/series.js",
         "/style.css", "/tables.js", "/uplot.css", "/uplot.js")  # fmt: skip
PATHS = (*FILES, "/events", "/past", "/metrics")


class Site:
    """A server that runs in a thread, and raw HTTP to it."""

    def __init__(self, token: str = "", page: bool = True, most: int = 256) -> None:
        self.hub, self.metrics = Hub(most), Metrics()
        self.listener = bound("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.web = server(application(self.hub, self.metrics, token, page))
        self.thread = threading.Thread(target=self.web.run, kwargs={"sockets": [self.listener]})
        self.thread.start()
        while not self.web.started:
            time.sleep(0.01)

    def stop(self) -> None:
        """Begin to shut down, which takes half a second; ``close`` waits for its end."""
        self.web.should_exit = True

    def close(self) -> None:
        self.stop()
        self.thread.join()
        self.listener.close()

    def open(self, raw: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        client.sendall(raw)
        return client

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
        """Status, head and body."""
        headers = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"} | headers
        lines = "".join(f"{n.replace('_', '-')}: {v}\r\n" for n, v in headers.items())
        with self.open(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()) as client:
            head, _, body = all_of(client).partition(b"\r\n\r\n")
        return int(head.split()[1]), head.decode(), body

    def answers(self, path: str) -> bool:
        """Whether there is an answer at all, and a good one."""
        try:
            return self.ask(path)[0] == 200
        except (OSError, IndexError):
            return False

    def listen(self) -> socket.socket:
        """Somebody who listens to events, and has heard the first words."""
        client = self.open(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode())
        have = b""
        while b"retry:" not in have:
            have += client.recv(4096)
        return client


def all_of(client: socket.socket) -> bytes:
    found = b""
    try:
        while part := client.recv(65536):
            found += part
    except OSError:
        pass
    return found


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.close()


@pytest.fixture(scope="module")
def locked() -> Iterator[Site]:
    running = Site(TOKEN)
    yield running
    running.close()


@pytest.fixture(scope="module")
def stopped() -> Iterator[list[Site]]:
    """Sites that have begun to shut down, all of them at once."""
    sites: list[Site] = []
    yield sites
    for each in sites:
        each.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch, stopped: list[Site]) -> Iterator[Site]:
    monkeypatch.setattr(Patient, "patience", 0.5)
    running = Site()
    running.web.config.timeout_keep_alive = 1
    yield running
    running.stop()
    stopped.append(running)


def until(true: Callable[[], bool]) -> None:
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it never came true")


@pytest.mark.parametrize("path", FILES)
def test_the_page_and_all_it_needs_come_from_here(site: Site, path: str) -> None:
    status, head, body = site.ask(path)
    assert status == 200
    assert "script-src 'self';" in head
    assert "default-src 'none'" in head
    assert "unsafe" not in head
    if not path.startswith("/uplot"):
        assert not re.search(rb"(?:https?:)?//(?!www\.w3\.org)[a-z]+\.", body)


def test_there_is_no_script_or_style_in_the_page(site: Site) -> None:
    page = site.ask("/")[2].decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\bon\w+=|\bstyle=", page) == []


def test_no_file_of_ours_makes_html_of_a_text(site: Site) -> None:
    for path in FILES:
        if path.endswith(".js") and path != "/uplot.js":
            body = site.ask(path)[2].decode()
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", body)


@pytest.mark.parametrize(
    "path", ["/none", "/../pyproject.toml", "/%2e%2e/x", "//etc/passwd", "/past/"]
)
def test_there_is_nothing_else(site: Site, path: str) -> None:
    assert site.ask(path)[0] in (400, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", PATHS)
def test_no_route_writes(site: Site, path: str, method: str) -> None:
    status, head, _ = site.ask(path, method)
    assert status == 405
    assert "allow: GET, HEAD" in head


@pytest.mark.parametrize("path", PATHS)
def test_head_is_get_without_a_body(site: Site, path: str) -> None:
    """RFC 9110, section 9.3.2; and nobody who asks for a head of events goes on listening."""
    status, head, body = site.ask(path, "HEAD")
    assert (status, body) == (200, b"")
    kind = re.search(r"content-type: (.*)\r", head)
    assert kind
    assert site.hub.listening == 0
    if path != "/events":
        _, again, _ = site.ask(path)
        assert f"content-type: {kind[1]}\r" in again
    else:
        assert kind[1].startswith("text/event-stream")


@pytest.mark.parametrize("path", PATHS)
def test_head_needs_the_token_too(locked: Site, path: str) -> None:
    assert locked.ask(path, "HEAD")[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.9.1.1", "", "[::2]:80"])
def test_another_name_for_this_machine_is_not_answered(site: Site, host: str) -> None:
    assert site.ask("/past", Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:80", "[::1]"])
def test_its_own_names_are(site: Site, host: str) -> None:
    assert site.ask("/past", Host=host)[0] == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "given",
    [{}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {TOKEN}"},
     {"Authorization": "Bearer \xff"}, {"Cookie": f"{COOKIE}=x"}, {"Cookie": "\x00;=;;"},
     {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Bearer"}],
)  # fmt: skip
def test_without_the_token_nothing_is_told(locked: Site, path: str, given: dict[str, str]) -> None:
    status, _, body = locked.ask(path, **given)
    assert status in (400, 401)
    assert TOKEN.encode() not in body


def test_with_the_token_all_is_told(locked: Site) -> None:
    assert locked.ask("/past", Authorization=f"Bearer {TOKEN}", Host="10.9.1.1")[0] == 200
    assert locked.ask("/past", Cookie=f"a=b; {COOKIE}={TOKEN}")[0] == 200
    assert locked.ask("/past?token=wrong")[0] == 401


def test_a_browser_gets_the_token_once_and_keeps_it_as_a_cookie(locked: Site) -> None:
    status, head, _ = locked.ask(f"/?token={TOKEN}")
    assert status == 303
    assert "location: /\r\n" in head
    cookie = re.search(r"set-cookie: (.*)", head)
    assert cookie
    assert "HttpOnly" in cookie[1]
    assert "SameSite=strict" in cookie[1]


def test_tokens_are_compared_in_constant_time(
    locked: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: asked.append((a, b)) or False)
    assert locked.ask("/past", Authorization=f"Bearer {TOKEN}")[0] == 401
    assert (TOKEN.encode(), TOKEN.encode()) in asked


def test_whoever_listens_hears_each_snapshot_and_the_past(site: Site) -> None:
    with site.listen() as one, site.listen() as other:
        site.hub.deliver(hostile())
        for client in (one, other):
            assert heard(client)["mounts"][1]["directory"] == HOSTILE
    past = json.loads(site.ask("/past")[2])
    assert f"m:{HOSTILE}" in past["frames"][-1]["who"]
    assert past["events"][-1]["what"] == HOSTILE


def heard(client: socket.socket) -> dict[str, Any]:
    """What the next event says."""
    have = b""
    while not have.endswith(b"}\n\n\r\n"):
        have += client.recv(65536)
    (line,) = re.findall(rb"data: (.*)\n", have)
    now: dict[str, Any] = json.loads(line)["now"]
    return now


def test_all_who_listen_are_told_the_same(site: Site) -> None:
    with site.listen() as one:
        site.hub.deliver(snapshot(1))
        assert heard(one)["mounts"][0]["directory"] == "/mnt"
        with site.listen() as other:
            site.hub.deliver(snapshot(2))
            assert heard(one) == heard(other)


def test_metrics_are_there_in_both_forms(site: Site) -> None:
    site.metrics.add(snapshot())
    status, head, body = site.ask("/metrics")
    assert status == 200
    assert "text/plain" in head
    assert b"nfsrdma_rpc_requests_total" in body
    assert b"# EOF" in site.ask("/metrics", Accept="application/openmetrics-text")[2]


def test_an_exporter_has_metrics_alone() -> None:
    exporter = Site(page=False)
    try:
        exporter.metrics.add(snapshot())
        assert exporter.ask("/metrics")[0] == 200
        assert b"/metrics" in exporter.ask("/")[2]
        assert exporter.ask("/past")[0] == exporter.ask("/events")[0] == 404
    finally:
        exporter.close()


def test_browsers_that_went_away_cost_nothing(site: Site) -> None:
    clients = [site.listen() for _ in range(20)]
    until(lambda: site.hub.listening == 20)
    for client in clients:
        client.close()
    until(lambda: site.hub.listening == 0)


def test_only_so_many_listen() -> None:
    small = Site(most=2)
    try:
        with small.listen(), small.listen():
            assert small.ask("/events")[0] == 503
    finally:
        small.close()


@pytest.mark.parametrize(
    "said",
    [b"", b"GET", b"GET / HTTP/1.1\r\nHost: localhost\r\n",
     b"GET /past HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"],
    ids=("nothing", "a word", "no end", "a body"),
)  # fmt: skip
def test_a_request_that_never_ends_is_closed(hasty: Site, said: bytes) -> None:
    with hasty.open(said) as client:
        all_of(client)


def test_a_request_letter_by_letter_is_closed(hasty: Site) -> None:
    with hasty.open() as client, pytest.raises(OSError, match=r"reset|pipe"):
        for letter in 300 * b"GET / HTTP/1.1\r\nA: b\r\n":
            client.sendall(bytes([letter]))
            time.sleep(0.02)


def test_the_second_request_has_to_end_too(hasty: Site) -> None:
    first = b"GET /past HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with hasty.open(first + b"GET /pa") as client:
        assert all_of(client).count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    "said",
    [bytes(range(256)) * 4, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00" * 9,
     b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 100_000, b"GET /" + b"x" * 100_000,
     b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    ids=("garbage", "version", "TLS", "long header", "long path", "two hosts", "HTTP/2"),
)  # fmt: skip
def test_nonsense_is_closed(hasty: Site, said: bytes) -> None:
    try:
        with hasty.open(said) as client:
            answer = all_of(client)
    except (BrokenPipeError, ConnectionResetError):
        return
    assert b" 200 " not in answer.split(b"\r\n")[0]


def test_a_reader_who_does_not_read_is_sent_away(hasty: Site) -> None:
    stuck = hasty.listen()
    big = snapshot(1, events=(), missing={"x": "y" * 300_000})
    with hasty.listen() as reader:
        thread = threading.Thread(target=all_of, args=(reader,), daemon=True)
        thread.start()
        for _ in range(100):
            hasty.hub.deliver(big)
            time.sleep(0.02)
            if hasty.hub.listening == 1:
                break
        until(lambda: hasty.hub.listening == 1)
        until(lambda: len(hasty.web.server_state.connections) == 1)
    stuck.close()


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patient, "most", 5)
    small = Site()
    try:
        clients = [small.open() for _ in range(30)]
        until(lambda: len(small.web.server_state.connections) <= 5)
        for client in clients:
            client.close()
        # those that were still to be accepted are sent away, too
        until(lambda: small.answers("/past"))
    finally:
        small.close()


def test_addresses_and_tokens(tmp_path: Path) -> None:
    assert [is_loopback(a) for a in ("127.0.0.1", "::1", "localhost", "10.9.1.1", "::", "x")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert token_for("127.0.0.1", None) == ""
    assert len(token_for("10.9.1.1", None)) > 30
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="others may read"):
        token_for("127.0.0.1", file)
    file.chmod(0o600)
    assert token_for("127.0.0.1", file) == TOKEN
    for bad in ("short", "with blanks in it and long", "ümlaut-that-is-long-enough"):
        file.write_text(bad)
        with pytest.raises(UserError, match="16 letters"):
            token_for("127.0.0.1", file)
    with pytest.raises(UserError, match="cannot be read"):
        token_for("127.0.0.1", tmp_path / "none")


def test_a_port_that_is_taken_is_said() -> None:
    with (
        bound("127.0.0.1", 0) as taken,
        pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1"),
    ):
        bound("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="cannot listen on nowhere"):
        bound("nowhere.invalid", 1)
