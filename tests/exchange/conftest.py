"""Members of a group as threads of this process, around a real store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from powertrip.exchange.errors import ExchangeError
from powertrip.exchange.group import Group
from powertrip.exchange.sums import Algorithm

SITES = 4


class Members:
    """Runs a function once per site, at the same time; each has a store client of its own."""

    def __init__(self) -> None:
        self.server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.stores = [
            dist.TCPStore("127.0.0.1", self.server.port, is_master=False) for _ in range(SITES)
        ]
        self._generation = 0

    def next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def each(
        self,
        sites: tuple[int, ...],
        work: Callable[[Group], Any],
        *,
        members: tuple[int, ...] | None = None,
        timeout_s: float = 20.0,
        generation: int | None = None,
        algorithm: Algorithm = "mesh",
    ) -> dict[int, Any]:
        """What `work` returned at each site, or the ExchangeError that ended it."""
        generation = generation or self.next_generation()
        results: dict[int, Any] = {}

        def run(site: int) -> None:
            try:
                with Group(
                    self.stores[site],
                    generation=generation,
                    members=members or sites,
                    site=site,
                    name=f"site-{site}",
                    backend="gloo",
                    timeout_s=timeout_s,
                    algorithm=algorithm,
                ) as group:
                    results[site] = work(group)
            except ExchangeError as error:
                results[site] = error

        threads = [threading.Thread(target=run, args=(site,), daemon=True) for site in sites]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads)
        return results


@pytest.fixture(scope="session")
def members() -> Members:
    return Members()
