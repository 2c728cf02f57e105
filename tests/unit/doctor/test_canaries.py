# SPDX-License-Identifier: Apache-2.0
"""No canary leaves a host in an anonymized bundle, and the answers from it stay.

``make campaign NAME=canaries ARGS="--hosts 200"`` makes more hosts than a run of the unit tests.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
from collections import Counter
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

import pytest
from field_archive import CASES, Unpacked
from unit.doctor.bundles_made import read_back
from unit.doctor.hosts_made import KINDS, Host, forms

from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import bundle as bundles
from nfsrdma_tools.doctor import recorded
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.bundle import Bundle
from nfsrdma_tools.doctor.checks import AFTER_REBOOT, examine
from nfsrdma_tools.doctor.finding import Finding
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.kernel_log.explain import explain
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mount_state
from nfsrdma_tools.host.nfsd.serving import serving

HOSTS = int(os.environ.get("CANARY_HOSTS", str(2 * len(KINDS))))


def bundle_of(folder: Path) -> Bundle:
    """The bundle that ``collect`` makes on a recorded host."""
    with recorded.opened(folder) as machine:
        assert machine.recording
        made = bundles.collect(machine=Machine(machine.root))
        made.notes = machine.recording
        made.notes.programs = dict(map(bundles._shortened, made.notes.programs.items()))
        return made


def everything(made: Bundle) -> str:
    """All that a bundle has, names of members included, in lower case."""
    texts = [gzip.decompress(made.archive())]
    with tarfile.open(fileobj=io.BytesIO(texts[0])) as tar:
        for member in tar:
            texts.append(f"{member.name}\n{member.linkname}".encode(errors="surrogateescape"))
            if member.name.endswith(".gz") and (file := tar.extractfile(member)):
                texts.append(gzip.decompress(file.read()))
    return b"\n".join(texts).decode(errors="surrogateescape").lower()


def answers(machine: Machine) -> dict[str, object]:
    """What doctor, mounts and server status say, without names and addresses."""
    verdicts = [(finding.name.split()[0], finding.status) for finding in examine(machine)]
    reboot = [
        (finding.name.split()[:2], finding.status) for finding in examine(machine, AFTER_REBOOT)
    ]
    states = []
    for state in mount_state.states(machine):
        facts = state.facts()
        kept = ("transport", "vers", "rsize", "wsize", "nconnect", "connections", "read_ahead_kb")
        states.append([*(facts[name] for name in kept), len(state.shares_with)])
    status = asdict(serving(machine))
    exports = Counter(len(export["options"]) > 0 for export in status.pop("exports"))
    return {
        "doctor": Counter(verdicts),
        "after a reboot": sorted(reboot),
        "mounts": states,
        "server": status,
        "exports": exports,
    }


_NAME = re.compile(
    # canaries; placeholders; addresses and hexadecimal digits, which have others in their place
    r"\bq[a-z]{9}\b|[a-z]-\d+|x2d|[a-z]{3}-[a-z]{3}\b|withheld|file-[a-z]+|\d+\.\d+\.\d+\.\d+|[0-9a-f]*:[0-9a-f:]+:|AAAA"
    r"|[0-9A-F]{24}|\b(?:example|forbidden)\b",
    re.IGNORECASE,
)


def said(finding: Finding) -> str:
    """The text of a finding with one word for neighbouring words that hold a name or an address."""
    words = f"{finding.name} | {finding.found} | {finding.expected} | {finding.remedy}".split()
    kept = ["NAME" if _NAME.search(word) else word for word in words]
    return " ".join(word for word, _ in groupby(kept))


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_verdicts_of_withheld_values_have_the_same_texts(seed: int, tmp_path: Path) -> None:
    host = Host(seed, tmp_path / "host")
    host.make()
    made = bundle_of(host.root)
    with read_back(made, tmp_path) as machine:
        expected = examine(machine)
    with read_back(anonymized(made), tmp_path) as machine:
        anonymous = examine(machine)
    # findings of the kernel log quote the time of a line, which here may be any text
    texts = [
        sorted(said(finding) for finding in all_ if finding.name != "kernel log")
        for all_ in (expected, anonymous)
    ]
    assert texts[1] == texts[0]


@pytest.mark.parametrize("seed", range(HOSTS))
def test_no_canary_leaves_and_the_answers_stay(seed: int, tmp_path: Path) -> None:
    host = Host(seed, tmp_path / "host")
    host.make()
    made = bundle_of(host.root)
    changed = anonymized(made)
    text = everything(changed)
    left = [(where, canary) for canary, where in host.canaries.items()
            if any(form in text for form in forms(canary))]  # fmt: skip
    assert left == []
    with read_back(made, tmp_path) as machine:
        expected = answers(machine)
    with read_back(changed, tmp_path) as machine:
        assert answers(machine) == expected
    assert sum(changed.withheld.values()) > 0


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_canaries_are_in_a_bundle_that_is_not_anonymized(seed: int, tmp_path: Path) -> None:
    host = Host(seed, tmp_path / "host")
    host.make()
    text = everything(bundle_of(host.root))
    planted = [canary for canary in host.canaries if any(form in text for form in forms(canary))]
    # what collect leaves out by itself, such as units of other filesystems, and comments
    assert len(planted) > len(host.canaries) // 3


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_no_secret_is_in_any_bundle(seed: int, tmp_path: Path) -> None:
    host = Host(seed, tmp_path / "host")
    host.make()
    text = everything(bundle_of(host.root))
    secrets = [canary for canary, where in host.canaries.items() if where == "secret"]
    assert len(secrets) > 4
    assert [secret for secret in secrets if secret.lower() in text] == []


@pytest.mark.parametrize("case", CASES)
def test_a_host_of_the_field_has_the_same_answers(
    case: str, tmp_path: Path, field: Unpacked
) -> None:
    made = bundle_of(field(case))
    try:
        with read_back(made, tmp_path) as machine:
            expected = answers(machine)
    except UserError:
        # a recording without mountinfo
        return
    with read_back(anonymized(made), tmp_path) as machine:
        assert answers(machine) == expected


@pytest.mark.parametrize(
    "line",
    [
        "nfs: server qserver.qdomain not responding, timed out",
        "qproto: server 10.7.8.9 not responding, still trying",
        "qproto: RPC call returned error 13",
        "rpcrdma: removing device qdevice for 10.7.8.9:20049",
        "NFS: state manager: lease expired failed on NFSv4 server qserver with error 13",
    ],
)
def test_a_message_stays_without_its_names(line: str) -> None:
    made = Bundle()
    made.notes.programs["dmesg",] = Result(("dmesg",), f"[    9.100000] {line}\n", "", 0)
    result = anonymized(made).notes.programs["dmesg",]
    assert result
    (before,), (after,) = explain([f"[    9.100000] {line}"]), explain(result.stdout.split("\n"))
    assert (after.name, after.severity, after.numbers) == (
        before.name,
        before.severity,
        before.numbers,
    )
    assert not any(word in result.stdout for word in ("qserver", "qproto", "qdevice", "10.7.8.9"))
