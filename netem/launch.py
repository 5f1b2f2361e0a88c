"""Start a link daemon of one's own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from netem.errors import DaemonLost
from netem.plan import Plan
from netem.protocol import Channel
from netem.sockets import abandoned
from netem.underlay import Underlay

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
FAILED_START_S = 2.0
SOCKET_FOLDER_PREFIX = "netem-"


class RunningDaemon:
    """A daemon that this process has started; made by `start_daemon`.

    Attributes
    ----------
    pid
        Of the daemon.
    socket_path
        Where it listens.
    backend
        What it runs.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: Channel,
        socket_path: Path,
        backend: str,
        private: bool,
    ) -> None:
        self.pid = process.pid
        self.socket_path = socket_path
        self.backend = backend
        self._process = process
        self._control = control
        self._private = private

    def __enter__(self) -> RunningDaemon:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def lost(self) -> bool:
        """Whether the daemon has ended."""
        return self._control.lost()

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the daemon ends, at most `timeout_s`; return whether it has."""
        return self._control.lost(timeout_s)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the daemon ends, and only then."""
        return self._control.fileno()

    def stop(self) -> None:
        """Let the daemon end, which removes all links; nothing if it has ended.

        Raises
        ------
        netem.errors.DaemonLost
            If it had to be killed: `python -m netem clean` removes what it left.
        """
        self._control.close()
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            _kill(self._process)
            raise DaemonLost(
                f"the link daemon (process {self.pid}) did not end within {STOP_TIMEOUT_S:g} s "
                "and was killed; `python -m netem clean` removes what it left"
            ) from error
        finally:
            _remove(self.socket_path, self._private)


def start_daemon(
    plan: Plan,
    backend: str,
    socket_path: Path | None = None,
    *,
    tied: bool = True,
    private: bool | None = None,
    reason: str = "",
    underlay: Underlay | None = None,
    log_path: Path | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> RunningDaemon:
    """Start a link daemon and wait until it listens.

    Parameters
    ----------
    plan
        The sites and links.
    backend
        `kernel` or `userspace`.
    socket_path
        Where it listens; None is a new private folder for temporary files.
    tied
        Whether it ends when this process does, however that dies. Otherwise it ends when nobody
        is connected any more, for which it waits `netem.server.LINGER_S` before the first site.
    private
        Whether it removes the socket's folder at its end; None: if it is one for temporary files.
    reason
        Why this backend; `netem.client.Control.describe` returns it.
    underlay
        How the job's other machines are reached, if there are any.
    log_path
        Where its log is appended; None is this process's stderr.
    timeout_s
        How long to wait for it.

    Raises
    ------
    netem.errors.NetemError
        As the daemon gives it: `Unsupported`, `AddressInUse`, ...; `DaemonLost` if it ends at once
        or does not come up.
    """
    private = socket_path is None if private is None else private
    if socket_path is None:
        socket_path = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER_PREFIX)) / "daemon.sock"
    socket_path = socket_path.absolute()
    ours, theirs = socket.socketpair()
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    with theirs, log_path.open("ab") if log_path else os.fdopen(os.dup(2), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "netem.daemon", "--control-fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": path},
            # Signals to a job's process group are not for the daemon: it ends after the job.
            start_new_session=True,
        )
    control = Channel(ours, f"the link daemon (process {process.pid}, backend {backend})")
    try:
        control.request(
            "start",
            timeout_s=timeout_s,
            plan=plan.to_json(),
            backend=backend,
            socket=str(socket_path),
            private=private,
            tied=tied,
            reason=reason,
            underlay=None if underlay is None else underlay.model_dump(mode="json"),
        )
    except BaseException:
        # Without its control connection it ends by itself, having removed what it made.
        control.close()
        try:
            process.wait(FAILED_START_S)
        except subprocess.TimeoutExpired:
            _kill(process)
        _remove(socket_path, private)
        raise
    return RunningDaemon(process, control, socket_path, backend, private)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _remove(socket_path: Path, private: bool) -> None:
    """Remove what a killed daemon has left; nothing of a living one's."""
    if abandoned(socket_path):
        socket_path.unlink(missing_ok=True)
    if private:
        with contextlib.suppress(OSError):
            socket_path.parent.rmdir()
