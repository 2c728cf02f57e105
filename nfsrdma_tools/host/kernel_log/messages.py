# SPDX-License-Identifier: Apache-2.0
"""The messages that `nfsrdma explain` recognizes, with their meaning, next step and source.

The patterns cover the wording of Linux 5.15 to 7.2 and of nfs-utils 2.5 to 2.8.  Kernels change
their messages, so each entry names the function that prints it.
"""

from __future__ import annotations

from nfsrdma_tools.host.kernel_log.device_messages import DEVICE_MESSAGES
from nfsrdma_tools.host.kernel_log.known_message import (
    DEVICE,
    ERROR,
    IB,
    PCI,
    PEER,
    KnownMessage,
    Severity,
)

__all__ = ["ERRORS", "MESSAGES", "NFS4_ERRORS", "KnownMessage", "Severity"]

_MODULES = (
    r"(?P<subject>rpcrdma|xprtrdma|svcrdma|sunrpc|auth_rpcgss|nfs\w{0,12}|lockd|nfsd|nfsrdma_card"
    r"|rdma_\w{1,16}|iw_cm|ib_\w{1,16}|mlx[45]_\w{1,8}|mlx_compat|irdma|bnxt_re|iw_cxgb4|qedr"
    r"|erdma|siw|nvmet?_rdma)"
)

_CLIENT = (
    KnownMessage(
        "server not responding",
        "warning",
        rf"\w{{1,32}}: server {PEER} not responding, still trying",
        "The server has not answered a request in time. The client repeats it until there is an"
        " answer, and programs that use the mount wait.",
        "nfsrdma doctor {subject}",
        "net/sunrpc/clnt.c, rpc_check_timeout()",
        doubt="no message says that the server answers again",
        ended_by="server responds again",
    ),
    KnownMessage(
        "server responds again",
        "information",
        rf"\w{{1,32}}: server {PEER} OK",
        "The server answers again after it was reported as not responding.",
        "",
        "net/sunrpc/clnt.c, call_decode()",
    ),
    KnownMessage(
        "request timed out",
        "error",
        rf"\w{{1,32}}: server {PEER} not responding, timed out",
        "A soft mount gave up a request; the program got an error, and data it wrote may be lost.",
        "nfsrdma doctor {subject}",
        "net/sunrpc/clnt.c, rpc_check_timeout(); nfs(5), soft",
    ),
    KnownMessage(
        "RPC call failed",
        "warning",
        rf"(?P<subject>\w{{1,32}}): RPC call returned error {ERROR}",
        "A request ended with an error that the client does not repeat.",
        "nfsrdma doctor",
        "net/sunrpc/clnt.c, call_status()",
        doubt="a program may have got the error, or the client may have handled it",
    ),
    KnownMessage(
        "authentication refused",
        "error",
        rf"RPC: server {PEER} requires stronger authentication\.",
        "The server refuses the security flavour of the request.",
        "compare sec= of the mount (nfsrdma mounts) with sec= of the export",
        "net/sunrpc/clnt.c, rpc_decode_header()",
    ),
    KnownMessage(
        "connection limit reached",
        "information",
        r"SUNRPC: reached max allowed number \(\d+\) did not add transport to server:"
        rf" {PEER}",
        "The mount has as many trunked connections as max_connect allows.",
        "",
        "net/sunrpc/clnt.c, rpc_clnt_test_and_add_xprt()",
    ),
    KnownMessage(
        "connection not added",
        "warning",
        rf"RPC:   rpc_clnt_test_xprt failed: {ERROR} addr {PEER} not added",
        "One of the connections of a mount does not work and was left out.",
        "nfsrdma mounts",
        "net/sunrpc/clnt.c, rpc_clnt_setup_test_and_add_xprt()",
        doubt="the mount works with fewer connections than requested",
    ),
    KnownMessage(
        "transport registered",
        "information",
        r"RPC: (?:Registered|Unregistered) (?P<subject>\w{0,16}rdma[\w .-]{0,32})"
        r" transport module\.",
        "A transport module for RDMA was loaded or unloaded.",
        "",
        "net/sunrpc/xprt.c, xprt_register_transport(), xprt_unregister_transport()",
    ),
    KnownMessage(
        "callback not answered",
        "warning",
        rf"RPC: Could not send backchannel reply error: {ERROR}",
        "The client could not answer a callback of the server, such as the recall of a delegation.",
        "nfsrdma trace connections",
        "net/sunrpc/clnt.c, call_bc_transmit_status()",
        doubt="the server repeats most callbacks, and revokes the delegation otherwise",
    ),
    KnownMessage(
        "callbacks overflow",
        "warning",
        r"RPC/RDMA backchannel overflow",
        "The server sent more callbacks at once than the client has buffers. The client closed the"
        " connection and connects again.",
        "nfsrdma trace connections",
        "net/sunrpc/xprtrdma/backchannel.c, rpcrdma_bc_receive_call()",
        doubt="once may be a burst; if it repeats, the server ignores the client's limit",
    ),
    KnownMessage(
        "device cannot register memory",
        "error",
        rf"rpcrdma: '(?:frwr|fmr)' mode is not supported by device {DEVICE}"
        r"|(?:rpcrdma|RPC): Unsupported memory registration mode: \d{1,3}"
        r"|rpcrdma: Device (?P<device>[\w.:-]{1,64}) does not support memreg mode \d{1,3}",
        "The device has no fast memory registration, which the client needs. No mount over it"
        " works.",
        "nfsrdma link show",
        "net/sunrpc/xprtrdma/frwr_ops.c, frwr_query_device()",
    ),
    KnownMessage(
        "device has too few segments",
        "error",
        r"rpcrdma: HCA provides only \d+ send SGEs",
        "A Send of the device gathers fewer segments than the client needs. No mount over it"
        " works.",
        "nfsrdma link show",
        "net/sunrpc/xprtrdma/frwr_ops.c, frwr_query_device()",
    ),
    KnownMessage(
        "address not supported",
        "error",
        r"rpcrdma: Unrecognized address family",
        "A mount over RDMA got an address that is neither IPv4 nor IPv6.",
        "getent ahosts SERVER",
        "net/sunrpc/xprtrdma/transport.c, xprt_rdma_format_addresses()",
    ),
    KnownMessage(
        "client work failed",
        "warning",
        r"rpcrdma: (?:(?P<response>Recv)|Send|frwr|\w{1,24}): [\w ]{1,64}"
        r" \((?P<completion>\d{1,3})/0x(?P<vendor>[0-9a-f]{1,8})\)",
        "A Send, Receive or memory registration of the client ended with an error, which ends its"
        " connection.",
        "nfsrdma doctor",
        "net/sunrpc/xprtrdma/verbs.c, rpcrdma_wc_send() (Linux before 5.2)",
        doubt="the message does not name the mount",
    ),
    KnownMessage(
        "queue pair failed",
        "warning",
        rf"RPC: +rpcrdma_\w{{1,40}}_upcall: [\w -]{{1,64}} on device {DEVICE} ep \S{{1,20}}",
        "The device ended a connection of the client because of an error.",
        "nfsrdma doctor",
        "net/sunrpc/xprtrdma/verbs.c, rpcrdma_qp_async_error_upcall() (older releases)",
        doubt="the client connects again",
    ),
    KnownMessage(
        "connection not set up",
        "error",
        r"rpcrdma: (?:ib_alloc_pd\(\)|rdma_create_qp|rpcrdma_ep_create) returned"
        rf" {ERROR}",
        "The client could not set up a connection.",
        "nfsrdma link show",
        "net/sunrpc/xprtrdma/verbs.c, rpcrdma_ia_open(), rpcrdma_ep_connect() (older releases)",
    ),
    KnownMessage(
        "connection begins",
        "information",
        rf"rpcrdma: connection to {PEER} on \S{{1,64}}, (?:memreg \S{{1,24}}|.{{1,24}}) .{{1,64}}",
        "A mount connected to its server (kernels before 4.13 print it).",
        "",
        "net/sunrpc/xprtrdma/verbs.c, rpcrdma_conn_upcall() (Linux before 4.13)",
    ),
    KnownMessage(
        "connection closed",
        "warning",
        rf"rpcrdma: connection to {PEER} closed \({ERROR}\)",
        "The connection of a mount ended. The client connects again.",
        "nfsrdma doctor {subject}",
        "net/sunrpc/xprtrdma/verbs.c, rpcrdma_conn_upcall() (Linux before 4.13)",
        doubt="an idle mount closes its connection, too; many in a row are a fault of link or peer",
        numbers=((103, "this host or the peer ended the connection"),),
    ),
    KnownMessage(
        "device removed",
        "warning",
        rf"rpcrdma: removing device {DEVICE} for \S{{1,128}}",
        "The device was removed, or its driver was reset, while a mount used it.",
        "nfsrdma link show",
        "net/sunrpc/xprtrdma/verbs.c, rpcrdma_cm_event_handler() (Linux before 6.11)",
        doubt="the mount connects again over a device with the route, unless the kernel lacks"
        " 4836da219781 (Linux 6.10)",
    ),
)

_NFS_CLIENT = (
    KnownMessage(
        "state recovery failed",
        "error",
        r"NFS: state manager(?:: [a-z ]{1,40})? failed on NFSv4 server"
        rf" {PEER} with error {ERROR}",
        "The client could not recover its lease, open files or locks on the server. Programs that"
        " use the mount wait or get errors.",
        "nfsrdma doctor {subject}",
        "fs/nfs/nfs4state.c, nfs4_state_manager()",
        numbers=(
            (13, "the server refuses the client's identity: check sec= and the export"),
            (121, "the server answered with an error that the client does not know"),
        ),
    ),
    KnownMessage(
        "locks lost",
        "error",
        r"NFS: (?:(?P<subject>\S{1,128}): lost \d+ locks"
        r"|(?:__)?nfs4_reclaim_open_state: Lock reclaim failed!)",
        "The client lost locks on files, because its lease expired or the server restarted. Other"
        " clients may have changed the files.",
        "check the data of programs that held locks",
        "fs/nfs/nfs4state.c, nfs4_do_reclaim(), __nfs4_reclaim_open_state()",
    ),
    KnownMessage(
        "open file lost",
        "error",
        r"(?:NFSv4: state recovery failed for open file .{1,256}, error ="
        rf"|NFS: nfs4_reclaim_open_state: unhandled error) {ERROR}",
        "The client could not open a file again after the lease was lost. The program gets EIO.",
        "restart the program that has the file open",
        "fs/nfs/nfs4state.c, nfs4_state_mark_open_context_bad(), nfs4_reclaim_open_state()",
    ),
    KnownMessage(
        "client identity in use",
        "error",
        rf"NFS: Server {PEER} reports our clientid is in use",
        "Another client has the same NFSv4 identity, such as a clone with the same host name. The"
        " two end each other's leases.",
        "give each client its own identity: nfs.nfs4_unique_id, nfs(5)",
        "fs/nfs/nfs4state.c, nfs4_handle_reclaim_lease_error()",
    ),
    KnownMessage(
        "server discovery failed",
        "error",
        rf"NFS: nfs4_discover_server_trunking unhandled error {ERROR}\. +Exiting with error EIO",
        "An NFSv4 mount failed while the client looked for the server's identity.",
        "nfsrdma doctor SERVER",
        "fs/nfs/nfs4state.c, nfs4_discover_server_trunking()",
    ),
    KnownMessage(
        "file identity changed",
        "error",
        rf"NFS: server {PEER} error: fileid changed",
        "The server answered for another file than the one requested: two exports with one fsid,"
        " or a fault of the server's file system.",
        "compare fsid= of the exports on the server: exportfs -v",
        "fs/nfs/inode.c, nfs_update_inode()",
    ),
    KnownMessage(
        "bad sequence",
        "warning",
        rf"NFS: v4 server {PEER}  returned a bad sequence-id error!",
        "The server and the client disagree about the order of NFSv4.0 requests.",
        "mount with vers=4.1 or later",
        "fs/nfs/nfs4proc.c, nfs4_do_open()",
        doubt="the client repeats the request",
    ),
    KnownMessage(
        "server wrote nothing",
        "error",
        r"NFS: Server wrote zero bytes, expected \d+\.",
        "The server accepted a WRITE and stored nothing. The program gets EIO.",
        "check the space and the log of the server",
        "fs/nfs/write.c, nfs_writeback_result()",
    ),
    KnownMessage(
        "callback service failed",
        "error",
        r"(?:NFS: (?:bind callback service|callback service start) failed"
        r"|nfs_callback_create_svc: create service failed)",
        "The client cannot receive callbacks of the server: NFSv4.0 gets no delegations, and a"
        " mount may fail.",
        "mount with vers=4.1 or later, which needs no port for callbacks",
        "fs/nfs/callback.c, nfs_callback_up(), nfs_callback_create_svc()",
    ),
    KnownMessage(
        "mount option unknown",
        "error",
        r"(?:nfs4?: )?(?:nfs4?: )?(?:Unknown parameter|Bad value for) '(?P<subject>[\w.-]{1,64})'",
        "The kernel refused a mount because of this option. Some options exist only in vendors'"
        " clients.",
        "remove the option, or use nfsrdma mount, which names the alternatives",
        "fs/fs_context.c, vfs_parse_fs_param(); fs/fs_parser.c, fs_param_bad_value()",
    ),
    KnownMessage(
        "mount option refused",
        "error",
        r"(?:NFS4?|nfs4?): (?:[Bb]ad (?:mount option value|IP address) specified(?:: \S{1,64})?"
        r"|Value for '\S{1,64}' out of range|Unrecognized transport protocol"
        r"|Unsupported (?:transport protocol udp|NFS version)"
        r"|Server address does not match proto= option|NFSv4 is not compiled into kernel"
        r"|Version unavailable|sec=\S{1,64} option not recognized)",
        "The kernel refused a mount because of its options.",
        "compare the line with nfs(5); of proto=rdma: nfsrdma doctor, as rpcrdma may be missing",
        "fs/nfs/fs_context.c, nfs_fs_context_parse_param(), nfs_fs_context_validate()",
    ),
    KnownMessage(
        "transport not there",
        "error",
        r"RPC: transport \((?P<subject>\d{1,5})\) not supported",
        "A mount asked for a transport of RPC that no loaded module has; 256 is RDMA.",
        "modprobe rpcrdma",
        "net/sunrpc/xprt.c, xprt_create_transport()",
    ),
    KnownMessage(
        "session trunking",
        "information",
        rf"NFS: {PEER}: Session trunking (?:succeeded|failed) for \S{{1,128}}",
        "The client tested whether another address belongs to the same server.",
        "",
        "fs/nfs/nfs4client.c, nfs4_detect_session_trunking()",
    ),
    KnownMessage(
        "locks not monitored",
        "error",
        rf"lockd: cannot monitor {PEER}",
        "rpc.statd does not answer, so locks of NFSv3 fail with ENOLCK.",
        "systemctl start rpc-statd",
        "fs/lockd/mon.c, nsm_monitor()",
    ),
    KnownMessage(
        "lock not reclaimed",
        "error",
        r"lockd: failed to reclaim lock for pid \d+"
        rf" \(errno {ERROR}, status \d+\)",
        "The client lost a lock of NFSv3 when the server restarted.",
        "check the data of the program that held the lock",
        "fs/lockd/clntproc.c, nlmclnt_reclaim()",
    ),
)

_SERVER = (
    KnownMessage(
        "server work failed",
        "warning",
        r"svcrdma: (?:(?P<response>[Rr]ecv|receive)|\w{1,24}): [\w ]{1,64}"
        r" \((?P<completion>\d{1,3})/0x(?P<vendor>[0-9a-f]{1,8})\)",
        "A Send, Receive, Read or Write of the server ended with an error, which ends its"
        " connection.",
        "nfsrdma server status",
        "net/sunrpc/xprtrdma/svc_rdma_transport.c, svc_rdma_send_wc_common() (older releases)",
        doubt="the message does not name the client",
    ),
    KnownMessage(
        "server work not posted",
        "warning",
        rf"svcrdma: (?:Error {ERROR} posting RDMA_READ"
        r"|(?:could not post a receive buffer|Could not send reply), err=-?\d{1,4}\..{0,64}"
        r"|failed to send (?:write|reply) chunks, rc=-?\d{1,4})",
        "The server could not give work to its device, and closed the connection of the client."
        " The client connects again.",
        "nfsrdma server status",
        "net/sunrpc/xprtrdma/svc_rdma_recvfrom.c, svc_rdma_sendto.c (older releases)",
        doubt="the message does not name the client",
        where="this host",
    ),
    KnownMessage(
        "server could not register memory",
        "warning",
        r"svcrdma: Error fast registering memory for xprt \S{1,20}",
        "The server could not register the memory of a reply with its device, and did not send the"
        " reply.",
        "nfsrdma server status",
        "net/sunrpc/xprtrdma/svc_rdma_sendto.c, fast_reg_xdr() (older releases)",
        doubt="the message does not name the client",
        where="this host",
    ),
    KnownMessage(
        "queue shortened",
        "information",
        r"svcrdma: reducing (?:receive|send) depth to \d+",
        "The server uses the queue length that the device offers.",
        "",
        "net/sunrpc/xprtrdma/svc_rdma_transport.c, svc_rdma_accept() (older releases)",
    ),
    KnownMessage(
        "listener lost",
        "error",
        rf"Listener dead, address change failed for device {DEVICE}",
        "The address of the device changed and nfsd could not listen again: it accepts no new"
        " connections over RDMA.",
        "systemctl restart nfs-server",
        "net/sunrpc/xprtrdma/svc_rdma_transport.c, svc_rdma_listen_handler()",
    ),
    KnownMessage(
        "rpcbind refused",
        "warning",
        rf"svc: failed to register (?P<subject>\w{{1,32}}) RPC service \(errno {ERROR}\)\.",
        "The server is not registered with rpcbind. NFSv3 clients do not find it without port="
        " and mountport=.",
        "systemctl start rpcbind, or serve NFSv4 only (nfs.conf: [nfsd] vers3=n)",
        "net/sunrpc/svc.c, svc_register()",
        doubt="NFSv4 does not need rpcbind",
        numbers=(
            (97, "rpcbind or this host has no IPv6: normal for the IPv6 half of the registration"),
            (110, "rpcbind does not answer"),
            (111, "rpcbind does not run"),
        ),
    ),
    KnownMessage(
        "connection limit of the server",
        "warning",
        r"(?P<subject>\w{1,32}): too many open connections, consider increasing the"
        r" (?:max number of connections|number of threads)",
        "The server closed the oldest connection, because it has more than its limit for the"
        " number of threads.",
        "raise threads in [nfsd] of nfs.conf, then systemctl restart nfs-server",
        "net/sunrpc/svc_xprt.c, svc_check_conn_limits() (older releases)",
        doubt="the closed connection may have been idle",
    ),
    KnownMessage(
        "reply not sent",
        "information",
        rf"rpc-srv/tcp: (?P<subject>\w{{1,32}}): (?:got error|sent) {ERROR} when sending \d+ bytes"
        r" - shutting down socket",
        "A client on TCP went away while the server answered it. The client connects again.",
        "",
        "net/sunrpc/svcsock.c, svc_tcp_sendto()",
    ),
    KnownMessage(
        "request too large",
        "warning",
        r"svc: \S{1,32} \S{1,128} RPC fragment too large: \d+|RPC: fragment too large: \d+",
        "A peer on TCP sent more than a request can have, and the server closed the connection.",
        "compare the port with the service: another protocol may use it",
        "net/sunrpc/svcsock.c, svc_tcp_read_marker(), svc_tcp_recv_record() (older releases)",
        doubt="a port scanner does the same",
    ),
    KnownMessage(
        "server stopped",
        "information",
        r"nfsd: last server has exited, flushing export cache",
        "The NFS server was stopped.",
        "",
        "fs/nfsd/nfssvc.c, nfsd_last_thread() (older releases)",
    ),
    KnownMessage(
        "grace period",
        "information",
        r"NFSD: (?:starting \d+-second grace period|all clients done reclaiming, ending NFSv4 grace"
        r" period|no clients to reclaim, skipping NFSv4 grace period) \(net \w{1,16}\)",
        "The server started. Until the grace period ends, clients can only reclaim what they had.",
        "",
        "fs/nfsd/nfs4state.c, nfs4_state_start_net(), inc_reclaim_complete()",
    ),
    KnownMessage(
        "client tracking",
        "information",
        r"NFSD: Using (?:nfsdcld|old nfsdcld|UMH upcall|legacy) client tracking operations\.",
        "The server records its NFSv4 clients, so that they can reclaim after a restart.",
        "",
        "fs/nfsd/nfs4recover.c, nfsd4_client_tracking_init()",
    ),
    KnownMessage(
        "no client tracking",
        "error",
        rf"NFSD: Unable to initialize client recovery tracking! \({ERROR}\)",
        "The server cannot record its NFSv4 clients: after a restart they lose their locks.",
        "systemctl start nfsdcld, then restart nfs-server",
        "fs/nfsd/nfs4recover.c, nfsd4_client_tracking_init()",
        numbers=((110, "nfsdcld does not answer: it does not run"),),
    ),
    KnownMessage(
        "client record not stored",
        "error",
        r"NFSD: (?:Unable to (?:create|remove|check) client record (?:on|from) stable storage"
        rf"|Unable to end grace period): {ERROR}",
        "The server could not write its record of an NFSv4 client.",
        "systemctl status nfsdcld",
        "fs/nfsd/nfs4recover.c, nfsd4_cld_create_v2(), nfsd4_cld_grace_done()",
    ),
    KnownMessage(
        "names not mapped",
        "warning",
        r"nfsd: nfsv4 idmapping failing: has idmapd (?:died|not been started)\?",
        "The server cannot translate names of users and groups.",
        "systemctl start nfs-idmapd",
        "fs/nfsd/nfs4idmap.c, warn_no_idmapd()",
        doubt="clients with sec=sys send numbers and do not need it",
    ),
    KnownMessage(
        "client fenced",
        "error",
        r"nfsd: client (?P<subject>\S{1,128}) failed to respond to layout recall\."
        r" +Fencing\.\.",
        "A client did not give a pNFS layout back, and the server fences it from the device.",
        "look for errors on that client",
        "fs/nfsd/nfs4layouts.c, nfsd4_cb_layout_fail()",
    ),
)

_STOPPED = "A device used an address that the IOMMU does not have. The work failed."
_ANY_DEVICE = "the line names no driver: the device may have nothing to do with NFS"
_ADDRESS = r"(?P<subject>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
"""Of a PCI function."""
_PCI_STATE = r"Device state = \d+ (?:health sensors: \d+ )?pci_status: \d+\."
_SMMU = r"arm-smmu-v3 \S{1,64}: event"
_SMMU_FAULT = r": F_(?:TRANSLATION|ADDR_SIZE|ACCESS|PERMISSION) client:"

_CONNECTION = (
    KnownMessage(
        "address moved",
        "information",
        r"RDMA CM addr change for ndev (?P<subject>\S{1,32}) used by id \S{1,32}",
        "The network device got another hardware address, as when a bond fails over. Connections"
        " over it are set up again.",
        "",
        "drivers/infiniband/core/cma.c, cma_netdev_change()",
    ),
    KnownMessage(
        "device does not listen",
        "warning",
        rf"\S{{1,40}} {DEVICE}: RDMA CMA: \w{{1,64}}, error {ERROR}",
        "A server for all addresses could not listen on this device.",
        "nfsrdma doctor",
        "drivers/infiniband/core/cma.c, cma_listen_on_dev()",
        doubt="other devices may listen, and NFS may not use this one",
    ),
    KnownMessage(
        "connection identifier stuck",
        "warning",
        r"cm_destroy_id_wait_timeout: cm_id=\S{1,32} timed out\. state .{1,64}",
        "The kernel waits for the end of a connection that its driver does not give up.",
        "read the log of the device's driver at that time",
        "drivers/infiniband/core/cm.c, cm_destroy_id_wait_timeout()",
        doubt="it may end later",
    ),
    KnownMessage(
        "no memory regions",
        "error",
        r"rdma_rw_init_mrs: failed to allocated \d+ (?:SIG )?MRs",
        "The device has no memory regions left, so a server refused a connection.",
        "nfsrdma link show",
        "drivers/infiniband/core/rw.c, rdma_rw_init_mrs()",
    ),
    KnownMessage(
        "mlx5 command refused",
        "warning",
        rf"\S{{1,40}} {DEVICE}: (?:mlx5_cmd_out_err|mlx5_cmd_check|cmd_status_print):\d+:"
        r"\(pid \d+\): \w{1,64}\(0x\w{1,8}\) op_mod\(0x\w{1,8}\) failed, status .{1,64},"
        rf" syndrome \(0x\w{{1,8}}\)(?:, err\({ERROR}\))?",
        "The firmware of the device refused a command.",
        "search the vendor's documentation for the syndrome",
        "drivers/net/ethernet/mellanox/mlx5/core/cmd.c, mlx5_cmd_out_err()",
        doubt="the driver tries some commands that a device may not have",
    ),
    KnownMessage(
        "IOMMU stopped the device",
        "warning",
        rf"(?:mlx[45]_core|bnxt_en|ice|irdma|i40e|qede?|cxgb4|hns3|hfi1|efa|mana|ionic) {DEVICE}:"
        r" (?:AMD-Vi: )?Event logged \[IO_PAGE_FAULT .{1,120}\]",
        "The device used an address that the IOMMU does not have: memory that was unmapped too"
        " early, or a fault of the driver. The work failed.",
        "look for completions with errors at that time; boot with iommu=pt to see whether it ends",
        "drivers/iommu/amd/iommu.c, amd_iommu_report_page_fault()",
        doubt="the memory may be of another user of the device than NFS",
    ),
    KnownMessage(
        "IOMMU stopped a device",
        "warning",
        # older releases: no space, and the reason in a line of its own
        r"(?:(?:dmar|DMAR): )?DMAR: ?\[(?:DMA (?:Read|Write)|INTR-REMAP|[A-Z ]{1,24}).{0,16}\]"
        r" Request device \[(?P<subject>[0-9a-f:.]{5,16})\](?: PASID \w{1,8})?,? .{1,160}",
        _STOPPED,
        "lspci -s {subject} names the device",
        "drivers/iommu/intel/dmar.c, dmar_fault_do_one()",
        doubt=_ANY_DEVICE,
    ),
    KnownMessage(
        "IOMMU stopped a device",
        "warning",
        rf"AMD-Vi: Event logged \[IO_PAGE_FAULT device={_ADDRESS} .{{1,120}}\]",
        _STOPPED,
        "lspci -s {subject} names the device",
        "drivers/iommu/amd/iommu.c, amd_iommu_report_page_fault()",
        doubt=_ANY_DEVICE,
    ),
    KnownMessage(
        "IOMMU stopped a device",
        "warning",
        # F_TRANSLATION, F_ADDR_SIZE, F_ACCESS, F_PERMISSION; lines of bytes follow
        rf"{_SMMU}(?: 0x1[0-3] received:"
        rf"|{_SMMU_FAULT} (?:[^\s:]{{1,64}}|\(unassigned sid\)) sid: .{{1,120}})",
        _STOPPED,
        "read the lines after it: bits 32 to 63 of the first are the stream ID of the device",
        "drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c, arm_smmu_evtq_thread(),"
        " arm_smmu_dump_raw_event()",
        doubt=_ANY_DEVICE,
    ),
    KnownMessage(
        "IOMMU stopped a device",
        "warning",
        rf"{_SMMU}{_SMMU_FAULT} {_ADDRESS} sid: .{{1,120}}",
        _STOPPED,
        "lspci -s {subject} names the device",
        "drivers/iommu/arm/arm-smmu-v3/arm-smmu-v3.c, arm_smmu_dump_event()",
        doubt=_ANY_DEVICE,
    ),
    KnownMessage(
        "network device held",
        "warning",
        r"unregister_netdevice: waiting for (?P<subject>\S{1,32}) to become free\."
        r" Usage count = -?\d+",
        "A network device is removed and waits for its users, such as an RDMA device on it. Its"
        " namespace or container does not end.",
        "nfsrdma link show; nfsrdma mounts",
        "net/core/dev.c, netdev_wait_allrefs_any()",
        doubt="the user may be another one than RDMA",
    ),
    KnownMessage(
        "denied by SELinux",
        "warning",
        r"(?:audit: type=1400 audit\(\d+\.\d+:\d+\): |type=AVC msg=audit\([\d.: ]{1,60}\) ?: )"
        r"avc: {1,2}denied {1,2}\{ [\w ]{1,80} \} for {1,2}.{0,400}\b"
        r"(?P<subject>nfs\w{0,16}_t|rpc\w{0,16}_t|gss\w{0,8}_t|infiniband\w{0,24}|rdma\w{0,16})\b.{0,200}",
        "SELinux denied a program something about NFS or RDMA.",
        "ausearch -m avc -ts boot | audit2why",
        "security/selinux/avc.c; rpc_selinux(8), nfsd_selinux(8)",
        doubt="the program may go on without it",
    ),
    KnownMessage(
        "GPUDirect Storage does not use NFS",
        "warning",
        r"failing symbol_get of non-GPLONLY symbol (?P<subject>rpcrdma\w{0,64})\.",
        "nvidia_fs did not connect to the transport module: the kernel gives the module's functions"
        " to modules under the GPL only. The mount works; data goes through the host's memory.",
        "ask the vendor of rpcrdma for a build that fits this kernel",
        "kernel/module/main.c, __symbol_get()",
        doubt="whether a program needs GPUDirect Storage is not known",
    ),
    KnownMessage(
        "mlx5 command not answered",
        "warning",
        rf"{PCI}\w{{1,64}}\(0x\w{{1,8}}\) timeout\. Will cause a leak of a command resource",
        "The device's firmware did not answer a command in time.",
        "devlink health show",
        "drivers/net/ethernet/mellanox/mlx5/core/cmd.c, wait_func()",
        doubt="the answer may come later: a message says so",
        ended_by="mlx5 command answered late",
    ),
    KnownMessage(
        "mlx5 command answered late",
        "information",
        rf"{PCI}Command completion arrived after timeout \(entry idx = \d+\)\.",
        "The device's firmware answered a command after the driver had given it up.",
        "",
        "drivers/net/ethernet/mellanox/mlx5/core/cmd.c, mlx5_cmd_comp_handler()",
    ),
    *(
        KnownMessage(
            "mlx5 device recovers",
            "warning",
            rf"{PCI}(?:{text})",
            "The device or its firmware stopped, and the driver resets it. Its connections ended.",
            "devlink health show",
            "drivers/net/ethernet/mellanox/mlx5/core/health.c, poll_health(),"
            " mlx5_health_try_recover()",
            doubt="no message says that the recovery succeeded",
            ended_by="mlx5 device recovered",
            failed_by="mlx5 device failed",
            where="device",
            recovers="unknown",
            continues=continues,
        )
        for text, continues in (
            (r"device's health compromised - reached miss count|Fatal error \d+ detected", False),
            ("starting health recovery flow|handling bad device here", True),
        )
    ),
    KnownMessage(
        "mlx5 device has a PCIe error",
        "warning",
        rf"{PCI}mlx5_pci_err_detected (?:was called|{_PCI_STATE} Enter, pci channel state = \d+)",
        "The device, its slot or a bridge reported an error of PCIe, and the kernel resets the"
        " device. Its connections ended.",
        "read the lines of AER before it; then nfsrdma link show",
        "drivers/net/ethernet/mellanox/mlx5/core/main.c, mlx5_pci_err_detected()",
        doubt="no message says that the device works again",
        ended_by="mlx5 device recovered",
        failed_by="mlx5 device failed",
        where="device",
        recovers="unknown",
    ),
    KnownMessage(
        "mlx5 device recovered",
        "information",
        rf"{PCI}(?:health recovery succeeded|mlx5_pci_resume(?:: device recovered"
        rf"| {_PCI_STATE} Done, err = 0, device recovered))",
        "The driver reset the device, and it works again.",
        "",
        "drivers/net/ethernet/mellanox/mlx5/core/health.c; main.c, mlx5_pci_resume()",
        where="device",
        recovers="yes",
    ),
    *(
        KnownMessage(
            "mlx5 device failed",
            "error",
            rf"{PCI}health recovery {text}",
            "The driver's reset of the device failed: connections and mounts over the device do"
            " not work.",
            "devlink health show; then reload the driver or restart this host",
            "drivers/net/ethernet/mellanox/mlx5/core/health.c, mlx5_health_try_recover()",
            ended_by="mlx5 device recovered",
            where="device",
            recovers="no",
            continues=continues,
        )
        for text, continues in (("flow aborted.{0,64}", False), ("failed", True))
    ),
    KnownMessage(
        "mlx5 device failed",
        "error",
        rf"{PCI}mlx5_pci_resume {_PCI_STATE} Done, err = -\d{{1,4}}, device Failed",
        "The driver's reset of the device failed: connections and mounts over the device do"
        " not work.",
        "reload the driver or restart this host",
        "drivers/net/ethernet/mellanox/mlx5/core/main.c, mlx5_pci_resume()",
        ended_by="mlx5 device recovered",
        where="device",
        recovers="no",
    ),
    KnownMessage(
        "mlx5 device not started",
        "error",
        rf"{PCI}mlx5_(?:init|load)_one failed with error code {ERROR}",
        "The driver could not start the device: this host has no RDMA device of it.",
        "read the lines of mlx5_core before it",
        "drivers/net/ethernet/mellanox/mlx5/core/main.c, probe_one(), init_one() (older releases)",
        where="device",
        numbers=((110, "the firmware of the device does not answer"),),
    ),
    KnownMessage(
        "mlx5 firmware reports a fault",
        "warning",
        rf"{PCI}Health issue observed, .{{1,80}}, severity\(\d\) [A-Z]{{1,16}}:",
        "The firmware of the device reports a fault; the lines after it have its numbers.",
        "devlink health show",
        "drivers/net/ethernet/mellanox/mlx5/core/health.c, print_health_info()",
        doubt="the device may go on: other messages say that it stopped",
        where="device",
    ),
    KnownMessage(
        "mlx5 queue failed",
        "warning",
        rf"{PCI}CQ error on CQN 0x[0-9a-f]{{1,6}}, syndrome? 0x[0-9a-f]{{1,2}}",
        "A completion queue of the device overflowed or could not be written. Its connections do"
        " not go on.",
        "nfsrdma trace connections",
        "drivers/net/ethernet/mellanox/mlx5/core/eq.c, cq_err_event_notifier()",
        doubt="the queue may be of another user of the device than NFS",
    ),
    KnownMessage(
        "PCIe device failed",
        "warning",
        r"pcieport \S{1,20}: AER: (?:Multiple )?(?:Uncorrected|Uncorrectable) \(Fatal\)"
        rf" error (?:message )?received(?: from|:) {_ADDRESS}(?: \(no details found\)?)?",
        "A device reported a fatal error of PCIe. The kernel resets the device.",
        "lspci -s {subject} names the device",
        "drivers/pci/pcie/aer.c, aer_print_source(), aer_print_port_info() (older releases)",
        doubt=_ANY_DEVICE,
    ),
    KnownMessage(
        "mlx5 registration failed",
        "error",
        rf"{IB}(?:async reg mr failed\. status -?\d+|reg umr failed \(\d+\).{{0,120}}"
        r"|create mkey failed(?: -?\d+)?)",
        "The device could not register memory.",
        "nfsrdma link show",
        "drivers/infiniband/hw/mlx5/mr.c, create_mkey_warn(); umr.c, mlx5r_umr_post_send_wait()",
    ),
    KnownMessage(
        "mlx4 command refused",
        "warning",
        rf"{PCI}command 0x\w{{1,8}} failed: fw status = 0x\w{{1,8}}",
        "The firmware of the device refused a command.",
        "nfsrdma link show",
        "drivers/net/ethernet/mellanox/mlx4/cmd.c, mlx4_cmd_poll(), mlx4_cmd_wait()",
        doubt="the driver tries some commands that a device may not have",
    ),
    KnownMessage(
        "mlx4 command not answered",
        "warning",
        rf"{PCI}command 0x\w{{1,8}} timed out \(go bit not cleared\)",
        "The firmware of the device did not answer a command in time.",
        "nfsrdma link show",
        "drivers/net/ethernet/mellanox/mlx4/cmd.c, mlx4_cmd_poll(), mlx4_cmd_wait()",
        doubt="the device may answer the next command, and later releases reset it",
        where="device",
    ),
    KnownMessage(
        "bnxt_re refused a connection",
        "error",
        rf"{IB}(?:Create QP failed - max exceeded!.{{0,160}}|Failed to create HW QP)",
        "The device could not create the queue pair of a connection.",
        "nfsrdma link show",
        "drivers/infiniband/hw/bnxt_re/ib_verbs.c, bnxt_re_create_qp()",
    ),
    KnownMessage(
        "cxgb4 device failed",
        "error",
        rf"iw_cxgb4: {DEVICE}: Fatal Error",
        "The device failed; its connections ended.",
        "nfsrdma link show",
        "drivers/infiniband/hw/cxgb4/device.c, c4iw_uld_state_change()",
    ),
    KnownMessage(
        "erdma region not freed",
        "warning",
        rf"{IB}failed to (?:deregister MR|destroy (?:QP|CQ)) \w{{1,12}}: {ERROR}",
        "The device did not free a memory region or queue.",
        "nfsrdma link show",
        "drivers/infiniband/hw/erdma/erdma_verbs.c, erdma_dereg_mr(), erdma_destroy_qp()",
        doubt="it does so while the device is reset or removed",
    ),
    KnownMessage(
        "rxe link state",
        "information",
        rf"infiniband {DEVICE}: (?:set (?:active|down)|added \S{{1,32}})",
        "A soft-RoCE link was added, or follows the state of its network device.",
        "nfsrdma link show",
        "drivers/infiniband/sw/rxe/rxe_net.c, rxe_port_up(), rxe_port_down(); rxe_verbs.c,"
        " rxe_enable_driver()",
    ),
    KnownMessage(
        "siw registration failed",
        "error",
        r"siw: fastreg: (?:STag 0x\w{8}:? (?:unknown|bad MR|already valid)|PD mismatch)",
        "Soft-iWARP refused to register memory: the client used a key in the wrong state.",
        "report it to linux-rdma@vger.kernel.org",
        "drivers/infiniband/sw/siw/siw_qp_tx.c, siw_fastreg_mr()",
    ),
)

_LOADER = (
    KnownMessage(
        "module does not fit",
        "error",
        rf"{_MODULES}: (?:Unknown symbol \w{{1,96}} \(err {ERROR}\)|disagrees about version of"
        r" symbol \w{1,96}|version magic '.{1,120}' should be '.{1,120}'|exports duplicate symbol"
        r" \w{1,96} \(owned by \S{1,64}\))",
        "The module was built for another kernel or another RDMA stack than the loaded one, and"
        " was not loaded.",
        "modinfo -n {subject}",
        "kernel/module/main.c, simplify_symbols(), check_modinfo(); kernel/module/version.c,"
        " check_version()",
        numbers=((22, "the symbol has another version than the module was built with"),),
    ),
    KnownMessage(
        "module not signed",
        "warning",
        r"(?:Loading of (?:unsigned module|module with (?:unavailable key|unsupported crypto)) is"
        r" rejected|Lockdown: \S{1,32}: unsigned module loading is restricted; .{1,80})",
        "Secure Boot refused a module that no known key has signed.",
        "mokutil --sb-state",
        "kernel/module/signing.c, module_sig_check(); security/lockdown/lockdown.c,"
        " lockdown_is_locked_down()",
        doubt="the message does not name the module: it may have nothing to do with NFS or RDMA",
    ),
    KnownMessage(
        "module is not the kernel's",
        "information",
        rf"{_MODULES}: (?:loading out-of-tree module taints kernel\.|module verification failed:"
        r" signature and/or required key missing - tainting kernel)",
        "A vendor's module, or one of DKMS, was loaded. The kernel marks itself as tainted.",
        "",
        "kernel/module/main.c, module_augment_kernel_taints()",
    ),
)

_OURS = (
    KnownMessage(
        "module option refused",
        "error",
        r"nfsrdma: parameter (?P<subject>\w{1,40}): (?:got|expected) .{1,200}",
        "nfsrdma refused the value of a parameter and kept the old one, or did not load.",
        "nfsrdma module status",
        "kmod/params.c, kmod/personality.c, kmod/server/transport.c of this project",
    ),
    KnownMessage(
        "transport taken",
        "error",
        r"nfsrdma: (?:another module provides server transport (?P<subject>\S{1,40})\. Unload it"
        r" or set server_name|\S{1,40} provides client transport rdma\. Unload it first)",
        "nfsrdma was not loaded, because another module has the transport.",
        "nfsrdma module load",
        "kmod/client/transport.c, kmod/server/transport.c of this project",
    ),
    KnownMessage(
        "device does not suffice",
        "error",
        rf"nfsrdma: device {DEVICE}: (?:max_qp_wr is \d+, expected at least \d+|no memory"
        r" management extensions, which FRWR requires|max_fast_reg_page_list_len is \d+, expected"
        r" at least \d+)",
        "The device lacks what nfsrdma needs. No mount over it works with nfsrdma.",
        "nfsrdma module unload, which gives the mounts to rpcrdma",
        "kmod/connection/cm.c, kmod/client/connect.c of this project",
    ),
    KnownMessage(
        "queue pair stuck",
        "warning",
        rf"nfsrdma: device {DEVICE}: a (?:queue pair|memory region)(?: of the RDMA core)?"
        r" (?:refused the error state|cannot be (?:drained|destroyed)):"
        rf" {ERROR}(?:; its memory stays in use)?",
        "A connection ended while its device failed. Memory that a peer may still reach stays in"
        " use until the device complies.",
        "nfsrdma link show",
        "kmod/connection/state.c, kmod/connection/queues.c, kmod/memory/exposure.c of this project",
        doubt="the driver may have ended the connection by itself",
    ),
    KnownMessage(
        "memory given up",
        "error",
        rf"nfsrdma: device {DEVICE} ends, and has not destroyed \d+ memory regions: they and \d+"
        r" pages stay allocated for ever",
        "A device failed or was removed, and destroyed no memory regions in ten seconds. Their"
        " memory is lost until the next boot, because the device might still write to it.",
        "nfsrdma link show",
        "kmod/memory/exposure.c of this project",
    ),
    KnownMessage(
        "device failed",
        "error",
        rf"nfsrdma: device {DEVICE} reports a fatal error: \d+ connections end",
        "The device or its firmware has stopped. Its connections have ended; clients connect again"
        " when the device works, or by another one.",
        "nfsrdma link show",
        "kmod/connection/device.c of this project",
    ),
    KnownMessage(
        "port changed",
        "warning",
        rf"nfsrdma: device {DEVICE}: port \d+ is \w{{2,4}}; \d+ connections use it",
        "A port went down or came up again. Connections wait for some seconds, and break if what"
        " they sent is not answered by then.",
        "nfsrdma link show",
        "kmod/connection/device.c of this project",
        doubt="the port may work by now",
    ),
    KnownMessage(
        "callbacks left over",
        "warning",
        r"nfsrdma: \d+ callbacks outlived their session",
        "Callbacks of the server were still waiting when the mount ended.",
        "report it to this project with the log around it",
        "kmod/client/callback.c of this project",
        doubt="nfsrdma frees them",
    ),
)

_FOR = r"(?: for (?P<subject>\S{1,256})(?: on \S{1,256})?)?"

_PROGRAMS = (
    KnownMessage(
        "RDMA listener refused",
        "error",
        r"(?:rpc\.nfsd: )?Unable to request RDMA services: (?P<subject>[\w ]{1,64})",
        "nfs.conf (rdma=y) or an option of rpc.nfsd requests a listener on RDMA, and the kernel"
        " refused it. nfsd serves TCP only.",
        "nfsrdma doctor",
        "nfs-utils, utils/nfsd/nfssvc.c, nfssvc_set_rdmaport()",
        program=True,
    ),
    KnownMessage(
        "server not started",
        "error",
        r"(?:rpc\.nfsd: )?(?:unable to set any sockets for nfsd|error starting threads: errno"
        rf" {ERROR}(?: \([\w ]{{1,64}}\))?)",
        "nfsd did not start.",
        "systemctl status nfs-server rpcbind",
        "nfs-utils, utils/nfsd/nfsd.c, main(); nfssvc.c, nfssvc_threads()",
        program=True,
    ),
    KnownMessage(
        "server command refused",
        "warning",
        r"(?:nfsdctl: )?Error: (?P<subject>Cannot assign requested address|Protocol not supported"
        r"|No such device|Address already in use|Connection refused|Input/output error)",
        "The kernel refused a command of nfsdctl, such as to start nfsd or to listen on RDMA.",
        "nfsrdma doctor",
        "nfs-utils, utils/nfsdctl/nfsdctl.c, error_handler(); linux-nfs, 2025-08-26, on removing"
        " listeners",
        doubt="the message does not name the command, and nfsd may serve without a listener",
        program=True,
    ),
    KnownMessage(
        "module not inserted",
        "error",
        rf"(?:modprobe: ERROR: could not insert|Failed to insert module) '{_MODULES}': (?:Exec"
        r" format error|Invalid argument|Unknown symbol in module.{0,48}|Key was rejected by"
        r" service|Required key not available)",
        "The kernel refused a module: it was built for another kernel or RDMA stack, or no known"
        " key has signed it. The kernel's log names the reason.",
        "dmesg | grep {subject}",
        "kmod, tools/modprobe.c, insmod_insert(); systemd, src/shared/module-util.c,"
        " module_load_and_warn()",
        program=True,
    ),
    KnownMessage(
        "module not found",
        "error",
        rf"(?:modprobe: FATAL: Module |Failed to find module '){_MODULES}(?:'| not found in"
        r" directory \S{1,160})",
        "This kernel has no such module. Distributions keep it in a package of its own, and cloud"
        " kernels lack it.",
        "nfsrdma doctor",
        "kmod, tools/modprobe.c, insmod(); systemd, src/shared/module-util.c,"
        " module_load_and_warn()",
        program=True,
    ),
    KnownMessage(
        "mount refused",
        "error",
        rf"mount\.nfs4?: (?:mount\(2\): )?(?:Connection refused|Connection timed out"
        rf"|No route to host|Network is unreachable|Host is down){_FOR}",
        "The client reached no NFS server at the address and port.",
        "nfsrdma doctor SERVER",
        "nfs-utils, utils/mount/error.c, mount_error()",
        program=True,
    ),
    KnownMessage(
        "mount denied",
        "error",
        r"mount\.nfs4?: access denied by server while mounting (?P<subject>\S{1,256})",
        "The server does not export the directory to this client, or not with this security"
        " flavour. Over TCP, a source port above 1023 needs the export option insecure; a Linux"
        " server does not check the port over RDMA.",
        "exportfs -v on the server",
        "nfs-utils, utils/mount/error.c, mount_error(); exports(5), insecure;"
        " net/sunrpc/xprtrdma/svc_rdma_recvfrom.c, RQ_SECURE",
        program=True,
    ),
    KnownMessage(
        "mount protocol missing",
        "error",
        r"mount\.nfs4?: (?:requested NFS version or transport protocol is not supported"
        rf"(?: for \S{{1,256}})?|(?:mount\(2\): )?(?:Protocol not supported|No such device){_FOR})",
        "The server does not offer the NFS version or transport, or this kernel has no module for"
        " it.",
        "modprobe rpcrdma",
        "nfs-utils, utils/mount/error.c, mount_error()",
        program=True,
    ),
    KnownMessage(
        "mount refused by the server",
        "error",
        rf"mount\.nfs4?: (?:mount\(2\): )?(?:Protocol error|Operation not permitted){_FOR}",
        "The server or this kernel refused the mount. Over RDMA, Protocol error is a server that"
        " does not speak RDMA at this port; Operation not permitted is often a port above 1023"
        " without the export option insecure.",
        "nfsrdma doctor SERVER",
        "nfs-utils, utils/mount/error.c, mount_error()",
        program=True,
    ),
    KnownMessage(
        "mount without rpcbind",
        "error",
        r"mount\.nfs4?: portmap query failed: .{1,80}",
        "An NFSv3 mount found no port of the server at its rpcbind.",
        "name the port: nfsrdma mount --port, or proto=rdma,port=20049",
        "nfs-utils, utils/mount/network.c, nfs_probe_port()",
        program=True,
    ),
    KnownMessage(
        "mount attempt",
        "information",
        r"mount\.nfs4?: (?:trying text-based options '.{1,400}'|timeout set for .{1,60})",
        "mount.nfs -v prints the options of each attempt.",
        "",
        "nfs-utils, utils/mount/stropts.c",
        program=True,
    ),
    KnownMessage(
        "mount option wrong",
        "error",
        r"mount\.nfs4?: an incorrect mount option was specified"
        r"(?: for (?P<subject>\S{1,256}))?",
        "The kernel refused the options of a mount. Its log names the option.",
        "read the kernel's log: nfsrdma explain; with proto=rdma: nfsrdma doctor",
        "nfs-utils, utils/mount/error.c, mount_error()",
        program=True,
    ),
    KnownMessage(
        "mount failed",
        "error",
        r"mount\.nfs4?: (?:mount system call failed(?: for (?P<subject>\S{1,256}))?"
        r"|mounting \S{1,256} failed, reason given by server:.{0,64})",
        "The mount failed; the kernel's messages before it say why.",
        "nfsrdma doctor SERVER",
        "nfs-utils, utils/mount/error.c, mount_error()",
        program=True,
    ),
)

MESSAGES: tuple[KnownMessage, ...] = (
    *_CLIENT,
    *_NFS_CLIENT,
    *_SERVER,
    *_CONNECTION,
    *DEVICE_MESSAGES,
    *_LOADER,
    *_OURS,
    *_PROGRAMS,
)
"""The first one that matches a line explains it."""

ERRORS = {
    1: "not permitted",
    2: "does not exist",
    5: "input or output failed",
    11: "try again: a resource is busy for a moment",
    12: "no memory: the kernel, or the device's limit of queues and memory regions",
    13: "access denied",
    16: "busy",
    17: "exists already",
    19: "no such device: it was removed, or the module has none",
    22: "an argument is not valid: often a limit of the device",
    28: "no space left",
    32: "the connection was closed by the peer",
    71: "protocol error: an address has no RDMA device, or a peer sent nonsense",
    93: "the protocol is not supported: a module is missing",
    95: "the operation is not supported",
    97: "the address family is not supported",
    98: "the address or port is in use",
    99: "the address is not one of this host",
    100: "the network is down",
    101: "no route to the network",
    103: "the connection was ended by this host or the device",
    104: "the connection was reset by the peer",
    107: "not connected",
    110: "no answer in time",
    111: "refused: nothing listens there",
    112: "the host is down",
    113: "no route to the host",
    116: "the file handle is stale: the file is gone on the server",
    121: "an error of the server that the client does not know",
    126: "a required key is not available: a Kerberos ticket is missing",
    127: "a key has expired: renew the Kerberos ticket",
    512: "interrupted by a signal",
}
"""Error numbers of Linux by their number; include/uapi/asm-generic/errno.h has the names."""

NFS4_ERRORS = {
    10008: ("NFS4ERR_DELAY", "the server asks for patience"),
    10011: ("NFS4ERR_EXPIRED", "the lease has expired"),
    10013: ("NFS4ERR_GRACE", "the server is in its grace period"),
    10018: ("NFS4ERR_RESOURCE", "the server lacks a resource"),
    10022: ("NFS4ERR_STALE_CLIENTID", "the server has restarted, or forgot the client"),
    10025: ("NFS4ERR_BAD_STATEID", "the server does not know the open file or lock"),
    10036: ("NFS4ERR_BADXDR", "the server could not decode the request"),
    10052: ("NFS4ERR_BADSESSION", "the server does not know the session"),
    10063: ("NFS4ERR_SEQ_MISORDERED", "the order of requests in a session is wrong"),
    10078: ("NFS4ERR_DEADSESSION", "the session has ended"),
}
"""Errors of NFSv4, RFC 8881 section 15.1."""
