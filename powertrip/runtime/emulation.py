"""The emulated links of a job: found or made by each supervisor, entered by it, and watched."""

from __future__ import annotations

import contextlib
import hashlib
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from netem.client import Control, Membership, enter
from netem.errors import DaemonLost, NetemError
from netem.plan import Plan
from netem.relay import Relay, start_relay
from netem.shared import join_daemon
from netem.underlay import Underlay
from powertrip.config import Config
from powertrip.coordination.links import Links
from powertrip.coordination.membership import HUB
from powertrip.errors import ConfigError
from powertrip.runtime.errors import LinksLost, LinksUnusable
from powertrip.runtime.link_plan import link_plan
from powertrip.world.world import World

INTERFACE = "eth0"
LOST_SIGNAL = signal.SIGIO
"""What a supervisor gets when the link daemon or its relay has ended."""

_BACKLOG = 256


def join_links(config: Config, world: World, environment: Mapping[str, str]) -> Links:
    """Find the job's link daemon on this machine, or start it.

    Parameters
    ----------
    config, world
        The scenario.
    environment
        Of a process under torchrun, which names the job.

    Raises
    ------
    ConfigError
        The settings do not fit the machines or the network.
    LinksUnusable
        This machine cannot emulate links as it is asked to.
    """
    settings = config.emulation
    if settings.backend == "off":
        return Links("off", "backend off: the network is left alone, as asked")
    if len(world.names) == 1:
        return Links("off", "backend off: a single site has no links")
    job = ":".join(
        environment.get(name, "")
        for name in (
            "TORCHELASTIC_RUN_ID",
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RESTART_COUNT",
        )
    )
    several = environment["LOCAL_WORLD_SIZE"] != environment["WORLD_SIZE"]
    if several and not settings.nodes:
        if settings.backend == "auto":
            return Links("off", "backend off: the real links of several machines")
        raise ConfigError(
            [
                f"emulation.backend: is {settings.backend}, but the processes are on several "
                "machines; name their addresses in emulation.nodes, or write auto or off"
            ],
            "the scenario",
        )
    plan = link_plan(settings, world)
    underlay = _underlay(config, environment, job) if several else None
    log_path = Path(config.runtime.run_dir) / "links.log"
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        joined = join_daemon(
            job, plan, settings.backend, underlay=underlay, log_path=log_path.resolve()
        )
    except NetemError as error:
        raise LinksUnusable(str(error)) from error
    except OSError as error:
        raise LinksUnusable(
            f"{log_path} cannot be written: {error.strerror or error} (runtime.run_dir)"
        ) from error
    path = None if joined.socket_path is None else str(joined.socket_path)
    return Links(joined.choice.name, joined.choice.reason, path)


def _underlay(config: Config, environment: Mapping[str, str], job: str) -> Underlay:
    nodes, settings = config.emulation.nodes, config.emulation
    count = int(environment.get("GROUP_WORLD_SIZE", len(nodes)))
    number = int(environment.get("GROUP_RANK", -1))
    problems = []
    if len(nodes) != count or not 0 <= number < count:
        problems.append(f"emulation.nodes: names {len(nodes)} machines, but the job has {count}")
    if settings.schedule:
        problems.append("emulation.schedule: works on one machine only; leave it out")
    if problems:
        raise ConfigError(problems, "the scenario")
    digest = hashlib.blake2b(job.encode(), digest_size=3).digest()
    return Underlay(
        local=nodes[number],
        peers=(*nodes[:number], *nodes[number + 1 :]),
        vni=max(int.from_bytes(digest), 1),
    )


class SiteLinks:
    """A supervisor's hold on the links of its site; to be closed by it.

    The store that torchrun's agent serves is in the machine's own network, and so is the
    coordinator. The hub's supervisor offers both at the hub's address, so that what other sites say
    to the coordinator crosses their link to the hub.

    Parameters
    ----------
    links
        From `join_links`, emulated.
    site
        The site's number.
    environment
        Of this process, which says where the store is.
    presence
        Where the coordinator listens for the sites' processes, at the hub; offered there as well.
    """

    def __init__(
        self,
        links: Links,
        site: int,
        environment: Mapping[str, str],
        presence: socket.socket | None = None,
    ) -> None:
        assert links.socket_path is not None
        self._links, self._site = links, site
        self._store = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
        self._offered = [self._store]
        if presence is not None:
            self._offered.append(presence.getsockname()[:2])
        self._membership: Membership | None = None
        self._relay: Relay | None = None

    def enter(self) -> None:
        """Move this process into its site's namespace; its later children are born there.

        From then on `LOST_SIGNAL` comes when the links have ended.

        Raises
        ------
        LinksUnusable
            It cannot.
        """
        assert self._links.socket_path is not None
        try:
            if self._site == HUB:
                self._relay = start_relay(self._store)
            self._membership = enter(self._links.socket_path, self._site)
            self._membership.signal_when_lost(LOST_SIGNAL)
            if self._relay is not None:
                self._offer(self._membership.plan, self._relay)
                self._relay.signal_when_lost(LOST_SIGNAL)
        except (NetemError, OSError) as error:
            raise LinksUnusable(f"site {self._site}: {error}") from error
        if self.lost:
            raise LinksUnusable(f"site {self._site}: {self.lost}")

    def _offer(self, plan: Plan, relay: Relay) -> None:
        for to in self._offered:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((plan.address(HUB), to[1]))
                listener.listen(_BACKLOG)
                relay.serve(listener, to)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of the site's process: where the store is, and over what to connect."""
        assert self._membership is not None
        return {
            **base,
            "MASTER_ADDR": self._membership.plan.address(HUB),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            # NCCL would join processes of one machine by shared memory, and refuses two of them
            # on one GPU unless it takes them for machines of their own.
            "NCCL_SOCKET_IFNAME": INTERFACE,
            "NCCL_HOSTID": f"powertrip-site-{self._site}",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "NCCL_IB_DISABLE": "1",
        }

    @property
    def lost(self) -> str | None:
        """What has ended, in words; None while all is well."""
        if self._membership is not None and self._membership.lost:
            return f"the link daemon (backend {self._links.backend}) has ended, and all links"
        if self._relay is not None and self._relay.lost:
            return f"the relay to the store (process {self._relay.pid}) has ended"
        return None

    def give_up(self) -> None:
        """End the links of the whole job, as nobody can reach the store without the relay."""
        assert self._links.socket_path is not None
        # Where the daemon has ended already, there is nothing to end.
        with contextlib.suppress(DaemonLost), Control(self._links.socket_path) as control:
            control.stop()

    def close(self) -> None:
        """Detach the site, and end the relay."""
        if self._relay is not None:
            self._relay.close()
        if self._membership is not None:
            if self._membership.lost:
                self._remove_socket()
            self._membership.close()

    def _remove_socket(self) -> None:
        """Remove what a daemon that was killed could not remove itself."""
        assert self._links.socket_path is not None
        socket_path = Path(self._links.socket_path)
        socket_path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another site's supervisor has removed it
            socket_path.parent.rmdir()


class LinkWatch:
    """The coordinator's connection to the link daemon of its machine.

    Parameters
    ----------
    socket_path
        Where the daemon listens.
    tell
        Called once, from a thread, with the reason when the links have ended.

    Raises
    ------
    LinksLost
        No daemon answers there.
    """

    def __init__(self, socket_path: str, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._wake, self._woken = socket.socketpair()
        try:
            self._control = Control(socket_path)
            described = self._control.describe()
        except NetemError as error:
            self._close_wake()
            raise LinksLost(str(error)) from error
        self._name = f"process {described['pid']}, backend {described['backend']}"
        self._thread = threading.Thread(target=self._wait, name="link-watch", daemon=True)
        self._thread.start()

    def begin_schedule(self) -> None:
        """Put the links back to the start, and begin their schedule.

        Raises
        ------
        LinksLost
            The daemon has ended.
        """
        try:
            self._control.begin()
        except NetemError as error:
            raise LinksLost(str(error)) from error

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLRDHUP)
        poll.register(self._woken.fileno(), select.POLLIN)
        if self._woken.fileno() not in dict(poll.poll()):
            self._tell(f"the link daemon ({self._name}) has ended")

    def close(self) -> None:
        """End the thread and the connection."""
        self._wake.send(b"\0")
        self._thread.join(timeout=5)
        self._control.close()
        self._close_wake()

    def _close_wake(self) -> None:
        self._wake.close()
        self._woken.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
