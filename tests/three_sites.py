from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from powertrip.config import load_config
from powertrip.coordination.messages import Ready
from powertrip.coordination.setup import Setup

THREE_SITES = """
sites:
  list:
    - {name: paris, samples_per_s: 100, power: {kind: constant, watts: 2000}}
    - {name: rome, samples_per_s: 100, power: {kind: constant, watts: 1000}}
    - {name: oslo, samples_per_s: 50, gpus: 4, power: {kind: csv, path: oslo.csv, after_end: zero}}
network:
  kind: matrix
  rtt_s: [[0, 0.1, 0.2], [0.1, 0, 1], [0.2, 1, 0]]
  bandwidth_bps: [[0, 8.e+6, 8.e+6], [8.e+6, 0, 8.e+6], [16.e+6, 8.e+6, 0]]
training: {batch_size: 10}
selection: {min_delay_s: 0.05, adjustment_interval: 6, clock: modelled, exchange_model: star}
runtime: {rebuild_s: 0.25}
"""


class ThreeSites(Setup):
    """Sites of 100, 50 and 25 samples/s; the last has half of that from second 10, none from 20."""

    def ready(
        self, *, samples: Sequence[int] = (10, 20, 30), steps: Sequence[int] = (4, 4, 4)
    ) -> list[Ready]:
        return [
            Ready(
                site=site,
                samples=held,
                steps=work,
                update_bytes=500_000,
                digest="d",
                backend="gloo",
            )
            for site, (held, work) in enumerate(zip(samples, steps, strict=True))
        ]


@pytest.fixture
def three_sites(tmp_path: Path) -> ThreeSites:
    (tmp_path / "oslo.csv").write_text("time_s,site,watts\n0,oslo,500\n10,oslo,250\n")
    path = tmp_path / "three-sites.yaml"
    path.write_text(THREE_SITES)
    return ThreeSites(load_config(path), tmp_path)
