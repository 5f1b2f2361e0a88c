"""A site's measurements of its links: at the start, and again and again beside the training."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Sequence

from powertrip.coordination.messages import Failure, Probed
from powertrip.errors import PowerTripError
from powertrip.exchange.probe import Prober
from powertrip.exchange.settings import ExchangeSettings
from powertrip.runtime.control import ControlPlane
from powertrip.runtime.errors import ControlPlaneError
from powertrip.world.world import World


def own_address(towards: tuple[str, int]) -> str:
    """The address from which this machine would speak to another one.

    Parameters
    ----------
    towards
        Host and port of the other; nothing is sent to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(towards)
        return str(probe.getsockname()[0])


class Probing:
    """Measures one site's links in a thread, and tells the coordinator.

    Parameters
    ----------
    plane
        The control plane; the thread has a store client of its own.
    world
        What the links should be like, which sets how much is sent.
    site
        The site's number.
    address
        Its own address.
    settings
        How often, and for how long at most.
    """

    def __init__(
        self,
        plane: ControlPlane,
        world: World,
        site: int,
        address: str,
        settings: ExchangeSettings,
    ) -> None:
        self._plane, self._site, self._settings = plane, site, settings.probe
        self._expected = world.bandwidth[site]
        self._prober = Prober(address)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def endpoint(self) -> str:
        """Where this site answers the others."""
        return self._prober.endpoint

    def start(self, endpoints: Sequence[str | None]) -> None:
        """Measure the links to the sites' endpoints, now and at every interval.

        Parameters
        ----------
        endpoints
            In the order of the sites; None for those that do not answer.
        """
        self._thread = threading.Thread(
            target=self._run, args=(tuple(endpoints),), name="probing", daemon=True
        )
        self._thread.start()

    def _run(self, endpoints: tuple[str | None, ...]) -> None:
        outbox = self._plane.outbox()
        number = 0
        try:
            while not self._closed.is_set():
                number += 1
                outbox.send(self._measure(endpoints, number))
                self._closed.wait(self._settings.interval_s)
        except ControlPlaneError:
            return  # whoever follows the log finds the store gone as well, and ends the site
        except PowerTripError as error:
            outbox.send(Failure.of(error, self._site))
        except Exception as error:  # noqa: BLE001 (a thread's own error would be heard by nobody)
            traceback.print_exc()
            text = f"measuring the links: {error}; its traceback is on standard error"
            outbox.send(
                Failure(site=self._site, error=type(error).__name__, text=text, exit_code=1)
            )

    def _measure(self, endpoints: tuple[str | None, ...], number: int) -> Probed:
        rtt_s: list[float | None] = [None] * len(endpoints)
        bandwidth: list[float | None] = [None] * len(endpoints)
        for link in self._prober.sweep(
            self._site,
            endpoints,
            self._expected.tolist(),
            limit_s=self._settings.limit_s,
            stop=self._closed,
        ):
            rtt_s[link.dst], bandwidth[link.dst] = link.rtt_s, link.bandwidth
        return Probed(
            site=self._site, number=number, rtt_s=tuple(rtt_s), bandwidth=tuple(bandwidth)
        )

    def close(self) -> None:
        """End the thread and the socket."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._prober.close()
