"""What shapes the links: `kernel` (veth, HTB and netem) or `userspace` (TUN and an emulator)."""

from __future__ import annotations

from netem.engines.base import Engine
from netem.errors import Unsupported
from netem.plan import Plan

BACKENDS = ("kernel", "userspace")


def build_engine(backend: str, plan: Plan, job: str) -> Engine:
    """Return the engine of a backend, its links not yet set.

    Parameters
    ----------
    backend
        `kernel` or `userspace`.
    plan
        The sites and their addresses.
    job
        Unique to the daemon on this machine.

    Raises
    ------
    netem.errors.NetemError
        If this machine cannot run it, or its addresses are taken.
    """
    if backend == "kernel":
        from netem.engines.kernel import KernelEngine

        return KernelEngine(plan, job)
    if backend == "userspace":
        from netem.engines.userspace import UserspaceEngine

        return UserspaceEngine(plan, job)
    raise Unsupported(f"there is no backend {backend!r}; write one of {', '.join(BACKENDS)}")
