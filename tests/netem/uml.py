"""Runs a command inside User-Mode Linux, whose kernel has the sch_netem that this one may lack.

The guest boots from this machine's own files, read-only, so the same interpreter and packages are
at hand; what it writes lands in one folder. Debian and Ubuntu: ``apt-get install user-mode-linux``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

INSTALL = "apt-get install -y user-mode-linux"
INIT = Path(__file__).with_name("uml_init.py")
MODULES = (
    "ipv6",
    "veth",
    "bridge",
    "tun",
    "vxlan",
    "sch_netem",
    "sch_tbf",
    "sch_htb",
    "cls_u32",
)
BOOT_S = 30.0
XSTATE = Path(__file__).with_name("uml_xstate.c")
COMPILER = "apt-get install -y gcc libc6-dev"


class GuestFailed(Exception):
    """The guest did not get as far as running the command, or did not switch itself off."""


@dataclass(frozen=True)
class GuestResult:
    """What a command inside the guest left.

    Attributes
    ----------
    code
        Its exit code; 124 when it was ended because its time was over.
    output
        Its standard output and error together.
    folder
        Holds the files that it wrote to ``$UML_OUTPUT``.
    boot_s, run_s
        Time from the guest's start to the command's, and the command's own.
    """

    code: int
    output: str
    folder: Path
    boot_s: float
    run_s: float


def kernel() -> Path | None:
    """Return the path of ``linux.uml``, or None where it is not installed."""
    found = shutil.which("linux.uml")
    return Path(found) if found else None


def needs_compiler() -> bool:
    """Return whether this processor's register state is larger than linux.uml 6.1 can hold."""
    return "amx_tile" in Path("/proc/cpuinfo").read_text().split()


def missing() -> str | None:
    """Return what to install before `run` can work, as a command; None when all is there."""
    commands = [] if kernel() else [INSTALL]
    if needs_compiler() and not (shutil.which("cc") or shutil.which("gcc")):
        commands.append(COMPILER)
    return " && ".join(commands) or None


def run(
    argv: list[str],
    folder: Path,
    *,
    cwd: Path,
    env: dict[str, str] | None = None,
    timeout_s: float = 180.0,
    memory: str = "2G",
    modules: tuple[str, ...] = MODULES,
) -> GuestResult:
    """Boot a guest, run ``argv`` in it as root, and wait until it has switched itself off.

    Parameters
    ----------
    argv
        The command, with absolute paths of this machine.
    folder
        An empty folder outside /run and /dev, the only place that the guest can write to.
    cwd
        Where the command starts.
    env
        Added to a PATH and HOME; nothing else of this process' environment is handed on.
    timeout_s
        Time that the command may take; boot and shutdown have 30 s more.
    memory
        Of the guest. It is taken from /dev/shm as it is touched.
    modules
        Loaded before the command starts, with what they depend on.

    Raises
    ------
    GuestFailed
        With the guest's console, when there is no exit code of the command.
    """
    linux = kernel()
    if linux is None:
        raise GuestFailed(f"linux.uml is not installed: {INSTALL}")
    job = {
        "argv": argv,
        "cwd": str(cwd),
        "env": {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/run/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            **(env or {}),
        },
        "modules": list(modules),
        "timeout_s": timeout_s,
    }
    (folder / "job.json").write_text(json.dumps(job))
    init = folder / "init"
    init.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -B "{INIT}"\n')
    init.chmod(0o700)
    console = _boot(
        [
            str(linux),
            f"mem={memory}",
            "root=/dev/root",
            "rootfstype=hostfs",
            "ro",
            "rootflags=/",
            f"init={init}",
            "con=null",
            "con0=null,fd:1",
            "quiet",
            f"umid=netem-{uuid.uuid4().hex[:12]}",
            f"UML_JOB={folder}",
        ],
        timeout_s + BOOT_S,
    )
    result = folder / "rc"
    if not result.exists():
        raise GuestFailed(f"the guest never ran its command; its console says:\n{console}")
    code, boot_s, run_s = result.read_text().split()
    output = (folder / "output.txt").read_text(errors="replace")
    return GuestResult(int(code), output, folder, float(boot_s), float(run_s))


def _boot(command: list[str], timeout_s: float) -> str:
    """Run the guest until it is off, and return its console; its group is killed when late."""
    with (
        tempfile.TemporaryFile() as console,
        tempfile.TemporaryDirectory(prefix="uml-", ignore_cleanup_errors=True) as home,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                "PATH": os.defpath,
                "HOME": home,
                "TMPDIR": _memory_folder(),
                **_preload(Path(home)),
            },
        ) as process,
    ):
        try:
            process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            late = True
        else:
            late = False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        console.seek(0)
        text = console.read().decode(errors="replace")
    if late:
        raise GuestFailed(f"the guest was not off after {timeout_s:.0f} s; its console:\n{text}")
    return text


def _preload(folder: Path) -> dict[str, str]:
    """Compile uml_xstate.c where the processor needs it (its text says why)."""
    if not needs_compiler():
        return {}
    library = folder / "uml_xstate.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise GuestFailed(f"linux.uml needs a C compiler on a processor with AMX: {COMPILER}")
    command = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(XSTATE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise GuestFailed(f"{XSTATE.name} does not compile:\n{done.stderr}")
    return {"LD_PRELOAD": str(library)}


def _memory_folder() -> str:
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else tempfile.gettempdir()
