# SPDX-License-Identifier: Apache-2.0
"""The pod and the volume of Kubernetes that a mount is for, by the mount's path.

kubelet mounts volumes on pods/UID/volumes/PLUGIN/NAME below its folder, those of CSI drivers on
.../NAME/mount, and subpaths on pods/UID/volume-subpaths/NAME/CONTAINER/INDEX; ``~`` stands for
``/`` in the plugin's name (pkg/volume/util and pkg/kubelet/kubelet_getters.go).  It names the
folder of a pod's logs NAMESPACE_NAME_UID.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools.host.nfs import mountinfo

__all__ = ["Volume", "pod_names", "volume_of"]

_UID = r"(?P<uid>[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})"
_VOLUME = re.compile(rf".*/pods/{_UID}/volumes/(?P<plugin>[^/]+)/(?P<name>[^/]+)(?:/mount)?")
_SUBPATH = re.compile(rf".*/pods/{_UID}/volume-subpaths/(?P<name>[^/]+)/[^/]+/[^/]+")
_LOGS = Path("/var/log/pods")
_LOG = re.compile(rf"(?P<namespace>[a-z0-9.-]+)_(?P<name>[a-z0-9.-]+)_{_UID}")
_MOST_PODS = 5000


class Volume(NamedTuple):
    """A volume of a pod; ``namespace`` and ``pod`` are "" if the logs do not name them."""

    pod_uid: str
    name: str
    plugin: str
    """Such as "kubernetes.io/csi"; "" for a subpath."""
    namespace: str = ""
    pod: str = ""


def volume_of(directory: Path) -> Volume | None:
    """The volume that is mounted on ``directory``; None if kubelet has no such path."""
    text = str(directory)
    if match := _VOLUME.fullmatch(text):
        return Volume(match["uid"], match["name"], match["plugin"].replace("~", "/"))
    match = _SUBPATH.fullmatch(text)
    return Volume(match["uid"], match["name"], "") if match else None


def pod_names(root: Path, closed: Container[str]) -> dict[str, tuple[str, str]]:
    """Namespace and name of each pod by its UID, from the names of its folder of logs.

    {} if there are none, or if they are below one of the ``closed`` mount points.
    """
    where, _ = mountinfo.without_links(_LOGS, closed, root)
    if any(str(folder) in closed for folder in (where, *where.parents)):
        return {}
    try:
        # the root is that of a container or of this host
        with os.scandir(f"{root}{where}") as entries:
            names = [entry.name for _, entry in zip(range(_MOST_PODS), entries)]
    except OSError:
        return {}
    matches = filter(None, map(_LOG.fullmatch, names))
    return {match["uid"]: (match["namespace"], match["name"]) for match in matches}
