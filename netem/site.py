"""A site of `netem run`: enters its namespace, waits for the others, becomes the command.

Its arguments are SOCKET SITE CONTROL COMMAND...: `CONTROL` is the number of an inherited socket to
the parent, and `SOCKET` is `-` for the machine's own network.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys

from netem.client import enter
from netem.errors import NetemError

_PR_SET_PDEATHSIG = 1
CANNOT_EXECUTE, NOT_FOUND = 126, 127


def main(arguments: list[str]) -> int:
    """Return only if the command cannot be run; the exit code."""
    socket_path, site, control_fd, *command = arguments
    # What the parent started must not outlive it, however it ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    control = socket.socket(fileno=int(control_fd))
    os.set_inheritable(control.fileno(), False)
    if socket_path != "-":
        try:
            membership = enter(socket_path, int(site))
        except NetemError as error:
            control.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
            return error.exit_code
        # The site is attached for as long as this descriptor is open, in the command too.
        os.set_inheritable(membership.fileno(), True)
    control.sendall(b"{}\n")
    if not control.recv(1):
        return 1
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"netem: cannot run {command[0]}: {error.strerror}\n")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
