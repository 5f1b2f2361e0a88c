"""The first process of a User-Mode Linux machine: prepares it, runs one command, switches it off.

Started by `uml.run` as ``init`` with ``UML_JOB`` naming a folder that holds ``job.json``. Only the
standard library is used, and nothing outside that folder is written.
"""

import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

MODULES = Path("/usr/lib/uml/modules")
NR_FINIT_MODULE = 313
MS_NOSUID, MS_NODEV = 2, 4
libc = ctypes.CDLL(None, use_errno=True)


def mount(kind: str, target: str, options: str = "", flags: int = MS_NOSUID) -> None:
    """Mount a file system of ``kind`` at ``target``."""
    result = libc.mount(b"none", target.encode(), kind.encode(), flags, options.encode())
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind} at {target}: {os.strerror(number)}")


def load_modules(names: list[str]) -> None:
    """Load modules and what they depend on, in the order that ``modules.dep`` gives."""
    folder = MODULES / platform.release()
    needs: dict[str, list[str]] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, depends = line.partition(":")
        needs[path] = depends.split()
    by_name = {Path(path).stem: path for path in needs}
    done: set[str] = set()
    for name in names:
        path = by_name[name]
        # The line lists every dependency, the deepest last.
        for each in [*reversed(needs[path]), path]:
            if each in done:
                continue
            done.add(each)
            fd = os.open(folder / each, os.O_RDONLY)
            try:
                if libc.syscall(NR_FINIT_MODULE, fd, b"", 0) != 0:
                    number = ctypes.get_errno()
                    if number != 17:  # EEXIST
                        raise OSError(number, f"module {each}: {os.strerror(number)}")
            finally:
                os.close(fd)


def run(job: dict[str, object], output: Path) -> int:
    """Run the job's command with its output in a file; 124 when it does not end in time."""
    with (output / "output.txt").open("wb") as log:
        process = subprocess.Popen(
            job["argv"],  # type: ignore[call-overload]
            cwd=str(job["cwd"]),
            env={**job["env"], "TMPDIR": "/run/tmp", "UML_OUTPUT": str(output)},  # type: ignore[dict-item]
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(timeout=float(str(job["timeout_s"])))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return 124


def main() -> None:
    """Prepare the machine, run the job, leave its exit code in the folder, power off."""
    output = Path("/run/host")
    mount("proc", "/proc")
    try:
        folder = Path(os.environ["UML_JOB"])
        job = json.loads((folder / "job.json").read_text())
        mount("sysfs", "/sys")
        if " /dev devtmpfs " not in Path("/proc/mounts").read_text():
            mount("devtmpfs", "/dev")
        for path in ("/dev/shm", "/run"):
            Path(path).mkdir(exist_ok=True)
            mount("tmpfs", path, flags=MS_NOSUID | MS_NODEV)
        output.mkdir()
        Path("/run/tmp").mkdir()
        mount("hostfs", str(output), str(folder))
        load_modules(job["modules"])
        begin = time.monotonic()
        code = run(job, output)
        (output / "rc").write_text(f"{code} {begin:.3f} {time.monotonic() - begin:.3f}\n")
    except BaseException as error:
        print(f"uml_init: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise
    finally:
        os.sync()
        Path("/proc/sysrq-trigger").write_text("o")
        signal.pause()


if __name__ == "__main__":
    main()
