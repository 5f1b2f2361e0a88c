"""A small run that never happened, with numbers that are easy to add up."""

from __future__ import annotations

from typing import Any

import pytest

from powertrip.telemetry import events

SITES = tuple(
    f"gcp:{name}"
    for name in (
        "us-west1",
        "us-east1",
        "us-central1",
        "europe-west4",
        "europe-north1",
        "asia-east1",
        "asia-northeast1",
        "southamerica-east1",
    )
)


class Story:
    """Makes the events of a run, with `wall_time` one second ahead of the training clock."""

    def __init__(self, sites: tuple[str, ...] = SITES) -> None:
        self.sites = sites

    def start(self, **changes: Any) -> events.RunStarted:
        fields: dict[str, Any] = {
            "time_s": 0.0,
            "wall_time": 1000.0,
            "run_id": "20260101-120000-5f2c",
            "run_dir": "runs/20260101-120000-5f2c",
            "name": "eight-clouds",
            "sites": self.sites,
            "policy": "powertrip",
            "seed": 0,
            "target": events.Target(metric="test_accuracy", value=0.95),
            "powertrip_version": "0.1.0",
            "torch_version": "2.13.0",
            "backend": "gloo",
            "pacing": "deadline",
            "clock": "measured",
        }
        return events.RunStarted(**fields | changes)

    def links(self, **changes: Any) -> events.LinksMeasured:
        """Sites one after the other, 10 ms and 1 MB/s apart; the model has 2 % less of both."""
        rows = tuple(
            events.LinkRow(
                src=src,
                dst=dst,
                rtt_s=0.01 * abs(i - j),
                bandwidth=1e6 * abs(i - j),
                model_rtt_s=0.0098 * abs(i - j),
                model_bandwidth=0.98e6 * abs(i - j),
            )
            for i, src in enumerate(self.sites)
            for j, dst in enumerate(self.sites)
            if i != j
        )
        fields: dict[str, Any] = {
            "time_s": 0.0,
            "wall_time": 1000.5,
            "hub": self.sites[0],
            "links": rows,
            "first": True,
        }
        return events.LinksMeasured(**fields | changes)

    def changed_links(self, count: int, **changes: Any) -> events.LinksMeasured:
        """A later measurement, in which the first links are otherwise."""
        links = self.links().links
        return self.links(
            first=False,
            links=tuple(link.model_copy(update=changes) for link in links[:count]) + links[count:],
        )

    def decision(self, generation: int, count: int, **changes: Any) -> events.Decision:
        fields: dict[str, Any] = {
            "time_s": 2.0 * (generation - 1),
            "wall_time": 1001.0 + 2.0 * (generation - 1),
            "generation": generation,
            "round": 2 * generation - 1,
            "members": self.sites[:count],
            "policy": "powertrip",
            "reason": f"{count} sites give the most progress per second",
            "predicted_round_s": 1.5,
            "rounds": 2,
            "steps": (8,) * count,
            "candidates": (
                events.Candidate(
                    k=count,
                    gain=0.2,
                    compute_s=1.0,
                    communication_s=0.5,
                    round_s=1.5,
                    switch_s=0.25,
                    efficiency=0.12,
                    chosen=True,
                ),
            ),
            "decide_s": 0.002,
            "power_w": {site: 4000.0 - 250.0 * i for i, site in enumerate(self.sites)},
            "throughput": {site: 640.0 - 40.0 * i for i, site in enumerate(self.sites)},
            "observation": {"time_s": 0.0, "members": [0, 1]},
        }
        return events.Decision(**fields | changes)

    def rebuild(self, generation: int, count: int, **changes: Any) -> events.Rebuild:
        fields: dict[str, Any] = {
            "time_s": 2.0 * (generation - 1) + 0.25,
            "wall_time": 1001.25 + 2.0 * (generation - 1),
            "generation": generation,
            "members": self.sites[:count],
            "seconds": 0.25,
            "join_bytes": 1000,
        }
        return events.Rebuild(**fields | changes)

    def round(self, number: int, generation: int, count: int, **changes: Any) -> events.Round:
        fields: dict[str, Any] = {
            "time_s": 1.0 * number,
            "wall_time": 1001.0 + number,
            "round": number,
            "generation": generation,
            "members": self.sites[:count],
            "local_s": 0.5,
            "exchange_s": 0.25,
            "eval_s": 0.125,
            "overhead_s": 0.0625,
            "duration_s": 0.8125,
            "sites": tuple(
                events.SiteRound(
                    site=site,
                    steps=8,
                    samples=256,
                    local_s=0.5 - 0.01 * i,
                    exchange_s=0.25,
                    step_s=0.0625 - 0.001 * i,
                    loss=2.0 / number,
                    bytes_sent=4000,
                    energy_j=100.0,
                    power_w=200.0 - 5.0 * i,
                )
                for i, site in enumerate(self.sites[:count])
            ),
            "train_loss": 2.0 / number,
            "validation_accuracy": 1 - 0.5**number,
            "validation_loss": 0.5**number,
            "test_accuracy": 1 - 0.5**number,
            "predicted_round_s": 1.5,
            "digest": f"{number:032x}",
            "energy_j": 100.0 * count,
            "bytes_sent": 4000 * count,
        }
        return events.Round(**fields | changes)

    def resumed(self, round_: int, **changes: Any) -> events.Resumed:
        fields: dict[str, Any] = {
            "time_s": 1.0 * round_,
            "wall_time": 2000.0,
            "round": round_,
            "lost_rounds": 2,
            "checkpoint": f"runs/x/checkpoints/round-{round_:08d}",
            "term": 0,
            "reason": "asked for with --resume",
        }
        return events.Resumed(**fields | changes)

    def run(self) -> list[events.Event]:
        """Two generations of two rounds, then one that meets the target, then one more."""
        told: list[events.Event] = [self.start()]
        for generation, count in ((1, 4), (2, 6), (3, 5)):
            told += [self.decision(generation, count), self.rebuild(generation, count)]
            told += [self.round(number, generation, count) for number in _rounds(generation)]
        told.insert(
            5,
            events.Warned(
                time_s=2.0, wall_time=1003.0, text="slower than predicted", site=self.sites[3]
            ),
        )
        told.insert(
            9,
            events.Failure(
                time_s=4.0,
                wall_time=1005.0,
                kind="exchange",
                site=self.sites[5],
                text="the exchange was aborted after 5 s",
                generation=2,
                round=4,
            ),
        )
        told.append(
            events.Checkpoint(
                time_s=6.0,
                wall_time=1007.0,
                path="runs/x/last.pt",
                bytes=8000,
                seconds=0.01,
                round=6,
            )
        )
        return told


def _rounds(generation: int) -> tuple[int, int]:
    return 2 * generation - 1, 2 * generation


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def told() -> list[events.Event]:
    return Story().run()
