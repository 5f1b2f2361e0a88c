"""The link daemon: one per job and machine, it owns the links and changes them in time.

`python -m netem.daemon PLAN --socket PATH [--backend NAME]` runs one in the foreground;
`netem.launch.start_daemon` starts one for a job. It ends on `stop`, on SIGTERM or SIGINT, when the
process that it is tied to has gone, or when nobody has been connected for a while; then it removes
all links.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
from pathlib import Path

from netem.engines import BACKENDS, build_engine
from netem.errors import NetemError, ProtocolError
from netem.plan import Plan
from netem.protocol import CHUNK_BYTES, LineBuffer, encode, error_reply
from netem.server import Daemon

START_TIMEOUT_S = 10.0

_log = logging.getLogger("netem.daemon")


def main(argv: list[str] | None = None) -> int:
    """Run a daemon; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m netem.daemon", description="The link daemon.")
    parser.add_argument("plan", type=Path, nargs="?", help="the plan's YAML file")
    parser.add_argument("--socket", type=Path, help="where to listen")
    parser.add_argument("--backend", choices=BACKENDS, default="userspace")
    parser.add_argument("--control-fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.control_fd is None and not (options.plan and options.socket):
        parser.error("name a plan and a --socket")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="netem daemon %(asctime)s %(message)s"
    )
    try:
        if options.control_fd is not None:
            _run_controlled(socket.socket(fileno=options.control_fd))
        else:
            plan = Plan.load(options.plan)
            _build(plan, options.backend, options.socket, None).run()
    except NetemError as error:
        _log.error("%s", error)
        return error.exit_code
    return 0


def _run_controlled(control: socket.socket) -> None:
    control.settimeout(START_TIMEOUT_S)
    lines = LineBuffer()
    order = None
    while order is None:
        try:
            data = control.recv(CHUNK_BYTES)
        except TimeoutError as error:
            raise ProtocolError(f"no order came within {START_TIMEOUT_S:g} s") from error
        if not data:
            return
        order = next(lines.feed(data), None)
    socket_path = Path(order["socket"])
    try:
        plan = Plan.parse(order["plan"])
        owner = control if order["tied"] else None
        daemon = _build(plan, order["backend"], socket_path, owner)
    except NetemError as error:
        control.sendall(encode(error_reply(error)))
        raise
    try:
        control.sendall(encode({"ok": True, "pid": os.getpid()}))
        daemon.run()
    except BrokenPipeError:
        _log.info("the process that asked for the links has gone: ending")
    finally:
        daemon.close()
        if order["private"]:
            with contextlib.suppress(OSError):
                socket_path.parent.rmdir()


def _build(plan: Plan, backend: str, socket_path: Path, owner: socket.socket | None) -> Daemon:
    engine = build_engine(backend, plan, secrets.token_hex(4))
    try:
        daemon = Daemon(plan, engine, socket_path, owner)
    except BaseException:
        engine.close()
        raise
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    if engine.fileno() is not None:
        # The emulator must not wait behind the processes whose links it plays.
        with contextlib.suppress(PermissionError):
            os.nice(-10)
    scale = "" if plan.rate_scale == 1 else f", rates scaled by {plan.rate_scale:g}"
    _log.info("links of %d sites by the backend %s%s", len(plan.sites), backend, scale)
    return daemon


if __name__ == "__main__":
    sys.exit(main())
