"""A real job on this machine, started for faults to be done to it, and started again after them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from powertrip.chaos.processes import JobProcesses
from powertrip.errors import PowerTripError
from powertrip.runtime.supervisor import die_with_parent

END_LIMIT_S = 45.0
"""Seconds that a job may take to end after it was asked to: torchrun gives its processes 30."""
_MARK = "POWERTRIP_CHAOS"
_RESTARTS = 1000


class JobStuck(PowerTripError):
    """A job does not end."""

    def __init__(self, left: Sequence[object], limit_s: float) -> None:
        super().__init__(
            f"the job has not ended within {limit_s:g} s, and was killed: "
            f"{', '.join(map(str, left)) or 'its launcher'} still ran"
        )


class Job:
    """A job, and all processes that come of it; they end with this process.

    Parameters
    ----------
    folder
        For its output (`job.log`) and its runs (`runs`).
    temporary
        For its temporary files.
    torchrun
        Start it by torchrun, which starts failed processes again, for so many sites; None takes
        PowerTrip's own launcher.
    """

    def __init__(
        self,
        folder: Path,
        temporary: Path,
        *,
        torchrun: int | None = None,
    ) -> None:
        mark = uuid.uuid4().hex
        self.processes = JobProcesses(f"{_MARK}={mark}")
        """Its processes."""
        self.runs = folder / "runs"
        """Where its run's folder is."""
        self.log = folder / "job.log"
        """What it prints."""
        self._launcher: subprocess.Popen[bytes] | None = None
        self._command = [sys.executable, "-m", "powertrip.train"]
        if torchrun is not None:
            self._command = [
                *(sys.executable, "-m", "torch.distributed.run"),
                *(f"--nproc_per_node={torchrun}", f"--max-restarts={_RESTARTS}"),
                *(f"--log-dir={folder / 'torchrun'}", "-m", "powertrip.train"),
            ]
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "RANK"},
            "TMPDIR": str(temporary),
            _MARK: mark,
        }
        """Of its processes; to be changed before it starts."""

    def start(self, scenario: Path | None, overrides: Sequence[str]) -> None:
        """Begin a run."""
        config = [] if scenario is None else ["--config", str(scenario)]
        self._start(*config, *overrides, f"runtime.run_dir={self.runs}")

    def resume(self, run_dir: Path) -> None:
        """Go on with a run after the job has ended."""
        self._start("--resume", str(run_dir))

    def _start(self, *arguments: str) -> None:
        with self.log.open("ab") as log:
            self._launcher = subprocess.Popen(
                [*self._command, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is for this process alone
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )

    @property
    def code(self) -> int | None:
        """The exit code of its launcher; None while it runs."""
        assert self._launcher is not None
        return self._launcher.poll()

    def await_end(self, limit_s: float = END_LIMIT_S) -> int:
        """Wait for its end; returns its exit code.

        Raises
        ------
        JobStuck
            It does not end, and was killed.
        """
        assert self._launcher is not None
        try:
            return self._launcher.wait(limit_s)
        except subprocess.TimeoutExpired:
            left = self.processes.all()
            self.kill()
            raise JobStuck(left, limit_s) from None

    def stop(self) -> int:
        """Ask it to stop, and wait for its end; returns its exit code.

        Raises
        ------
        JobStuck
            It does not end, and was killed.
        """
        assert self._launcher is not None
        if self._launcher.poll() is None:
            self._launcher.send_signal(signal.SIGINT)
        return self.await_end()

    def kill(self) -> None:
        """Kill what is left of it."""
        self.processes.kill()
        if self._launcher is not None:
            self._launcher.wait()

    def last_words(self, lines: int = 12) -> str:
        """The end of its output."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])
