# SPDX-License-Identifier: Apache-2.0
"""The web configuration file of the Prometheus exporter toolkit: TLS and basic authentication.

The keys read here are those that exporters are usually given: ``tls_server_config`` with a
certificate, its key and the check of client certificates, and ``basic_auth_users``.  Any other key
is an error, because ignoring it would serve less protection than the file asks for.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nfsrdma_tools.errors import UserError

__all__ = ["Tls", "WebConfig", "read"]

_KEYS = ("basic_auth_users", "tls_server_config")
_TLS_KEYS = ("cert_file", "client_auth_type", "client_ca_file", "key_file")
# Python's ssl cannot request a certificate without verifying it, as Go's other two values do
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
_HASH_HINT = "make one with: htpasswd -nBC 10 USER"


@dataclass(frozen=True)
class Tls:
    """A certificate with its key, and which client certificates it takes to connect."""

    cert_file: Path
    key_file: Path
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    client_ca_file: Path | None = None

    def context(self) -> ssl.SSLContext:
        """A context for TLS 1.2 and later; UserError if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = self.client_auth
        try:
            context.load_cert_chain(self.cert_file, self.key_file)
            if self.client_ca_file:
                context.load_verify_locations(self.client_ca_file)
        # OSError includes ssl.SSLError
        except OSError as error:
            files = ", ".join(map(str, filter(None, (self.cert_file, self.key_file,
                                                     self.client_ca_file))))  # fmt: skip
            reason = error.strerror or str(error)
            raise UserError(f"cannot load the TLS files {files}: {reason}") from error
        return context


@dataclass(frozen=True)
class WebConfig:
    """The content of a web configuration file; ``users`` maps names to bcrypt hashes."""

    tls: Tls | None = None
    users: Mapping[str, str] = field(default_factory=dict)

    @property
    def verifies_clients(self) -> bool:
        """Whether TLS refuses clients without a valid certificate."""
        return self.tls is not None and self.tls.client_auth is ssl.CERT_REQUIRED


def read(path: Path) -> WebConfig:
    """The configuration in a file; file names in it are relative to its directory.

    Raises UserError, with the path and the keys in it, if the file is unreadable or unsupported.
    """
    content = _section(_loaded(path), path, "the file")
    unsupported = [*_unsupported(content, _KEYS, "")]
    tls = _section(content.get("tls_server_config"), path, "tls_server_config")
    unsupported += _unsupported(tls, _TLS_KEYS, "tls_server_config.")
    if unsupported:
        supported = ", ".join((_KEYS[0], *(f"tls_server_config.{key}" for key in _TLS_KEYS)))
        raise UserError(
            f"{path}: unsupported keys: {', '.join(unsupported)}", f"supported: {supported}"
        )
    users = _section(content.get("basic_auth_users"), path, "basic_auth_users")
    return WebConfig(_tls(tls, path) if tls else None, _users(users, path))


def _loaded(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read {path}: {reason}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def _section(value: Any, path: Path, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected keys and values in {name}, got {value!r:.40}")
    return value


def _unsupported(section: Mapping[Any, Any], keys: tuple[str, ...], prefix: str) -> Iterator[str]:
    yield from (f"{prefix}{key}" for key in section if key not in keys)


def _tls(section: Mapping[str, Any], path: Path) -> Tls:
    wrong = [key for key, value in section.items() if not isinstance(value, str)]
    if wrong:
        raise UserError(f"{path}: expected text in tls_server_config.{wrong[0]}")
    absent = [key for key in ("cert_file", "key_file") if not section.get(key)]
    if absent:
        raise UserError(f"{path}: tls_server_config has no {' and no '.join(absent)}")
    kind, ca = section.get("client_auth_type") or "NoClientCert", section.get("client_ca_file")
    if kind not in _CLIENT_AUTH:
        supported = f"supported: {', '.join(_CLIENT_AUTH)}"
        raise UserError(f"{path}: unsupported client_auth_type {kind!r}", supported)
    client_auth = _CLIENT_AUTH[kind]
    if bool(ca) != (client_auth is not ssl.CERT_NONE):
        raise UserError(
            f"{path}: client_auth_type is {kind}, client_ca_file is {ca or 'not set'}",
            "set both: a type that verifies certificates, and the CA that signed them",
        )
    folder = path.parent
    files = (folder / section["cert_file"], folder / section["key_file"])
    return Tls(*files, client_auth, folder / ca if ca else None)


def _users(section: Mapping[Any, Any], path: Path) -> dict[str, str]:
    for name, value in section.items():
        if not isinstance(name, str) or not name or ":" in name:
            raise UserError(f"{path}: {name!r} in basic_auth_users is not a user name")
        if not isinstance(value, str) or not _BCRYPT.fullmatch(value):
            # not the value: it may be a password
            raise UserError(f"{path}: the password of {name} is not a bcrypt hash", _HASH_HINT)
    return dict(section)
