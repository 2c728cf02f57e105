# SPDX-License-Identifier: Apache-2.0
"""The web configuration file: its keys, TLS and passwords, on a server and from the command."""

import base64
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import bcrypt
import pytest
from unit.live.web.test_web import TOKEN, Site, all_of

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.live.web import web_config
from nfsrdma_tools.live.web.access import Access
from nfsrdma_tools.live.web.server import Patient, Service, access_to, parse_address
from nfsrdma_tools.live.web.web_config import Tls, WebConfig

PASSWORD = "correct horse"  # noqa: S105
# the lowest cost; htpasswd writes 2y, the library 2b
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$")
USERS = {"prometheus": HASH}
CA = "ca.pem"


def written(folder: Path, text: str) -> Path:
    file = folder / "web.yml"
    file.write_text(text)
    return file


def openssl(*argv: str) -> None:
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
               "-nodes", "-days", "2", *argv)  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA, and with a certificate and key of a server and of a client."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed; missed: TLS of dashboard and exporter")
    folder = tmp_path_factory.mktemp("tls")
    openssl("-keyout", f"{folder}/ca.key", "-out", f"{folder}/{CA}", "-subj", "/CN=test CA")
    by_ca = ("-CA", f"{folder}/{CA}", "-CAkey", f"{folder}/ca.key",
             "-addext", "basicConstraints=critical,CA:FALSE",
             "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")  # fmt: skip
    for name in ("server", "client"):
        files = ("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem")
        openssl(*files, "-subj", f"/CN={name}", *by_ca)
    return folder


def trust(folder: Path, client: str = "") -> ssl.SSLContext:
    """The context of a client that trusts the CA, and has a certificate if ``client`` names one."""
    context = ssl.create_default_context(cafile=folder / CA)
    if client:
        context.load_cert_chain(folder / f"{client}.pem", folder / f"{client}.key")
    return context


def tls(folder: Path, **more: object) -> Tls:
    return Tls(folder / "server.pem", folder / "server.key", **more)  # type: ignore[arg-type]


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture(scope="module")
def protected() -> Iterator[Site]:
    """A server with a password and a token."""
    with closing(Site(Access(TOKEN, USERS))) as running:
        yield running


def test_a_file_has_certificates_and_users(tmp_path: Path) -> None:
    text = f"""
    tls_server_config:
      cert_file: server.pem
      key_file: /etc/tls/server.key
      client_auth_type: RequireAndVerifyClientCert
      client_ca_file: ca.pem
    basic_auth_users:
      prometheus: {HASH}
    """
    config = web_config.read(written(tmp_path, text))
    # file names are relative to the configuration file
    files = (tmp_path / "server.pem", Path("/etc/tls/server.key"))
    assert config == WebConfig(Tls(*files, ssl.CERT_REQUIRED, tmp_path / "ca.pem"), USERS)
    assert config.verifies_clients


@pytest.mark.parametrize("text", ["", "tls_server_config:\n", "basic_auth_users: {}\n"])
def test_an_empty_file_protects_nothing(text: str, tmp_path: Path) -> None:
    assert web_config.read(written(tmp_path, text)) == WebConfig()


PAIR = "cert_file: a, key_file: b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http_server_config: {http2: true}\nrate_limit: {}",
         "unsupported keys: http_server_config, rate_limit "),
        (f"tls_server_config: {{{PAIR}, min_version: TLS13}}",
         r"unsupported keys: tls_server_config\.min_version .*tls_server_config\.cert_file"),
        (f"tls_server_config: {{{PAIR}, client_auth_type: RequestClientCert}}",
         "unsupported client_auth_type 'RequestClientCert' .*RequireAndVerifyClientCert"),
        (f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
         "client_ca_file is not set"),
        (f"tls_server_config: {{{PAIR}, client_ca_file: c}}", "client_auth_type is NoClientCert"),
        ("tls_server_config: {cert_file: a}", "has no key_file"),
        ("tls_server_config: {cert_file: 3, key_file: b}", "expected text in .*cert_file"),
        ("tls_server_config: [a]", "expected keys and values in tls_server_config"),
        ("- a", "expected keys and values in the file"),
        ("basic_auth_users: {alice: hunter2}", "the password of alice is not a bcrypt hash"),
        ("basic_auth_users: {alice: 5}", "the password of alice is not a bcrypt hash"),
        ("basic_auth_users: {'a:b': x}", "'a:b' in basic_auth_users is not a user name"),
        ("a: {", "is not YAML"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_an_error_that_names_the_key(
    text: str, message: str, tmp_path: Path
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(UserError, match=message) as caught:
        web_config.read(file)
    assert str(file) in str(caught.value) and "hunter2" not in str(caught.value)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*: No such file"):
        web_config.read(tmp_path / "none.yml")
    with pytest.raises(UserError, match=r"cannot load the TLS files .*: No such file"):
        tls(tmp_path).context()


LOOPBACK = [parse_address("127.0.0.1:1"), parse_address("[::1]:1")]
EVERYWHERE = [parse_address("127.0.0.1:1"), parse_address(":1")]


def test_on_loopback_no_credentials_are_required() -> None:
    assert access_to(Service(LOOPBACK), None) == Access()


@pytest.mark.parametrize("config", [None, WebConfig(), WebConfig(tls(Path()))])
def test_beyond_loopback_a_token_is_generated(config: WebConfig | None) -> None:
    """TLS alone hides the answers, but serves everybody."""
    assert len(access_to(Service(EVERYWHERE), config).token) > 30


def test_credentials_in_the_files_replace_the_generated_token(tmp_path: Path) -> None:
    assert access_to(Service(EVERYWHERE), WebConfig(users=USERS)) == Access("", USERS)
    verifying = WebConfig(tls(Path(), client_auth=ssl.CERT_REQUIRED))
    assert access_to(Service(EVERYWHERE), verifying) == Access(certificate=True)
    optional = WebConfig(tls(Path(), client_auth=ssl.CERT_OPTIONAL))
    assert access_to(Service(EVERYWHERE), optional).token
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    both = access_to(Service(LOOPBACK, token=file), WebConfig(users=USERS))
    assert both == Access(TOKEN, USERS)


@pytest.mark.parametrize("path", ["/metrics", "/", "/past", "/events"])
def test_without_a_password_every_path_is_refused(protected: Site, path: str) -> None:
    status, head, body = protected.ask(path)
    assert status == 401
    assert re.findall(r'www-authenticate: (\w+) realm="nfsrdma"', head) == ["Basic", "Bearer"]
    assert b"nfsrdma_" not in body


@pytest.mark.parametrize(
    "given",
    [basic("prometheus", "wrong"), basic("nobody", PASSWORD), basic("", ""), "Basic", "Basic !!",
     basic("prometheus", HASH), basic("prometheus", PASSWORD + "\0"), f"Bearer {PASSWORD}",
     basic("prometheus", "x" * 100), "Basic " + base64.b64encode(b"no colon").decode()],
    ids=["wrong", "nobody", "empty", "no credentials", "no base64", "the hash", "a zero byte",
         "as a token", "too long", "no colon"],
)  # fmt: skip
def test_wrong_passwords_are_refused(protected: Site, given: str) -> None:
    assert protected.ask("/metrics", Authorization=given)[0] == 401


def test_the_password_or_the_token_opens(protected: Site) -> None:
    for given in (basic("prometheus", PASSWORD), f"Bearer {TOKEN}"):
        assert protected.ask("/metrics", Authorization=given, Host="10.9.1.1")[0] == 200


def test_a_right_password_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bytes] = []
    real = bcrypt.checkpw

    def counting(password: bytes, hashed: bytes) -> bool:
        checked.append(password)
        return real(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", counting)
    with closing(Site(Access("", USERS))) as running:
        for given, status in ((PASSWORD, 200), (PASSWORD, 200), ("x", 401), ("x", 401)):
            answer = running.ask("/metrics", Authorization=basic("prometheus", given))
            assert answer[0] == status
        # an unknown user costs a check, too: the time gives no hint at existing users
        assert running.ask("/metrics", Authorization=basic("nobody", "x"))[0] == 401
    assert checked == [PASSWORD.encode(), b"x", b"x", b"x"]


def test_tls_serves_https_and_nothing_else(certificates: Path) -> None:
    with closing(Site(tls=tls(certificates).context(), trust=trust(certificates))) as running:
        assert running.ask("/metrics", Host="localhost")[0] == 200
        running.trust = None
        with running.open(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") as plain:
            assert b"200" not in all_of(plain)
        running.trust = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            running.open()


def test_the_cookie_of_a_token_is_secure_over_tls(certificates: Path) -> None:
    context = tls(certificates).context()
    with closing(Site(Access(TOKEN), tls=context, trust=trust(certificates))) as running:
        status, head, _ = running.ask(f"/?token={TOKEN}")
    assert status == 303
    assert re.search(r"set-cookie: .*; Secure", head)


def test_a_client_without_a_required_certificate_is_refused(certificates: Path) -> None:
    required = tls(certificates, client_auth=ssl.CERT_REQUIRED, client_ca_file=certificates / CA)
    with closing(Site(Access(certificate=True), tls=required.context())) as running:
        running.trust = trust(certificates)
        # TLS 1.3 reports it to the client after the handshake
        with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
            running.ask("/metrics")
        running.trust = trust(certificates, "client")
        assert running.ask("/metrics", Host="10.9.1.1")[0] == 200


def test_a_handshake_that_never_ends_is_closed(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patient, "patience", 0.5)
    with closing(Site(tls=tls(certificates).context())) as running, running.open() as client:
        assert all_of(client) == b""


def test_the_exporter_serves_metrics_with_tls_and_password(certificates: Path) -> None:
    """As a process, from its command line to a scrape."""
    text = f"tls_server_config: {{cert_file: server.pem, key_file: server.key}}\n" \
        f"basic_auth_users: {{prometheus: {HASH}}}\n"  # fmt: skip
    file = certificates / "web.yml"
    file.write_text(text)
    argv = (sys.executable, "-m", "nfsrdma_tools", "exporter", "--web.listen-address", ":0",
            "--web.config.file", str(file), "--no-probes", "-i", "0.1",
            "--no-collector.cpu")  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            assert re.fullmatch(r"https://localhost:\d+/metrics", url)
            with pytest.raises(urllib.error.HTTPError, match="401"):
                fetched(url, certificates, "wrong")
            body = fetched(url, certificates, PASSWORD)
        finally:
            process.send_signal(signal.SIGTERM)
    assert "nfsrdma_build_info{" in body
    assert "nfsrdma_cpu_busy_seconds_total" not in body


def fetched(url: str, certificates: Path, password: str) -> str:
    headers = {"Authorization": basic("prometheus", password)}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - its own address
    context = trust(certificates)
    with closing(urllib.request.urlopen(request, timeout=60, context=context)) as answer:  # noqa: S310
        body: bytes = answer.read()
    return body.decode()
