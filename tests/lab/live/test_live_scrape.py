# SPDX-License-Identifier: Apache-2.0
"""Prometheus scrapes an exporter on this host with TLS, a client certificate and a password."""

import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bcrypt
import pytest
from lab.live.prometheus import running

from testbed.node.programs import until

PASSWORD = "correct horse"  # noqa: S105
CONFIG = """
scrape_configs:
  - job_name: nfsrdma
    scrape_interval: 1s
    scheme: https
    basic_auth: {{username: prometheus, password: {password}}}
    tls_config: {{ca_file: ca.pem, cert_file: client.pem, key_file: client.key}}
    static_configs: [{{targets: ['{target}']}}]
"""
WEB_CONFIG = """
tls_server_config:
  cert_file: server.pem
  key_file: server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
basic_auth_users:
  prometheus: {password}
"""
NEW_KEY = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
           "-nodes", "-days", "2")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A CA, certificates of a server and a client, and a web configuration file."""
    for name, more in (
        ("ca", ()),
        ("server", ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1")),
        ("client", ("-CA", "ca.pem", "-CAkey", "ca.key")),
    ):
        files = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        subprocess.run((*NEW_KEY, *files, *more), cwd=tmp_path, check=True, capture_output=True)
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(10)).decode()
    (tmp_path / "web.yml").write_text(WEB_CONFIG.format(password=hashed))
    return tmp_path


@contextmanager
def exporter(folder: Path) -> Iterator[str]:
    """The address of an exporter of this host."""
    argv = (sys.executable, "-m", "nfsrdma_tools", "exporter", "--no-probes", "--interval", "1",
            "--web.listen-address", "127.0.0.1:0", "--web.config.file", str(folder / "web.yml"),
            "--no-collector.port")  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield urllib.parse.urlsplit(process.stdout.readline().strip()).netloc
        finally:
            process.send_signal(signal.SIGTERM)


def test_prometheus_scrapes_with_tls_certificate_and_password(folder: Path) -> None:
    with exporter(folder) as target:
        config = CONFIG.format(password=PASSWORD, target=target)
        (folder / "prometheus.yml").write_text(config)
        with running(folder) as query:
            until("a scrape", lambda: query("up == 1"), 300, 0.5)
            assert query("nfsrdma_build_info")[0]["value"][1] == "1"
            until(
                "CPU time", lambda: query("rate(nfsrdma_cpu_busy_seconds_total[10s]) > 0"), 300, 0.5
            )
            assert not query("count({__name__=~'nfsrdma_port_.*'})")
