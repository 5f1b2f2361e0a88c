from __future__ import annotations

import pytest

from powertrip.config import load_config
from powertrip.errors import ConfigError


def test_a_plain_simulation_has_neither_chance_nor_failures():
    simulation = load_config().simulation
    assert (simulation.noise.speed, simulation.noise.exchange) == (0, 0)
    assert simulation.noise.straggler_share == 0
    assert simulation.dropouts.every_s is None
    assert (simulation.timing.speed, simulation.timing.exchange) == (1, 1)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("simulation.workers=-1", "simulation.workers"),
        ("simulation.timing.speed=0", "simulation.timing.speed"),
        ("simulation.timing.exchange=.inf", "simulation.timing.exchange"),
        ("simulation.timing.round_s=-1", "simulation.timing.round_s"),
        ("simulation.noise.speed=-0.1", "simulation.noise.speed"),
        ("simulation.noise.straggler_share=1.1", "simulation.noise.straggler_share"),
        ("simulation.noise.straggler_slowdown=0.5", "simulation.noise.straggler_slowdown"),
        ("simulation.dropouts.every_s=0", "simulation.dropouts.every_s"),
        ("simulation.dropouts.lasts_s=.inf", "simulation.dropouts.lasts_s"),
        ("simulation.evaluate_samples=0", "simulation.evaluate_samples"),
        ("simulation.update_bytes=0", "simulation.update_bytes"),
        ("simulation.training=fast", "simulation.training"),
        ("simulation.noise.stragglers=1", "simulation.noise.stragglers: unknown setting"),
    ],
)
def test_what_cannot_be_is_refused_by_name(written, problem):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [written])
    assert problem in str(caught.value)


def test_stacked_training_takes_no_workers():
    stacked = "simulation.training=stacked"
    with pytest.raises(ConfigError, match="write workers: null instead of 4, or training: proc"):
        load_config(None, [stacked, "simulation.workers=4"])
    for workers in ("null", "0"):
        assert load_config(None, [stacked, f"simulation.workers={workers}"]).simulation
