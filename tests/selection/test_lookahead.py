from __future__ import annotations

import numpy as np
import pytest

from powertrip.selection import SelectionSettings, build_policy

DAY = 96
STEP_S = 900.0


def decide(observation, policy="lookahead", **options):
    return build_policy(SelectionSettings(policy=policy, **options)).decide(observation)


def days(observe, hour, watts=(1000.0, 900.0, 800.0), **fields):
    """Three sites at an hour of their fifth day; the first one is dark from 12 to 18 h.

    A round of theirs takes about 900 s, and an interval four of them.
    """
    phase = np.arange(5 * DAY) % DAY
    history = np.tile(np.array(watts), (5 * DAY, 1))
    history[(phase >= DAY // 2) & (phase < 3 * DAY // 4), 0] = 0.0
    history = history[: 4 * DAY + int(hour * 4) + 1]
    power_w = history[-1]
    return observe(
        **{
            "throughput": power_w / 1000 * 100,
            "full_speed": np.full(3, 100.0),
            "power_w": power_w,
            "used_power_w": power_w,
            "base_steps": 9000,
            "delay_s": np.full(3, 1.0),
            "power_history": history,
            "history_step_s": STEP_S,
            "names": ("dusk", "even", "low"),
            **fields,
        }
    )


def test_avoids_a_site_that_is_about_to_lose_power(observe):
    assert decide(days(observe, 6), k=2).members == (0, 1)
    seen = days(observe, 11.5)
    assert decide(seen, policy="static-k", k=2).members == (0, 1)
    made = decide(seen, k=2)
    assert made.members == (1, 2)
    assert "seasonal and autoregressive forecast" in made.reason
    assert made.reason.endswith("; avoids dusk")


def test_a_dark_site_waits_until_it_has_power(observe):
    assert 0 not in decide(days(observe, 17.75), k=3).members
    assert 0 in decide(days(observe, 18.25), k=3).members


def test_power_over_what_a_site_can_use_is_no_speed(observe):
    # The first site has ten times what it uses, so that its speed stays when most of it goes.
    seen = days(observe, 11.5)
    history = np.where(seen.power_history == 0, 1000.0, 10_000.0)
    history[:, 1:] = seen.power_history[:, 1:]
    rich = seen.replace(power_history=history, power_w=history[-1])
    assert decide(rich, k=1).members == (0,)


@pytest.mark.parametrize(
    "fields",
    [
        {"power_history": np.empty((0, 3)), "history_step_s": 0.0},
        {"power_history": np.array([[1000.0, 900.0, 800.0]] * 5)},
    ],
)
def test_short_history_is_static(observe, fields):
    seen = days(observe, 11.5, **fields)
    made = decide(seen, k=2)
    static = decide(seen, policy="static-k", k=2)
    assert (made.members, made.work) == (static.members, static.work)
    assert "power as it is" in made.reason


def test_nobody_is_avoided_if_all_go_dark(observe):
    seen = days(observe, 11.5)
    dusk = seen.power_history[:, :1]
    seen = seen.replace(power_history=np.repeat(dusk, 3, axis=1))
    assert len(decide(seen, k=3).members) == 3
