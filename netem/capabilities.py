"""What this machine, kernel and user can do, found out by trying."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from netem import namespaces
from netem.errors import NetemError, Unsupported

WANTED = ("auto", "kernel", "userspace", "off")
TUN_DEVICE = "/dev/net/tun"
HTB_REMEDY = "`modprobe sch_htb cls_u32`, or take the backend userspace"
NETEM_REMEDY = (
    "`modprobe sch_netem` (Fedora and RHEL: `dnf install kernel-modules-extra` first; Ubuntu's "
    "cloud kernels: `apt install linux-modules-extra-$(uname -r)`), or take the backend userspace"
)

_PROBE_TIMEOUT_S = 10.0
_FEW_PROCESSES = 64
_LACKING = "the kernel lacks it"
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_T = TypeVar("_T")

# A user namespace can be entered only by a process without threads, and not left again. Exit codes:
# the stage that failed, and the error's number on stdout.
_USER_PROBE = f"""
import ctypes, fcntl, os, struct, sys
def fail(stage, number):
    print(number)
    sys.exit(stage)
uid, gid = os.geteuid(), os.getegid()
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000 | 0x40000000):
    fail(10, ctypes.get_errno())
try:
    for name, text in (
        ("setgroups", "deny"), ("uid_map", f"{{uid}} {{uid}} 1"), ("gid_map", f"{{gid}} {{gid}} 1")
    ):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
except OSError as error:
    fail(11, error.errno)
try:
    tun = os.open("{TUN_DEVICE}", os.O_RDWR)
    fcntl.ioctl(tun, {_TUNSETIFF}, struct.pack("16sH22x", b"eth0", {_IFF_TUN_NO_PI}))
except OSError as error:
    fail(12, error.errno)
"""


@dataclass(frozen=True)
class Capability:
    """One thing that a backend may need.

    Parameters
    ----------
    name
        Such as `sch_netem`.
    ok
        Whether it is there.
    detail
        What was found.
    remedy
        What to install or allow; empty if it is there.
    known
        False where another one must be there first to find out.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    known: bool = True


@dataclass(frozen=True)
class Capabilities:
    """What was found, as far as the backends need it."""

    root: Capability
    namespaces: Capability
    veth: Capability
    sch_htb: Capability
    sch_netem: Capability
    tun: Capability
    user_namespaces: Capability
    tun_as_user: Capability
    processes: Capability

    @property
    def all(self) -> tuple[Capability, ...]:
        """All of them, in the order to be shown."""
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)

    def missing(self, backend: str) -> tuple[Capability, ...]:
        """Return what a backend is known to lack here; `userspace` needs one of its two ways.

        Parameters
        ----------
        backend
            `kernel` or `userspace`.
        """
        kernel = (self.root, self.namespaces, self.veth, self.sch_htb, self.sch_netem)
        if backend == "kernel":
            return tuple(c for c in kernel if c.known and not c.ok)
        ways = ((self.namespaces, self.tun), (self.user_namespaces, self.tun_as_user))
        lacks = [tuple(c for c in way if c.known and not c.ok) for way in ways]
        if () in lacks:
            return ()
        return lacks[0] if self.root.ok else lacks[1]

    def to_json(self) -> list[dict[str, Any]]:
        """Return the list as `doctor --json` shows it."""
        return [asdict(capability) for capability in self.all]


class Choice(NamedTuple):
    """The backend to use: `kernel`, `userspace`, `off` or `none`, and why, in one line."""

    name: str
    reason: str


def detect() -> Capabilities:
    """Find out what this machine can do; leaves nothing behind and takes well under a second."""
    namespace, veth, htb, netem, tun = _in_namespace(_probe_devices, _no_devices)
    user, tun_as_user = _probe_user()
    return Capabilities(
        root=_probe_root(),
        namespaces=namespace,
        veth=veth,
        sch_htb=htb,
        sch_netem=netem,
        tun=tun,
        user_namespaces=user,
        tun_as_user=tun_as_user,
        processes=_probe_processes(),
    )


def choose_backend(wanted: str = "auto", found: Capabilities | None = None) -> Choice:
    """Return the backend to use.

    Parameters
    ----------
    wanted
        `auto` takes the first of kernel and userspace that works here, or `none`; `kernel` and
        `userspace` insist; `off` leaves the network alone.
    found
        What `detect` returned; None detects.

    Raises
    ------
    netem.errors.Unsupported
        If the wanted one cannot work here, with all that is missing and its remedies; or if
        there is no backend of that name.
    """
    if wanted not in WANTED:
        raise Unsupported(f"there is no backend {wanted!r}; write one of {', '.join(WANTED)}")
    if wanted == "off":
        return Choice("off", "backend off: the network is left alone, as asked")
    found = detect() if found is None else found
    if wanted != "auto":
        missing = found.missing(wanted)
        if missing:
            lines = [f"  {c.name}: {c.detail}; {c.remedy}" for c in missing]
            raise Unsupported("\n".join([f"the backend `{wanted}` cannot work here:", *lines]))
        return Choice(wanted, f"backend {wanted}: as asked")
    no_kernel = found.missing("kernel")
    if not no_kernel:
        return Choice("kernel", "backend kernel: root, HTB and netem are there")
    no_userspace = found.missing("userspace")
    if not no_userspace:
        return Choice("userspace", f"backend userspace: for kernel, {_short(no_kernel)}")
    return Choice(
        "none",
        f"no backend: for kernel, {_short(no_kernel)}; for userspace, {_short(no_userspace)}; "
        "`python -m netem doctor` says what to do",
    )


def has_qdisc(kind: str) -> bool:
    """Return whether the kernel has a queueing discipline, which is loaded if it is a module.

    Parameters
    ----------
    kind
        Such as `netem`; `htb` counts only with the u32 filter.

    Raises
    ------
    netem.errors.Unsupported
        If that cannot be found out without more rights.
    """

    def refuse(error: Exception) -> str | None:
        raise Unsupported(str(error)) from error

    reason = _in_namespace(lambda: _try_qdisc(kind), refuse)
    if reason not in (None, _LACKING):
        raise Unsupported(f"cannot find out whether the kernel has sch_{kind}: {reason}")
    return reason is None


def _in_namespace(probe: Callable[[], _T], otherwise: Callable[[Exception], _T]) -> _T:
    """Run a probe in a network namespace of its own, which ends with the thread that enters it."""
    results: list[_T] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            namespaces.unshare_network()
            results.append(probe())
        except (NetemError, NetlinkError, OSError) as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="netem-probe")
    thread.start()
    thread.join()
    if results:
        return results[0]
    return otherwise(failures[0])


def _try_qdisc(kind: str) -> str | None:
    """Return why a discipline cannot be had on this thread's `lo`; None if it can."""
    root, loopback = 1 << 16, 1
    with IPRoute(groups=0) as netlink:
        try:
            netlink.tc("add", kind, loopback, handle=root)
            if kind == "htb":
                options = {"prio": 1, "protocol": 0x0800, "target": root + 1}
                keys = ["0x0/0x0+0"]
                netlink.tc("add-filter", "u32", loopback, parent=root, keys=keys, **options)
            netlink.tc("del", index=loopback, root=True)
        except NetlinkError as error:
            return _LACKING if error.code == errno.ENOENT else os.strerror(error.code)
    return None


def _probe_devices() -> tuple[Capability, ...]:
    return (
        Capability("namespaces", True, "network namespaces can be made"),
        _probe_veth(),
        _discipline("htb", HTB_REMEDY),
        _discipline("netem", NETEM_REMEDY),
        _probe_tun(),
    )


def _discipline(kind: str, remedy: str) -> Capability:
    reason = _try_qdisc(kind)
    if reason is None:
        return Capability(f"sch_{kind}", True, "the kernel has it")
    return Capability(f"sch_{kind}", False, reason, remedy)


def _probe_veth() -> Capability:
    with IPRoute(groups=0) as netlink:
        try:
            netlink.link("add", ifname="a", kind="veth", peer={"ifname": "b"})
            netlink.link("add", ifname="c", kind="bridge")
        except NetlinkError as error:
            remedy = "`modprobe veth bridge`, or take the backend userspace"
            return Capability("veth", False, f"veth or bridge: {os.strerror(error.code)}", remedy)
    return Capability("veth", True, "the kernel has veth and bridge")


def _no_devices(error: Exception) -> tuple[Capability, ...]:
    remedy = "run as root, in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN (`--privileged`)"
    names = ("veth", "sch_htb", "sch_netem", "tun")
    unknown = (
        Capability(name, False, "unknown without a namespace", remedy, known=False)
        for name in names
    )
    return Capability("namespaces", False, str(error).split(";")[0], remedy), *unknown


def _probe_tun() -> Capability:
    try:
        fd = os.open(TUN_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return Capability("tun", False, f"{TUN_DEVICE}: {error.strerror}", _tun_remedy(error.errno))
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TUN_NO_PI))
    except OSError as error:
        detail = _tun_refusal(error.errno)
        allowed = error.errno not in (errno.EACCES, errno.EPERM)
        remedy = _tun_remedy(error.errno) if allowed else "run as root, with CAP_NET_ADMIN"
        return Capability("tun", False, detail, remedy)
    finally:
        os.close(fd)
    return Capability("tun", True, f"{TUN_DEVICE} makes devices")


def _tun_refusal(number: int | None) -> str:
    if number == errno.ENOTTY:
        return f"{TUN_DEVICE} is something else than the device for TUN"
    return f"no device can be made by {TUN_DEVICE}: {os.strerror(number or 0)}"


def _tun_remedy(number: int | None) -> str:
    if number in (errno.EACCES, errno.EPERM):
        return f"`chmod 0666 {TUN_DEVICE}`, as root; in a container `--device {TUN_DEVICE}`"
    return f"`modprobe tun`, as root; in a container `--device {TUN_DEVICE}`"


def _probe_root() -> Capability:
    if os.geteuid() == 0:
        return Capability("root", True, "runs as root")
    remedy = "run as root for the backend kernel; userspace can do without"
    return Capability("root", False, f"runs as user {os.geteuid()}", remedy)


def _probe_user() -> tuple[Capability, Capability]:
    user, tun = "user_namespaces", "tun_as_user"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _USER_PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        return _unprobed(user, str(error)), _unprobed(tun, str(error))
    if done.returncode not in (0, 10, 11, 12):
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return _unprobed(user, reason), _unprobed(tun, reason)
    number = int(done.stdout or 0)
    if done.returncode in (10, 11):
        remedy = (
            "raise `sysctl user.max_user_namespaces`"
            if number == errno.ENOSPC
            else "`sysctl kernel.unprivileged_userns_clone=1` (Debian) or "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), or run as root"
        )
        return (
            Capability(user, False, f"not allowed: {os.strerror(number)}", remedy),
            Capability(tun, False, "unknown without a user namespace", remedy, known=False),
        )
    can = Capability(user, True, "user namespaces can be made")
    if done.returncode == 12:
        detail = f"in a user namespace, {_tun_refusal(number)}"
        return can, Capability(tun, False, detail, _tun_remedy(number))
    return can, Capability(tun, True, f"{TUN_DEVICE} makes devices in a user namespace")


def _unprobed(name: str, reason: str) -> Capability:
    return Capability(name, False, f"the probe failed: {reason}", "run as root")


def _probe_processes() -> Capability:
    room = min(_rooms(), default=None)
    if room is None:
        return Capability("processes", True, "no limit")
    detail = f"{room} more processes and threads may start"
    if room >= _FEW_PROCESSES:
        return Capability("processes", True, detail)
    remedy = "raise `ulimit -u`, or the container's limit (`docker run --pids-limit`)"
    return Capability("processes", False, detail, remedy)


def _rooms() -> Iterable[int]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        owners = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
        yield max(0, soft - sum(_owner(entry) == os.geteuid() for entry in owners))
    own = Path("/proc/self/cgroup")
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            folder = Path("/sys/fs/cgroup") / controllers / path.lstrip("/")
            try:
                most = (folder / "pids.max").read_text().strip()
                used = int((folder / "pids.current").read_text())
            except OSError:
                # Not mounted, or the root group, which has no limit.
                continue
            if most != "max":
                yield max(0, int(most) - used)


def _owner(entry: Path) -> int | None:
    try:
        return entry.stat().st_uid
    except OSError:
        return None


def _short(missing: Iterable[Capability]) -> str:
    return ", ".join(f"{c.name} is missing ({c.detail})" for c in missing)
