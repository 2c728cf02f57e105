# SPDX-License-Identifier: Apache-2.0
"""Hosts with a canary in each field that a file of a bundle can hold, of a seed.

The files are written from the manual pages fstab(5), nfs(5), exports(5), nfs.conf(5),
nfsmount.conf(5), systemd.mount(5), autofs(5), udev(7), modprobe.d(5), os-release(5) and ip(8), and
from what the kernel prints (fs/proc_namespace.c, fs/nfs/super.c, fs/nfs/client.c), not from the
readers of this project.  A canary is a unique name, address or secret: none may leave the host.
"""

# ruff: noqa: E501 -- the lines of formats
from __future__ import annotations

import ipaddress
import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["KINDS", "Host", "forms"]

KINDS = (
    "debian client", "rhel client", "ubuntu server", "container host", "zfs server", "lvm client",
    "autofs and ldap", "kerberos", "bond and vlan", "infiniband cluster", "proxmox", "cluster manager",
    "kubernetes node", "ganesha server", "sles client", "nixos client", "other filesystems", "drop-ins",
    "cloud host",
)  # fmt: skip
_RELEASES = {
    "debian client": "6.1.0-18-amd64", "rhel client": "5.14.0-427.13.1.el9_4.x86_64",
    "ubuntu server": "6.8.0-31-generic", "proxmox": "6.8.4-2-pve",
}  # fmt: skip


def forms(canary: str) -> Iterator[str]:
    """The spellings of a canary in which it may not leave, in lower case."""
    text = canary.lower()
    yield text
    yield text[::-1]
    yield text.encode().hex()
    yield "".join(f"\\{ord(c):03o}" for c in text)
    yield "".join(f"\\x{ord(c):02x}" for c in text)
    yield "".join(f"%{ord(c):02x}" for c in text)
    if text.count(".") == 3 and text.replace(".", "").isdecimal():
        octets = ipaddress.ip_address(text).packed
        yield octets.hex()
        yield octets[::-1].hex()
        yield f"{octets[:2].hex()}:{octets[2:].hex()}"
        yield text.replace(".", "-")
        yield ".".join(text.split(".")[::-1])
    elif ":" in text and text.count(":") == 5:
        digits = text.replace(":", "")
        yield from (digits, text.replace(":", "-"), text.replace(":", "."), text[9:])
        eui = f"{digits[:6]}fffe{digits[6:]}"
        first = f"{int(eui[:2], 16) ^ 2:02x}"
        yield ":".join((first + eui[2:])[at : at + 4] for at in range(0, 16, 4))
    elif ":" in text:
        yield text.replace(":", "")
        if "::" in text:
            full = ipaddress.ip_address(text)
            yield full.exploded
            yield full.packed.hex()
            yield full.packed.hex(":")


@dataclass
class Host:
    """The files of one host below a folder, and its canaries."""

    seed: int
    root: Path
    canaries: dict[str, str] = field(default_factory=dict)
    """Where each one was planted, by canary."""
    programs: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 -- a seed
        self.kind = KINDS[self.seed % len(KINDS)]

    # ---- canaries

    def name(self, where: str) -> str:
        """A name that occurs nowhere else."""
        text = "q" + "".join(self.random.choices(string.ascii_lowercase, k=9))
        if self.random.random() < 0.3:
            text = text[:5].upper() + text[5:]
        self.canaries[text] = where
        return text

    def ipv4(self, where: str) -> str:
        pick = self.random.randrange
        text = f"{self.random.choice((10, 172, 193, 131))}.{pick(16, 250)}.{pick(16, 250)}.{pick(16, 250)}"
        self.canaries[text] = where
        return text

    def ipv6(self, where: str) -> str:
        text = str(
            ipaddress.IPv6Address(
                self.random.getrandbits(61) | 0x2001 << 112 | self.random.getrandbits(48) << 64
            )
        )
        if "::" in text:
            self.canaries[text] = where
        return text

    def mac(self, where: str) -> str:
        text = bytes([0x0C, *self.random.randbytes(5)]).hex(":")
        self.canaries[text] = where
        return text

    def guid(self, where: str) -> str:
        digits = self.random.randbytes(8).hex()
        text = ":".join(digits[at : at + 4] for at in range(0, 16, 4))
        self.canaries[text] = where
        return text

    # ---- files

    def write(self, name: str, text: str) -> None:
        """Write a file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(errors="surrogateescape"))

    def add(self, name: str, *lines: str) -> None:
        """Add lines to a file below the root, which may be new."""
        path = self.root / name
        before = path.read_text(errors="surrogateescape") if path.exists() else ""
        self.write(name, before + "".join(f"{line}\n" for line in lines))

    def said(self, *argv: str, text: str = "", stderr: str = "", status: int = 0) -> None:
        """Record the output of a program."""
        self.programs.append({"argv": argv, "status": status, "stdout": text, "stderr": stderr})

    def make(self) -> None:
        """Write the host."""
        n = self.name
        self.host, self.domain = n("host name"), f"{n('domain')}.{n('upper domain')}"
        self.servers = [f"{n('server')}.{self.domain}", self.ipv4("server"), self.ipv6("server")]
        self.release = _RELEASES.get(self.kind, f"6.12.9-{n('release')}")
        self._kernel()
        self._network()
        self._mounts()
        self._units()
        self._server()
        self._logs()
        getattr(self, f"_{self.kind.replace(' ', '_').replace('-', '_')}", lambda: None)()
        self._boot()
        self.write("commands.json", json.dumps(self.programs))
        manifest = {
            "format": 1, "root": True,
            "addresses": {self.servers[0]: [self.ipv4("address of a server")], n("resolved"): []},
            "facts": {"udevd": "runs", "boot files": "read", "user contexts": f"{n('rdma device')} 2", "module build": f"/home/{n('home')}/.cache/nfsrdma/{n('cache')}/nfsrdma.ko"},
        }  # fmt: skip
        self.said("modinfo", "-0", "--", manifest["facts"]["module build"], text="")  # type: ignore[index]
        self.write("manifest.json", json.dumps(manifest))

    def _kernel(self) -> None:
        n, release = self.name, self.release
        self.write("proc/sys/kernel/osrelease", f"{release}\n")
        self.write(
            "proc/version",
            f"Linux version {release} ({n('builder')}@{n('build host')}.{n('build domain')}) (gcc-{n('compiler')} 12.2) #1 SMP {n('build text')} 2024\n",
        )
        self.write("proc/modules",
                   f"rpcrdma 458752 0 {n('module')}, Live 0xffffffffc0a0{self.random.getrandbits(16):04x}\nsunrpc 700000 12 nfs,rpcrdma, Live 0x0\n"
                   f"rdma_cm 100000 1 rpcrdma, Live 0x0\nib_core 400000 2 rdma_cm,rpcrdma, Live 0x0 ({n('taint')})\nnf_tables 300000 1 - Live 0x0\n"
                   f"{n('module')} 16384 0 - Live 0x0 (OE)\n")  # fmt: skip
        self.write(
            f"boot/config-{release}",
            f'CONFIG_SUNRPC_XPRT_RDMA=m\nCONFIG_LOCALVERSION="-{n("config")}"\nCONFIG_NFS_{n("option")}=y\n# CONFIG_NFS_{n("unset")} is not set\nCONFIG_NFS_V4_1_IMPLEMENTATION_ID_DOMAIN="{n("impl domain")}"\n',
        )
        self.write("sys/kernel/btf/vmlinux", "")
        self.write("sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
        self.write("sys/module/rpcrdma/srcversion", f"{n('srcversion')}\n")
        self.write("sys/module/nfs/parameters/nfs4_unique_id", f"{n('unique id')}\n")
        self.write("sys/module/nfs/parameters/send_implementation_id", "1\n")
        self.write("sys/module/sunrpc/parameters/pool_mode", "global\n")
        self.write(f"sys/module/nfs/parameters/{n('parameter')}", f"{n('value')}\n")
        self.write(
            f"etc/modprobe.d/{n('modprobe file')}.conf",
            f"# {n('comment')}\noptions nfs nfs4_unique_id={n('unique id')} callback_tcpport=4045\n"
            f"install sunrpc /opt/{n('install')}/bin/load {n('argument')}\noptions mlx5_core {n('name')}={n('value')}\nalias nfs-{n('alias')} nfs\n",
        )
        self.write(
            "etc/os-release",
            f'NAME="{n("os")}"\nID={"rhel" if "rhel" in self.kind else "debian"}\nID_LIKE="{n("os like")}"\nVERSION_ID="12"\nHOME_URL="https://{n("url")}/"\nVARIANT_ID={n("variant")}\n{n("key")}=1\n',
        )
        self.write(
            "proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         8388608              8388608              bytes     \n",
        )
        self.write("proc/self/status", f"Name:\t{n('process')}\nCapEff:\t000001ffffffffff\n")
        path = f"/lib/modules/{release}/updates/{n('module folder')}/rpcrdma.ko.xz"
        self.said("modinfo", "-0", "--", "rpcrdma", text="\0".join([
            f"filename:       {path}", "alias=svcrdma", "alias=xprtrdma", f"alias={n('alias')}", f"description=RPC {n('description')}", f"author={n('author')} <{n('mail')}@{n('mail host')}>",
            f"version={n('version')}", "srcversion=AAAA", "depends=sunrpc,ib_core,rdma_cm", "intree=Y", f"vermagic={release} SMP preempt mod_unload modversions {n('magic')}",
            f"signer={n('signer')} key", f"sig_key={n('key')}", f"parm={n('parm')}:{n('text')} (default 1)", f"{n('field')}=x", ""]))  # fmt: skip
        self.said("mount.nfs", "-V", text=f"mount.nfs: (linux nfs-utils 2.6.{n('version')})\n")
        self.said(
            "python3",
            "-c",
            "import bcc; bcc.BPF; print(bcc.__version__)",
            stderr=f"Traceback\n File \"/home/{n('home')}/x.py\"\nModuleNotFoundError: No module named 'bcc'\n",
            status=1,
        )

    def _network(self) -> None:
        n = self.name
        mac = self.mac("mac")
        devices = ["eth0", f"enx{mac.replace(':', '')}", n("netdev")]
        vlan = f"bond{n('bond')[:6]}.77" if self.kind == "bond and vlan" else "bond0.77"
        devices.append(vlan)
        address, source = self.ipv4("local"), self.ipv4("local")
        for number, device in enumerate(devices, 2):
            below = f"sys/devices/pci0000:00/0000:{number:02x}:00.0/net/{device}"
            for key, value in {"mtu": "9000", "operstate": "up", "type": "1", "ifindex": str(number), "iflink": str(number), "address": mac if number == 3 else self.mac("mac"),
                               "dev_port": "0", "ifalias": n("alias"), "phys_port_id": n("port id"), "speed": "100000"}.items():  # fmt: skip
                self.write(f"{below}/{key}", f"{value}\n")
            (self.root / "sys/class/net").mkdir(parents=True, exist_ok=True)
            (self.root / f"sys/class/net/{device}").symlink_to(
                f"../../devices/pci0000:00/0000:{number:02x}:00.0/net/{device}"
            )
        self.write(
            f"proc/net/vlan/{vlan}",
            f"{vlan}  VID: 77\t REORDER_HDR: 1  dev->priv_flags: 81021\n         total frames received  1\nDevice: {devices[2]}\n",
        )
        infiniband = self.kind == "infiniband cluster"
        rdma = n("rdma device") if self.seed % 3 else "mlx5_0"
        guid, port = self.guid("node guid"), f"sys/class/infiniband/{rdma}/ports/1"
        prefix = "fe80:0000:0000:0000" if infiniband else "0000:0000:0000:0000"
        gid = (
            f"{prefix}:{guid}"
            if infiniband
            else ipaddress.IPv6Address(f"::ffff:{address}").exploded
        )
        self.write(f"sys/class/infiniband/{rdma}/node_guid", f"{guid}\n")
        self.write(f"sys/class/infiniband/{rdma}/board_id", f"{n('board')}\n")
        self.write(f"sys/class/infiniband/{rdma}/fw_ver", f"20.{n('firmware')}\n")
        self.write(f"{port}/link_layer", "InfiniBand\n" if infiniband else "Ethernet\n")
        self.write(f"{port}/gids/0", f"{gid}\n")
        self.write(f"{port}/gid_attrs/ndevs/0", f"{devices[2]}\n")
        self.write(f"{port}/gid_attrs/types/0", "RoCE v2\n")
        self.write(f"{port}/counters/port_rcv_packets", "100000\n")
        self.write(f"{port}/counters/symbol_error", "5000\n")
        self.write(f"{port}/hw_counters/{n('counter')}", "1\n")
        nic = {
            "index": 0,
            "name": rdma,
            "ports": 1,
            "node_type": "ca",
            "protocol": "ib" if infiniband else "roce",
            "driver": "mlx5",
            "firmware": n("firmware"),
            "node_guid": guid,
        }
        rdma_link = {
            "device": nic,
            "port": 1,
            "state": "ACTIVE",
            "physical_state": "LINK_UP",
            "netdev": "" if infiniband else devices[2],
        }
        self.write("netlink.json", json.dumps({"rdma_links": [rdma_link]}))
        text = f"hca_id:\t{rdma}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t{n('fw')}\n\tnode_guid:\t\t{guid}\n\tboard_id:\t{n('board')}\n\t\tport:\t1\n\t\t\tactive_mtu:\t\t1024 (3)\n"
        self.said("ibv_devinfo", text=text)
        for server in (*self.servers[1:], self.ipv4("route")):
            row = {
                "dst": server,
                "gateway": self.ipv4("gateway"),
                "dev": devices[2],
                "prefsrc": address,
                "flags": [],
                "uid": 0,
                "cache": [n("cache")],
                "table": n("table"),
            }
            self.said("ip", "-j", "route", "get", server, text=json.dumps([row]))
        rows = [{"ifindex": 2, "ifname": netdev, "address": self.mac("mac"), "ifalias": n("alias"), "altnames": [n("altname"), f"enx{self.mac('mac').replace(':', '')}"], "link_type": "ether",
                 "mtu": 1500, "linkinfo": {"info_kind": "vlan", "info_data": {"id": 7, n("key"): n("value")}}, "vfinfo_list": [{"mac": self.mac("vf")}], "phys_switch_id": n("switch")} for netdev in devices]  # fmt: skip
        self.said("ip", "-d", "-j", "link", "show", text=json.dumps(rows))
        self.said(
            "ip",
            "-j",
            "address",
            "show",
            text=json.dumps(
                [
                    {
                        "ifname": devices[2],
                        "addr_info": [
                            {
                                "local": address,
                                "prefixlen": 24,
                                "label": n("label"),
                                "broadcast": self.ipv4("broadcast"),
                            },
                            {"local": source},
                        ],
                    }
                ]
            ),
        )
        self._filter(devices[2])
        self.said(
            "dcb",
            "-j",
            "pfc",
            "show",
            "dev",
            devices[2],
            text=json.dumps(
                [{"ifname": devices[2], "prio_pfc": [False] * 8, n("key"): n("value")}]
            ),
        )
        self.write(
            "etc/hosts",
            f"127.0.0.1 localhost {self.host}\n{self.ipv4('hosts')} {self.servers[0]} {self.servers[0].split('.')[0]} # {n('comment')}\n{self.ipv6('hosts')} {n('alias')}.{n('zone')}\n# {n('comment')}\n",
        )
        self.write("proc/sys/kernel/hostname", f"{self.host}\n")

    def _filter(self, device: str) -> None:
        n, chain, bad, ports = self.name, self.name("chain"), self.name("set"), self.name("set")
        rules = (
            f'iifname "{device}" jump {chain}',
            f'iifname {{ "{n("device")}", "{n("device")}*" }} tcp dport 20048 drop',
            f"ip saddr @{bad} drop", f"tcp dport @{ports} accept",
            f"ip saddr {self.ipv4('range')}-{self.ipv4('range')} tcp dport 2049 accept",
            f"ip saddr {{ {self.ipv4('rule')}, {self.ipv4('rule')}/30 }} tcp dport 2049 accept",
            f"ip daddr {self.ipv4('rule')}/255.255.255.0 drop",
            f"ether saddr {self.mac('rule')} drop", f"ether saddr {{ {self.mac('rule')} }} drop",
            f"ip6 saddr {self.ipv6('rule')} drop", f"ip6 saddr {self.ipv6('rule')}/64 drop",
            f"meta cgroup {n('cgroup')} accept", f"meta skuid {n('user')} tcp dport 22 accept",
            f'log prefix "{n("prefix")} 2049" drop', f'limit rate 5/second comment "{n("comment")}" accept',
            f"dnat to {self.ipv4('nat')}:2049", f"tcp dport vmap {{ 22 : jump {chain}, 80 : goto {chain} }}",
            f"ip saddr . tcp dport {{ {self.ipv4('rule')} . 2049 }} accept", f"{n('word')} {n('word')}/{n('word')} drop",
        )  # fmt: skip
        text = "\n\t\t".join(self.random.sample(rules, len(rules)))
        self.said("nft", "list", "ruleset", text=(
            f"# {n('comment')}\ntable inet {n('table')} {{\n\tset {bad} {{\n\t\ttype ipv4_addr\n\t\telements = {{ {self.ipv4('set')}, {self.ipv4('set')}/24 }}\n\t}}\n"
            f"\tset {ports} {{\n\t\ttype inet_service\n\t\telements = {{ 2049, 20049 comment \"{n('comment')}\" }}\n\t}}\n\tchain {chain} {{\n\t\tip saddr {self.ipv4('rule')} drop comment \"{n('comment')} drop\"\n\t}}\n"
            f"\tchain input {{\n\t\ttype filter hook input priority filter; policy {self.random.choice(('accept', 'drop'))};\n\t\t{text}\n\t}}\n}}\n"))  # fmt: skip
        legacy = n("chain") + self.random.choice(("", "/x", ":y"))
        self.said("iptables-legacy-save", text=(
            f"# {n('comment')}\n*filter\n:INPUT DROP [0:0]\n:{legacy} - [0:0]\n-A INPUT -i {device} -j {legacy}\n-A INPUT -m set --match-set {n('set')} src -j ACCEPT\n"
            f"-A {legacy} -s {self.ipv4('rule')}/32 -p tcp -m tcp --dport 2049 -m comment --comment \"{n('comment')}\" -j ACCEPT\n-A {legacy} -m iprange --src-range {self.ipv4('rule')}-{self.ipv4('rule')} -j DROP\n"
            f"-A {legacy} -m mac --mac-source {self.mac('rule').upper()} -j DROP\n-A {legacy} -m string --string \"{n('string')}\" --algo bm -j DROP\n-A INPUT -i {n('device')[:8]}+ -j LOG --log-prefix \"{n('prefix')}\"\nCOMMIT\n"))  # fmt: skip

    def _mounts(self) -> None:
        n, lines, stats, fstab = self.name, list[str](), list[str](), list[str]()
        vg = {
            "lvm client": f"/dev/mapper/{self.host}--vg-root",
            "zfs server": f"rpool/ROOT/{n('pool')}",
        }.get(self.kind, f"/dev/mapper/rhel_{n('vg')}-root")
        lines.append(
            f"22 1 8:1 / / rw,relatime shared:1 - {'zfs' if 'zfs' in self.kind else 'ext4'} {vg} rw,errors={n('option')}"
        )
        for number in range(self.random.randrange(2, 6)):
            server = self.random.choice(self.servers)
            shown = f"[{server}]" if ":" in server else server
            export, below = f"/vol/{n('export')}/{n('export')}", f"{n('folder')}"
            directory = self.random.choice(
                (
                    f"/srv/{below}\\040{n('second')}",
                    f"/home/{n('user')}",
                    f"/mnt/{below}\\012{n('second')}",
                    f"/{below}-{n('second')}",
                )
            )
            rdma = number % 2 == 0
            addr = server if server[0].isdigit() else self.ipv4("addr")
            opts = (f"rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto={'rdma' if rdma else 'tcp'},{'port=20049,' if rdma else ''}timeo=600,retrans=2,sec=krb5p,"
                    f"clientaddr={self.ipv4('clientaddr')},fsc={n('fsc')},context=\"system_u:{n('label')},c1\",local_lock=none,addr={addr}")  # fmt: skip
            lines.append(
                f"{60 + number} 22 0:{52 + number} /{n('root')} {directory} rw,nosuid shared:{number + 3} - nfs4 {shown}:{export} {opts}"
            )
            xprt = (
                "rdma 0 0 1 0 0 10 10 0 20 0 " + "0 " * 16
                if rdma
                else "tcp 800 1 1 0 0 10 10 0 10 0 2 0 0"
            )
            stats.append(
                f"device {shown}:{export} mounted on {directory} with fstype nfs4 statvers=1.1\n\topts:\t{opts}\n\tage:\t100\n\timpl_id:\tname='{n('impl')}\ndevice {n('forged')}:/x mounted on /x with fstype nfs4 statvers=1.1',domain='{n('impl domain')}.{n('zone')}',date='0,0'\n"
                f"\tcaps:\tcaps=0x3,wtmult=512,dtsize=1048576,bsize=0,namlen=255\n\tnfsv4:\tbm0=0x1,bm1=0x2,bm2=0x3,acl=0x3,sessions,pnfs={n('pnfs')}\n\tsec:\tflavor=6,pseudoflavor=390005\n\tevents:\t1 2 3\n\tbytes:\t1 2 3 4 5 6 7 8\n"
                f"\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n\txprt:\t{xprt}\n\tper-op statistics\n\t        NULL: 1 1 0 44 24 0 0 0 0\n\t        READ: 1 1 0 44 24 0 0 0 0\n\t{n('unknown')}: {n('unknown')}\n"
                # of a later kernel, or of a server behind a forged caps line
                f"\t        {n('operation').upper()}: 1 1 0 44 24 0 0 0 0\n{n('line').upper()}: 1 1 0 44 24 0 0 0 0\n\n")  # fmt: skip
            self.write(f"sys/class/bdi/0:{52 + number}/read_ahead_kb", "128\n")
            wanted = opts.split(",clientaddr", maxsplit=1)[0]
            if number % 3 != 2:
                fstab.append(
                    f"{shown}:{export} {directory} nfs4 {wanted},x-systemd.requires={n('required')}.service,comment={n('comment')},_netdev,username={n('user')},password={n('secret')} 0 0 # {n('comment')}"
                )
        # one that is not mounted
        fstab.append(
            f"{n('gone')}.{self.domain}:/{n('gone')} /{n('gone')} nfs proto=rdma,port=20049 0 0"
        )
        fstab.append(
            f"//{n('smb')}/share /{n('smb')} cifs username={n('user')},password={n('secret')} 0 0"
        )
        fstab.append(
            f"UUID={n('uuid')} / ext4 defaults 0 1\n# {n('comment')} {n('comment')}:/x /y nfs defaults"
        )
        lines.append(
            f"90 22 0:90 / /{n('auto')} rw - autofs ldap:ou={n('ldap')},dc={n('dc')},dc=com rw,fd=6,pgrp=1,timeout=300"
        )
        lines.append(
            f"91 22 0:91 / /{n('ceph')} rw - ceph {self.ipv4('ceph')}:/ rw,name={n('user')},secret={n('secret')}"
        )
        lines.append(f"92 22 0:92 / /proc/fs/nfsd rw - nfsd nfsd rw\nno line of {n('broken')}")
        self.write("proc/self/mountinfo", "\n".join(lines) + "\n")
        self.write(
            "proc/self/mountstats",
            f"device {n('other')} mounted on /{n('other')} with fstype ext4\n" + "".join(stats),
        )
        self.write("etc/fstab", "\n".join(fstab) + "\n")
        hexadecimal = ipaddress.ip_address(self.servers[1]).packed.hex()
        fsid = self.random.randbytes(8).hex()
        self.canaries[fsid] = "fsid"
        self.write(
            "proc/fs/nfsfs/servers",
            f"NV SERVER   PORT USE HOSTNAME\nv4 {hexadecimal} 4e51   2 {self.servers[0]}\n",
        )
        self.write(
            "proc/fs/nfsfs/volumes",
            f"NV SERVER   PORT DEV          FSID                              FSC\nv4 {hexadecimal} 4e51 0:52         {fsid}:0 no \n",
        )
        self.write(
            "etc/nfsmount.conf",
            f'# {n("comment")}\n[ NFSMount_Global_Options ]\nDefaultproto=rdma\n{n("key")}={n("value")}\n[ Server "{n("server")}.{self.domain}" ]\nproto=tcp\n[ MountPoint "/{n("mountpoint")}/{n("mountpoint")}" ]\nsec={n("sec")}\n',
        )
        self.write(
            f"etc/nfsmount.conf.d/{n('file')}.conf",
            f"[ {n('section')} ]\nclientaddr={self.ipv4('conf')}\nmounthost={n('mounthost')}\n",
        )
        self.write(
            "var/lib/nfsrdma/tune.json",
            json.dumps(
                {
                    "mounts": [
                        {
                            "directory": f"/srv/{n('tuned')}",
                            "read_ahead_kb": 128,
                            n("key"): n("value"),
                        }
                    ]
                }
            ),
        )
        self.write(
            f"etc/udev/rules.d/99-{n('rule')}.rules",
            f'# {n("comment")}\nSUBSYSTEM=="bdi", ACTION=="add", PROGRAM="/opt/{n("program")}/bin/x %k {n("argument")}", ATTR{{read_ahead_kb}}="4096", ENV{{{n("env")}}}="{n("value")}", TAG+="{n("tag")}"\n',
        )

    def _units(self) -> None:
        n, below = self.name, "etc/systemd/system"
        for fstype, extra in (
            ("nfs", "proto=rdma,port=20049"),
            ("ceph", f"name={n('user')},secret={n('secret')}"),
            ("cifs", f"username={n('user')},domain={n('domain')},password={n('secret')}"),
        ):
            word = n("unit")
            where = f"/srv/{word}/{n('part')}"
            unit = where.strip("/").replace("/", "-")
            server = n("unit server")
            source = (
                f"//{server}/share"
                if fstype == "cifs"
                else f"{server}.{self.domain}:/{n('export')}"
            )
            self.write(
                f"{below}/{unit}.mount",
                f"[Unit]\nDescription={n('text')}\nDocumentation=https://{n('url')}\nAfter={n('after')}.service\nRequires={n('after')}.service\n[Mount]\nWhat={source}\nWhere={where}\nType={fstype}\nOptions={extra},x-systemd.requires={n('req')}\nEnvironment={n('env')}={n('value')}\n[Install]\nWantedBy={n('target')}.target remote-fs.target\n",
            )
            self.write(
                f"{below}/{unit}.automount",
                f"[Unit]\nDescription={n('text')}\n[Automount]\nWhere={where}\nTimeoutIdleSec=60\n",
            )
            self.write(
                f"{below}/{unit}.mount.d/{n('drop-in')}.conf",
                f"[Mount]\nOptions={extra},{n('option')}={n('value')}\nType={fstype}\nDirectoryMode={n('mode')}\n",
            )
            (self.root / f"{below}/remote-fs.target.wants").mkdir(parents=True, exist_ok=True)
            (self.root / f"{below}/remote-fs.target.wants/{unit}.mount").symlink_to(
                f"/{below}/{unit}.mount"
            )
            if fstype == "nfs":
                blocks = f"Id={unit}.mount\nLoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nUnitFileState=enabled\n{n('key')}={n('value')}\n\nId={n('service')}.service\nActiveState=active\n"
                self.said(
                    "systemctl",
                    "show",
                    "--property=Id,LoadState,ActiveState,SubState,Result,UnitFileState",
                    "--",
                    f"{unit}.mount",
                    f"{unit}.automount",
                    text=blocks,
                )
                self.said(
                    "journalctl",
                    "--boot",
                    "--no-pager",
                    "--quiet",
                    "--output=cat",
                    "--lines=50",
                    f"--unit={unit}.mount",
                    text=f"mount.nfs: access denied by server while mounting {server}.{self.domain}:/{n('denied')}/{n('denied')}\nmount: {n('free text')} {n('free text')}\n{n('free text')}\n",
                )

    def _server(self) -> None:
        n = self.name
        self.write(
            "proc/fs/nfsd/portlist",
            "rdma 20049\nrdma 20049\ntcp 2049\ntcp 2049\n" if self.seed % 2 else "tcp 2049\n",
        )
        self.write("proc/fs/nfsd/threads", "8\n")
        self.write("proc/fs/nfsd/versions", "-2 +3 +4 +4.1 +4.2\n")
        self.write(
            "proc/net/rpc/nfsd",
            "rc 0 0 100\nfh 0 0 0 0 0\nio 100 100\nth 8 0 0.000\nnet 1 0 1 1\nrpc 1 0 0 0 0\n",
        )
        path = f"/srv/{n('export')}\\040{n('export')}"
        options = f"rw,sync,wdelay,hide,nocrossmnt,secure,root_squash,no_all_squash,no_subtree_check,secure_locks,acl,no_pnfs,fsid={n('fsid')},anonuid=65534,anongid=65534,sec=sys:{n('sec')},refer=/{n('refer')}@{n('refer host')}+{self.ipv4('refer')},mountpoint=/{n('mp')},{n('option')}={n('value')}"
        clients = [
            f"*.{n('wildcard')}.{n('zone')}",
            f"@{n('netgroup')}",
            f"node[1-9].{n('wildcard')}",
            self.ipv4("client"),
            f"{self.ipv4('net')}/24",
            f"{self.ipv4('net')}/255.255.255.0",
            f"{self.ipv6('net')}/64",
            n("client"),
            f"gss/{n('gss')}",
            "*",
            f"{n('bare')}?",
        ]
        self.write(
            "var/lib/nfs/etab", "".join(f"{path}\t{client}({options})\n" for client in clients)
        )
        self.write(
            "etc/exports",
            f'# {n("comment")}\n{path} -{options} {" ".join(f"{c}({options})" for c in clients)} # {n("comment")}\n"/srv/{n("quoted")} {n("quoted")}" {n("client")}(ro) \\\n  {n("more")}(rw)\n',
        )
        self.write(
            f"etc/exports.d/{n('exports file')}.exports",
            f"/{n('export')} {n('client')}.{n('zone')}(rw)\n",
        )
        self.write("etc/nfs.conf", (
            f"# {n('comment')}\n[general]\npipefs-directory=/run/{n('pipefs')}\n[nfsd]\nrdma=y\nrdma-port=20049\nthreads=16 # {n('comment')}\nhost={n('host')}.{n('zone')},{self.ipv4('host')}\nscope={n('scope')}\nname={n('name')}\n{n('key')}={n('value')}\n"
            f"[statd]\nname={n('statd')}\nha-callout=/usr/{n('callout')}\n[gssd]\npreferred-realm={n('realm').upper()}.COM\nkeytab-file=/etc/{n('keytab')}.keytab\ncred-cache-directory=/tmp/{n('cache')}\n[{n('section')}]\nport=1\n[environment]\n{n('variable')}={n('value')}\n[nfsd \"{n('argument')}\"]\nvers3=n\ninclude=/etc/{n('include')}.conf\n"))  # fmt: skip
        for number in range(3):
            self.write(
                f"etc/nfs.conf.d/{number}-{n('file')}.conf",
                f"[nfsd]\nthreads={number + 2}\nrdma={'yn'[number % 2]}\nscope='{n('scope')}'\nhost=\"{n('open')}\n",
            )
        self.write(
            "etc/sysconfig/nfs",
            f'# {n("comment")}\nRPCNFSDARGS="-H {n("host")} --scope {n("scope")} -r 20049 -n {n("word")}"\nRPCNFSDCOUNT=8\n{n("VARIABLE")}={n("value")}\nMOUNTD_NFS_V3="{n("text")}"\n',
        )
        self.write("etc/default/nfs-common", f'NEED_GSSD=yes\nSTATDOPTS="--name {n("statd")}"\n')
        self.write(
            "usr/lib/systemd/system/nfs-server.service",
            "[Service]\nEnvironmentFile=-/etc/sysconfig/nfs\nExecStart=/usr/sbin/rpc.nfsd $RPCNFSDARGS\n",
        )
        self.write(
            f"usr/lib/systemd/system/nfs-server.service.d/{n('drop-in')}.conf",
            f"[Unit]\nDescription={n('text')}\n[Service]\nEnvironment={n('VAR')}={n('value')}\nExecStartPost=/opt/{n('program')}/bin/{n('program')} --host {n('host')} {self.ipv4('arg')}\nUser={n('user')}\n",
        )
        if self.kind in ("container host", "cluster manager"):
            self.write("var/run/secrets/kubernetes.io/serviceaccount/namespace", n("namespace"))

    def _boot(self) -> None:
        """What a boot reads: commands, lists of modules, and settings."""
        n, below, word = self.name, "etc/systemd/system", self.name("service")
        link, netdev = n("soft link"), n("netdev")
        self.write(
            f"{below}/{word}.service",
            f"[Unit]\nDescription={n('text')}\nDocumentation=https://{n('url')}\nWants={n('unit')}.service network.target\nConditionHost={n('host')}\n[Service]\nUser={n('user')}\nEnvironment={n('VAR')}={n('secret')}\nEnvironmentFile=-/etc/{n('file')}\nExecStartPre=/opt/{n('program')} --token {n('secret')}\nExecStart=/usr/{n('folder')}/rdma link add {link} type rxe netdev {netdev}\nExecStartPost=/bin/sh -c 'echo \"rdma 20049\" > /proc/fs/nfsd/portlist; /opt/{n('program')} {n('argument')}'\n[Install]\nWantedBy={n('target')}.target multi-user.target\n",
        )
        self.write(f"{below}/{word}.service.d/{n('drop-in')}.conf", f"[Service]\nExecStart=nfsdctl {n('argument')}\nUser={n('user')}\n")  # fmt: skip
        script = f"usr/local/{n('folder')}/{n('script')}"
        self.write(f"{below}/{n('setup')}.service", f"[Service]\nExecStart=/{script} {n('argument')}\nExecStart=/opt/{n('program')}\n")  # fmt: skip
        self.write(script, f"#!/opt/{n('shell')}/bash\n# {n('comment')}\nPASSWORD={n('secret')} rdma link add {n('secret')}\nfor {n('variable')} in {n('netdev')}; do rdma link add {n('soft link')} netdev {n('netdev')}; done\n/opt/{n('program')}\nnfsdctl {n('argument')}/{n('argument')}; modprobe rpcrdma # {n('comment')}\n")  # fmt: skip
        self.write(f"{below}/{n('other')}.service", f"[Service]\nExecStart=/opt/{n('program')}\n")
        self.write(f"{below}/{n('instance')}@.service", f"[Service]\nExecStart=rdma link add rxe_%i netdev %i # {n('comment')}\n")  # fmt: skip
        self.write(f"{below}/{word}.timer", f"[Timer]\nOnCalendar={n('calendar')}\n")
        for folder, name in ((f"{n('target')}.target", f"{word}.service"), ("timers.target", f"{word}.timer"), ("multi-user.target", "nfs-server.service")):  # fmt: skip
            (self.root / f"{below}/{folder}.wants").mkdir(parents=True, exist_ok=True)
            target = f"/{below}/{name}" if name != "nfs-server.service" else f"/usr/lib/systemd/system/{name}"  # fmt: skip
            (self.root / f"{below}/{folder}.wants/{name}").symlink_to(target)
        self.write("etc/rc.local", f"#!/bin/sh\n# {n('comment')}\n/opt/{n('program')}\nrdma link add {n('soft link')} type siw netdev {n('netdev')} # {n('comment')}\nmodprobe rpcrdma {n('argument')}\nmount -t nfs -o rdma,{n('option')}={n('value')} {n('server')}.{n('zone')}:/{n('export')} /{n('folder')}/{n('folder')} {n('argument')}\nmount -t cifs -o rdma,username={n('user')},password={n('secret')} //{n('server')}/x /{n('folder')}\n")  # fmt: skip
        (self.root / "etc/rc.local").chmod(0o755)
        for folder in ("etc/modules-load.d", "usr/lib/modules-load.d", "etc/rdma/modules"):
            self.write(f"{folder}/{n('file')}.conf", f"# {n('comment')}\n{n('module')}\nrpcrdma\n; {n('comment')}\n")  # fmt: skip
        self.write(f"usr/lib/modprobe.d/{n('file')}.conf", f"options rpcrdma {n('key')}={n('value')}\nalias {n('alias')} nfsrdma\ninstall siw /bin/false {n('argument')}\n")  # fmt: skip
        self.write(f"etc/sysctl.d/{n('file')}.conf", f"kernel.hostname={n('host')}\nsunrpc.{n('key')}=1\nsunrpc.tcp_slot_table_entries={n('value')}\nsunrpc.rdma_slot_table_entries = 64\n")  # fmt: skip
        self.write("etc/sysctl.conf", f"# {n('comment')}\nnet.{n('key')}={n('value')}\n")
        self.write("proc/sys/sunrpc/rdma_slot_table_entries", "64\n")
        self.write(f"etc/udev/rules.d/60-{n('rule')}.rules", f'ACTION=="add", KERNEL=="{n("netdev")}", ENV{{{n("env")}}}=="{n("value")}", RUN+="/opt/{n("program")}/rdma link add {n("soft link")} type rxe netdev %k"\nNAME="{n("name")}"\n')  # fmt: skip

    def _logs(self) -> None:
        n, rows = self.name, list[str]()
        templates = (
            "nfs: server {s} not responding, still trying", "nfs: server {s} not responding, timed out", "nfs: server {a} OK", "{t}: RPC call returned error 13",
            "NFS: state manager: lease expired failed on NFSv4 server {s} with error 13", "NFS: state recovery failed for open file {u}/{f}.xlsx, error = -116",
            "NFS: nfs4_reclaim_open_state: Lock reclaim failed!", "NFS: Server {s} reports our clientid is in use", "NFSv4: state recovery failed for open file {u}/{f}, error = -10025",
            "lockd: cannot monitor {s}", "lockd: server {s} not responding, still trying", "rpcrdma: removing device {d} for {a}:20049", "rpcrdma: connection to {a}:20049 closed (-103)",
            "svcrdma: {f} {u}", "NFSD: client {a} testing state ID with incorrect client ID", "RPC: server {s} requires stronger authentication.",
            "RPC:   rpc_clnt_test_xprt failed: -22 addr {a} not added", "infiniband {d}: set active", "nfs4_discover_server_trunking unhandled error -512. Exiting with error EIO {f}",
            "rpcrdma: Unknown symbol {f} (err -22)", "{f} {u} {a} {s}", "module {f}: loading out-of-tree module taints kernel.", "NFS: v4 server {s} returned a bad sequence-id error!",
            "nfs: Deprecated parameter '{f}'", "nfs: mount program didn't pass remote address {f}", "Unable to mount {s}:/{f}/{u}", "rpc.statd[1]: {s}",
        )  # fmt: skip
        for template in templates:
            text = template.format(
                s=f"{n('log server')}.{n('log domain')}",
                a=self.ipv4("log"),
                t=n("log protocol"),
                u=n("log user"),
                f=n("log file"),
                d=n("log device"),
            )
            host = n("log host")
            rows += [
                f"[    9.{self.random.randrange(100000):06d}] {text}",
                f"2026-11-26T17:12:14+0000 {host} kernel: {text}",
                f"Nov 26 17:12:14 {host} kernel: {text}",
                f"2026-11-26T17:12:14+0000 {host} {n('log program')}[77]: {text}",
                f"{n('month')} 26 17:12:14 {host} kernel: {text}",
                f"[{n('day')} {self.ipv4('time')}] {text}",
                json.dumps(
                    {
                        "MESSAGE": text,
                        "_TRANSPORT": "kernel",
                        "_HOSTNAME": host,
                        "_CMDLINE": n("command"),
                    }
                ),
            ]
        for program, text in (
            ("mount.nfs", "mount.nfs: access denied by server while mounting {}:/{}"),
            ("mount", "mount.nfs4: Connection timed out for {}:/{} on /{}"),
            ("rpc.nfsd", "rpc.nfsd: unable to bind {} {}"),
            ("modprobe", "modprobe: FATAL: Module rpcrdma not found in directory /lib/modules/{}"),
        ):
            rows.append(
                f"2026-11-26T17:12:14+0000 {n('log host')} {program}[12]: "
                + text.format(n("log server"), n("log path"), n("log directory"))
            )
        self.said("dmesg", text="\n".join(row for row in rows if row.startswith("[")) + "\n")
        self.said(
            "journalctl",
            "--boot",
            "--no-pager",
            "--quiet",
            "--output=short-iso",
            "--lines=100000",
            "_TRANSPORT=kernel",
            "+",
            "SYSLOG_IDENTIFIER=rpc.nfsd",
            "+",
            "SYSLOG_IDENTIFIER=mount",
            "+",
            "SYSLOG_IDENTIFIER=mount.nfs",
            "+",
            "SYSLOG_IDENTIFIER=nfsdctl",
            "+",
            "SYSLOG_IDENTIFIER=modprobe",
            "+",
            "SYSLOG_IDENTIFIER=systemd-modules-load",
            text="\n".join(rows) + "\n",
        )

    # ---- what each kind has in addition

    def _mounted(
        self, number: int, source: str, where: str, options: str, kind: str = "nfs4"
    ) -> None:
        """A mount with its record in mountstats."""
        self.add(
            "proc/self/mountinfo",
            f"{number} 22 0:{number} / {where} rw - {kind} {source} rw,{options}",
        )
        if kind.startswith("nfs"):
            self.add(
                "proc/self/mountstats",
                f"device {source} mounted on {where} with fstype {kind} statvers=1.1",
                f"\topts:\trw,{options}", "\tage:\t10", "\tevents:\t1 2 3", "\tbytes:\t1 2 3 4 5 6 7 8",
                "\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)", "\txprt:\ttcp 800 1 1 0 0 10 10 0 10 0 2 0 0",
                "\tper-op statistics", "\t        READ: 1 1 0 44 24 0 0 0 0", "",
            )  # fmt: skip
            self.write(f"sys/class/bdi/0:{number}/read_ahead_kb", "128\n")

    def _options(self, proto: str = "tcp") -> str:
        address = self.ipv4("addr")
        return f"vers=4.2,rsize=1048576,wsize=1048576,hard,proto={proto},timeo=600,retrans=2,sec=sys,clientaddr={self.ipv4('clientaddr')},local_lock=none,addr={address}"

    def _link(self, name: str, number: int, **files: str) -> None:
        for key, value in {"mtu": "1500", "operstate": "up", "type": "1", "ifindex": str(number), **files}.items():  # fmt: skip
            self.write(f"sys/class/net/{name}/{key}", f"{value}\n")

    def _uid(self, where: str) -> str:
        digits = self.random.randbytes(16).hex()
        text = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        self.canaries[text] = where
        return text

    def _debian_client(self) -> None:
        n = self.name
        self.write("etc/default/nfs-kernel-server", f"# {n('comment')}\nRPCNFSDCOUNT=8\nRPCNFSDPRIORITY=0\nRPCMOUNTDOPTS=\"--manage-gids -H {n('host')}\"\nNEED_SVCGSSD=\"{n('text')}\"\nRPCSVCGSSDOPTS=\"-n -p nfs/{n('principal')}@{n('realm')}\"\n")  # fmt: skip
        self.write("etc/modprobe.d/mlx.conf", f"options mlx5_core prof_sel=2 # {n('comment')}\nblacklist {n('module')}\nsoftdep nfs pre: {n('module')}\n")  # fmt: skip

    def _rhel_client(self) -> None:
        n = self.name
        self.write("etc/sysconfig/nfs-utils", f"RPCGSSDARGS=\"-k /etc/{n('keytab')}.keytab\"\nSTATDARG=\"--name {n('statd')} -H /usr/sbin/{n('callout')}\"\n")  # fmt: skip
        self.write(f"lib/modules/{self.release}/config", f"CONFIG_NFS_V4=m\nCONFIG_SUNRPC_{n('config')}=m\n")  # fmt: skip
        self.write("proc/version_signature", f"{n('signature')} {n('signature')}\n")

    def _sles_client(self) -> None:
        n = self.name
        self.write(
            "usr/etc/nfs.conf", f"[nfsd]\nrdma=n\nhost={n('host')}\n[lockd]\nport={n('port')}\n"
        )
        self.write(
            f"usr/etc/nfs.conf.d/{n('file')}.conf", f"[statd]\nname={n('statd')}.{n('zone')}\n"
        )
        self.write(
            "etc/nfs.conf.local",
            f"[nfsd]\n# {n('comment')}\nname={n('name')}\n{n('key')}={n('value')}\n",
        )
        self.write("etc/sysconfig/nfs", f"## Path: Network/{n('path')}\n## Description: {n('text')}\nUSE_KERNEL_NFSD_NUMBER=\"4\"\nNFS3_SERVER_SUPPORT=\"yes\"\nRPC_PIPEFS_DIR=\"/run/{n('pipefs')}\"\nNFSD_OPTIONS=\"--host {n('host')}\"\n")  # fmt: skip

    def _nixos_client(self) -> None:
        n = self.name
        store = f"/nix/store/{n('hash')}-nfs-utils-2.6"
        self.write("usr/lib/systemd/system/nfs-server.service", f"[Unit]\nX-Restart-Triggers=/nix/store/{n('hash')}-{n('unit')}\n[Service]\nEnvironment=PATH={store}/bin:/nix/store/{n('hash')}-coreutils/bin\nExecStart={store}/sbin/rpc.nfsd -r -H {n('host')}\n")  # fmt: skip
        self.add(
            "etc/fstab",
            f"# generated by {n('generator')}",
            f"{n('server')}:/{n('export')} /{n('folder')} nfs x-initrd.mount,proto=rdma,x-systemd.device-timeout={n('timeout')},X-{n('option')} 0 2",
        )
        self._mounted(300, f"{n('server')}:/{n('export')}", f"/nix/{n('folder')}", self._options())

    def _container_host(self) -> None:
        n = self.name
        for number in range(100, 140):
            layers = ":".join(f"/var/lib/docker/overlay2/l/{n('layer')}" for _ in range(3))
            self.add("proc/self/mountinfo", f"{number} 22 0:{number} / /var/lib/docker/overlay2/{n('layer')}/merged rw - overlay overlay rw,lowerdir={layers},upperdir=/{n('upper')}/diff,workdir=/{n('work')}")  # fmt: skip
        for number in range(300, 303):
            self._mounted(number, f"{n('server')}.{self.domain}:/{n('volume')}", f"/var/lib/docker/volumes/{n('project')}_{n('volume')}/_data", self._options())  # fmt: skip
        self._link(f"veth{n('veth')}", 40, address=self.mac("veth"), ifalias=n("alias"))
        self._link(f"br-{n('bridge')}", 41, address=self.mac("bridge"))
        self.write(f"sys/class/net/br-{n('bridge')}/bridge/bridge_id", f"8000.{n('bridge id')}\n")

    def _kubernetes_node(self) -> None:
        n = self.name
        for number, kind in enumerate(("nfs", "csi", "nfs", "csi"), 300):
            pod, volume = self._uid("pod"), self._uid("volume")
            below = f"/var/lib/kubelet/pods/{pod}/volumes/kubernetes.io~{kind}"
            where = f"{below}/pvc-{volume}/mount" if kind == "csi" else f"{below}/{n('volume')}"
            source = f"{self.random.choice((self.servers[1], n('server')))}:/{n('share')}/{n('namespace')}-{n('claim')}-pvc-{self._uid('claim')}"
            self._mounted(number, source, where, self._options(self.random.choice(("tcp", "rdma"))))
            self._mounted(number + 40, source, f"{below}/subpath/{n('subpath')}/0", self._options())
        handle = n("service")
        self._mounted(360, f"{n('server')}:/{n('share')}", f"/var/lib/kubelet/plugins/kubernetes.io/csi/{n('driver')}.csi.{n('vendor')}.io/{handle}/globalmount", self._options())  # fmt: skip
        self.add("proc/self/mountinfo", f"380 22 0:380 / /var/lib/kubelet/pods/{self._uid('pod')}/volumes/kubernetes.io~projected/{n('token')} rw - tmpfs tmpfs rw,size={n('size')}")  # fmt: skip
        self._link(f"cali{n('calico')}", 50, address=self.mac("cali"))
        self._link("vxlan.calico", 51, address=self.mac("vxlan"))
        self.write(
            "etc/hosts",
            f"# {n('comment')}\n{self.ipv4('pod')} {n('pod')} {n('pod')}.{n('namespace')}.svc.cluster.local\n",
        )

    def _ganesha_server(self) -> None:
        n = self.name
        for name in ("portlist", "threads", "versions"):
            (self.root / f"proc/fs/nfsd/{name}").unlink()
        self.write("var/lib/nfs/etab", "")
        self.write("etc/exports", f"# {n('comment')}: {n('text')}\n")
        self.add("proc/self/mountinfo", f"310 22 0:310 / /{n('gluster')} rw - fuse.glusterfs {n('server')}:/{n('volume')} rw,user_id={n('user')}", f"311 22 0:311 / /srv/{n('folder')} rw - fuse.{n('fuse')} {n('source')} rw")  # fmt: skip
        self._mounted(312, f"localhost:/{n('pseudo')}", f"/{n('loop')}", self._options())
        self._mounted(313, f"{self.host}:/{n('pseudo')}", f"/{n('loop')}", self._options())

    def _autofs_and_ldap(self) -> None:
        n, below = self.name, "etc/systemd/system"
        for number, source in enumerate((f"/etc/auto.{n('map')}", f"ldap://{n('ldap')}.{n('zone')}/ou={n('ou')},dc={n('dc')}", f"ldaps:automountMapName={n('map')},cn={n('cn')}", f"sss,{n('map')}", f"program:/etc/{n('program')}", "-hosts", f"yp:{n('yp')}", f"systemd-1:{n('unit')}"), 320):  # fmt: skip
            self.add("proc/self/mountinfo", f"{number} 22 0:{number} / /{n('net')}/{n('key')} rw - autofs {source} rw,fd={number},pgrp=1,timeout=60,minproto=5,maxproto=5,direct,pipe_ino={number}")  # fmt: skip
        self._mounted(
            340,
            f"{n('server')}.{self.domain}:/home/{n('user')}",
            f"/home/{n('user')}",
            self._options("rdma"),
            "nfs4",
        )
        self._mounted(
            341, f"{n('server')}:/{n('multi')}", f"/net/{n('server')}/{n('multi')}", self._options()
        )
        word = n("unit")
        self.write(
            f"{below}/{word}.automount",
            f"[Automount]\nWhere=/{word}\nDirectoryMode={n('mode')}\nExtraOptions={n('extra')}\n",
        )
        self.write(
            f"{below}/{word}.mount",
            f"[Mount]\nWhat={n('server')}:/{n('export')}\nWhere=/{word}\nType=nfs\nOptions=proto=rdma,{n('option')}\n",
        )

    def _kerberos(self) -> None:
        n = self.name
        self.write(f"etc/nfs.conf.d/{n('file')}.conf", f"[gssd]\nuse-machine-creds=1\navoid-dns={n('text')}\npreferred-realm={n('realm')}\nallowed-enctypes={n('enctype')}\n[svcgssd]\nprincipal=nfs/{n('principal')}.{n('zone')}@{n('realm')}\n")  # fmt: skip
        for number, flavour in enumerate(("krb5", "krb5i", "krb5p"), 330):
            options = self._options("rdma").replace("sec=sys", f"sec={flavour}")
            self._mounted(
                number, f"{n('server')}.{n('realm')}:/{n('home')}", f"/{n('folder')}", options
            )
            self.add(
                "etc/exports",
                f"/{n('export')} gss/{flavour}({n('option')}) *.{n('realm')}(sec={flavour}:{n('flavour')})",
            )
        self.add(
            "etc/fstab",
            f"{n('server')}:/{n('x')} /{n('y')} nfs4 sec=krb5p,proto=rdma,gssname={n('principal')} 0 0",
        )

    def _bond_and_vlan(self) -> None:
        n = self.name
        members = [n("member"), n("member")]
        bond = n("bond")
        self._link(bond, 60, address=self.mac("bond"))
        self.write(f"sys/class/net/{bond}/bonding/slaves", " ".join(members) + "\n")
        self.write(f"sys/class/net/{bond}/bonding/mode", "802.3ad 4\n")
        self.write(f"sys/class/net/{bond}/bonding/active_slave", f"{members[0]}\n")
        for number, member in enumerate(members, 61):
            self._link(
                member,
                number,
                address=self.mac("member"),
                ifalias=n("alias"),
                phys_port_name=n("port"),
            )
            self.write(f"sys/class/net/{member}/master/ifindex", "60\n")
            for half, priority in (("rp", 3), ("np", 3)):
                self.write(f"sys/class/net/{member}/ecn/roce_{half}/enable/{priority}", "1\n")
        for tag in (100, 200):
            name = f"{n('vlan')}.{tag}"
            self._link(name, tag, address=self.mac("vlan"))
            self.write(
                f"proc/net/vlan/{name}", f"{name}  VID: {tag}\t REORDER_HDR: 1\nDevice: {bond}\n"
            )

    def _infiniband_cluster(self) -> None:
        n = self.name
        for number in range(3):
            device = n("rdma device")
            below = f"sys/class/infiniband/{device}"
            for key, value in {"node_guid": self.guid("node"), "sys_image_guid": self.guid("image"), "hca_type": f"MT{n('type')}", "board_id": n("board"), "fw_ver": f"16.{n('firmware')}", "node_desc": f"{n('description')} HCA-1"}.items():  # fmt: skip
                self.write(f"{below}/{key}", f"{value}\n")
            port = f"{below}/ports/1"
            for key, value in {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": f"100 Gb/sec ({n('rate')})", "link_layer": "InfiniBand", "cap_mask": f"0x{n('mask')}", "lid": n("lid"), "sm_lid": n("lid")}.items():  # fmt: skip
                self.write(f"{port}/{key}", f"{value}\n")
            self.write(f"{port}/gids/0", f"fe80:0000:0000:0000:{self.guid('gid')}\n")
            self.write(f"{port}/gids/1", f"fec0:0000:0000:{n('bad')}\n")
            self.write(f"{port}/counters/{n('counter')}", "1\n")
            address = ":".join(f"{byte:02x}" for byte in self.random.randbytes(20))
            self.canaries[address] = "hardware address"
            self._link(f"ib{n('ipoib')}", 70 + number, type="32", address=address)

    def _other_filesystems(self) -> None:
        n = self.name
        self.add("proc/self/mountinfo",
            f"350 22 0:350 / /{n('ceph')} rw - ceph {n('user')}@{self._uid('fsid')}.{n('fs')}=/{n('path')} rw,name={n('user')},secret={n('secret')},mon_addr={self.ipv4('mon')}/{self.ipv4('mon')}",
            f"351 22 0:351 / /{n('smb')} rw - cifs //{n('server')}/{n('share')} rw,username={n('user')},domain={n('domain')},addr={self.ipv4('smb')}",
            f"352 22 0:352 / /{n('lustre')} rw - lustre {self.ipv4('mgs')}@o2ib:{self.ipv4('mgs')}@o2ib:/{n('fsname')} rw,flock,user_xattr",
            f"353 22 0:353 / /{n('gpfs')} rw - gpfs {n('gpfs')} rw,dev={n('cluster')}.{n('zone')}:{n('fs')}",
            f"354 22 0:354 / /{n('ssh')} rw - fuse.sshfs {n('user')}@{n('host')}:/{n('path')} rw",
            f"355 22 0:355 / /{n('nine')} rw - 9p {n('tag')} rw,aname=/{n('path')}")  # fmt: skip
        self.write(f"sys/class/bdi/lustre-{n('bdi')}/read_ahead_kb", "512\n")
        self.add("etc/fstab", f"{self.ipv4('mgs')}@o2ib:/{n('fsname')} /{n('lustre')} lustre flock,_netdev 0 0", f"{n('user')}@.{n('fs')}=/ /{n('ceph')} ceph secretfile=/etc/{n('secret file')},_netdev 0 0", f"//{n('server')}/{n('share')} /{n('smb')} cifs credentials=/root/{n('credentials')} 0 0")  # fmt: skip

    def _cluster_manager(self) -> None:
        n = self.name
        options = f"rw,sync,wdelay,hide,no_subtree_check,fsid={self._uid('fsid')},sec=sys,secure,no_root_squash,no_all_squash"
        self.add("var/lib/nfs/etab", *(f"/srv/{n('resource')}\t{client}({options})" for client in (self.ipv4("client"), f"{n('client')}.{n('zone')}", f"{self.ipv4('net')}/22")))  # fmt: skip
        self.write(f"usr/lib/systemd/system/nfs-server.service.d/50-{n('pacemaker')}.conf", f"[Unit]\nBefore=pacemaker.service {n('unit')}.service\n[Service]\nExecStartPre=/usr/lib/ocf/{n('agent')} -r {n('argument')} start\n")  # fmt: skip
        self.write(f"etc/nfs.conf.d/{n('ha')}.conf", f"[nfsd]\nscope={n('scope')}\nhost={self.ipv4('floating')},{self.ipv6('floating')}\n[statd]\nname={n('floating')}.{n('zone')}\nha-callout=/usr/share/{n('callout')}\n")  # fmt: skip
        self.add("proc/self/mountinfo", f"395 22 147:0 / /srv/{n('drbd')} rw - xfs /dev/drbd/by-res/{n('resource')}/0 rw", f"396 22 253:7 / /srv/{n('lv')} rw - ext4 /dev/mapper/{n('vg')}-{n('lv')} rw")  # fmt: skip

    def _drop_ins(self) -> None:
        n = self.name
        for number in range(12):
            self.write(f"etc/nfs.conf.d/{number:02}-{n('file')}.conf", f"[nfsd]\nthreads={number + 8}\nvers4.{number % 3}={self.random.choice('yn')}\nrdma={self.random.choice('yn')}\nport={n('port')}\n[{n('section')} \"{n('argument')}\"]\n{n('key')} = {n('value')} # {n('comment')}\ninclude = /etc/{n('folder')}/{n('include')}\n")  # fmt: skip
            self.write(f"etc/nfsmount.conf.d/{number:02}-{n('file')}.conf", f"[ NFSMount_Global_Options ]\nProto={self.random.choice(('tcp', 'rdma'))}\nSec={n('sec')}\n[ Server \"{n('server')}\" ]\nNconnect=4\n[ MountPoint \"/{n('mount point')}\" ]\nRsize={n('size')}\n")  # fmt: skip
            self.write(f"etc/exports.d/{number:02}-{n('file')}.exports", f"/{n('export')} {n('client')}(rw,{n('option')}) @{n('netgroup')}(ro) {self.ipv4('net')}/255.255.0.0(sync)\n")  # fmt: skip
            self.write(f"etc/udev/rules.d/{number:02}-{n('rule')}.rules", f'SUBSYSTEM=="bdi", ACTION=="add", KERNEL=="{self.random.choice(("0:*", "[0-9]*", n("kernel")))}", PROGRAM="/usr/{n("program")} %k", ATTR{{read_ahead_kb}}="{256 << number % 4}", SYMLINK+="{n("link")}", TAG+="{n("tag")}", OWNER="{n("owner")}", {n("key").upper()}="{n("value")}"\n' if number % 2 else f'SUBSYSTEM=="bdi", ATTR{{read_ahead_kb}}="{512 << number % 3}", NAME="{n("name")}", GOTO="{n("label")}"\n')  # fmt: skip
            self.write(f"etc/modprobe.d/{number:02}-{n('file')}.conf", f"options sunrpc tcp_max_slot_table_entries=128 {n('key')}={n('value')}\noptions rpcrdma {n('key')}\n")  # fmt: skip

    def _cloud_host(self) -> None:
        n = self.name
        region = n("region")
        self.write("proc/version_signature", f"Ubuntu {self.release}-{n('cloud')} 6.8.4\n")
        self._mounted(400, f"fs-{n('file system')}.efs.{region}.{n('cloud')}.com:/", f"/mnt/{n('efs')}", self._options())  # fmt: skip
        self._mounted(401, f"127.0.0.1:/{n('access point')}", f"/mnt/{n('tunnel')}", self._options() + f",port=20{self.random.randrange(100, 999)}")  # fmt: skip
        self._mounted(402, f"{n('account')}.file.core.{n('zone')}.net:/{n('account')}/{n('share')}", f"/mnt/{n('azure')}", self._options())  # fmt: skip
        self.add("etc/fstab", f"{n('filer')}.{region}.{n('cloud')}.internal:/{n('vol')} /{n('fsx')} nfs nconnect=16,proto=rdma,_netdev,noresvport,tls={n('tls')},accesspoint={n('access point')} 0 0")  # fmt: skip
        device = n("efa")
        self.write(f"sys/class/infiniband/{device}/node_type", "7: <unknown>\n")
        self.write(f"sys/class/infiniband/{device}/device/vendor", "0x1d0f\n")
        self.write(f"sys/class/infiniband/{device}/ports/1/state", "4: ACTIVE\n")
        self.write(f"sys/class/infiniband/{device}/ports/1/link_layer", "Unspecified\n")
        self.write("etc/hosts", f"{self.ipv4('internal')} ip-{n('internal')}.{region}.compute.internal {n('instance')} # {n('metadata')}\n169.254.169.254 {n('metadata')}.{n('cloud')}.internal\n")  # fmt: skip
