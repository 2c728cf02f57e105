# SPDX-License-Identifier: Apache-2.0
"""Messages of the devices' drivers about failed work and about resets.

A status is decoded as the driver itself decodes it for its callers: each ``statuses`` names the
function of the driver that has the same table.
"""

from __future__ import annotations

from nfsrdma_tools.host.kernel_log.known_message import DEVICE, IB, KnownMessage

__all__ = ["DEVICE_MESSAGES"]

_ENDED = "A Send, Receive or memory registration ended with an error, which ends its connection."
_CONNECTION = "The device ended a connection because of an error."
_OTHER_USER = "the connection may belong to another user of the device than NFS"
_TRACE = "nfsrdma trace connections"
_SHOW = "nfsrdma link show"
_RESET = (
    "The device or its firmware failed, and the driver resets it. Its connections ended; mounts"
    " connect again."
)
_RECOVERED = "The driver reset the device, and it works again."
_NO_RECOVERY = (
    "The driver's reset of the device failed: connections and mounts over the device do not work."
)
_NO_END = "no message says that the device works again"
_RELOAD = "reload the driver or restart this host; then nfsrdma link show"
_REFUSED = "The firmware of the device refused a command."
_TRIES = "the driver tries some commands that a device may not have"
_QP = r"(?P<qp>\d{1,10})"
_HEX = r"0x(?P<qp_hex>[0-9a-f]{1,8})"
# dev_err() of the PCI function, which may name the network or RDMA device, too
_FUNCTION = r"(?P<subject>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)(?: [\w.-]{1,64})?: "
_QED = r"\[(?:__)?qed\w{0,60}:\d{1,6}\((?P<subject>[\w.:-]{0,32})\)\]"

_INFINIBAND = (
    *(("1", 1), ("2", 2), ("4", 4), ("5", 5), ("6", 6), ("10", 7), ("11", 8), ("12", 9)),
    *(("13", 10), ("14", 11), ("15", 12), ("16", 13), ("22", 16), ("23", 21)),
)
"""Of mlx4, mlx5 and hns: numbers of IB_WC_* by the syndrome, in hexadecimal without zeros."""


def _reset(device: str, pattern: str, source: str, ended_by: str = "") -> KnownMessage:
    """A reset that a driver begins, until its messages "recovered" or "failed"."""
    return KnownMessage(
        f"{device} recovers",
        "warning",
        pattern,
        _RESET,
        _SHOW,
        source,
        doubt=_NO_END,
        ended_by=ended_by or f"{device} recovered",
        failed_by=f"{device} failed",
        where="device",
        recovers="unknown",
    )


def _failure(
    device: str, pattern: str, source: str, next_step: str = "", ended_by: str = ""
) -> KnownMessage:
    """A reset that failed; a later one may succeed."""
    return KnownMessage(
        f"{device} failed",
        "error",
        pattern,
        _NO_RECOVERY,
        next_step or _RELOAD,
        source,
        ended_by=ended_by or f"{device} recovered",
        where="device",
        recovers="no",
    )


_MLX = (
    KnownMessage(
        "mlx5 work failed",
        "warning",
        rf"{IB}WC error: (?P<completion>\d{{1,3}}), Message: [\w ]{{1,64}}",
        _ENDED,
        _TRACE,
        "drivers/infiniband/hw/mlx5/cq.c, dump_cqe()",
        doubt=_OTHER_USER,
    ),
    KnownMessage(
        "mlx5 work failed",
        "warning",
        rf"(?:\S{{1,40}} ){{0,2}}{DEVICE}: ?dump_cqe:\d+:\(pid \d+\): dump error cqe",
        _ENDED,
        _TRACE,
        "drivers/infiniband/hw/mlx5/cq.c, dump_cqe() (older releases)",
        doubt=_OTHER_USER,
    ),
    KnownMessage(
        "mlx5 work failed",
        "warning",
        rf"\S{{1,40}} {DEVICE}: mlx5_poll_one:\d+:\(pid \d+\): syndrome"
        r" 0x(?P<status>[0-9a-f]{1,2}), vendor syndrome 0x(?P<vendor>[0-9a-f]{1,2})",
        _ENDED,
        _TRACE,
        "drivers/infiniband/hw/mlx5/cq.c, mlx5_poll_one() (with dynamic debug)",
        doubt=_OTHER_USER,
        statuses=_INFINIBAND,
    ),
    KnownMessage(
        "mlx4 work failed",
        "warning",
        r"(?:<mlx4_ib> \w{1,40}: )?(?P<status>local QP operation err) \(QPN [0-9a-f]{0,2}"
        r"(?P<qp_hex>[0-9a-f]{6}), WQE index [0-9a-f]{1,4}, vendor syndrome"
        r" (?P<vendor>[0-9a-f]{2}), opcode = [0-9a-f]{2}\)",
        _ENDED,
        "report the record",
        "drivers/infiniband/hw/mlx4/cq.c, mlx4_ib_handle_error_cqe()",
        doubt=_OTHER_USER,
        statuses=(("local QP operation err", 2),),
    ),
    KnownMessage(
        "mlx4 work failed",
        "warning",
        # struct mlx4_err_cqe, include/linux/mlx4/cq.h
        r"(?:<mlx4_ib> \w{1,40}: )?CQE contents [0-9a-f]{2}(?P<qp_hex>[0-9a-f]{6})"
        r" [0-9a-f]{8} [0-9a-f]{8} [0-9a-f]{8} [0-9a-f]{8} [0-9a-f]{8} [0-9a-f]{4}"
        r"(?P<vendor>[0-9a-f]{2})(?P<status>[0-9a-f]{2}) [0-9a-f]{8}",
        _ENDED,
        "report the record",
        "drivers/infiniband/hw/mlx4/cq.c, dump_cqe()",
        doubt=_OTHER_USER,
        statuses=_INFINIBAND,
        continues=True,
    ),
    _reset(
        "mlx4 device",
        rf"mlx4_core {_FUNCTION}(?:Internal error (?:detected(?: on the communication channel)?:?"
        r"|mark was detected on device)|device is going to be reset)",
        "drivers/net/ethernet/mellanox/mlx4/catas.c, poll_catas(), mlx4_enter_error_state()",
    ),
    KnownMessage(
        "mlx4 device recovered",
        "information",
        rf"mlx4_core {_FUNCTION}mlx4_restart_one was ended, ret=0",
        _RECOVERED,
        "",
        "drivers/net/ethernet/mellanox/mlx4/catas.c, mlx4_handle_error_state()",
        where="device",
        recovers="yes",
    ),
    _failure(
        "mlx4 device",
        rf"mlx4_core {_FUNCTION}(?:mlx4_restart_one was ended, ret=-\d{{1,4}}"
        r"|mlx4_restart_one_up failed, ret=-\d{1,4}|Fail to reset HCA"
        r"|PCI device did not come back after reset, aborting"
        r"|Fail to send reset over the communication channel"
        r"|Communication channel isn't sync, fail to send reset)"
        r"|mlx4 (?P<function>\S{1,32}): Reset failed \(-?\d{1,4}\)",
        "drivers/net/ethernet/mellanox/mlx4/catas.c, reset.c",
    ),
)

_BNXT_REQUEST = (
    *(("0x1", 7), ("0x2", 1), ("0x3", 2), ("0x4", 4), ("0x5", 21), ("0x6", 9), ("0x7", 10)),
    *(("0x8", 11), ("0x9", 13), ("0xa", 12), ("0xb", 5)),
)
"""__req_to_ib_wc_status() of drivers/infiniband/hw/bnxt_re/ib_verbs.c."""
_BNXT_RE = rf"bnxt_en {_FUNCTION}(?:QPLIB: )?"
_BNXT_SOURCE = "drivers/net/ethernet/broadcom/bnxt/bnxt.c"

_BNXT = (
    KnownMessage(
        "bnxt_re work failed",
        "warning",
        rf"{_BNXT_RE}FP: CQ Processed Req wr_id\[\d{{1,10}}\] = 0x[0-9a-f]{{1,16}} with status"
        r" (?P<status>0x[0-9a-f]{1,4})",
        _ENDED,
        _TRACE,
        "drivers/infiniband/hw/bnxt_re/qplib_fp.c, bnxt_qplib_cq_process_req()",
        doubt=_OTHER_USER,
        statuses=_BNXT_REQUEST,
    ),
    KnownMessage(
        "bnxt_re queue ended",
        "warning",
        rf"{_BNXT_RE}FP: CQ Process (?:Terminal|Cutoff) Error status = 0x[0-9a-f]{{1,4}}",
        "The device ended the queues of a connection. The line does not say why.",
        _TRACE,
        "drivers/infiniband/hw/bnxt_re/qplib_fp.c, bnxt_qplib_cq_process_terminal()",
        doubt=_OTHER_USER,
    ),
    KnownMessage(
        "bnxt_re device stalled",
        "error",
        rf"{_BNXT_RE}(?:\w{{1,64}}: FW STALL Detected\. .{{1,160}}"
        r"|cmdq\[0x[0-9a-f]{1,8}\]=0x[0-9a-f]{1,4} timedout \(\d{1,8}\)msec)",
        "The firmware of the device does not answer; its connections do not work.",
        _SHOW,
        "drivers/infiniband/hw/bnxt_re/qplib_rcfw.c, bnxt_re_is_fw_stalled(),"
        " bnxt_qplib_rcfw_send_message()",
        where="device",
        recovers="unknown",
    ),
    KnownMessage(
        "bnxt_re command refused",
        "warning",
        rf"{_BNXT_RE}cmdq\[0x[0-9a-f]{{1,8}}\]=0x[0-9a-f]{{1,4}} status 0x[0-9a-f]{{1,4}}",
        _REFUSED,
        _SHOW,
        "drivers/infiniband/hw/bnxt_re/qplib_rcfw.c, bnxt_qplib_rcfw_send_message()",
        doubt=_TRIES,
        where="device",
    ),
    _reset(
        "bnxt_en device",
        rf"bnxt_en {_FUNCTION}(?:Firmware (?:non-)?fatal reset event(?: received.{{0,80}}"
        r"|, .{1,120})"
        r"|(?:Fatal|Non-fatal|Normal) firmware reset event, .{1,120}"
        r"|Detected firmware fatal condition, initiating reset"
        r"|TX timeout detected, starting reset task!)",
        f"{_BNXT_SOURCE}, bnxt_async_event_process(), bnxt_fw_exception(), bnxt_tx_timeout()",
        ended_by="bnxt_en link up",
    ),
    KnownMessage(
        "bnxt_en link up",
        "information",
        rf"bnxt_en {_FUNCTION}NIC Link is Up, .{{1,160}}",
        "The link of the device is up.",
        "",
        f"{_BNXT_SOURCE}, bnxt_report_link()",
        quiet=True,
    ),
    _failure(
        "bnxt_en device",
        rf"bnxt_en {_FUNCTION}(?:Firmware reset aborted.{{0,120}}"
        r"|Firmware not responding, status: 0x[0-9a-f]{1,8}|Firmware init phase [12] failed"
        r"|bnxt_open\(\) failed during FW reset|RESET_DONE not set during FW reset\."
        r"|A previous firmware reset (?:did not complete|has not completed), aborting"
        r"(?: half open)?"
        r"|Failed FW reset via OP-TEE, rc=-?\d{1,4}"
        r"|Failed to reinitialize after aborted firmware reset)",
        f"{_BNXT_SOURCE}, bnxt_fw_reset_task()",
        ended_by="bnxt_en link up",
    ),
)

_IRDMA_EVENTS = (
    *((f"0x10{digit}", 4) for digit in "2345678"),
    *(("0x109", 4), ("0x10a", 4), ("0x11c", 4), ("0x133", 2), ("0x20a", 2), ("0x132", 1)),
    *(("0x134", 1), ("0x135", 1), ("0x305", 1), ("0x303", 1), ("0x112", 10), ("0x20d", 10)),
    *(("0x507", 11), ("0x505", 11), ("0x316", 11), ("0x20e", 11), ("0x700", 19)),
    *(("0x207", 21), ("0x50a", 12), ("0x50f", 13), ("0x118", 6), ("0x11b", 6), ("0x119", 6)),
    *(("0x114", 6), ("0x208", 9)),
)
"""irdma_set_flush_fields() of drivers/infiniband/hw/irdma/hw.c; too many RNR NAKs by its name."""
_ICE_SOURCE = "drivers/net/ethernet/intel/ice/ice_main.c"

_INTEL = (
    KnownMessage(
        "irdma work failed",
        "warning",
        rf"{IB}abnormal ae_id = (?P<status>0x[0-9a-f]{{1,4}}) bool qp=1 qp_id = {_QP},"
        r" ae_src=(?:(?P<response>1|3|9|11)|\d{1,2})",
        _CONNECTION,
        _TRACE,
        "drivers/infiniband/hw/irdma/hw.c, irdma_process_aeq(), irdma_set_flush_fields()",
        doubt=_OTHER_USER,
        statuses=_IRDMA_EVENTS,
    ),
    KnownMessage(
        "irdma connection failed",
        "warning",
        rf"{IB}(?:abnormal ae_id = 0x\w{{1,8}} bool qp=0 qp_id = \d+, ae_src=\d+"
        r"|fatal QP event: SQ in error but not flushed, qp: \d+)",
        _CONNECTION,
        _TRACE,
        "drivers/infiniband/hw/irdma/hw.c, irdma_process_aeq()",
        doubt=_OTHER_USER,
    ),
    KnownMessage(
        "irdma command refused",
        "warning",
        rf"{IB}(?:\[[\w ]{{1,40}} Error\]\[op_code=\d{{1,3}}\] status=-?\d{{1,4}} waiting=\d"
        r" completion_err=\d maj=0x[0-9a-f]{1,4} min=0x[0-9a-f]{1,4}"
        r"|cqp opcode = 0x[0-9a-f]{1,4} maj_err_code = 0x[0-9a-f]{1,4} min_err_code ="
        r" 0x[0-9a-f]{1,4})",
        _REFUSED,
        _SHOW,
        "drivers/infiniband/hw/irdma/utils.c, irdma_handle_cqp_op(); hw.c, irdma_cqp_ce_handler()",
        doubt=_TRIES,
        where="device",
    ),
    _reset(
        "ice device",
        rf"(?:ice|irdma|idpf|i40e) {_FUNCTION}(?:Requesting a reset|HMC Error|PE Push Error"
        r"|critical PE Error, GLPE_CRITERR=0x[0-9a-f]{8})",
        "drivers/infiniband/hw/irdma/main.c, irdma_iidc_event_handler(), irdma_request_reset()",
        ended_by="ice link up",
    ),
    KnownMessage(
        "ice link up",
        "information",
        rf"ice {_FUNCTION}NIC Link is up .{{1,240}}",
        "The link of the device is up.",
        "",
        f"{_ICE_SOURCE}, ice_print_link_msg()",
        quiet=True,
    ),
    _failure(
        "ice device",
        rf"ice {_FUNCTION}(?:Rebuild failed, unload and reload driver|reset \d failed"
        r"|(?:PF|control) VSI rebuild failed: -?\d{1,4}|Reset during resume failed\."
        r"|Rebuild failed due to error sending driver version: -?\d{1,4}"
        r"|Error resetting device\. Please reload the driver"
        r"|Cannot re-enable PCI device after reset, error -?\d{1,4}"
        r"|driver needs to be unloaded and reloaded"
        r"|tx_timeout recovery unsuccessful, device is in unrecoverable state\.)",
        f"{_ICE_SOURCE}, ice_rebuild(), ice_do_reset()",
        ended_by="ice link up",
    ),
)

_QEDR_STATUSES = (
    ("RDMA_CQE_REQ_STS_BAD_RESPONSE_ERR", 7),
    ("RDMA_CQE_REQ_STS_LOCAL_LENGTH_ERR", 1),
    ("RDMA_CQE_REQ_STS_LOCAL_QP_OPERATION_ERR", 2),
    ("RDMA_CQE_REQ_STS_LOCAL_PROTECTION_ERR", 4),
    ("RDMA_CQE_REQ_STS_MEMORY_MGT_OPERATION_ERR", 6),
    ("RDMA_CQE_REQ_STS_REMOTE_INVALID_REQUEST_ERR", 9),
    ("RDMA_CQE_REQ_STS_REMOTE_ACCESS_ERR", 10),
    ("RDMA_CQE_REQ_STS_REMOTE_OPERATION_ERR", 11),
    ("RDMA_CQE_REQ_STS_RNR_NAK_RETRY_CNT_ERR", 13),
    ("ROCE_CQE_REQ_STS_TRANSPORT_RETRY_CNT_ERR", 12),
    ("IB_WC_GENERAL_ERR", 21),
)
"""qedr_poll_cq_req() of drivers/infiniband/hw/qedr/verbs.c."""
_QEDE_SOURCE = "drivers/net/ethernet/qlogic/qede/qede_main.c"

_QLOGIC = (
    KnownMessage(
        "qedr work failed",
        "warning",
        rf"{_QED}Error: POLL CQ with (?P<status>{'|'.join(name for name, _ in _QEDR_STATUSES)})\."
        r" CQ icid=0x[0-9a-f]{1,8},"
        rf" QP icid={_HEX}",
        _ENDED,
        _TRACE,
        "drivers/infiniband/hw/qedr/verbs.c, qedr_poll_cq_req()",
        doubt=_OTHER_USER,
        statuses=_QEDR_STATUSES,
    ),
    KnownMessage(
        "qedr has no memory regions",
        "error",
        rf"{_QED}Out of MR resources",
        "The device has no memory regions left.",
        _SHOW,
        "drivers/infiniband/hw/qedr/verbs.c, __qedr_alloc_mr()",
    ),
    KnownMessage(
        "qedr connection failed by its peer",
        "warning",
        rf"{_QED}(?:QP error received: QED_IWARP_EVENT_(?:REMOTE_\w{{1,40}}|TERMINATE_RECEIVED)"
        r"|Got terminate message)",
        "The peer refused a request of this host, and the connection ended.",
        "the peer's log",
        "drivers/infiniband/hw/qedr/qedr_iw_cm.c, qedr_iw_event_handler()",
        doubt=_OTHER_USER,
        where="peer",
    ),
    KnownMessage(
        "qedr connection failed",
        "warning",
        rf"{_QED}(?:QP error received: QED_IWARP_EVENT_\w{{1,40}}"
        r"|(?:QP|CQ) event \d{1,3} on handle \S{1,20})",
        _CONNECTION,
        _TRACE,
        "drivers/infiniband/hw/qedr/qedr_iw_cm.c, qedr_iw_qp_event(); main.c,"
        " qedr_affiliated_event()",
        doubt=_OTHER_USER,
    ),
    _reset(
        "qede device",
        rf"{_QED}Starting a recovery process",
        f"{_QEDE_SOURCE}, qede_recovery_handler()",
    ),
    _reset(
        "qede device",
        # qed counts the engines of a device after its name
        r"\[qed_hw_error_occurred:\d{1,6}\((?P<subject>[\w.:-]{0,32})-\d\)\]HW error occurred"
        r" \[[\w -]{1,64}\]",
        "drivers/net/ethernet/qlogic/qed/qed_main.c, qed_hw_error_occurred()",
    ),
    KnownMessage(
        "qede device recovered",
        "information",
        rf"{_QED}Recovery handling is done",
        _RECOVERED,
        "",
        f"{_QEDE_SOURCE}, qede_recovery_handler()",
        where="device",
        recovers="yes",
    ),
    _failure(
        "qede device",
        r"qede \S{1,32} (?P<subject>[\w.-]{1,32}): Recovery handling has failed\. Power cycle is"
        r" needed\.",
        f"{_QEDE_SOURCE}, qede_recovery_failed()",
        next_step="turn this host off and on; then nfsrdma link show",
    ),
)

_HNS_SOURCE = "drivers/infiniband/hw/hns/hns_roce_hw_v2.c"

_HNS = (
    KnownMessage(
        "hns work failed",
        "warning",
        rf"{IB}error cqe status 0x(?P<status>[0-9a-f]{{1,2}}):",
        _ENDED,
        _TRACE,
        f"{_HNS_SOURCE}, get_cqe_status()",
        doubt=_OTHER_USER,
        statuses=_INFINIBAND,
    ),
    KnownMessage(
        "hns connection failed by its peer",
        "warning",
        rf"{IB}(?:local access violation work queue {_HEX} error, sub_event type is: \d{{1,3}}"
        r"|invalid request local work queue 0x[0-9a-f]{1,8} error\.)",
        "A request of the peer used memory that is not valid on this host, or is malformed. The"
        " connection ended.",
        "look at both ends' logs of that time",
        f"{_HNS_SOURCE}, hns_roce_irq_work_handle()",
        doubt=_OTHER_USER,
        where="peer",
    ),
    KnownMessage(
        "hns connection failed",
        "warning",
        rf"{IB}(?:local work queue {_HEX} catast error, sub_event type is: \d{{1,3}}"
        r"|CQ 0x[0-9a-f]{1,8} overflow)",
        _CONNECTION,
        _TRACE,
        f"{_HNS_SOURCE}, hns_roce_irq_work_handle()",
        doubt=_OTHER_USER,
    ),
    _reset(
        "hns device",
        rf"hns3 {_FUNCTION}(?:(?:PF|global|IMP) reset requested|(?:global|IMP) reset interrupt"
        r"|In reset process RoCE client (?:un|re)init\.|function level reset\.)",
        f"drivers/net/ethernet/hisilicon/hns3/hns3pf/hclge_main.c, hclge_do_reset(); {_HNS_SOURCE}",
    ),
    KnownMessage(
        "hns device recovered",
        "information",
        rf"hns3 {_FUNCTION}(?:(?:R|r)eset done, RoCE client reinit finished\."
        r"|Reset done, [\w ]{1,32} driver initialization finished\.)",
        _RECOVERED,
        "",
        f"{_HNS_SOURCE}, hns_roce_hw_v2_reset_notify_init()",
        where="device",
        recovers="yes",
    ),
    _failure(
        "hns device",
        rf"hns3 {_FUNCTION}(?:In reset process RoCE reinit failed -?\d{{1,4}}\.|Reset fail!)",
        f"{_HNS_SOURCE}, hns_roce_hw_v2_reset_notify_init();"
        " drivers/net/ethernet/hisilicon/hns3/hns3pf/hclge_main.c, hclge_reset_err_handle()",
    ),
)

_SOFT = (
    KnownMessage(
        "rxe work failed",
        "warning",
        rf"(?:\S{{1,40}} ){{0,2}}{DEVICE}: qp#{_QP} (?:(?P<response>do_complete)|\w{{1,32}}):"
        r" non-flush error status = (?P<completion>\d{1,3})",
        _ENDED,
        _TRACE,
        "drivers/infiniband/sw/rxe/rxe_comp.c, make_send_cqe(); rxe_resp.c, do_complete()",
        doubt=_OTHER_USER,
    ),
    KnownMessage(
        "rxe connection failed",
        "warning",
        rf"rdma_rxe: qp#{_QP} moved to error state",
        "Soft-RoCE ended a connection. The line does not say why.",
        _TRACE,
        "drivers/infiniband/sw/rxe/rxe_resp.c, rxe_responder() (older releases)",
        doubt=_OTHER_USER,
    ),
    KnownMessage(
        "siw terminated",
        "warning",
        r"siw: (?:got TERMINATE\. layer \d, type \d, code \d+"
        r"|crc error\. in: \w{8}, own \w{8}, op \d+)",
        "Soft-iWARP received an error of the peer, or a damaged frame, and ended the connection.",
        _TRACE,
        "drivers/infiniband/sw/siw/siw_qp_rx.c, siw_proc_terminate(), siw_get_trailer()",
        doubt=_OTHER_USER,
    ),
    KnownMessage(
        "siw connection failed by its peer",
        "warning",
        rf"siw: \[QP {_QP}\](?::|,) (?:rresp (?:stag|off|len)|write (?:stag|off)|send (?:msn|mo)):"
        r" [0-9a-f]{1,16} != [0-9a-f]{1,16}",
        "The peer sent data for another memory key, address or message than the expected one.",
        "the peer's log",
        "drivers/infiniband/sw/siw/siw_qp_rx.c, siw_rresp_check_ntoh(), siw_write_check_ntoh()",
        doubt=_OTHER_USER,
        where="peer",
    ),
)

_OTHERS = (
    KnownMessage(
        "mana device recovers",
        "warning",
        rf"mana {_FUNCTION}MANA reset cycle start",
        "The host of this virtual machine services the device. Its connections ended; mounts"
        " connect again.",
        _SHOW,
        "drivers/net/ethernet/microsoft/mana/gdma_main.c, mana_serv_reset()",
        doubt=_NO_END,
        ended_by="mana device recovered",
        failed_by="mana device failed",
        where="device",
        recovers="unknown",
    ),
    KnownMessage(
        "mana device recovered",
        "information",
        rf"mana {_FUNCTION}MANA reset cycle completed",
        "The service of the device has ended, and it works again.",
        "",
        "drivers/net/ethernet/microsoft/mana/gdma_main.c, mana_serv_reset()",
        where="device",
        recovers="yes",
    ),
    _failure(
        "mana device",
        rf"mana {_FUNCTION}(?:MANA reset cycle failed err -?\d{{1,4}}"
        r"|MANA service: resume failed, rescanning)",
        "drivers/net/ethernet/microsoft/mana/gdma_main.c, mana_serv_reset()",
    ),
    KnownMessage(
        "mana command not answered",
        "warning",
        rf"mana {_FUNCTION}HWC: Request timed out!",
        "The device did not answer a command in time.",
        _SHOW,
        "drivers/net/ethernet/microsoft/mana/hw_channel.c, mana_hwc_send_request()",
        doubt="the device may answer the next command",
        where="device",
    ),
    KnownMessage(
        "cxgb4 connection failed by its peer",
        "warning",
        rf"cxgb4 {_FUNCTION}AE qpid {_QP} opcode \d+ status 0x\w{{1,8}} type 0 .{{1,80}}",
        "A request of the peer used memory that is not valid on this host, or is malformed. The"
        " connection ended.",
        "look at both ends' logs of that time",
        "drivers/infiniband/hw/cxgb4/ev.c, dump_err_cqe(); t4.h, T4_ERR_*",
        doubt=_OTHER_USER,
        where="peer",
    ),
    KnownMessage(
        "cxgb4 connection failed",
        "warning",
        rf"\S{{1,40}} {DEVICE}: AE qpid \d+ opcode \d+ status 0x\w{{1,8}} type \d .{{1,80}}",
        _CONNECTION,
        _TRACE,
        "drivers/infiniband/hw/cxgb4/ev.c, dump_err_cqe()",
        doubt=_OTHER_USER,
    ),
    KnownMessage(
        "ocrdma device failed",
        "error",
        rf"be2net {_FUNCTION}Fatal event received",
        "The device failed; its connections ended.",
        _SHOW,
        "drivers/infiniband/hw/ocrdma/ocrdma_hw.c, ocrdma_dispatch_ibevent()",
        where="device",
        recovers="unknown",
    ),
    KnownMessage(
        "ocrdma command not answered",
        "error",
        r"ocrdma_\w{1,40}\(\d{1,4}\) mailbox timeout: fw not responding",
        "The firmware of the device does not answer; its connections do not work.",
        _SHOW,
        "drivers/infiniband/hw/ocrdma/ocrdma_hw.c, ocrdma_mbx_cmd()",
        where="device",
        recovers="unknown",
    ),
    KnownMessage(
        "ionic work failed",
        "warning",
        rf"{IB}qp {_QP} (?:recv|msn|npg) cqe with error",
        _ENDED,
        _TRACE,
        "drivers/infiniband/hw/ionic/ionic_datapath.c",
        doubt=_OTHER_USER,
    ),
)

DEVICE_MESSAGES: tuple[KnownMessage, ...] = (
    *_MLX,
    *_BNXT,
    *_INTEL,
    *_QLOGIC,
    *_HNS,
    *_SOFT,
    *_OTHERS,
)
"""In the order of their use."""
