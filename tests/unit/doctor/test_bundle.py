# SPDX-License-Identifier: Apache-2.0
"""Bundles of a host's files: what is in them, what is not, and without names."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from field_archive import Unpacked
from hypothesis import given
from hypothesis import strategies as st
from unit.doctor.bundles_made import read_back
from unit.files_made import write, write_all

from nfsrdma_tools.cli import collect as command
from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import bundle as bundles
from nfsrdma_tools.doctor import inputs, recorded
from nfsrdma_tools.doctor.anonymize import anonymized
from nfsrdma_tools.doctor.bundle import Bundle, LeftOut
from nfsrdma_tools.doctor.bundle_documents import CUT
from nfsrdma_tools.doctor.checks import examine
from nfsrdma_tools.doctor.pseudonyms import Pseudonyms
from nfsrdma_tools.errors import UsageError, UserError
from nfsrdma_tools.host.kernel_log.explain import explain
from nfsrdma_tools.host.kernel_log.sources import kernel_ring
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import mounts, servers
from nfsrdma_tools.host.nfsd_status import (
    LIST_ENDS_EARLY,
    NO_FAMILY,
    NfsdStatus,
    PendingList,
    PendingRpc,
    Socket,
)
from nfsrdma_tools.host.rdma.ports import NoRdmaError

KEY = b"k" * 32
MOUNT = (
    "61 22 0:52 / /srv/secret\\040vm rw - nfs4 filer7.corp.test:/pool/payroll rw,vers=4.2,"
    "rsize=1048576,wsize=1048576,proto=rdma,port=20049,clientaddr=10.20.30.7,addr=10.20.30.1\n"
)


def test_this_host_is_judged_the_same_by_its_bundle(tmp_path: Path) -> None:
    bundle = bundles.collect()
    here = examine(Machine())
    with read_back(bundle, tmp_path) as machine:
        there = examine(machine)
    assert there == here


def test_a_bundle_has_files_and_the_links_to_them(tmp_path: Path) -> None:
    write(tmp_path, "sys/devices/pci0/net/e0/mtu", "9000\n")
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/e0").symlink_to("../../devices/pci0/net/e0")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/fstab").write_text(
        "//host/share /cifs cifs password=hidden 0 0\n# a comment\na:/b /c nfs proto=rdma 0 0\n"
        "//host/share /guessed auto password=hidden 0 0\na:/e /d auto rw\n a:/f /e nfs"
    )
    (tmp_path / "etc/shadow").write_text("root:hidden\n")
    bundle = bundles.collect(machine=Machine(tmp_path))
    assert bundle.files == {
        "etc/fstab": b"a:/b /c nfs proto=rdma 0 0\na:/e /d auto rw\n a:/f /e nfs\n",
        "sys/devices/pci0/net/e0/mtu": b"9000\n",
    }
    assert bundle.links == {"sys/class/net/e0": "../../devices/pci0/net/e0"}
    with read_back(bundle, tmp_path) as machine:
        assert machine.read("sys/class/net/e0/mtu") == "9000\n"


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE])
def test_a_name_of_many_folders_is_an_error_of_one_line(kind: bytes, tmp_path: Path) -> None:
    member = tarfile.TarInfo("a/" * 3000 + "b")
    member.type, member.linkname = kind, "c" * (kind == tarfile.SYMTYPE)
    file = tmp_path / "bundle"
    with tarfile.open(file, "w:gz") as tar:
        tar.addfile(member)
    message = "a name in it has 3000 folders, expected at most 200"
    with pytest.raises(UserError, match=message), recorded.opened(file):
        pass
    deep = tmp_path / "deep"
    (deep / ("a/" * 900)).mkdir(parents=True)
    (deep / ("a/" * 900 + "b")).write_text("")
    message = "a name in it has 201 folders, expected at most 200"
    with pytest.raises(UserError, match=message), recorded.opened(deep):
        pass


def test_a_fifo_is_listed_and_a_mask_is_none(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    (etc / "systemd/system").mkdir(parents=True)
    os.mkfifo(etc / "fstab")
    (etc / "systemd/system/nfs-server.service").symlink_to("/dev/null")
    bundle = bundles.collect(machine=Machine(tmp_path))
    assert bundle.files == {}
    assert [entry for entry in bundle.left_out if entry.what.startswith("/etc")] == [
        LeftOut("/etc/fstab", "not a regular file")
    ]
    assert LeftOut("/etc/fstab", "not a regular file") in anonymized(bundle).left_out


def test_mounts_that_cover_one_of_nfs_are_kept() -> None:
    kept = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n61 22 0:52 / /mnt\\040a rw - nfs4 s:/e rw\n"
        "62 61 0:60 / /mnt\\040a rw - overlay overlay rw\n63 22 0:61 / /auto rw - autofs a rw\n"
    )
    others = "64 22 0:62 / /secret rw - ext4 /dev/mapper/secret rw\nno line of mountinfo\n\n"
    assert inputs._nfs_mounts(others + kept + others) == kept


def test_gids_are_added_up_to_many_free_places(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    used = {0: "eth0", 1: "eth0", 60: "eth0.7", 400: "eth9"}
    for folder in ("gids", "gid_attrs/ndevs", "gid_attrs/types"):
        (port / folder).mkdir(parents=True)
    for number in range(512):
        gid = "fe80" if number in used else "0000"
        (port / f"gids/{number}").write_text(f"{gid}{':0000' * 7}\n")
        (port / f"gid_attrs/ndevs/{number}").write_text(f"{used.get(number, '')}\n")
        (port / f"gid_attrs/types/{number}").write_text("RoCE v2\n")
    files = bundles.collect(machine=Machine(tmp_path)).files
    below = "sys/class/infiniband/mlx5_0/ports/1"
    assert {name.removeprefix(f"{below}/") for name in files} == {
        f"{folder}/{number}"
        for folder in ("gids", "gid_attrs/ndevs", "gid_attrs/types")
        # number 400 is behind many free places
        for number in (0, 1, 60)
    }
    assert files[f"{below}/gid_attrs/ndevs/60"] == b"eth0.7\n"


def test_units_of_other_filesystems_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    (folder / "remote-fs.target.wants").mkdir(parents=True)
    for name, source, options in (("a", "server:/a", "ro"), ("b", "//server/b", "password=hidden")):
        text = f"[Mount]\nWhat={source}\nWhere=/{name}\nOptions={options}\n"
        (folder / f"{name}.mount").write_text(text)
        (folder / f"remote-fs.target.wants/{name}.mount").symlink_to(f"../{name}.mount")
    (folder / "c.mount").symlink_to("/dev/null")
    write(tmp_path, "proc/self/mountinfo", MOUNT)
    (tmp_path / "etc/fstab").write_text("server:/c /payroll/c nfs noauto 0 0\n")
    (tmp_path / "payroll").symlink_to("data/payroll")
    bundle = bundles.collect(machine=Machine(tmp_path))
    assert {name for name in bundle.files if "systemd" in name} == {"etc/systemd/system/a.mount"}
    assert bundle.links == {
        "etc/systemd/system/remote-fs.target.wants/a.mount": "../a.mount",
        "etc/systemd/system/c.mount": "/dev/null",
        "payroll": "/data/payroll",
    }
    assert "payroll" not in repr(anonymized(bundle).links)


def test_what_a_user_may_not_read_is_left_out() -> None:
    # pytest's own folder is closed to other users
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "etc").mkdir(mode=0o755)
        (root / "etc/nfs.conf").write_text("[nfsd]\n")
        (root / "etc/nfs.conf").chmod(0)
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setresuid(65534, 65534, 65534)
            left_out = bundles.collect(machine=Machine(root)).left_out
            os._exit(0 if LeftOut("/etc/nfs.conf", "needs root") in left_out else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_tree_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/fstab").symlink_to("fstab")
    (tmp_path / "etc/exports").symlink_to("../etc/exports.d/a.exports")
    (tmp_path / "etc/exports.d").symlink_to("../../../../../../..")
    assert bundles.collect(machine=Machine(tmp_path)).files == {}


def test_the_file_is_new_and_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bundles, "collect", lambda _: Bundle(files={"etc/fstab": b""}))
    file = tmp_path / "bundle.tar.gz"
    command.collect(output=file)
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as tar:
        assert sorted(tar.getnames()) == [
            "commands.json", "etc/fstab", "manifest.json", "netlink.json",
        ]  # fmt: skip
    with pytest.raises(UserError, match="exists"):
        command.collect(output=file)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError):
        command.collect(output=file)
    assert not (tmp_path / "elsewhere").exists()
    assert "--anonymize" in capsys.readouterr().out


def test_a_bundle_goes_to_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(bundles, "collect", lambda _: Bundle(files={"etc/fstab": b""}))
    monkeypatch.chdir(tmp_path)
    command.collect(output=Path("-"))
    captured = capsysbinary.readouterr()
    with tarfile.open(fileobj=io.BytesIO(captured.out)) as tar:
        assert "etc/fstab" in tar.getnames()
    assert captured.err.startswith(b"wrote the bundle: 1 files\n")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="both the bundle and JSON"):
        command.collect(output=Path("-"), as_json=True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with pytest.raises(UsageError, match="a bundle is no text for a terminal"):
        command.collect(output=Path("-"))


def test_texts_of_the_program_stay_whole_in_an_anonymized_bundle() -> None:
    traceback = (
        'Traceback (most recent call last):\n  File "/home/kim/x.py", line 1, in <module>\n{}\n'
    )
    errors = {
        "ModuleNotFoundError: No module named 'bcc'": "ModuleNotFoundError: No module named 'bcc'",
        "AttributeError: module 'bcc' at kim has no BPF": "AttributeError: withheld",
        "kim.Error: no": "withheld",
    }
    reasons = {
        "needs root": "needs root",
        CUT: CUT,
        "cannot read the read-ahead of kim: [Errno 2] No such file or directory: '/kim'": (
            "the reader failed: No such file or directory"
        ),
        "cannot parse mountstats: kim (report this kernel version)": "the reader failed",
    }
    for before, after in errors.items():
        made = Bundle(left_out=[LeftOut("states", reason) for reason in reasons])
        argv = ("python3", "-c", "import bcc")
        # as a bundle notes it: "python3" for the interpreter of any path
        failure = Result(("/opt/kim/bin/python3.13", *argv[1:]), "", traceback.format(before), 1)
        made.notes.programs[argv] = failure
        made.notes.links = NoRdmaError("Protocol not supported")
        changed = anonymized(made)
        result = changed.notes.programs[argv]
        assert result
        assert (result.argv, result.stderr) == (argv, f"{after}\n")
        assert [entry.why for entry in changed.left_out] == list(reasons.values())
        assert str(changed.notes.links) == str(made.notes.links)


@pytest.mark.parametrize("error", [UserError("kim is away"), NoRdmaError("kim is away")])
def test_an_unknown_error_of_links_leaves_no_text(error: UserError) -> None:
    made = Bundle()
    made.notes.links = error
    assert "kim" not in repr(anonymized(made).notes.links)


def test_pending_rpcs_are_recorded_and_without_addresses(tmp_path: Path) -> None:
    rpcs = (
        PendingRpc(7, 100003, 4, 1, 5, "10.7.7.7", 703, "10.7.7.8", 2049, (53, 22, 25)),
        PendingRpc(8, 100003, 3, 6, 4, "fd7a:77::/64", 703, "fd7a:77::/64", 20049),
    )
    made = Bundle()
    made.notes.nfsd = NfsdStatus(
        pool_threads=(4, 4),
        min_threads=2,
        listeners=(Socket("rdma", "10.7.7.8", 20049), Socket("tcp", "::", 2049)),
        versions=("3", "4.2"),
        pool_mode="pernode",
        pending=PendingList(rpcs, 2, LIST_ENDS_EARLY),
        unknown={"pool-mode-get": NO_FAMILY, "version-get": "kim is away"},
    )
    made.notes.addresses["filer7"] = ["10.7.7.7"]
    for bundle in (made, anonymized(made)):
        with read_back(bundle, tmp_path) as machine:
            assert machine.nfsd_status() == bundle.notes.nfsd
            (address,) = machine.addresses(next(iter(bundle.notes.addresses)))
            pending = machine.nfsd_status().pending
        # the same placeholder as everywhere
        assert pending
        assert pending.rpcs[0].client == address
    there = repr(bundle.notes)
    assert not [word for word in ("7.7.7", "7.7.8", "fd7a:77", "kim") if word in there]
    kept = bundle.notes.nfsd
    assert kept and kept.pending
    pending = kept.pending
    assert (kept.pool_threads, kept.min_threads, kept.pool_mode) == ((4, 4), 2, "pernode")
    assert kept.versions == ("3", "4.2")
    assert kept.unknown["pool-mode-get"] == NO_FAMILY
    assert (pending.cut, pending.count, pending.rpcs[1].client[-3:]) == (LIST_ENDS_EARLY, 2, "/64")
    assert [(rpc.xid, rpc.operations) for rpc in pending.rpcs] == [(7, (53, 22, 25)), (8, ())]


# exports(5) of nfs-utils 2.9.1, and what exportfs writes to etab
EXPORT_OPTIONS = (
    "secure insecure rw ro async sync no_wdelay wdelay nohide hide crossmnt nocrossmnt "
    "no_subtree_check subtree_check sign_fh insecure_locks secure_locks no_auth_nlm auth_nlm "
    "mountpoint mountpoint=/srv mp mp=/srv fsid=root fsid=0 nordirplus refer=/srv@localhost "
    "replicas=/srv@localhost pnfs no_pnfs security_label reexport=auto-fsidnum "
    "reexport=predefined-fsidnum root_squash no_root_squash all_squash no_all_squash anonuid=65534 "
    "anongid=65534 acl no_acl sec=sys:krb5:krb5i:krb5p xprtsec=none:tls:mtls"
)
# nfs.conf(5) and the nfs.conf of nfs-utils 2.9.1
NFS_CONF = {
    "general": "pipefs-directory",
    "exports": "rootdir",
    "exportd": "debug manage-gids threads cache-use-ipaddr ttl state-directory-path no-netlink",
    "nfsd": "debug threads min-threads host scope port grace-time lease-time udp tcp vers3 vers4 "
    "vers4.0 vers4.1 vers4.2 rdma rdma-port fh-key-file",
    "mountd": "debug manage-gids descriptors port threads reverse-lookup cache-use-ipaddr ttl "
    "state-directory-path ha-callout apply-root-cred no-netlink",
    "statd": "debug port outgoing-port name state-directory-path ha-callout no-notify",
    "lockd": "port udp-port",
    "sm-notify": "debug force retry-time outgoing-port outgoing-addr lift-grace",
    "gssd": "verbosity rpc-verbosity use-memcache use-machine-creds use-gss-proxy avoid-dns "
    "allowed-enctypes context-timeout rpc-timeout keytab-file cred-cache-directory "
    "preferred-realm set-home upcall-timeout cancel-timed-out-upcalls",
    "svcgssd": "principal verbosity rpc-verbosity idmap-verbosity",
    "exportfs": "debug",
    "nfsdcld": "debug storagedir",
    "nfsdcltrack": "debug storagedir",
    "nfsrahead": "nfs nfs4 nfsv4 default",
}


def test_all_options_of_exports_stay() -> None:
    options = EXPORT_OPTIONS.replace(" ", ",")
    made = Bundle(files={
        "etc/exports": f"/srv *({options})\n".encode(),
        "var/lib/nfs/etab": f"/srv\t*({options})\n".encode(),
    })  # fmt: skip
    changed = anonymized(made)
    assert (changed.files, changed.withheld) == (made.files, {})


def test_all_keys_of_nfs_conf_stay() -> None:
    lines = []
    for section, keys in NFS_CONF.items():
        lines += [f"[{section}]", *(f"{key}=1" for key in keys.split())]
    made = Bundle(files={"etc/nfs.conf": ("\n".join(lines) + "\n").encode()})
    anonymous = anonymized(made).files["etc/nfs.conf"].decode().split("\n")[:-1]
    # the values of some keys are names
    named = ("host=", "scope=", "name=")
    assert [line for line in anonymous if not line.startswith(named)] == [
        line for line in lines if not line.startswith(named)
    ]
    assert [line.partition("=")[0] for line in anonymous] == [
        line.partition("=")[0] for line in lines
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("-/etc/kim", "-/etc/dir-1"),
        ("/etc/kim.conf", "/etc/file-1.conf"),
        ('"-/etc/nfs.conf.local"', '"-/etc/nfs.conf.local"'),
    ],
)
def test_an_include_of_nfs_conf_keeps_its_form(value: str, expected: str) -> None:
    made = Bundle(files={"etc/nfs.conf": f"[nfsd]\ninclude={value}\n".encode()})
    text = anonymized(made).files["etc/nfs.conf"].decode()
    assert text == f"[nfsd]\ninclude={expected}\n"


def test_the_summary_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Bundle(files={"a": b""}, left_out=[LeftOut("/x", "needs root")])
    monkeypatch.setattr(bundles, "collect", lambda _: bundle)
    command.collect(output=tmp_path / "b", as_json=True)
    shown = json.loads(capsys.readouterr().out)
    left_out = [{"what": "/x", "why": "needs root"}]
    assert shown == {
        "schema_version": 1,
        "file": str(tmp_path / "b"),
        "files": 1,
        "left_out": left_out,
    }


def test_no_name_of_the_host_is_left(tmp_path: Path) -> None:
    bundle = Bundle(
        files={
            "proc/self/mountinfo": MOUNT.encode(),
            "etc/hosts": b"10.20.30.1 filer7.corp.test filer7 # payroll\n",
            "etc/fstab": b"filer7.corp.test:/pool/payroll /srv/secret\\040vm nfs proto=rdma 0 0\n",
            "etc/exports": b"/srv/budget 10.20.0.0/16(rw) client9.corp.test(ro)\n",
            "proc/fs/nfsfs/volumes": b"NV SERVER\nv4 0a141e01 4e51 0:52 0:0 no\n",
            "etc/systemd/system/srv-budget.mount": b"[Mount]\nWhat=filer7:/pool/payroll\n",
        },
        left_out=[LeftOut("/srv/budget", "filer7.corp.test is gone")],
    )
    bundle.notes.addresses["filer7.corp.test"] = ["10.20.30.1"]
    changed = anonymized(bundle)
    everything = b"\n".join(changed.files.values()) + repr((changed.files, changed.notes)).encode()
    everything += repr(changed.left_out).encode()
    for word in (b"filer7", b"corp", b"secret", b"budget", b"client9", b"10.20.30", b"0a141e01"):
        assert word not in everything, word
    # one word for each, wherever it stands
    with read_back(changed, tmp_path) as machine:
        info = machine.read("proc/self/mountinfo")
        host = re.search(r"nfs4 (\S+):", info)
        address = re.search(r",addr=(\S+)", info)
        assert host
        assert address
        assert machine.addresses(host[1]) == [address[1]]
        volume = machine.read("proc/fs/nfsfs/volumes").split("\n")[1].split()[1]
        assert str(ipaddress.ip_address(bytes.fromhex(volume))) == address[1]
        findings = {finding.name: finding for finding in examine(machine)}
        assert [f.status for name, f in findings.items() if name.startswith("fstab /srv/")] == [
            "ok"
        ]


LOG = """\
2026-11-26T17:12:14+0000 oldname7 kernel: nfs: server lost7.corp.test not responding, timed out
2026-11-26T17:12:15+0000 oldname7 kernel: nfs: server ok7 OK
"""
RING = "[    9.100000] nfs: server gone7.corp.test not responding, timed out\n"
LINKS = '[{"ifname":"eth0","ifalias":"rack 7 \\"acme\\"","phys_switch_id":"b8599f7","mtu":1500}]'
RULES = 'table inet f {\n\tchain input {\n\t\ttcp dport 2049 drop comment "acme vpn"\n\t}\n}\n'
HIDDEN: dict[str, str | bytes] = {
    # several servers, a bracket, a newline, an escape sequence, invalid UTF-8, and 4 KiB
    "proc/self/mountinfo": (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "61 22 0:52 / /srv/a\\012acme rw - nfs4 one7,two7.corp:/p/\x1b[2Jacme rw,addr=10.7.7.7\n"
        "62 22 0:53 / /srv/\udcffacme rw - nfs filer7:/p rw,addr=::ffff:10.7.7.8,proto=tcp\n"
        f"63 22 0:54 / /srv/{'acme' * 1024} rw - nfs4 filer7:/{'acme/' * 800} rw\n"
        "64 22 0:55 / /srv/n rw - nfs nfs.corp.test:/p rw,proto=tcp\n"
        "65 22 0:56 / /srv/m rw - nfs nfs:/p rw,proto=tcp\n"
    ),
    "etc/fstab": "nfs:/p /srv/m nfs rw 0 0 # acme\nFILER7.other.acme:/q /srv/q nfs rw 0 0\n",
    "etc/hosts": "10.7.7.8 filer7 # acme\n# acme\n",
    "etc/nfs.conf": "; acme\n[nfsd]\nhost=ib7.corp.test, ib8\nthreads=8\n",
    "etc/nfsmount.conf": '[ Server "conf7" ]\nproto=rdma\n',
    "etc/exports": '"/srv/my acme" *(ro,refer=/acme@ref7+ref8.corp.test:/acme2@ref9)\n',
    "etc/exports.d/acme.exports": "/srv/x client7(rw)\n",
    "etc/systemd/system/srv-q.mount": "[Unit]\nDescription=acme\n[Mount]\nWhat=filer7:/q\n",
    "etc/udev/rules.d/60-x.rules": '# acme \\\nATTR{read_ahead_kb}="128"\n',
    "proc/version": "Linux version 6.12.1 (eve7@build7.acme) (gcc 12) #1 SMP\n",
}


def test_names_in_unusual_places_are_replaced(tmp_path: Path) -> None:
    bundle = Bundle(files={name: os.fsencode(text) for name, text in HIDDEN.items()})
    link = ("ip", "-d", "-j", "link", "show")
    printed = {("journalctl",): LOG, ("dmesg",): RING, link: LINKS, ("nft",): RULES}
    for argv, text in printed.items():
        bundle.notes.programs[argv] = Result(argv, text, "", 0)
    bundle.notes.facts["module build"] = "/home/eve7/.cache/nfsrdma/x.ko"
    changed = anonymized(bundle)
    everything = repr((changed.files, changed.links, changed.notes, changed.left_out)).lower()
    words = ("acme", "corp", "eve7", "one7", "two7", "filer7", "oldname7", "gone7", "lost7", "ok7",
             "ib7", "ib8", "conf7", "ref7", "ref8", "ref9", "client7", "build7", "b8599f7",
             "10.7.7", "7.7.8")  # fmt: skip
    assert [word for word in words if word in everything] == []
    shown = changed.notes.programs[link]
    assert shown and json.loads(shown.stdout) == [{"ifname": "eth0", "mtu": 1500}]
    with read_back(changed, tmp_path) as machine:
        mounted = mounts.mounts(machine)
        assert [mount.transport for mount in mounted].count("tcp") == 3
        # a host that is called nfs, as the type of the filesystem is
        assert [mount.target.host for mount in mounted[-2:]] == [
            "host-4.domain-2.example",
            "host-4",
        ]
        (rules,) = (machine.root / "etc/udev/rules.d").iterdir()
        assert rules.read_text().startswith("#\nATTR")
        assert len(list((machine.root / "etc/exports.d").glob("*.exports"))) == 1
        (silent,) = explain(kernel_ring(machine))
        assert re.fullmatch(r"host-\d+\.domain-\d+\.example", silent.subject)


DIGITS = {
    "etc/systemd/system/5551234.service": "[Service]\nExecStartPre=login 5558888 5557777\n"
    "ExecStart=/usr/sbin/rpc.nfsd --rdma=20049 8\nExecStart=/bin/sh -c 'echo 5556666 | login'\n"
    "WantedBy=5551234.service\n",
    "etc/systemd/system/opt.service": "[Service]\nExecStart=/opt/5552222/run rdma 20049\n",
    "etc/nfs.conf": "[gssd]\npreferred-realm=5551111\ncontext-timeout=3600\n",
    "etc/modprobe.d/a.conf": "install rpcrdma login 5558888 5557777\noptions sunrpc x=1\n",
    "etc/rc.local": "#!/bin/sh\nlogin 5558888\nrdma 20049\n",
    "etc/udev/rules.d/60-x.rules": 'ENV{ID_SERIAL}=="5551234567", ATTR{read_ahead_kb}="16384"\n',
    "etc/fstab": "5550000:/p /srv/m nfs proto=rdma,port=20049 0 0\n",
}


def test_a_name_of_digits_is_no_number() -> None:
    bundle = Bundle(files={name: text.encode() for name, text in DIGITS.items()})
    argv = ("dmesg",)
    line = "[    9.100000] nfs: server 5550000 not responding, timed out\n"
    bundle.notes.programs[argv] = Result(argv, line, "", 0)
    changed = anonymized(bundle)
    everything = repr((changed.files, changed.notes))
    assert re.findall("555[0-9]{4,7}", everything) == []
    assert everything.count("20049") == 4
    assert [
        text for text in ("rpc.nfsd --rdma=20049 8", "16384", "3600") if text in everything
    ] == [
        "rpc.nfsd --rdma=20049 8",
        "16384",
        "3600",
    ]
    # one name in the log and in fstab
    assert everything.count("host-1") == 2


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("login 555-12-34", "withheld-1 withheld-2"),
        ("login +1-555-12", "withheld-1 withheld-2"),
        ("login 555.12.34", "withheld-1 withheld-2"),
        ("login 12:34:56", "withheld-1 withheld-2"),
        ("login 12+34@56", "withheld-1 withheld-2"),
        ("login 0xdeadbee", "withheld-1 withheld-2"),
        # the first of them is short
        ("login 555 12 34", "withheld-1 555 withheld-2 withheld-3"),
        ("login 555 - 12", "withheld-1 555 - withheld-2"),
        # what readers need
        ("rpc.nfsd --rdma=20049 8", "rpc.nfsd --rdma=20049 8"),
        ("rpc.nfsd -p 12 8", "rpc.nfsd -p 12 8"),
        ("echo 12-34 0000:3b:00.0", "echo withheld-1 0000:3b:00.0"),
    ],
)
def test_a_number_in_parts_is_a_free_number(command: str, expected: str) -> None:
    assert Pseudonyms(KEY).command(command) == expected


def test_addresses_of_digits_keep_their_types_in_a_command() -> None:
    names = Pseudonyms(KEY)
    ip, mac = "10.12.34.56", "00:11:22:33:44:55"
    assert names.command(f"login {ip} {mac}") == f"withheld-1 {names.word(ip)} {names.word(mac)}"


def addresses(version: int) -> st.SearchStrategy[Any]:
    networks = {4: "10.0.0.0/8", 6: "2001:db8::/32"}
    return st.ip_addresses(network=networks[version])


@pytest.mark.parametrize("version", [4, 6])
@given(data=st.data())
def test_pseudonyms_keep_the_common_prefix_of_addresses(version: int, data: st.DataObject) -> None:
    words = Pseudonyms(KEY)
    first, second = data.draw(addresses(version)), data.draw(addresses(version))
    changed = [ipaddress.ip_address(words.word(str(address))) for address in (first, second)]
    assert common(*changed) == common(first, second)


def common(first: Any, second: Any) -> int:
    return int(first.max_prefixlen - (int(first) ^ int(second)).bit_length())


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1", "255.255.255.0", "::1", "6.12.118", "12:30:45", "rxe0"],
)
def test_pseudonyms_leave_what_is_no_address_of_a_host(text: str) -> None:
    assert Pseudonyms(KEY).word(text) == text


def test_a_gid_holds_the_address_that_it_held() -> None:
    words = Pseudonyms(KEY)
    gid = words.word("0000:0000:0000:0000:0000:ffff:0a14:1e01")
    mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    assert str(mapped) == words.word("10.20.30.1")
    # Python 3.13 writes the end of such an address as IPv4
    assert re.fullmatch("(0000:){5}ffff(:[0-9a-f]{4}){2}", gid)
    assert words.word("::ffff:10.20.30.1") == f"::ffff:{mapped}"


@pytest.mark.parametrize(
    ("kernel", "some"),
    [
        ("6.1", {"READ", "CREATE_SESSION", "OPEN"}),
        ("6.12", {"READ", "SEQUENCE", "LISTXATTRS"}),
        ("7.2", {"READ", "CREATE_SESSION", "OPEN"}),
    ],
    ids=["6.1", "6.12", "7.2"],
)
def test_operations_of_a_kernel_stay_and_others_have_no_name(kernel: str, some: set[str]) -> None:
    file = Path(__file__).parents[1] / f"data/mountstats-{kernel}.txt"
    text = file.read_text()
    names = set(re.findall(r"^\t *([A-Z][A-Z0-9_]*): ", text, re.M))
    assert some <= names
    others = (
        "\t      UNUSED7: 0 0 0 0 0 0 0 0 0\n\t         KIM: 5 5 0 1 1 2 3 4 0\nREAD_KIM: 1 2\n"
    )
    made = Bundle(files={"proc/self/mountstats": f"{text}{others}READ: {'1 ' * 40}\n".encode()})
    lines = anonymized(made).files["proc/self/mountstats"].decode().split("\n")
    assert {line.strip().partition(":")[0] for line in lines} >= names
    assert [re.sub("withheld-[0-9]+", "other", line) for line in lines[-4:]] == [
        "\t      UNUSED7: 0 0 0 0 0 0 0 0 0", "\t         other: 5 5 0 1 1 2 3 4 0",
        "other: 1 2", "",
    ]  # fmt: skip


def test_a_servers_line_that_begins_with_device_is_kept() -> None:
    record = (
        "device filer:/x mounted on /x with fstype nfs4 statvers=1.1\n\timpl_id:\tname='y\n"
        "device user@host:/usr/obj\n',domain='',date='0,0'\n\tcaps:\tcaps=0x1\n\n"
    )
    others = (
        "device proc mounted on /proc with fstype proc\nno device mounted on /t with fstype tmpfs\n"
        "device nfsd mounted on /proc/fs/nfsd with fstype nfsd\n"
    )
    assert inputs._nfs_records(others + record + others + record) == 2 * record


def test_an_ipoib_address_ends_in_the_gid_of_its_port() -> None:
    words = Pseudonyms(KEY)
    gid = words.word("fe80:0000:0000:0000:0c42:a103:0011:2233")
    changed = words.word("80:00:01:4d:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:11:22:33")
    # neither flags nor the number of a queue pair
    assert changed.startswith("80:00:00:00:fe:80:")
    assert changed[12:].replace(":", "") == gid.replace(":", "")
    assert "0c:42:a1:03:00:11:22:33" not in changed


@pytest.mark.parametrize("case", ["ib-vm-cloud", "rhel9-bond-vlan-roce", "ipv6-only-route"])
@pytest.mark.parametrize("changed", [lambda bundle: bundle, anonymized], ids=["plain", "anonymous"])
def test_a_bundle_has_what_routes_need(
    tmp_path: Path, case: str, changed: Callable[[Bundle], Bundle], field: Unpacked
) -> None:
    with recorded.opened(field(case)) as machine:
        assert machine.recording
        here = routes_of(machine)
        bundle = bundles.collect(machine=Machine(machine.root))
        bundle.notes = machine.recording
    with read_back(changed(bundle), tmp_path) as machine:
        assert routes_of(machine) == here
    assert len(here) > 2


def routes_of(machine: Machine) -> list[tuple[str, str]]:
    kinds = ("route", "mtu", "wire", "link")
    words = ((finding.name.split()[0], finding.status) for finding in examine(machine))
    return [pair for pair in words if pair[0] in kinds]


def test_a_drop_in_of_another_filesystem_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "etc/systemd/system"
    for name, source in (("a", "s:/a"), ("b", "//s/b")):
        (folder / f"{name}.mount.d").mkdir(parents=True)
        (folder / f"{name}.mount").write_text(f"[Mount]\nWhat={source}\nWhere=/{name}\n")
        (folder / f"{name}.automount").write_text(f"[Automount]\nWhere=/{name}\n")
        (folder / f"{name}.mount.d/x.conf").write_text("[Mount]\nOptions=name=admin,secret=AQ\n")
        (folder / f"{name}.mount.d/y.conf").write_text("[Mount]\nOptions=proto=rdma\n")
    files = bundles.collect(machine=Machine(tmp_path)).files
    assert b"AQ" not in b"".join(files.values())
    assert sorted(name for name in files if "/b." in name) == []
    assert files["etc/systemd/system/a.mount.d/y.conf"] == b"[Mount]\nOptions=proto=rdma\n"


def large(count: int) -> str:
    """mountinfo of a host with this many overlays before its NFS mount."""
    layers = ":".join(f"/var/lib/containers/{number:064x}" for number in range(14))
    rows = [
        f"{at} 22 0:{at} / /o/{at} rw - overlay overlay rw,lowerdir={layers}"
        for at in range(100, 100 + count)
    ]
    return "\n".join([*rows, MOUNT])


def test_a_long_list_is_filtered_before_it_is_cut(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/mountinfo", large(1500))
    made = bundles.collect(machine=Machine(tmp_path))
    assert made.files["proc/self/mountinfo"] == MOUNT.encode()
    assert [entry for entry in made.left_out if entry.why == CUT] == []


def test_what_was_cut_is_listed_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "host"
    write(root, "proc/sys/kernel/osrelease", "6.12.0\n")
    write(root, "proc/self/mountinfo", MOUNT + MOUNT.replace("secret", "other"))
    write(root, "etc/fstab", "filer7:/x /srv/other\\040vm nfs proto=rdma 0 0\n")
    monkeypatch.setattr(bundles, "_MOST_KEPT", len(MOUNT) + 20)
    made = bundles.collect(machine=Machine(root))
    assert made.files["proc/self/mountinfo"] == MOUNT.encode()
    assert LeftOut("/proc/self/mountinfo", CUT) in made.left_out
    for bundle in (made, anonymized(made)):
        with read_back(bundle, tmp_path) as machine:
            findings = [row for row in examine(machine) if row.name.startswith("fstab /srv")]
        assert [row.status for row in findings] == ["unknown"]


MEMORY = """
import json, sys
from pathlib import Path
from nfsrdma_tools.doctor import bundle
from nfsrdma_tools.host.machine import Machine
made = bundle.collect(machine=Machine(Path(sys.argv[1])))
made.archive()
# ru_maxrss counts the memory of the parent before exec(), too
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10
print(json.dumps([peak, [vars(one) for one in made.left_out], len(made.files)]))
"""


def test_a_table_of_many_mounts_takes_little_memory(tmp_path: Path) -> None:
    folder = tmp_path / "proc/self"
    folder.mkdir(parents=True)
    with (folder / "mountinfo").open("w") as info, (folder / "mountstats").open("w") as counters:
        for n in range(200_000):
            info.write(MOUNT.replace("secret", f"{n}").replace("filer7", f"filer{n % 3000}"))
            counters.write(
                f"device f:/x mounted on /srv/{n}\\040vm with fstype nfs4 statvers=1.1\n"
            )
            counters.write("\tage:\t1\n\n")
    argv = (sys.executable, "-c", MEMORY, str(tmp_path))
    peak, left_out, files = json.loads(subprocess.check_output(argv, cwd=Path(__file__).parents[3]))
    assert left_out == [
        {"what": "/proc/self/mountinfo", "why": CUT},
        {"what": "/proc/self/mountstats", "why": CUT},
    ]
    assert files == 2
    assert peak < 256


@pytest.mark.parametrize("count", [1, 3])
def test_readers_of_a_long_table_get_what_the_bundle_keeps(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    other = "31 22 0:30 / /run/user/1000 rw - tmpfs tmpfs rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(other + MOUNT * count)
    monkeypatch.setattr(bundles, "_MOST_KEPT", len(other) + len(MOUNT))
    kept = bundles._read_list(tmp_path, "proc/self/mountinfo")
    assert kept == (other + MOUNT if count == 1 else MOUNT)


@pytest.mark.parametrize("most", [900, 1400, 2100])
def test_mountstats_is_cut_behind_a_mount(most: int) -> None:
    record = "device a:/b mounted on /c with fstype nfs4 statvers=1.1\n\tage:\t1\n" + "\tx\n" * 90
    kept = bundles._whole_records("proc/self/mountstats", record.encode() * 9, most)
    assert kept == record.encode() * (most // len(record))


@pytest.mark.parametrize("name", ["eth0", "storage", "v1", "local"])
def test_a_device_has_one_name_in_files_and_programs(name: str) -> None:
    words = Pseudonyms(KEY)
    changed = words.file(f"sys/class/net/{name}/lower_{name}/mtu").split("/")
    assert changed[3:5] == [words.device(name), f"lower_{words.device(name)}"]


def test_is_own_is_the_same_from_a_bundle_by_the_name_of_the_host(tmp_path: Path) -> None:
    host = tmp_path / "host"
    fstab = "payroll7:/srv /mnt nfs rdma 0 0\n"
    write_all(host, {"proc/sys/kernel/hostname": "payroll7\n", "etc/hosts": "", "etc/fstab": fstab})
    made = bundles.collect(machine=Machine(host))
    for bundle in (made, anonymized(made)):
        with read_back(bundle, tmp_path) as machine:
            ((name, _),) = servers.requested_over_rdma(machine)
            assert servers.is_own(machine, name)
    assert "payroll" not in repr(bundle)
