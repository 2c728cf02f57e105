# SPDX-License-Identifier: Apache-2.0
"""Which layer a stack of kernel functions works for, and for which side (client or server).

The innermost function that has a layer decides.  Locks, allocations, checksums and the like have
no layer: they count for their caller.  Work in an interrupt does not count for the interrupted
thread.  The tables at the end name the functions and modules of each layer: each name is a
regular expression for the beginning of a function's name (without leading underscores) or for the
whole name of a module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import takewhile
from typing import NamedTuple

__all__ = [
    "APPLICATION",
    "CARD",
    "COPIES",
    "EDGES",
    "EMULATED",
    "EXPORTED",
    "FUNCTIONS",
    "HALTED",
    "IDLE",
    "INTERRUPTS",
    "LAYERS",
    "MEMORY",
    "MODULES",
    "NEITHER",
    "NFS",
    "NFSD",
    "NIC",
    "OTHER",
    "RDMA",
    "ROOTS",
    "SCHEDULING",
    "SERVER",
    "SIDES",
    "SUNRPC",
    "TCP_IP",
    "TRACING",
    "TRANSPARENT",
    "TRANSPORT",
    "UNATTRIBUTED",
    "VFS",
    "WEAK",
    "Frame",
    "layer",
    "module_layer",
    "side",
    "uninterrupted",
]

APPLICATION, UNATTRIBUTED, IDLE = "application", "unattributed", "idle"
VFS, NFS, SUNRPC, TRANSPORT = "VFS and page cache", "nfs", "sunrpc", "transport"
RDMA, NIC, EMULATED, TCP_IP = "RDMA core", "NIC driver", "emulated NIC", "TCP/IP"
CARD = "card model"
COPIES, NFSD, EXPORTED = "copies", "nfsd", "export file system"
SCHEDULING, INTERRUPTS, MEMORY = "scheduling", "interrupts", "memory"
OTHER, TRACING = "other kernel", "tracing"
LAYERS = (
    *(APPLICATION, VFS, NFS, SUNRPC, TRANSPORT, RDMA, NIC, EMULATED, CARD, TCP_IP, COPIES),
    *(NFSD, EXPORTED, SCHEDULING, INTERRUPTS, MEMORY, OTHER, TRACING, UNATTRIBUTED, IDLE),
)
"""In output order: down from the application, then layers that serve all others."""

CLIENT, SERVER, NEITHER = "client", "server", "neither"
SIDES = (CLIENT, SERVER, NEITHER)


class Frame(NamedTuple):
    """A kernel function, and its module ("" for the kernel itself)."""

    function: str
    module: str = ""


# below an emulated NIC or a modelled card these layers do the work of a card
_OFFLOADED = {TCP_IP, COPIES, NIC}
_CARDS = {EMULATED, CARD}
_SERVER = re.compile(r"(?:svc|nfsd|nfr_svc|cache_|exp_|auth_domain)")
_CLIENT = re.compile(r"(?:rpc|xprt|xdr_buf_pages|call_|frwr_|nfr_client)")
_PROGRAM = re.compile(r"entry_SYSCALL|do_syscall|el0t?_|asm_exc_page_fault|ret_to_user")


def layer(frames: Sequence[Frame]) -> str:
    """The layer that a kernel stack, innermost frame first, works for.

    A stack without frames is a program in user space.
    """
    if not frames:
        return APPLICATION
    inside = uninterrupted(frames)
    if any(HALTED.match(frame.function.lstrip("_")) for frame in inside[:3]):
        return IDLE
    strong = [name for name in map(_strong, inside) if name]
    if strong:
        above = next((name for name in strong if name not in _OFFLOADED), "")
        return above if above in _CARDS else strong[0]
    if any(ROOTS.match(frame.function) for frame in inside[:2]):
        return SCHEDULING
    weak = next((name for name in map(_weak, inside) if name), "")
    return weak or (_edge(frames[len(inside)]) if len(inside) < len(frames) else UNATTRIBUTED)


def side(frames: Sequence[Frame], nfsd: bool = False) -> str:
    """Whether a stack is the client's, the server's or shared; ``nfsd``: a thread of nfsd.

    A program in user space is always a client.
    """
    if not frames:
        return CLIENT
    inside = uninterrupted(frames)
    if len(inside) == len(frames) and nfsd:
        return SERVER
    known = next((name for name in map(_side, inside) if name), "")
    is_program = len(inside) == len(frames) and _PROGRAM.match(frames[-1].function.lstrip("_"))
    return known or (CLIENT if is_program or _faulted(frames, inside) else NEITHER)


def uninterrupted(frames: Sequence[Frame]) -> list[Frame]:
    """The innermost functions, up to the entry of an interrupt or fault."""
    return list(takewhile(lambda frame: not _edge(frame), frames))


def module_layer(module: str) -> str:
    """The layer of a kernel module; "" if it has none."""
    return next((name for name, known in MODULES.items() if re.fullmatch(known, module)), "")


def _faulted(frames: Sequence[Frame], inside: Sequence[Frame]) -> bool:
    return len(inside) < len(frames) and _edge(frames[len(inside)]) == MEMORY


@cache
def _edge(frame: Frame) -> str:
    return "" if frame.module else _first(EDGES, frame)


@cache
def _strong(frame: Frame) -> str:
    if frame.module:
        return module_layer(frame.module)
    return _first(FUNCTIONS, frame)


@cache
def _weak(frame: Frame) -> str:
    if frame.module:
        return "" if re.fullmatch(TRANSPARENT, frame.module) else OTHER
    return _first(WEAK, frame)


@cache
def _side(frame: Frame) -> str:
    name = frame.function.lstrip("_")
    if frame.module == "nfsd" or (frame.module and _SERVER.match(name)):
        return SERVER
    module = module_layer(frame.module) if frame.module else ""
    return CLIENT if module == NFS or (module and _CLIENT.match(name)) else ""


def _first(table: dict[str, str], frame: Frame) -> str:
    function = frame.function.lstrip("_")
    return next((layer for layer, pattern in table.items() if re.match(pattern, function)), "")


def _names(text: str) -> str:
    # re compiles it at its first use: the help of `nfsrdma trace` needs none
    return rf"(?:{'|'.join(text.split())})"


# the first match decides
MODULES = {
    NFS: _names(
        r"""
        nfs nfsv\d nfs_ssc nfs_localio nfs_layout\w* blocklayoutdriver
        """
    ),
    SUNRPC: _names(
        r"""
        sunrpc auth_rpcgss rpcsec_gss_krb5 lockd nfs_acl grace
        """
    ),
    TRANSPORT: _names(
        r"""
        rpcrdma nfsrdma xprtrdma svcrdma
        """
    ),
    RDMA: _names(
        r"""
        ib_core ib_cm ib_uverbs ib_umad iw_cm rdma_cm rdma_ucm ib_ipoib
        """
    ),
    EMULATED: _names(
        r"""
        rdma_rxe siw
        """
    ),
    CARD: _names(
        r"""
        nfsrdma_card
        """
    ),
    NIC: _names(
        r"""
        mlx[45]_\w+ mthca bnxt_\w+ irdma i40\w+ ice iw_cxgb4 cxgb\d qed\w* hns\w* hclge\w* erdma
        efa ena mana\w* ocrdma be2net hfi1 rdmavt ib_qib vmw_pvrdma usnic_verbs ionic\w*
        virtio_net net_failover vmxnet3 hv_netvsc e1000e? igb\w* ixgbe\w* tg3 r8169 atlantic
        sfc\w* veth dummy bonding tun
        """
    ),
    TCP_IP: _names(
        r"""
        udp_tunnel ip6_udp_tunnel sch_\w+ nf_\w+ nft_\w+ xt_\w+ \w+_tables \w*bridge
        """
    ),
    NFSD: _names(
        r"""
        nfsd
        """
    ),
    VFS: _names(
        r"""
        netfs fscache cachefiles fuse overlay autofs4
        """
    ),
    EXPORTED: _names(
        r"""
        ext4 jbd2 mbcache xfs btrfs zfs spl f2fs gfs2 ocfs2 exfat isofs loop brd null_blk zram
        nvme\w* virtio_blk scsi\w* sd_mod libata ahci libahci ata_\w+ dm_\w+ raid\d+ md_mod
        megaraid_sas mpt3sas
        """
    ),
    TRACING: _names(
        r"""
        bpf
        """
    ),
}
"""The modules of each layer."""

FUNCTIONS = {
    COPIES: _names(
        r"""
        memcpy memmove copy_user_ copy_(?:to|from)_(?:user|iter) copy_mc
        copy_(?:page|folio)_(?:to|from)_iter copyin copyout rep_(?:movs|stos)_alt
        clear_page(?:_\w*(?:rep|orig|erms))?$ clear_user copy_page$ copy_(?:user_)?highpage
        """
    ),
    TRACING: _names(
        r"""
        bpf_ htab_ perf_ trace_ traceiter_ ring_buffer_ unwind_ orc_ stack_trace_ get_perf_
        kprobe ftrace_ event_trigger array_map_ percpu_array lru_
        """
    ),
    TCP_IP: _names(
        r"""
        tcp_ tcp4_ udp_ udpv?\d ip_ ip6_ ipv\d_ ip4_ inet\w*_ icmp arp_ neigh_ fib_ rt_ netif_
        net_[rt]x napi_ dev_(?:queue|hard|direct|loop|forward|gro) qdisc_ sch_ skb_ kfree_skb
        consume_skb alloc_skb build_skb pskb_ sock_ sk_ release_sock lock_sock eth_ loopback_
        process_backlog gro_ validate_xmit xmit_ nf_ dst_ enqueue_to_backlog page_pool_ csum_
        netlink_ rtnl_ unix_ udp$ sys_(?:send|recv) pfifo fq_
        """
    ),
    EXPORTED: _names(
        r"""
        shmem_ ramfs_ simple_write blk_ bio_ submit_bio block_ blkdev_ iomap_ jbd2_ mpage_ elv_
        dd_dispatch mq_ sbitmap_ exportfs_
        """
    ),
    OTHER: _names(
        r"""
        proc_ seq_ kernfs_ sysfs_ tty_ n_tty pty_ uart_ serial8250 pipe_ anon_pipe do_poll ep_
        do_epoll do_select poll_ do_sys_poll signal do_signal get_signal send_signal bprm_
        load_elf begin_new_exec copy_process do_exit timerfd_ eventfd_ kallsyms_ cgroup_ memcg_
        crng_ random_ extract_ audit_
        """
    ),
    VFS: _names(
        r"""
        vfs_ ksys_ (?:x64_|arm64_)?sys_p?(?:read|write|open|close|f?stat|lseek|sendfile|splice)
        do_sys_open do_sys_stat path_ link_path lookup_ do_filp filemap_ generic_file
        generic_perform generic_(?:write|read|update|fillattr) folio_ page_cache_ ra_ readahead
        read_pages ondemand_ force_page do_writepages write_cache writeback_ wb_ balance_dirty
        iov_iter inode_ iget iput evict dput d_ dget getname putname file_ fput fget do_iter
        new_sync iterate_dir filldir invalidate_ truncate_ may_open do_open touch_ fsnotify
        notify_ mnt_ mntput statx do_statx cp_new lru_add workingset splice_ direct_splice
        do_splice do_sendfile rw_verify mapping_ dentry_ step_into walk_component complete_walk
        fdget put_file super_ flush_dcache find_(?:get|lock) pagecache clear_page_dirty
        set_page_dirty mark_inode mark_buffer kiocb dio_ fault_in_ ioctl do_vfs
        """
    ),
    SCHEDULING: _names(
        r"""
        schedule ttwu_ try_to_wake wake_ pick_ enqueue_ dequeue_
        update_(?:curr|load|cfs|rq|se|min) select_(?:task|idle) finish_task finish_wait
        prepare_(?:to_wait|task) complete wait_(?:for|on|woken) swake_ do_swait autoremove futex
        do_futex worker_(?!thread) wq_ queue_(?:work|delayed) kick_pool insert_work try_to_grab
        move_linked kthread_(?!worker_fn) task_ sched_ resched_ load_balance newidle_
        sched_balance hrtimer_ tick_ run_timer run_hrtimer mod_timer add_timer del_timer timer_
        call_timer expire_timers enqueue_timer internal_add_timer clockevents_ ktime_ lapic_
        do_idle cpuidle_ cpu_startup switch_ context_switch psi_ dl_ rt_mutex put_prev set_next
        check_preempt wakeup_ place_entity avg_ reweight entity_ native_smp_send x2apic_send
        flush_work cancel_work flush_smp nohz_ menu_ teo_ rcu_note yield_ exit_to_user_mode_loop
        osq_ rwsem_ mutex_ down_ up_ msleep usleep default_wake set_cpu default_send_IPI
        delayed_work mwait get_next_timer calc_ cpuacct account_ vtime_ irqtime_
        """
    ),
}
"""Functions of the kernel image; the first layer with a match decides."""

WEAK = {
    MEMORY: _names(
        r"""
        handle_mm do_(?:anonymous|fault|wp|user_addr|cow|shared|mmap|munmap|brk) alloc_pages
        alloc_frozen get_page_from rmqueue free_ kmalloc kmem_ kfree slab_ ___slab mmap vm_ vma_
        unmap_ zap_ mprotect exit_mmap tlb_ flush_tlb mm_ anon_ pte_ remove_vma vmalloc vfree
        mas_ wp_page kswapd shrink_ pin_user gup_ get_user_pages internal_get kvfree lru_
        mem_cgroup charge_ compact kcompactd khugepaged vma pmd_ native_flush put_page page_
        change_p add_mm
        """
    ),
    INTERRUPTS: _names(
        r"""
        rcu_ srcu_ call_rcu irq_ handle_irq handle_edge tasklet_ run_ksoftirqd smpboot_ ioapic_
        apic_ ack_ irqentry common_interrupt default_idle flush_smp generic_exec smp_call
        """
    ),
    OTHER: _names(
        r"""
        do_syscall entry_ syscall_ x64_sys arm64_sys x64_ do_sys se_sys sys_ exec do_exec fork
        kernel_clone security_ apparmor_ aa_ cred prepare_creds do_wait do_group do_task arch_
        exit_to_user task_work audit
        """
    ),
}
"""Functions that count for the layer that called them, if any."""
ROOTS = re.compile(r"(?:process_one_work|process_scheduled_works|worker_thread|kthread)$")
"""Entry functions of kernel threads: scheduling, except for their callees."""
EDGES = {
    MEMORY: r"(?:asm_)?exc_page_fault$",
    INTERRUPTS: (
        r"(?:asm_)?(?:sysvec_|common_interrupt|exc_)|(?:do_softirq|handle_softirqs)$"
        r"|el1h?_|do_interrupt_handler"
    ),
}
"""Entries of interrupts and faults: the functions outside were interrupted."""
TRANSPARENT = _names(r"crc\w* crypto\w* aes\w* sha\d\w* ghash\w* gf128mul cryptd libcrc\w*")
"""Modules that count for their caller: checksums and ciphers."""
HALTED = re.compile(
    r"(?:default_idle$|(?:acpi_)?safe_halt|pv_native_safe_halt|native_safe_halt|acpi_idle|intel_idle"
    r"|mwait_idle|poll_idle|cpu_do_idle|arch_cpu_idle|acpi_safe_halt|cpu_idle_poll|psci_)"
)
"""Functions in which an idle CPU waits."""
