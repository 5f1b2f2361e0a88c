"""What shapes the links: `kernel` (veth, HTB and netem) or `userspace` (TUN and an emulator)."""

from __future__ import annotations

from netem.engines.base import Engine
from netem.errors import Unsupported
from netem.plan import Plan
from netem.underlay import Underlay

BACKENDS = ("kernel", "userspace")


def build_engine(backend: str, plan: Plan, job: str, underlay: Underlay | None = None) -> Engine:
    """Return the engine of a backend, its links not yet set.

    Parameters
    ----------
    backend
        `kernel` or `userspace`.
    plan
        The sites and their addresses.
    job
        Unique to the daemon on this machine.
    underlay
        How the job's other machines are reached, if there are any.

    Raises
    ------
    netem.errors.NetemError
        If this machine cannot run it.
    """
    if backend == "kernel":
        from netem.engines.kernel import KernelEngine

        return KernelEngine(plan, underlay)
    if backend == "userspace":
        from netem.engines.userspace import UserspaceEngine

        if underlay is not None:
            raise Unsupported(
                "the backend userspace joins the sites of one machine; a job on several needs the "
                "backend kernel"
            )
        return UserspaceEngine(plan, job)
    raise Unsupported(f"there is no backend {backend!r}; write one of {', '.join(BACKENDS)}")
