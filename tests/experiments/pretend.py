"""A simulation that takes no time, with numbers that are easy to work out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pretend() -> Callable:
    """Stands for `simulate`: a round with k sites takes k + seed seconds, and its accuracy is
    k / (k + 1) of what was missing before. k = 13 cannot be run, k = 14 breaks after a round."""

    # Nested, so that other processes are sent its code: they cannot import a test's module.
    def simulate(setup, telemetry):
        from powertrip.errors import InputError
        from powertrip.telemetry import events

        config = setup.config
        k, seed = config.selection.k, config.seed
        if k == 13:
            raise InputError("13 brings bad luck; take 12")
        members = tuple(f"site{i}" for i in range(k))
        target = config.goal.target
        telemetry.emit(
            events.RunStarted(
                time_s=0.0,
                run_id=telemetry.run_dir.name,
                run_dir=str(telemetry.run_dir),
                name=config.name,
                sites=members,
                policy=config.selection.policy,
                seed=seed,
                target=target,
                powertrip_version="0",
                torch_version="0",
                backend="none",
                pacing="off",
                clock="modelled",
            )
        )
        candidates = tuple(
            events.Candidate(
                k=n,
                gain=n / 10,
                compute_s=1.0,
                communication_s=1.0,
                round_s=2.0,
                switch_s=0.0,
                efficiency=1.0,
                chosen=n == k,
            )
            for n in (k - 1, k)
        )
        telemetry.emit(
            events.Decision(
                time_s=0.0,
                generation=1,
                round=1,
                members=members,
                policy=config.selection.policy,
                reason="because",
                predicted_round_s=k + seed + 0.5,
                rounds=4,
                candidates=candidates,
                decide_s=0.123,
                power_w={},
                throughput={},
            )
        )
        missing, time_s = 1.0, 0.0
        for round_ in range(1, config.goal.max_rounds + 1):
            missing /= k + 1
            time_s += k + seed
            accuracy = 1 - missing
            telemetry.emit(
                events.Round(
                    time_s=time_s,
                    round=round_,
                    generation=1,
                    members=members,
                    local_s=k + seed - 0.25,
                    exchange_s=0.25,
                    eval_s=9.0,
                    overhead_s=0.0,
                    duration_s=float(k + seed),
                    sites=(),
                    train_loss=missing,
                    validation_accuracy=accuracy,
                    validation_loss=missing,
                    test_accuracy=accuracy,
                    test_loss=missing,
                    predicted_round_s=k + seed + 0.5,
                    digest=f"{k}-{round_}",
                    energy_j=100.0 * k,
                    bytes_sent=1000 * k,
                )
            )
            if k == 14:
                failure = events.Failure(
                    time_s=time_s, kind="diverged", text="it diverged", generation=1, round=1
                )
                telemetry.emit(failure)
                return telemetry.end("failed", 1, time_s=time_s)
            if target.met(accuracy):
                return telemetry.end("reached", 0, time_s=time_s)
        return telemetry.end("budget", 3, time_s=time_s)

    return simulate


def written(folder: Path, text: str) -> Path:
    """The file of an experiment that holds a text."""
    path = folder / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    return path
