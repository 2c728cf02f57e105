# SPDX-License-Identifier: Apache-2.0
"""Stacks as they were sampled on 6.12, innermost function first."""

import pytest

from nfsrdma_tools.probes.cpu_layers import LAYERS, Frame, layer, side, uninterrupted

WORKER = "process_one_work worker_thread kthread ret_from_fork ret_from_fork_asm"
CARD = "card_engine_run[nfsrdma_card] card_post_send[nfsrdma_card]"
RXE = "rxe_requester[rdma_rxe] rxe_sender[rdma_rxe] do_task[rdma_rxe]"
NFSD = "svc_process[sunrpc] svc_recv[sunrpc] nfsd[nfsd] kthread ret_from_fork ret_from_fork_asm"
READ = "vfs_read ksys_read do_syscall_64 entry_SYSCALL_64_after_hwframe"
TIMER = "handle_softirqs __irq_exit_rcu sysvec_apic_timer_interrupt asm_sysvec_apic_timer_interrupt"


def stack(text: str) -> list[Frame]:
    words = (word.rstrip("]").partition("[") for word in text.split())
    return [Frame(function, module) for function, _, module in words]


@pytest.mark.parametrize(
    ("frames", "wanted"),
    [
        ("", "application"),
        (f"nfs_direct_read_schedule_iovec[nfs] {READ}", "nfs"),
        (f"filemap_read nfs_file_read[nfs] {READ}", "VFS and page cache"),
        # what has no layer of its own is its caller's work
        (f"_raw_spin_unlock_irqrestore xprt_reserve[sunrpc] {READ}", "sunrpc"),
        (f"kmem_cache_alloc_noprof memset_orig frwr_map[rpcrdma] {READ}", "transport"),
        (f"__schedule schedule rpc_wait_bit_killable[sunrpc] {READ}", "scheduling"),
        (f"crc32_pclmul_le_16[crc32_pclmul] rxe_crc32[rdma_rxe] {RXE} {WORKER}", "emulated NIC"),
        (f"crc32_le_base rxe_icrc_hdr[rdma_rxe] {RXE} {WORKER}", "emulated NIC"),
        ("crc32c_le_base ext4_inode_csum[ext4] vfs_write", "export file system"),
        (f"memcpy_orig rxe_mr_copy[rdma_rxe] {RXE} {WORKER}", "emulated NIC"),
        (f"ip_output rxe_xmit_packet[rdma_rxe] {RXE} {WORKER}", "emulated NIC"),
        (f"veth_xmit[veth] dev_hard_start_xmit rxe_xmit_packet[rdma_rxe] {RXE}", "emulated NIC"),
        ("tcp_sendmsg_locked tcp_sendmsg siw_tx_hdt[siw] siw_run_sq[siw] kthread", "emulated NIC"),
        (f"memcpy_orig card_copy[nfsrdma_card] {CARD} {WORKER}", "card model"),
        (f"local_bh_enable_ip {CARD} rpcrdma_post_sends[rpcrdma] {WORKER}", "card model"),
        (f"queue_work_on card_cq_interrupt[nfsrdma_card] {TIMER} nobody", "scheduling"),
        (f"queue_work_on rxe_sched_task[rdma_rxe] {RXE} {WORKER}", "scheduling"),
        (f"rpcrdma_wc_receive[rpcrdma] __ib_process_cq[ib_core] {WORKER}", "transport"),
        ("tcp_v4_rcv ip_local_deliver net_rx_action handle_softirqs do_softirq", "TCP/IP"),
        (f"copy_page_to_iter shmem_file_read_iter nfsd_iter_read[nfsd] {NFSD}", "copies"),
        (f"rep_movs_alternative _copy_to_iter skb_copy_datagram_iter {READ}", "copies"),
        (f"shmem_get_folio shmem_file_read_iter nfsd_read[nfsd] {NFSD}", "export file system"),
        (f"nfsd_cache_lookup[nfsd] {NFSD}", "nfsd"),
        ("clear_page_rep get_page_from_freelist handle_mm_fault asm_exc_page_fault", "copies"),
        ("vma_merge handle_mm_fault asm_exc_page_fault rep_movs_alternative", "memory"),
        (f"clear_page_dirty_for_io nfs_wb_folio[nfs] {READ}", "VFS and page cache"),
        # in an interrupt: not the work of what was interrupted
        (f"{TIMER} rxe_crc32[rdma_rxe] {RXE} {WORKER}", "interrupts"),
        (f"net_tx_action {TIMER} rxe_crc32[rdma_rxe] {RXE} {WORKER}", "TCP/IP"),
        ("pv_native_safe_halt default_idle default_idle_call do_idle cpu_startup_entry", "idle"),
        ("tick_nohz_idle_exit do_idle cpu_startup_entry", "scheduling"),
        (f"_raw_spin_unlock_irq {WORKER}", "scheduling"),
        (f"nobody_knows_this nor_this {WORKER}", "unattributed"),
        ("nobody_knows_this nor_this do_syscall_64", "other kernel"),
        ("cfg80211_scan[cfg80211] cfg80211_work[cfg80211]", "other kernel"),
        ("nobody_knows_this", "unattributed"),
    ],
)
def test_the_innermost_function_that_has_a_layer_decides(frames: str, wanted: str) -> None:
    assert layer(stack(frames)) == wanted


@pytest.mark.parametrize(
    ("frames", "nfsd", "wanted"),
    [
        ("", False, "client"),
        (f"filemap_read nfs_file_read[nfs] {READ}", False, "client"),
        (f"pipe_read {READ}", False, "client"),
        (f"rpc_async_schedule[sunrpc] {WORKER}", False, "client"),
        (f"frwr_wc_localinv[rpcrdma] __ib_process_cq[ib_core] {WORKER}", False, "client"),
        (f"svc_rdma_wc_receive[rpcrdma] __ib_process_cq[ib_core] {WORKER}", False, "server"),
        (f"nfr_svc_receive[nfsrdma] nfr_conn_poll[nfsrdma] {WORKER}", False, "server"),
        (f"nfr_client_receive[nfsrdma] nfr_conn_poll[nfsrdma] {WORKER}", False, "client"),
        (f"__schedule schedule {NFSD}", True, "server"),
        ("vma_merge handle_mm_fault asm_exc_page_fault", False, "client"),
        (f"rxe_crc32[rdma_rxe] {RXE} {WORKER}", False, "neither"),
        (f"{TIMER} {NFSD}", True, "neither"),
    ],
)
def test_the_side_of_a_stack(frames: str, nfsd: bool, wanted: str) -> None:
    assert side(stack(frames), nfsd) == wanted


def test_what_an_interrupt_hit_is_outside() -> None:
    frames = stack(f"net_tx_action {TIMER} rxe_crc32[rdma_rxe]")
    assert uninterrupted(frames) == [Frame("net_tx_action")]


def test_layers_have_different_names() -> None:
    assert len(set(LAYERS)) == len(LAYERS)
