# SPDX-License-Identifier: Apache-2.0
"""The words that an anonymized bundle may hold: of the kernel, of nfs-utils, systemd and iproute2.

Everything else that is no number leaves as a placeholder (doctor/pseudonyms.py).
"""

from __future__ import annotations

import re

__all__ = [
    "CERTIFICATE_FIGURES",
    "CONFIG",
    "DEVICE",
    "FILES",
    "FOLDERS",
    "MODULES",
    "OPERATION",
    "OPTIONS",
    "RELEASE_WORDS",
    "WORDS",
]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DEVICE = re.compile(
    # as the kernel or udev names them, by number or position; never enx, which has the MAC
    r"lo|(?:eth|ib|bond|br|team|vlan|dummy|veth|tap|tun|vmbr|wlan|ifb|rxe|siw|macvlan)\d{1,5}"
    r"(?:\.\d{1,4}|\.[0-9a-f]{4})?"
    r"|(?:en|ib|wl|roce)(?:o\d{1,5}|(?:P\d{1,5})?p\d{1,5}s\d{1,5}|s\d{1,5})(?:f\d{1,4})?"
    r"(?:n?p\d{1,3}|d\d{1,3}|v\d{1,4})?(?:\.[0-9a-f]{1,4})?"
    r"|(?:mlx[45]|bnxt_re|irdma|qedr|cxgb4|hfi1|erdma|hns|mana|efa|i40iw|mthca|ocrdma|usnic)"
    r"_?\d{1,3}|net\d{1,3}|ovs-system|vmbr\d{1,4}v\d{1,4}|tap\d{1,9}i\d{1,3}"
    r"|fw(?:br|pr|ln)\d{1,9}[ip]\d{1,3}|p\d{1,3}p\d{1,3}"
)
MODULES = _words(
    """
    8021q auth_rpcgss autofs4 blocklayoutdriver bnxt_en bnxt_re bonding cifs cxgb4 efa erdma fscache
    grace hfi1 hns_roce i40e ib_cm ib_core ib_ipoib ib_iser ib_isert ib_srp ib_srpt ib_umad
    ib_uverbs ice ip_tables iptable_filter irdma iw_cm iw_cxgb4 knem ksmbd lockd macvlan mana_ib
    mlx4_core mlx4_en mlx4_ib mlx5_core mlx5_ib mlx_compat mlxdevm mlxfw mst_pciconf netfs
    nf_conntrack nf_tables nfs nfs_acl nfs_layout_flexfiles nfs_layout_nfsv41_files nfs_localio nfsd
    nfsrdma nfsrdma_card nfsv2 nfsv3 nfsv4 nft_compat nvidia nvidia_fs nvidia_peermem nvme_rdma
    nvmet_rdma openvswitch overlay qede qedr rdma_cm rdma_rxe rdma_ucm rdmavt rpcrdma
    rpcsec_gss_krb5 siw smbd smc sunrpc svcrdma svcrdma_dummy x_tables xpmem xprtrdma
    """
)
RELEASE_WORDS = _words(
    """
    64 64k Microsoft WSL2 aarch64 amd64 arch arch1 arm64 aws azure cloud debug default desktop el
    el10 el8 el9 elrepo fc40 flatcar gcp generic gke gkeop hwe ibm kvm longterm lowlatency lp150
    lp155 lts mainline microsoft nvidia oem oracle ppc64le preempt pve raspi rpi rpt rt s390x server
    standard signed talos uek unsigned v8 virt virtual x86 x86_64
    """
)
_LAYOUT = _words(
    """
    bdi bonding boot bridge btf class config counters debug dev device devices doc driver ecn enable
    etc exports.d fs ganesha generator gid_attrs gids hw_counters infiniband init.d kernel
    kubernetes.io lib lib64 local master modprobe.d module modules modules-load.d ndevs net nfs
    nfs.conf.d nfs_client nfsd nfsfs nfsmount.conf.d nfsrdma nfsrdma-server nvidia-fs parameters pci
    platform ports proc rc.d roce_np roce_rp rpc rules.d run sbin secrets security serviceaccount
    share subsystem sunrpc svc_rdma switch sys sysconfig sysctl.d system systemd types udev usr var
    virtual vlan
    """
)
_FILES = _words(
    """
    . .. .containerenv .dockerenv Makefile active_slave address autofs.service board_id boot.local
    bridge_id build callback_nr_threads callback_tcpport cap_mask certify.json
    changelog.Debian.gz changelog.gz commands.json config.gz container default delay_retrans dev_id
    dev_port disable-splice-read
    dstaddr etab excessive_buffer_overrun_errors exports flags fstab fw_ver ganesha.conf hca_type
    hostname hosts ifindex iflink implied_nak_seq_err initstate inter_copy_offload_enable
    io_cache_read io_cache_write kernel-default limits link_downed link_error_recovery link_layer
    local-fs.target.wants local_ack_timeout_err local_link_integrity_errors lockdown manifest.json
    max_bc_requests max_block_size max_req_size max_requests max_session_cb_slots max_session_slots
    mode mount.nfs mountinfo mountstats mtu multi-user.target multi-user.target.wants namespace
    netlink.json network-online.target network-pre.target network.target nfs-client.target.wants
    nfs-common nfs-ganesha.service nfs-kernel-server nfs-server.service nfs-server.service.d
    nfs-utils nfs.conf nfs.conf.local nfs4_disable_idmapping nfs_bundle_git_version
    nfs_bundle_version nfsmount.conf nfsrdma.conf node_guid node_type np_cnp_sent
    np_ecn_marked_roce_packets operstate os-release osrelease out_of_seq_request out_of_sequence
    packet_seq_err phys_state pool_mode pool_threads port_rcv_errors port_rcv_packets
    port_xmit_discards port_xmit_packets portlist rate rc.local rcvd_pkts rcvd_rnr_err rcvd_seq_err
    rdma_max_inline_read rdma_max_inline_write rdma_slot_table_entries read_ahead_kb
    recover_lost_locks remote-fs-pre.target.wants remote-fs.target remote-fs.target.requires
    remote-fs.target.wants retry_exceeded_err rnr_nak_retry_err rnr_naks_rcvd rp_cnp_handled rx_pkts
    rx_roce_discards self send_implementation_id sent_pkts seq_err_naks_rcvd servers sig_enforce
    slaves speed srcaddr srcversion state status symbol_error sysctl.conf taint
    tcp_max_slot_table_entries tcp_slot_table_entries threads timers.target.wants to_retransmits
    totals tune.json tx_pkts type udp_slot_table_entries vendor version version_signature versions
    vmlinux vmlinuz volumes xprt_info xprt_state
    """
)
FILES = _FILES | _LAYOUT | MODULES | {"carrier"}
FOLDERS = _words(
    """
    . .. data deleted dev etc export exports home kubelet lib log media mnt nfs nfs4 opt plugins
    pods pool proc run scratch srv sys tmp usr var volumes
    """
) | {""}
"""Folders whose names say nothing about their owner."""
OPTIONS = _words(
    """
    _netdev ac acdirmax acdirmin acl acregmax acregmin actimeo addr alignwrite all_squash anongid
    anonuid async atime auth_nlm auto bg bind bsize clientaddr context crossmnt cto defaults
    defcontext dev diratime direct exec fatal_neterrors fd fg forcerdirplus fsc fscontext fsid hard
    hide indirect insecure insecure_locks intr lazytime local_lock localports lock lookupcache mand
    max_connect maxproto mdconnect migration minorversion minproto mountaddr mounthost mountport
    mountproto mountvers namlen nconnect nfsvers no_acl no_all_squash no_auth_nlm no_pnfs
    no_root_squash no_subtree_check no_wdelay noac noacl noalignwrite noatime noauto nocrossmnt
    nocto nodev nodiratime noexec noextend nofail nofsc nohide nointr nolock nolocks nomand
    nomigration noposix nordirplus norelatime noresvport nosharecache nosoftreval nosuid
    notrunkdiscovery nouser offset owner pconnect pgrp pipe_ino pnfs port posix proto rdirplus rdma
    reexport relatime remoteports remount resvport retrans retry ro root_squash rootcontext rsize rw
    sec seclabel secure secure_locks security_label sharecache sign_fh soft softerr softreval spread
    strictatime strictexpire subtree_check suid sync sync_all tcp timeo timeout trunkdiscovery
    trunking udp user users v2 v3 v4 v4.0 v4.1 v4.2 vers wdelay write wsize x-systemd.automount
    x-systemd.device-timeout x-systemd.idle-timeout x-systemd.mount-timeout xprtsec
    """
)
"""Options of nfs(5), mount(8), exports(5) and autofs."""
_VALUES = _words(
    """
    2 3 4 4.0 4.1 4.2 N Y all always auto auto-fsidnum default eager false flock gss kernel krb5
    krb5i krb5p lazy lkey lkeyi lkeyp mtls n no none null off on pos positive posix
    predefined-fsidnum rdma rdma6 root spkm spkmi spkmp sys tcp tcp6 tls true udp udp6 wait y yes
    """
)
_KERNEL = _words(
    """
    12X 1X 2X 4X 802.3ad 8X ACTIVE ARMED BINDING BOUND Broadcast CA CLOSING CONGESTED CONNECTED
    CONNECTING CWND_WAIT CapEff DDR DEV DOWN Dev Device Disabled EDR EGRESS Ethernet FDR FSC FSID
    GHz Gb HDR HOSTNAME Hard IB INGRESS INIT InfiniBand LINK_DOWN LINK_UP LOCKED Limit LinkUp Linux
    Max Multicast NDR NV Name-Type OFFLINE POLLING PORT PORT_ACTIVE PORT_DOWN Polling QDR REMOVE
    REORDER_HDR RNIC Rcvd RoCE SDR SERVER Sleep Soft USE Units Unspecified VID VLAN
    VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD WRITE_SPACE XDR active-backup adaptive address aggregation
    backlog_q_len balance-alb balance-rr balance-tlb balance-xor balancing binding_q_len broadcast
    buffered bytes coming confidentiality cong_win connect_count connected core cur_cong data
    dev-priority direct dontcache dormant down dst_port dynamic fault fh files frames global going
    idle_time integrity io last_used link live load locked lowerlayerdown main_xprt mappings
    max_num_slots max_slots memory min_num_slots msgqueue name net nice notpresent num_reqs open
    pending pending_q_len percpu pernode pool priority proc2 proc3 proc4 proc4ops processes ra rc
    realtime received resident round-robin rpc sec seconds sending_q_len signals size space src_port
    stack state tasks_queuelen testing th timeout tolerance total transmitted unknown unlimited up
    us v1 v2 v3 v4 version wdeleg_getattr xor xprt
    """
)
_MOUNTSTATS = _words(
    """
    RPC acl bm0 bm1 bm2 bsize caps configured dtsize flavor iostats lease_expired lease_time namlen
    not p pnfs pseudoflavor sessions statvers wtmult
    """
)
_OPERATIONS = _words(
    """
    ACCESS ALLOCATE BIND_CONN_TO_SESSION CLONE CLOSE COMMIT COPY COPY_NOTIFY CREATE
    CREATE_SESSION DEALLOCATE DELEGRETURN DESTROY_CLIENTID DESTROY_SESSION EXCHANGE_ID
    FREE_STATEID FSID_PRESENT FSINFO FSSTAT FS_LOCATIONS GETACL GETATTR GETDEVICEINFO
    GETDEVICELIST GETXATTR GET_LEASE_TIME LAYOUTCOMMIT LAYOUTERROR LAYOUTGET LAYOUTRETURN
    LAYOUTSTATS LINK LISTXATTRS LOCK LOCKT LOCKU LOOKUP LOOKUPP LOOKUP_ROOT MKDIR MKNOD NULL
    OFFLOAD_CANCEL OFFLOAD_STATUS OPEN OPEN_CONFIRM OPEN_DOWNGRADE OPEN_NOATTR PATHCONF READ
    READDIR READDIRPLUS READLINK READ_PLUS RECLAIM_COMPLETE RELEASE_LOCKOWNER REMOVE REMOVEXATTR
    RENAME RENEW RMDIR SECINFO SECINFO_NO_NAME SEEK SEQUENCE SERVER_CAPS SETACL SETATTR
    SETCLIENTID SETCLIENTID_CONFIRM SETXATTR STATFS SYMLINK TEST_STATEID WRITE ZERO_RANGE
    """
)
"""p_name of nfs_procedures, nfs3_procedures and nfs4_procedures (fs/nfs, Linux 3.10 to 7.1)."""
OPERATION = re.compile(rf"{'|'.join(sorted(_OPERATIONS))}|UNUSED[0-9]{{1,2}}")
"""Names in the per-op statistics of mountstats; some distributions number those not in use."""
_STATES = _words(
    """
    lease expired reclaim reboot nograce check bind conn to session purge state reset migration
    moved establish clientid return delegation layout trunking discovery confirm recovery
    """
)
"""Of the client's state manager: fs/nfs/nfs4state.c, nfs4_state_manager()."""
_PROGRAMS = _words(
    """
    (linux ActiveState BPF ERROR Id ImportError LoadState Module ModuleNotFoundError No Operation
    Permission Result SYSLOG_IDENTIFIER SubState UnitFileState _TRANSPORT __version__ activating
    active active_mtu address all autostart bad-setting bcc bcc.BPF bcc.__version__ bin board_id
    boot buffer cat code dcb deactivating dead denied dev disabled dmesg echo enabled
    enabled-runtime env error exit exit-code exportfs failed found fw_ver generated get hca_id
    hw_ver iWARP ibv_devinfo import inactive indirect ip ip6tables-legacy-save iptables-legacy-save
    journalctl libbcc
    libexec lines link link_layer linked linux list listener loaded local masked max_mtu modinfo
    modprobe module mount mount.nfs mounted named needs nfs-utils nfs.conf nfsconf nfsdctl nft
    no-pager node_guid not-found output permitted pfc phys_port_cnt pool-threads port port_lid
    port_lmc print property protocol python3 quiet read resources root route rpc.nfsd rpcbind
    ruleset running sbin serving sh short-iso show signal sm_lid start-limit-hit state states static
    success sys_image_guid systemctl systemd-modules-load table threads timeout transient transport
    unit usr vendor_id vendor_part_id waiting
    """
)
_IPROUTE = _words(
    """
    802.1Q BROADCAST DEFAULT LOOPBACK LOWERLAYERDOWN LOWER_UP MASTER MULTICAST NOARP POINTOPOINT
    SLAVE UNKNOWN UP addrgenmode advmss allmulti anycast blackhole bond bond_slave brd bridge
    bridge_slave cache checking default dhcp dummy ether eui64 expires forever fq_codel global
    gro_ipv4_max_size gro_max_size group gso_ipv4_max_size gso_max_segs gso_max_size host id inet
    inet6 infiniband ipvlan link-netnsid link-state linkdown local loopback macvlan main master
    maxmtu medium metric minmtu mode mq mss mtu multicast nexthop noop noqueue numrxqueues
    numtxqueues off on onlink parentbus parentdev pci pfifo_fast pref preferred_lft prohibit
    promiscuity proto protocol qdisc qlen ra scope slave spoof src static throw trust tso_max_segs
    tso_max_size tun uid unicast unreachable valid_lft veth vf via vlan weight
    """
)
_FILTERS = _words(
    """
    A ACCEPT DROP ESTABLISHED FORWARD INPUT INVALID LOG NEW OUTPUT POSTROUTING PREROUTING REJECT
    RELATED RETURN accept admin-prohibited arp burst bytes cgroup chain check comment conntrack
    continue counter ct ctstate d daddr day dccp direction dnat dport dports drop elements eq
    established ether ether_addr exists f fib filter filter_INPUT filter_INPUT_POLICIES flags
    forward fwd g goto hook host hour i icmp icmp-host-prohibited icmp-port-unreachable icmpv6
    ifname igmp iif iifname inet inet_proto inet_service ingress input invalid ip6 iptables ipv4
    ipv4_addr ipv6 ipv6_addr j jump kbytes l4proto limit local log m mangle map mark masquerade
    mbytes meta minute missing multiport nat ne netdev new nexthdr nfproto nfs nfsrdma nftrace
    notrack o oif oifname original output over p packets pkttype policy port-unreachable postrouting
    prefix prerouting priority queue rate raw redirect reject reject-with related reset return roce
    s saddr sctp second security set skuid snat sport sports state status synproxy tcp tcp-reset th
    tproxy type typeof udp unicast untracked vlan vmap week with
    """
)
_CONFIGURATION = _words(
    """
    ACTION ATTR ATTRS Automount BindsTo ENV Environment EnvironmentFile ExecStart ExecStartPost
    ExecStartPre GOTO IMPORT Install KERNEL KERNELS LABEL Mount NFSD_OPTIONS NFSD_PORT NFS_RDMA
    Options PROGRAM RDMA_PORT RESULT RPCNFSDARGS RPCNFSDCOUNT RPCNFSDOPTS RUN Requires SUBSYSTEM
    SUBSYSTEMS Service SourcePath Type USE_KERNEL_NFSD_NUMBER Unit Upholds WantedBy Wants What Where
    Y add alias autofs awk bash bdi blacklist c card change echo etc force fs install k libexec
    nfs-mount-read-ahead nfsrahead nfsrdma options portlist post pre proc program read_ahead_kb
    readahead rxe rxe_cfg s sh siw sleep softdep sysconfig tee value
    """
)
_OS_RELEASE = _words(
    """
    almalinux alpine amazon amzn arch bookworm bullseye centos cloudlinux debian el10 el8 el9 fedora
    focal gentoo jammy linux mint nixos noble ol opensuse opensuse-leap opensuse-tumbleweed platform
    proxmox rhel rocky sid sled sles suse trixie ubuntu virtuozzo
    """
)
_MODINFO = _words(
    """
    Dummy PREEMPT_DYNAMIC SMP aarch64 builtin bundle compat core dkms drivers dummy extra
    extramodules gz hw infiniband kernel ko mlnx-nfsrdma mlnx-ofa_kernel mod_unload modversions net
    ofa_kernel preempt preempt_dynamic retpoline rpcrdma6 sunrpc svcrdma sw ulp updates vastnfs
    weak-updates xprtrdma xz zst
    """
)
_OURS = _words(
    """
    _name bad_replies busy_poll_us cache_bytes cache_copies cache_hits cache_idle_pages cache_memory
    cache_misses cache_mrs cache_pages cache_slots cached callbacks calls_abandoned calls_kept
    client client_port clients clients_sharing connect_timeout_ms connected connection connections
    connects counters credits credits_asked credits_granted credits_used device disconnect
    disconnects dones dones_outstanding exposed_pages failed_marshals fenced fetch_bytes fetch_reads
    fetches fixup_bytes floor_pages granted_pages hardway_bytes inline_recv inline_send inode
    lane_bytes lane_calls lane_fallbacks lane_of lanes lanes_busy lanes_connected lanes_ended
    last_attempt last_disconnect last_failure late_revocations local local_invalidations
    memory_short min_chunk mr_depth mrs nfr_personality_mutex nfr_svc_counted_lock nomsg_calls
    notice_credits optimistic optimistic_bytes optimistic_connection optimistic_connects
    optimistic_lifetime optimistic_memory optimistic_misses optimistic_paused optimistic_pauses
    optimistic_polled optimistic_reads optimistic_refused optimistic_spin_us padded padded_bytes
    padded_calls padded_max padded_pages padded_recv padded_replies padded_send peer peer_extension
    personality personality_for personality_wanted port pre-posted privileged pullup_bytes read-read
    read-write read_chunks read_pages reads_at_once receives references registration
    remote_invalidation reply_bytes reply_chunks reply_pages request_bytes requests send_queue
    server_ack_timeout server_connections server_done_timeout server_floors server_memory
    server_name server_personalities server_reserved_port server_threadless slots_kept source_port
    starved threadless_entries token trdma txprt write_chunks
    """
)
"""Parameters of module nfsrdma, and words of its debugfs."""
CERTIFICATE_FIGURES = _words(
    """
    bytes bytes_received error errors failed_trials files not_offered ok rdma_mb_per_s reads
    reconnects regions_invalidated regions_unmapped retransmissions tcp_mb_per_s trials unknown
    unsent warning warnings wrong_bytes wrong_files
    """
)
"""The figures of the results of `nfsrdma certify`."""
_CERTIFICATE = _words(
    """
    counts data doctor ib iw log mlx5 modelled-card mount passed pull soft-RoCE soft-iWARP sweep
    """
)
"""Steps, statuses, protocols and cards of the same."""
WORDS = (
    FILES
    | OPTIONS
    | _VALUES
    | _OURS
    | _CERTIFICATE
    | _STATES
    | _KERNEL
    | _MOUNTSTATS
    | _PROGRAMS
    | _IPROUTE
    | _FILTERS
    | _CONFIGURATION
    | _OS_RELEASE
    | _MODINFO
)
_OPTIONS = (
    r"CONFIG_(?:SUNRPC|SUNRPC_XPRT_RDMA|NFS_FS|NFS_V[234]\w{0,2}|NFSD|NFSD_V4|INFINIBAND"
    r"|INFINIBAND_ADDR_TRANS|RDMA_RXE|RDMA_SIW|DEBUG_INFO_BTF|DEBUG_INFO_BTF_MODULES|NF_TABLES)"
)
CONFIG = re.compile(rf"{_OPTIONS}=[ymn]|# {_OPTIONS} is not set")
"""Options of the kernel's Kconfig, none of which is a text."""
