"""One site of `netem check`: enters its namespace, answers probes, and makes those it is told to.

Its arguments are SOCKET SITE; requests come as JSON lines on the standard input, and
each has one reply on the standard output. It ends with its input.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

from netem.client import enter
from netem.errors import NetemError
from netem.probes import (
    LossResult,
    ProbeFailed,
    Responder,
    RttResult,
    ThroughputResult,
    measure_loss,
    measure_rtt,
    measure_throughput,
)

Result = RttResult | LossResult | ThroughputResult
PROBES: dict[str, Callable[..., Result]] = {
    "rtt": measure_rtt,
    "loss": measure_loss,
    "throughput": measure_throughput,
}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Make the probe that is asked for, and return its result.

    Parameters
    ----------
    request
        `probe` is one of `PROBES`; the rest are its arguments.
    """
    probe = PROBES[request.pop("probe")]
    try:
        return {"ok": True, **dataclasses.asdict(probe(**request))}
    except ProbeFailed as error:
        return {"ok": False, "text": str(error)}


def _reply(reply: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Serve until the standard input ends; return the exit code."""
    socket_path, site = arguments[0], int(arguments[1])
    try:
        membership = enter(socket_path, site)
        responder = Responder(membership.address)
    except NetemError as error:
        _reply({"ok": False, "text": str(error)})
        return error.exit_code
    with responder:
        _reply({"ok": True, "address": responder.address, "port": responder.port})
        for line in sys.stdin:
            _reply(answer(json.loads(line)))
    membership.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
