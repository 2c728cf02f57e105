# SPDX-License-Identifier: Apache-2.0
"""What Prometheus would get from an exporter, in a node."""

from __future__ import annotations

import urllib.error
import urllib.request

from testbed.remote import on

__all__ = ["scrape"]


@on("client")
def scrape(token: str = "", host: str = "127.0.0.1") -> str:
    """The metrics; empty while the exporter does not listen, or the error by which it refuses."""
    request = urllib.request.Request(f"http://{host}:29949/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error)
    except OSError:
        return ""
