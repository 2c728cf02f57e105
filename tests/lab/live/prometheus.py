# SPDX-License-Identifier: Apache-2.0
"""A Prometheus on this host."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.dashboard import fetched
from testbed.programs import prometheus

__all__ = ["Query", "running"]

Query = Callable[[str], list[Any]]


@contextmanager
def running(folder: Path) -> Iterator[Query]:
    """Run it with the configuration in a folder; yields a function that evaluates an expression."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    argv = (
        *(str(prometheus() / "prometheus"), f"--config.file={folder}/prometheus.yml"),
        *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"),
    )
    log = folder / "log"
    with log.open("wb") as file, subprocess.Popen(argv, stdout=file, stderr=file) as process:

        def query(expression: str) -> list[Any]:
            """The result; waits while Prometheus starts."""
            words = urllib.parse.urlencode({"query": expression})
            for _ in range(120):
                try:
                    answer = json.loads(fetched(f"http://{address}/api/v1/query?{words}"))
                    return list(answer["data"]["result"])
                except urllib.error.HTTPError as error:
                    if error.code != 503:
                        raise AssertionError(f"{expression}: {error.read().decode()}") from error
                except OSError:
                    pass
                assert process.poll() is None, log.read_text()
                time.sleep(0.5)
            raise AssertionError("Prometheus did not answer")

        try:
            yield query
        finally:
            process.terminate()
