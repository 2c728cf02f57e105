# SPDX-License-Identifier: Apache-2.0
"""The HTTP server on a socket: answers, access control, and clients that misbehave."""

import asyncio
import contextlib
import gzip
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.live.snapshots_made import HOSTILE, hostile, snapshot

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.live.prometheus.metrics import Metrics
from nfsrdma_tools.live.web.access import COOKIE, Access, is_loopback, new_token, read_token
from nfsrdma_tools.live.web.broadcast import Hub
from nfsrdma_tools.live.web.server import Address, Patient, WebServer, application, parse_address
from testbed.node.programs import until

TOKEN = "a-word-that-is-long-enough"  # noqa: S105
FILES = ("/", "/app.js", "/charts.js", "/dom.js", "/heat.js", "/icon.svg", "/reasons.js",
         "/series.js", "/style.css", "/tables.js", "/uplot.css", "/uplot.js")  # fmt: skip
PATHS = (*FILES, "/events", "/past", "/metrics")


class Site:
    """A server in a thread, and raw HTTP to it; with ``trust`` by TLS."""

    def __init__(
        self, access: Access | None = None, page: bool = True, most: int = 256,
        tls: ssl.SSLContext | None = None, trust: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        self.hub, self.metrics = Hub(most), Metrics()
        self.listener = Address("127.0.0.1", 0).bind()
        self.port = self.listener.getsockname()[1]
        self.trust = trust
        self.web = WebServer(application(self.hub, self.metrics, access, page), tls)
        self.thread = threading.Thread(target=self.web.run, kwargs={"sockets": [self.listener]})
        self.thread.start()
        while not self.web.started:
            time.sleep(0.01)

    def stop(self) -> None:
        """Start the shutdown, which takes half a second; ``close`` waits for its end."""
        self.web.should_exit = True

    def close(self) -> None:
        self.stop()
        self.thread.join()
        self.listener.close()

    def open(self, raw: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        if self.trust:
            client = self.trust.wrap_socket(client, server_hostname="localhost")
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
        """Whether the answer has the status 200."""
        try:
            return self.ask(path)[0] == 200
        except (OSError, IndexError):
            return False

    def listen(self) -> socket.socket:
        """A client that listens to events and has received the first line."""
        client = self.open(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode())
        have = b""
        while b"retry:" not in have:
            have += client.recv(4096)
        return client


def all_of(client: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(OSError):
        while part := client.recv(65536):
            received += part
    return received


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with contextlib.closing(Site()) as running:
        yield running


@pytest.fixture(scope="module")
def locked() -> Iterator[Site]:
    with contextlib.closing(Site(Access(TOKEN))) as running:
        yield running


@pytest.fixture(scope="module")
def stopped() -> Iterator[list[Site]]:
    """Sites that shut down at the same time."""
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


@pytest.mark.parametrize("path", FILES)
def test_the_page_loads_nothing_from_other_hosts(site: Site, path: str) -> None:
    status, head, body = site.ask(path)
    assert (status, "unsafe" in head) == (200, False)
    assert "script-src 'self';" in head and "default-src 'none'" in head
    if not path.startswith("/uplot"):
        assert not re.search(rb"(?:https?:)?//(?!www\.w3\.org)[a-z]+\.", body)


def test_the_page_has_no_inline_script_or_style(site: Site) -> None:
    page = site.ask("/")[2].decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert re.findall(r"<style|\bon\w+=|\bstyle=", page) == []


def test_no_script_makes_html_of_text(site: Site) -> None:
    for path in FILES:
        if path.endswith(".js") and path != "/uplot.js":
            body = site.ask(path)[2].decode()
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", body)


@pytest.mark.parametrize(
    "path", ["/none", "/../pyproject.toml", "/%2e%2e/x", "//etc/passwd", "/past/"]
)
def test_other_paths_are_not_found(site: Site, path: str) -> None:
    assert site.ask(path)[0] in (400, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", PATHS)
def test_no_route_writes(site: Site, path: str, method: str) -> None:
    status, head, _ = site.ask(path, method)
    assert (status, "allow: GET, HEAD" in head) == (405, True)


@pytest.mark.parametrize("path", PATHS)
def test_head_is_get_without_a_body(site: Site, path: str) -> None:
    """RFC 9110, section 9.3.2; HEAD of /events does not stay connected."""
    status, head, body = site.ask(path, "HEAD")
    assert (status, body) == (200, b"")
    (kind,) = re.findall(r"content-type: (.*)\r", head)
    assert site.hub.listening == 0
    if path != "/events":
        assert f"content-type: {kind}\r" in site.ask(path)[1]
    else:
        assert kind.startswith("text/event-stream")


@pytest.mark.parametrize("path", PATHS)
def test_head_needs_the_token_too(locked: Site, path: str) -> None:
    assert locked.ask(path, "HEAD")[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.9.1.1", "", "[::2]:80"])
def test_other_host_names_are_refused(site: Site, host: str) -> None:
    assert site.ask("/past", Host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:80", "[::1]"])
def test_names_of_loopback_are_served(site: Site, host: str) -> None:
    assert site.ask("/past", Host=host)[0] == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "given",
    [{}, {"Authorization": "Bearer x"}, {"Authorization": f"Basic {TOKEN}"},
     {"Authorization": "Bearer \xff"}, {"Cookie": f"{COOKIE}=x"}, {"Cookie": "\x00;=;;"},
     {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Bearer"}],
)  # fmt: skip
def test_without_the_token_every_path_is_refused(
    locked: Site, path: str, given: dict[str, str]
) -> None:
    status, _, body = locked.ask(path, **given)
    assert status in (400, 401)
    assert TOKEN.encode() not in body


def test_with_the_token_requests_are_served(locked: Site) -> None:
    assert locked.ask("/past", Authorization=f"Bearer {TOKEN}", Host="10.9.1.1")[0] == 200
    assert locked.ask("/past", Cookie=f"a=b; {COOKIE}={TOKEN}")[0] == 200
    assert locked.ask("/past?token=wrong")[0] == 401


def test_a_browser_gets_the_token_once_and_keeps_it_as_a_cookie(locked: Site) -> None:
    status, head, _ = locked.ask(f"/?token={TOKEN}")
    assert (status, "location: /\r\n" in head) == (303, True)
    (cookie,) = re.findall(r"set-cookie: (.*)", head)
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie


def test_tokens_are_compared_in_constant_time(
    locked: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bytes, bytes]] = []

    def unequal(a: bytes, b: bytes) -> bool:
        asked.append((a, b))
        return False

    monkeypatch.setattr("hmac.compare_digest", unequal)
    assert locked.ask("/past", Authorization=f"Bearer {TOKEN}")[0] == 401
    assert (TOKEN.encode(), TOKEN.encode()) in asked


def test_listeners_receive_each_snapshot_and_the_past(site: Site) -> None:
    with site.listen() as first, site.listen() as other:
        site.hub.deliver(hostile())
        for client in (first, other):
            assert heard(client)["mounts"][1]["directory"] == HOSTILE
    past = json.loads(site.ask("/past")[2])
    _, head, packed = site.ask("/past", Accept_Encoding="gzip, deflate")
    assert "content-encoding: gzip" in head
    assert json.loads(gzip.decompress(packed)) == past
    assert f"mount:{HOSTILE}" in past["frames"][-1]["subjects"]
    assert past["events"][-1]["what"] == HOSTILE


def heard(client: socket.socket) -> dict[str, Any]:
    """The state in the next event."""
    have = b""
    while not have.endswith(b"}\n\n\r\n"):
        have += client.recv(65536)
    (line,) = re.findall(rb"data: (.*)\n", have)
    now: dict[str, Any] = json.loads(line)["now"]
    return now


def test_all_listeners_receive_the_same(site: Site) -> None:
    with site.listen() as first:
        site.hub.deliver(snapshot(1))
        assert heard(first)["mounts"][0]["directory"] == "/mnt"
        with site.listen() as other:
            site.hub.deliver(snapshot(2))
            assert heard(first) == heard(other)


def test_metrics_have_both_formats(site: Site) -> None:
    site.metrics.add(snapshot())
    status, head, body = site.ask("/metrics")
    assert (status, "text/plain" in head) == (200, True)
    assert b"nfsrdma_rpc_requests_total" in body
    assert b"# EOF" in site.ask("/metrics", Accept="application/openmetrics-text")[2]


def test_an_exporter_serves_metrics_only() -> None:
    with contextlib.closing(Site(page=False)) as exporter:
        exporter.metrics.add(snapshot())
        assert exporter.ask("/metrics")[0] == 200
        assert b"/metrics" in exporter.ask("/")[2]
        assert exporter.ask("/past")[0] == exporter.ask("/events")[0] == 404


def test_closed_browsers_leave_no_listeners(site: Site) -> None:
    clients = [site.listen() for _ in range(20)]
    until("20 listeners", lambda: site.hub.listening == 20)
    for client in clients:
        client.close()
    until("no listener", lambda: site.hub.listening == 0)


def test_the_number_of_listeners_is_limited() -> None:
    with contextlib.closing(Site(most=2)) as small, small.listen(), small.listen():
        assert small.ask("/events")[0] == 503


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET", b"GET / HTTP/1.1\r\nHost: localhost\r\n",
     b"GET /past HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"],
    ids=("nothing", "a word", "no end", "a body"),
)  # fmt: skip
def test_an_incomplete_request_is_closed(hasty: Site, sent: bytes) -> None:
    with hasty.open(sent) as client:
        all_of(client)


def test_a_slow_request_is_closed(hasty: Site) -> None:
    with hasty.open() as client, pytest.raises(OSError, match=r"reset|pipe"):
        for letter in 300 * b"GET / HTTP/1.1\r\nA: b\r\n":
            client.sendall(bytes([letter]))
            time.sleep(0.02)


def test_an_incomplete_second_request_is_closed(hasty: Site) -> None:
    first = b"GET /past HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with hasty.open(first + b"GET /pa") as client:
        assert all_of(client).count(b"HTTP/1.1 200") == 1


def test_an_answer_may_take_longer_than_a_request(hasty: Site) -> None:
    """Also if the client sends a part of its next request meanwhile."""
    with hasty.listen() as quiet, hasty.listen() as other:
        other.sendall(b"GET /pa")
        time.sleep(2 * Patient.patience)
        hasty.hub.deliver(snapshot(1))
        assert b"data:" in quiet.recv(4096)
        assert b"data:" in other.recv(4096)


@pytest.mark.parametrize("sent", [b"", b"GET /pa"])
def test_a_connection_ends_after_a_part_of_a_request_during_an_answer(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol alone, with a stand-in for uvicorn's, which may take requests at any time."""
    monkeypatch.setattr(Patient, "patience", 0.01)

    async def ended() -> list[str]:
        ends: list[str] = []
        transport = SimpleNamespace(
            get_extra_info=lambda _: ("::1", 9), abort=lambda: ends.append("aborted")
        )
        client = Patient(asyncio.Protocol(), set())
        client.connection_made(transport)
        with client.answering():
            await asyncio.sleep(0.1)
            ends.append("answered")
            client.data_received(sent) if sent else None
            with client.answering():
                pass
            await asyncio.sleep(0.1)
            ends.append("answered")
        await asyncio.sleep(0.1)
        return ends

    assert asyncio.run(ended()) == ["answered", "answered", *(["aborted"] if sent else [])]


@pytest.mark.parametrize(
    "sent",
    [bytes(range(256)) * 4, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00" * 9,
     b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 100_000, b"GET /" + b"x" * 100_000,
     b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
    ids=("garbage", "version", "TLS", "long header", "long path", "two hosts", "HTTP/2"),
)  # fmt: skip
def test_nonsense_is_closed(hasty: Site, sent: bytes) -> None:
    try:
        with hasty.open(sent) as client:
            answer = all_of(client)
    except (BrokenPipeError, ConnectionResetError):
        return
    assert b" 200 " not in answer.split(b"\r\n")[0]


def test_a_client_that_does_not_read_is_disconnected(hasty: Site) -> None:
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
        until("a listener", lambda: hasty.hub.listening == 1)
        until("one client", lambda: len(hasty.web.clients) == 1)
    stuck.close()


def test_the_number_of_connections_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patient, "most", 5)
    with contextlib.closing(Site()) as small:
        clients = [small.open() for _ in range(30)]
        until("five clients", lambda: len(small.web.clients) <= 5)
        for client in clients:
            client.close()
        # also those that the server had not accepted yet
        until("an answer", lambda: small.answers("/past"))


def test_only_loopback_addresses_are_loopback() -> None:
    addresses = ("127.0.0.1", "::1", "localhost", "10.9.1.1", "::", "x", "")
    assert [*filter(is_loopback, addresses)] == ["127.0.0.1", "::1", "localhost"]


def test_a_token_file_is_private_and_long_enough(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o644)
    with pytest.raises(UserError, match="other users may read"):
        read_token(file)
    file.chmod(0o600)
    assert read_token(file) == TOKEN
    for bad in ("short", "with blanks in it and long", "ümlaut-that-is-long-enough"):
        file.write_text(bad)
        with pytest.raises(UserError, match="16 or more"):
            read_token(file)
    with pytest.raises(UserError, match="cannot read"):
        read_token(tmp_path / "none")
    assert len(new_token()) > 30


@pytest.mark.parametrize(
    ("text", "address", "url"),
    [
        ("127.0.0.1:29949", Address("127.0.0.1", 29949), "http://127.0.0.1:29949/"),
        ("localhost:0", Address("localhost", 0), "http://localhost:0/"),
        ("[::1]:8949", Address("::1", 8949), "http://[::1]:8949/"),
        (":8949", Address("", 8949), "http://localhost:8949/"),
    ],
)
def test_a_listen_address_is_host_and_port(text: str, address: Address, url: str) -> None:
    assert parse_address(text) == address
    assert address.url("http") == url


@pytest.mark.parametrize(
    "text", ["", "8949", "host", "host:", "host:x", "host:65536", "::1:80", "[x]:1"]
)
def test_other_listen_addresses_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--web\.listen-address .*expected HOST:PORT"):
        parse_address(text)


def test_without_a_host_it_listens_on_all_addresses() -> None:
    with Address("", 0).bind() as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=30):
            pass


def test_an_address_in_use_is_an_error() -> None:
    with Address("127.0.0.1", 0).bind() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on 127\.0\.0\.1:{port}: "):
            Address("127.0.0.1", port).bind()
    with pytest.raises(UserError, match=r"cannot listen on nowhere\.invalid:1: "):
        Address("nowhere.invalid", 1).bind()
