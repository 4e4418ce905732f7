"""Which file system a path is on: SQLite's write-ahead log corrupts on those that several hosts share."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["MOUNTINFO", "network_file_system"]

#: Where Linux lists this process's mounts.
MOUNTINFO = Path("/proc/self/mountinfo")

#: Mount types without the shared memory or the locks that SQLite's write-ahead log needs.
_NETWORK_TYPES = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"}
)
_LOCAL_FUSE = frozenset({"fuse.ext2", "fuse.fuse-overlayfs", "fuse.ntfs-3g", "fuseblk"})
_OCTAL = re.compile(r"\\([0-7]{3})")
#: Fields of a mountinfo line before the separator that stands in front of the file system type.
_MOUNT_POINT_FIELD = 4


def network_file_system(path: Path, mountinfo: Path = MOUNTINFO) -> str | None:
    """Return the type of the network file system that holds ``path``, None on a local or unknown one.

    Args:
        path: a file or folder; it need not exist yet.
        mountinfo: the mount table, in the format of ``/proc/self/mountinfo``.
    """
    try:
        table = mountinfo.read_text("utf-8", "surrogateescape")
    except OSError:
        return None  # no such table on this system: nothing is known
    target = path.resolve()
    deepest, kind = -1, ""
    for line in table.splitlines():
        mount, _, rest = line.partition(" - ")
        fields = mount.split()
        if len(fields) <= _MOUNT_POINT_FIELD or not rest:
            continue
        mount_point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[_MOUNT_POINT_FIELD]))
        # Of two mounts on one point the later line is on top.
        if len(mount_point.parts) >= deepest and target.is_relative_to(mount_point):
            deepest, kind = len(mount_point.parts), rest.split()[0]
    is_remote = kind in _NETWORK_TYPES or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)
    return kind if is_remote else None
