# SPDX-License-Identifier: Apache-2.0
"""A bundle of this host's files, for reports: all that doctor, mounts and server status read.

It has single named files (``CONTENTS``), never a whole tree, and of long files only the lines of
NFS and RDMA.  What programs and netlink said is recorded while the readers themselves run, so that
they find the same on any other host (doctor/recorded.py).  It loads no module and changes nothing.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import gzip
import io
import json
import os
import re
import tarfile
import time
import zlib
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Optional

from nfsrdma_tools.command import Result
from nfsrdma_tools.doctor import kernel_changelog, questions
from nfsrdma_tools.doctor.bundle_documents import CUT, MANIFEST, to_facts
from nfsrdma_tools.doctor.vocabulary import MODULES
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.files import NOT_REGULAR, NotRegularError, open_file
from nfsrdma_tools.host import boot_files, packet_filter, rdma_routes
from nfsrdma_tools.host.boot_files import SYSCTLS
from nfsrdma_tools.host.kernel_log.explain import recognized_lines
from nfsrdma_tools.host.machine import LIVE, Machine, Recording
from nfsrdma_tools.host.nfs import fstab, mount_state, mountinfo, udev_rules, units
from nfsrdma_tools.host.nfsd import ganesha, other_servers, serving

__all__ = ["CONTENTS", "NEEDS_ROOT", "Bundle", "LeftOut", "collect"]

_AT_ONCE = 16 << 10
_MOST_READ = 8 << 20
"""Bytes of a file that are read; 40,000 lines of mountinfo, or 1300 mounts in mountstats."""
_MOST_KEPT = 4 << 20
"""Bytes of a file that are kept, in whole records."""
# the field of a line of mountinfo
_MOUNT_POINT = 4
_STEPS = 400
_LEVEL = 6
_Keep = Callable[[str], Optional[str]]
"""Returns the part of a file's text that the bundle keeps; None leaves the file out."""


def _all(text: str) -> str:
    return text


def _lines(pattern: str) -> Callable[[str], str]:
    wanted = re.compile(pattern)

    def keep(text: str) -> str:
        return "".join(line for line in text.splitlines(keepends=True) if wanted.search(line))

    return keep


def _nothing(_: str) -> str:
    # only that the file exists
    return ""


_OTHER_MOUNT = re.compile(
    r"^(?:no )?device .* ?mounted on .+ with fstype (?!nfs4?[ \n])[^ \n]+\n", re.MULTILINE
)


def _nfs_records(text: str) -> str:
    """The text of mountstats without the lines of other mounts, each of which has one.

    A line of a server's implementation id may begin with "device", too, and is kept.
    """
    return _OTHER_MOUNT.sub("", text)


_MOUNT_OF_INTEREST = re.compile(r" / / | - (nfs4?|nfsd|autofs|rpc_pipefs|debugfs) ")
_OF_NFS = re.compile(r" - (nfs4?|autofs) ")


def _nfs_mounts(text: str) -> str:
    """The lines of mounts that readers use, and of those that cover an NFS mount."""
    lines = [line for line in text.split("\n") if line.count(" ") > _MOUNT_POINT]
    places = {line.split(" ")[_MOUNT_POINT] for line in lines if _OF_NFS.search(line)}
    return "".join(
        f"{line}\n"
        for line in lines
        if _MOUNT_OF_INTEREST.search(line) or line.split(" ")[_MOUNT_POINT] in places
    )


def _nfs_definitions(text: str) -> str:
    lines = "".join(f"{line.text}\n" for line in fstab.nfs_lines(text))
    return _SECRET_OPTION.sub(r"\1=withheld", lines)


# mount.nfs has no such option, but fstab may have one behind a colon of another filesystem
_SECRET_OPTION = re.compile(
    r"\b(user(?:name)?|pass(?:word|wd)?2?|secret|cred(?:entials)?|domain|token|key)=[^,\s]*", re.I
)


def _nfs_unit(text: str) -> str | None:
    # a unit of another filesystem may have a password
    return _without_secrets(text) if units.is_nfs(text) or not text else None


def _modules(text: str) -> str:
    words = (line.strip() for line in text.splitlines())
    return "".join(f"{word}\n" for word in words if word.replace("-", "_") in MODULES)


def _sysctls(text: str) -> str:
    pairs = (line.partition("=") for line in text.splitlines())
    return "".join(
        f"{key.strip()} = {value.strip()}\n"
        for key, equals, value in pairs
        if equals and key.strip().removeprefix("-").replace("/", ".") in SYSCTLS
    )


_SECRET = re.compile(r"pass|secret|user|cred|key|token|domain", re.IGNORECASE)


def _without_secrets(text: str) -> str:
    """Remove the lines of a unit whose names are those of secrets; NFS has no such option."""
    rows = text.replace("\\\n", " ").splitlines(keepends=True)
    return "".join(row for row in rows if not _SECRET.search(_VALUES_OF_TYPE.sub("", row)))


# words of mount options and units in which a part looks like that of a secret
_VALUES_OF_TYPE = re.compile(r"\bno(?:user|users)\b|\busers?\b(?!\w*=)|multi-user\.target")


def _rules(text: str) -> str:
    """The rules for the read-ahead, or those that run a command of interest.

    Other files count by their names: one of these may mask one that has such rules.
    """
    return text if "read_ahead_kb" in text else _commands(text.replace("\\\n", " "))


def _service(text: str, scripts: Container[str] = ()) -> str | None:
    kept = boot_files.kept_lines(text, scripts)
    return kept and _without_secrets(kept)


def _script(text: str) -> str:
    first = text.partition("\n")[0]
    kept = (f"{line}\n" for line in (first, *boot_files.command_lines(text)))
    return _without_secrets("".join(kept))


def _commands(text: str) -> str:
    return _without_secrets("".join(f"{line}\n" for line in boot_files.command_lines(text)))


def _tuned(text: str) -> str | None:
    try:
        rows = json.loads(text)["mounts"]
        kept = [{key: row[key] for key in ("directory", "read_ahead_kb")} for row in rows]
    except (ValueError, KeyError, TypeError):
        return None
    return json.dumps({"mounts": kept})


_CONFIG = _lines(r"CONFIG_(SUNRPC|NFS|INFINIBAND|RDMA|DEBUG_INFO_BTF|NF_TABLES=)")
_UNITS = f"{{{','.join(units.FOLDERS)}}}"
_NAMES = r"nfs|sunrpc|rpcrdma|svcrdma|xprtrdma|lockd|rdma|mlx|siw"
_STARTING = f"{_UNITS}/*.{{wants,requires}}"
_RELEASE = "proc/sys/kernel/osrelease"
_INFINIBAND = "sys/class/infiniband/*"
_PORT = f"{_INFINIBAND}/ports/*"
_NET = "sys/class/net/*"
_MODULE = (
    "sys/module/{nfs,nfsv3,nfsv4,nfsd,sunrpc,rpcrdma,nfsrdma,lockd,rdma_cm,ib_core,rdma_rxe,siw,"
    "mlx5_core,mlx5_ib,irdma,bnxt_re,module}"
)
CONTENTS: tuple[tuple[str, _Keep], ...] = (
    # the kernel and its modules
    (_RELEASE, _all),
    ("proc/version", _all),
    ("proc/version_signature", _all),
    ("proc/modules", _all),
    ("proc/config.gz", _CONFIG),
    ("boot/config-{release}", _CONFIG),
    ("lib/modules/{release}/config", _CONFIG),
    ("lib/modules/{release}/build/Makefile", _nothing),
    ("sys/kernel/btf/vmlinux", _nothing),
    ("sys/kernel/security/lockdown", _all),
    (f"{_MODULE}/version", _all),
    (f"{_MODULE}/srcversion", _all),
    (f"{_MODULE}/taint", _all),
    (f"{_MODULE}/initstate", _all),
    (f"{_MODULE}/parameters/*", _all),
    ("proc/driver/nvidia-fs/modules", _all),
    (f"{{{','.join(boot_files.MODPROBE)}}}/*.conf", _lines(_NAMES)),
    ("etc/os-release", _all),
    (kernel_changelog.FILES, kernel_changelog.abridged),
    # mounts
    ("proc/self/mountinfo", _nfs_mounts),
    ("proc/self/mountstats", _nfs_records),
    ("proc/self/limits", _all),
    ("proc/self/status", _lines("^CapEff:")),
    ("proc/fs/nfsfs/volumes", _all),
    ("proc/fs/nfsfs/servers", _all),
    ("etc/fstab", _nfs_definitions),
    ("etc/nfsmount.conf", _all),
    ("etc/nfsmount.conf.d/*.conf", _all),
    (f"{_UNITS}/*.mount", _nfs_unit),
    (f"{_UNITS}/*.mount.d/*.conf", _without_secrets),
    (f"{_UNITS}/*.automount", _without_secrets),
    (f"{_UNITS}/*.{{wants,requires}}/*.mount", _nfs_unit),
    (f"{_UNITS}/*.{{wants,requires}}/*.automount", _without_secrets),
    ("sbin/mount.nfs", _nothing),
    ("usr/sbin/mount.nfs", _nothing),
    ("sys/class/bdi/*/read_ahead_kb", _all),
    ("sys/fs/nfs/*/nfs_client/switch/xprt-*/*", _all),
    ("sys/kernel/debug/nfsrdma/*/*", _all),
    (f"{{{','.join(udev_rules.FOLDERS)}}}/*.rules", _rules),
    ("var/lib/nfsrdma/tune.json", _tuned),
    # the server
    ("proc/fs/nfsd/{portlist,threads,versions,max_block_size,pool_threads,pool_mode}", _all),
    ("proc/net/rpc/nfsd", _all),
    ("proc/net/tcp{,6}", other_servers.listening_lines),
    (ganesha.CONF, ganesha.kept),
    ("sys/kernel/debug/nfsd/*", _all),
    ("sys/kernel/debug/nfsrdma-server/{totals,*/counters}", _all),
    ("sys/kernel/debug/nfsrdma-server/*/counters", _all),
    ("var/lib/nfs/etab", _all),
    ("etc/exports", _all),
    ("etc/exports.d/*.exports", _all),
    ("{usr/etc,etc}/nfs.conf{,.local}", _all),
    ("{usr/etc,etc}/nfs.conf.d/*.conf", _all),
    ("{etc,run}/sysconfig/nfs{,-utils}", _all),
    (f"{_UNITS}/nfs-server.service", _all),
    (f"{_UNITS}/nfs-server.service.d/*.conf", _all),
    ("etc/default/{nfs-kernel-server,nfs-common}", _all),
    ("etc/hosts", _all),
    # what a boot reads
    (f"{_STARTING}/{{{','.join(sorted(boot_files.SERVERS))}}}", _all),
    (f"{_STARTING}/autofs.service", _nothing),
    (f"{_STARTING}/*.timer", _nothing),
    (f"{_UNITS}/*.service", _service),
    (f"{_UNITS}/*.service.d/*.conf", _service),
    (f"{_STARTING}/*.service", _service),
    (f"{{{','.join(boot_files.RC_LOCAL)}}}", _commands),
    (f"{{{','.join((*boot_files.MODULES_LOAD, boot_files.DEVICE_MODULES))}}}/*.conf", _modules),
    (f"{{{','.join(boot_files.SYSCTL)}}}/*.conf", _sysctls),
    ("etc/sysctl.conf", _sysctls),
    (f"proc/sys/{{{','.join(name.replace('.', '/') for name in SYSCTLS)}}}", _all),
    # RDMA devices, their ports, and the network devices
    (f"{_INFINIBAND}/{{fw_ver,hca_type,board_id,node_guid,node_type}}", _all),
    (f"{_INFINIBAND}/device/{{vendor,device}}", _all),
    (f"{_PORT}/{{state,phys_state,rate,link_layer,cap_mask}}", _all),
    (f"{_PORT}/{{counters,hw_counters}}/*", _all),
    (f"{_NET}/{{mtu,operstate,type,ifindex,iflink,flags,dev_id,dev_port,carrier,speed}}", _all),
    (f"{_NET}/address", _all),
    (f"{_NET}/ecn/roce_[nr]p/enable/*", _all),
    (f"{_NET}/device/{{vendor,device}}", _all),
    (f"{_NET}/{{lower,upper}}_*/ifindex", _all),
    (f"{_NET}/master/ifindex", _all),
    (f"{_NET}/bonding/{{slaves,mode,active_slave}}", _all),
    (f"{_NET}/bridge/bridge_id", _nothing),
    ("proc/net/vlan/*", _all),
    # what tells a container
    ("{.dockerenv,run/.containerenv,run/systemd/container}", _nothing),
    ("{run,var/run}/secrets/kubernetes.io/serviceaccount/namespace", _nothing),
)
"""Patterns of files below the root, and which of their lines are kept; of GIDs, see _add_gids."""


NEEDS_ROOT = "needs root"
"""The reason of a file that this user may not read."""


@dataclass(frozen=True)
class LeftOut:
    """A file that a bundle lacks, or a reader that failed, and the reason."""

    what: str
    why: str


@dataclass
class Bundle:
    """The files and links of a bundle, by name below the root."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    notes: Recording = field(default_factory=Recording)
    left_out: list[LeftOut] = field(default_factory=list)
    withheld: dict[str, int] = field(default_factory=dict)
    """Of an anonymized bundle: the number of withheld values by file or program."""
    folders: dict[str, tuple[str, dict[str, str]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Where the folders of the files lead, and the links on their paths."""

    def archive(self) -> bytes:
        """The bundle as a tar archive, compressed by gzip."""
        out = io.BytesIO()
        now = int(time.time())
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, data in sorted({**self._documents(now), **self.files}.items()):
                info = tarfile.TarInfo(name)
                info.size, info.mtime, info.mode = len(data), now, 0o644
                tar.addfile(info, io.BytesIO(data))
            for name, target in sorted(self.links.items()):
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.mtime = tarfile.SYMTYPE, target, now
                tar.addfile(info)
        # at once: tarfile would compress each header and each file by itself
        return gzip.compress(out.getvalue(), _LEVEL, mtime=now)

    def _documents(self, now: int) -> dict[str, bytes]:
        documents = to_facts(self.notes)
        documents[MANIFEST] |= {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
            "left_out": [vars(entry) for entry in self.left_out],
            "withheld": self.withheld,
        }
        return {name: json.dumps(text, indent=1).encode() for name, text in documents.items()}


def collect(server: str = "", machine: Machine = LIVE) -> Bundle:
    """Read this host; with ``server``, also the route to it."""
    bundle = Bundle(notes=Recording(root_user=os.geteuid() == 0))
    lists = functools.partial(_read_list, machine.root)
    machine = replace(machine, server=server, notes=bundle.notes, lists=lists).once()
    # the readers themselves: what they ask programs and netlink is recorded
    questions.ask(machine)
    for reader in (mount_state.states, serving.serving):
        try:
            reader(machine)
        except (OSError, UserError) as error:
            bundle.left_out.append(LeftOut(reader.__name__, str(error)))
    bundle.notes.programs = dict(map(_shortened, bundle.notes.programs.items()))
    _add_changelog(bundle, machine)
    _add_contents(machine, bundle)
    for port in _matching(machine, _PORT):
        _add_gids(bundle, machine.root, port)
    _add_links(machine, bundle)
    hidden = (
        omission.what.lstrip("/") for omission in bundle.left_out if omission.why == NEEDS_ROOT
    )
    if all(name.startswith(("proc/", "sys/", "var/", "boot/")) for name in hidden):
        bundle.notes.facts[boot_files.FACT] = boot_files.READ
    return bundle


def _add_contents(machine: Machine, bundle: Bundle) -> None:
    """Add the files of CONTENTS, and the scripts that services run."""
    scripts = _add_scripts(machine, bundle)
    nfs = {unit.name.removesuffix(".mount") for unit in units.nfs_units(machine)}
    services = {*boot_files.services(machine, scripts), *boot_files.SERVERS, "autofs.service"}
    of_service = functools.partial(_service, scripts=scripts)
    for pattern, kept in CONTENTS:
        keep = of_service if kept is _service else kept
        for name in _matching(machine, pattern):
            if (
                not _of_other_mount(machine, nfs, name)
                and not _of_other_service(services, name)
                and (name not in boot_files.RC_LOCAL or boot_files.is_run(machine, name))
            ):
                _add(bundle, machine.root, name, keep)


def _add_scripts(machine: Machine, bundle: Bundle) -> set[str]:
    """Add the scripts with a command of interest that services run; returns their names."""
    try:
        scripts = boot_files.scripts(machine)
    except PermissionError as error:
        hidden = Path(str(error.filename)).relative_to(machine.root)
        bundle.left_out.append(LeftOut(f"/{hidden}", NEEDS_ROOT))
        return set()
    for name in sorted(scripts):
        _add(bundle, machine.root, name, _script)
    return scripts


_OF_MOUNT = re.compile(r".*/(?P<unit>[^/]+)\.(?:mount\.d/[^/]+|automount)")


def _of_other_mount(machine: Machine, nfs: set[str], name: str) -> bool:
    """Whether a file belongs to a mount unit of another filesystem than NFS, or of an unknown one.

    A drop-in of such a unit, and its automount unit, may have what a stranger must not see.  An
    empty file or a link to /dev/null masks a unit.
    """
    match = _OF_MOUNT.fullmatch(name)
    return bool(match and match["unit"] not in nfs and machine.text(name))


_OF_SERVICE = re.compile(r".*/(?P<unit>[^/]+)\.(?:service(?:\.d/[^/]+)?|timer)")


def _of_other_service(services: set[str], name: str) -> bool:
    """Whether a file belongs to a service, or its timer, that starts nothing of interest."""
    match = _OF_SERVICE.fullmatch(name)
    if not match:
        return False
    stem, at, _ = match["unit"].partition("@")
    return f"{stem}{at}.service" not in services


def _add_changelog(bundle: Bundle, machine: Machine) -> None:
    """Add what the changelog of the kernel's RPM package says about known faults."""
    try:
        if recorded := kernel_changelog.recorded_rpm(machine):
            argv, result = recorded
            bundle.notes.programs[argv] = result
    except UserError as error:
        bundle.left_out.append(LeftOut("rpm", str(error)))


def _add_gids(bundle: Bundle, root: Path, port: str) -> None:
    """Add the GIDs of a port that are in use, with their network devices and types."""
    with contextlib.suppress(OSError):
        for number, _ in rdma_routes.places_in_use(f"{root}/{port}/gids"):
            for name in ("gids", "gid_attrs/ndevs", "gid_attrs/types"):
                if os.path.exists(f"{root}/{port}/{name}/{number}"):  # noqa: PTH110 -- many
                    _add(bundle, root, f"{port}/{name}/{number}", _all)


def _add_links(machine: Machine, bundle: Bundle) -> None:
    """Add the links to the mount points of fstab."""
    with contextlib.suppress(OSError, UserError):
        closed = mountinfo.closed(mountinfo.of(machine))
        for line in fstab.nfs_lines(machine.text("etc/fstab")):
            _, links = mountinfo.without_links(line.directory, closed, machine.root)
            for link, target in links.items():
                bundle.links[str(link.relative_to("/"))] = str(target)


def _shortened(
    entry: tuple[tuple[str, ...], Result | None],
) -> tuple[tuple[str, ...], Result | None]:
    """A program's result, of logs and packet filters only the lines that readers use."""
    argv, result = entry
    if result is None:
        return entry
    text = result.stdout
    if argv[0] in ("dmesg", "journalctl") and not argv[-1].startswith("--unit="):
        text = "\n".join(recognized_lines(text.split("\n")))
    elif argv[0] in ("nft", "iptables-legacy-save"):
        text = packet_filter.rules_of_input(text)
    elif argv[0] == "ip6tables-legacy-save":
        text = packet_filter.rules_of_input(text, "ip6")
    return argv, result._replace(stdout=text)


def _matching(machine: Machine, pattern: str) -> Iterator[str]:
    """The names below the root that match; strings, because paths cost more than the files."""
    if "{release}" in pattern:
        pattern = pattern.replace("{release}", machine.text(_RELEASE).strip())
    for alternative in _alternatives(pattern):
        yield from _names_below(str(machine.root), alternative)


def _names_below(root: str, pattern: str) -> list[str]:
    """The names that match, sorted; those of hidden files, too, unlike glob() of Python 3.9."""
    paths = [""]
    for part in pattern.split("/"):
        if not any(sign in part for sign in "*?["):
            paths = [f"{above}{part}/" for above in paths]
            continue
        paths = [
            f"{above}{name}/"
            for above in paths
            for name in fnmatch.filter(_listed(f"{root}/{above}"), part)
        ]
    names = (path[:-1] for path in paths)
    return sorted(name for name in names if os.path.lexists(f"{root}/{name}"))


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 -- names
    except OSError:
        return []


def _alternatives(pattern: str) -> list[str]:
    """``lib{64,32}`` as ``lib64`` and ``lib32``, of each pair of braces."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if not match:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [
        alternative
        for word in match[1].split(",")
        for alternative in _alternatives(before + word + after)
    ]


def _add(bundle: Bundle, root: Path, name: str, keep: _Keep) -> None:
    """Add a file below the root, and each link on its path."""
    above, _, last = name.rpartition("/")
    folder, links = _folder(bundle, root, above)
    where, more = _step(root, f"{folder}/{last}" if folder else last)
    if _add_file(bundle, root, where, keep):
        bundle.links.update(links | more)


def _folder(bundle: Bundle, root: Path, name: str) -> tuple[str, dict[str, str]]:
    """Where a folder below the root leads, and the links on its path; each is read once."""
    if not name:
        return "", {}
    if name not in bundle.folders:
        above, _, last = name.rpartition("/")
        folder, links = _folder(bundle, root, above)
        where, more = _step(root, f"{folder}/{last}" if folder else last)
        bundle.folders[name] = where, links | more
    return bundle.folders[name]


def _step(root: Path, name: str) -> tuple[str, dict[str, str]]:
    """The same for a path of which only the last part may be a link."""
    # its target is the number of this process
    if name == "proc/self" or not os.path.islink(f"{root}/{name}"):  # noqa: PTH114 -- many
        return name, {}
    return _followed(root, name)


def _followed(root: Path, name: str) -> tuple[str, dict[str, str]]:
    """Where any path leads below the root, and the links on it."""
    rest, here, links = name.split("/"), list[str](), dict[str, str]()
    for _ in range(_STEPS * 10):
        if not rest:
            break
        part = rest.pop(0)
        if part == "..":
            # all parts so far are folders, not links
            here = here[:-1]
            continue
        here.append(part)
        known = "/".join(here)
        # its target is the number of this process
        if known != "proc/self" and (root / known).is_symlink():
            target = os.readlink(root / known)  # noqa: PTH115 -- the text itself
            links[known] = target
            here = [] if target.startswith("/") else here[:-1]
            rest = [*PurePosixPath(target.lstrip("/")).parts, *rest]
    return "/".join(here), links


def _add_file(bundle: Bundle, root: Path, name: str, keep: _Keep) -> bool:
    """Add the part of a file that ``keep`` returns; False if it returns None."""
    path = f"{root}/{name}"
    if name in bundle.files:
        return True
    if not os.path.isfile(path):  # noqa: PTH113 -- many
        with contextlib.suppress(OSError):
            _check_kind(bundle, path, name)
        return True
    try:
        data, whole = (b"", True) if keep is _nothing else _beginning(path)
    except PermissionError:
        bundle.left_out.append(LeftOut(f"/{name}", NEEDS_ROOT))
        return True
    except OSError:
        # such as EINVAL for an attribute without a value
        return True
    if not whole:
        data = _whole_records(name, data, len(data) - 1)
    if (kept := _kept(name, data, keep)) is None:
        return False
    bundle.files[name] = _whole_records(name, kept, _MOST_KEPT)
    if not whole or len(bundle.files[name]) < len(kept):
        bundle.left_out.append(LeftOut(f"/{name}", CUT))
    return True


def _check_kind(bundle: Bundle, path: str, name: str) -> None:
    """List a FIFO or a device in place of a file as left out.  OSError."""
    try:
        os.close(open_file(path))
    except NotRegularError:
        bundle.left_out.append(LeftOut(f"/{name}", NOT_REGULAR))


def _read_list(root: Path, name: str) -> str:
    """The text of a list of the kernel; of one that is too long, what the bundle keeps."""
    data, whole = _beginning(f"{root}/{name}")
    if whole and len(data) <= _MOST_KEPT:
        return os.fsdecode(data)
    kept = _kept(name, data[: data.rfind(b"\n") + 1], dict(CONTENTS).get(name, _all))
    return os.fsdecode(_whole_records(name, kept or b"", _MOST_KEPT))


def _whole_records(name: str, data: bytes, most: int) -> bytes:
    """The beginning of a file in whole records: of mountstats a mount, of others a line."""
    if len(data) <= most or name.endswith(".gz"):
        return data
    end = data.rfind(b"\ndevice ", 0, most) if name == "proc/self/mountstats" else -1
    return data[: (end if end >= 0 else data.rfind(b"\n", 0, most)) + 1]


def _beginning(path: str) -> tuple[bytes, bool]:
    """The bytes of a file up to a limit, and whether these are all."""
    handle = open_file(path)
    try:
        data = bytearray(more := os.read(handle, _AT_ONCE))
        while more and len(data) <= _MOST_READ:
            more = os.read(handle, _AT_ONCE)
            data += more
    finally:
        os.close(handle)
    whole = len(data) <= _MOST_READ
    del data[_MOST_READ:]
    return bytes(data), whole


def _unpacked(data: bytes) -> bytes:
    return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, _MOST_READ)


def _kept(name: str, data: bytes, keep: _Keep) -> bytes | None:
    packed = name.endswith(".gz")
    try:
        text = os.fsdecode(_unpacked(data) if packed else data)
    except (OSError, EOFError, zlib.error):
        return None
    if (kept := keep(text)) is None:
        return None
    return gzip.compress(os.fsencode(kept), mtime=0) if packed else os.fsencode(kept)
