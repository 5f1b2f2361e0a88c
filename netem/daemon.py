"""The link daemon: one per job and machine, it owns the links and changes them in time.

`python -m netem.daemon PLAN --socket PATH [--backend NAME]` runs one in the foreground;
`netem.launch.start_daemon` starts one for a job. It ends on `stop`, on SIGTERM or SIGINT, when the
process that it is tied to has gone, or when nobody is connected any more; then it removes all
links.
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
from typing import Any

from netem.engines import BACKENDS, build_engine
from netem.errors import NetemError, ProtocolError
from netem.plan import Plan
from netem.protocol import CHUNK_BYTES, LineBuffer, encode, error_reply
from netem.server import Daemon
from netem.underlay import Underlay

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
            signals = _Signals()
            _build(signals, Plan.load(options.plan), options.backend, options.socket, None).run()
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
        _obey(control, order, socket_path)
    finally:
        if order["private"]:
            # Not if there is more in it: a process that takes its turn there, or a newer daemon.
            with contextlib.suppress(OSError):
                socket_path.parent.rmdir()


def _obey(control: socket.socket, order: dict[str, Any], socket_path: Path) -> None:
    signals = _Signals()
    try:
        plan = Plan.parse(order["plan"])
        owner = control if order["tied"] else None
        underlay = order["underlay"] and Underlay.model_validate(order["underlay"])
        backend, reason = order["backend"], order["reason"]
        daemon = _build(signals, plan, backend, socket_path, owner, reason, underlay)
    except NetemError as error:
        with contextlib.suppress(BrokenPipeError):
            control.sendall(encode(error_reply(error)))
        raise
    try:
        control.sendall(encode({"ok": True, "pid": os.getpid()}))
        daemon.run()
    except BrokenPipeError:
        _log.info("the process that asked for the links has gone: ending")
    finally:
        daemon.close()


class _Signals:
    """SIGTERM and SIGINT end the daemon; one that comes before there is one waits for it."""

    def __init__(self) -> None:
        self._daemon: Daemon | None = None
        self._came = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._come)

    def _come(self, *_: object) -> None:
        self._came = True
        if self._daemon is not None:
            self._daemon.stop()

    def end(self, daemon: Daemon) -> None:
        """End this daemon at a signal, or at once if one has come."""
        self._daemon = daemon
        if self._came:
            daemon.stop()


def _build(
    signals: _Signals,
    plan: Plan,
    backend: str,
    socket_path: Path,
    owner: socket.socket | None,
    reason: str = "",
    underlay: Underlay | None = None,
) -> Daemon:
    engine = build_engine(backend, plan, secrets.token_hex(4), underlay)
    try:
        daemon = Daemon(plan, engine, socket_path, owner, reason=reason)
    except BaseException:
        engine.close()
        raise
    signals.end(daemon)
    if engine.fileno() is not None:
        # The emulator must not wait behind the processes whose links it plays.
        with contextlib.suppress(PermissionError):
            os.nice(-10)
    scale = "" if plan.rate_scale == 1 else f", rates scaled by {plan.rate_scale:g}"
    _log.info("links of %d sites by the backend %s%s", len(plan.sites), backend, scale)
    return daemon


if __name__ == "__main__":
    sys.exit(main())
