from __future__ import annotations

import pytest

from powertrip.errors import ConfigError
from powertrip.runtime.link_plan import link_plan
from powertrip.runtime.settings import EmulationSettings


def emulation(**settings) -> EmulationSettings:
    return EmulationSettings.model_validate(settings)


def test_links_are_those_of_the_network_half_a_round_trip_each_way(three_sites):
    plan = link_plan(emulation(loss=0.01, jitter_s=0.07), three_sites.build_world())
    assert plan.sites == ("paris", "rome", "oslo")
    there, back = plan.link(2, 0), plan.link(0, 2)
    assert (there.delay_s, back.delay_s) == (0.1, 0.1)
    assert (there.rate_bps, back.rate_bps) == (16e6, 8e6)
    assert there.loss == 0.01
    assert (plan.link(0, 1).delay_s, plan.link(0, 1).jitter_s) == (0.05, 0.05)
    assert plan.link(1, 2).jitter_s == 0.07


def test_the_networks_scale_is_in_the_rates(three_sites):
    network = three_sites.config.network.model_copy(update={"bandwidth_scale": 0.5})
    config = three_sites.config.model_copy(update={"network": network})
    world = type(three_sites)(config, three_sites.base_dir).build_world()
    assert link_plan(emulation(), world).link(2, 0).rate_bps == 8e6


def test_a_pair_without_a_link_is_cut_and_a_fast_one_is_not_limited(three_sites):
    bps = ((0, 0, 1e11), (8e6, 0, 8e6), (8e6, 8e6, 0))
    network = three_sites.config.network.model_copy(update={"bandwidth_bps": bps})
    config = three_sites.config.model_copy(update={"network": network})
    plan = link_plan(emulation(), type(three_sites)(config, three_sites.base_dir).build_world())
    assert not plan.link(0, 1).up
    assert plan.link(1, 0).up
    assert plan.link(0, 2).rate_bps is None


def test_the_schedule_names_sites_of_the_scenario(three_sites):
    world = three_sites.build_world()
    cut = {"at_s": 5, "src": "rome", "dst": "all", "up": False}
    assert link_plan(emulation(schedule=[cut]), world).schedule[0].src == "rome"
    with pytest.raises(ConfigError, match=r"schedule.0.src: there is no site 'roma'"):
        link_plan(emulation(schedule=[cut | {"src": "roma"}]), world)


def test_a_rate_that_no_link_can_have_is_told_with_its_place(three_sites):
    network = three_sites.config.network.model_copy(update={"bandwidth_scale": 1e-6})
    config = three_sites.config.model_copy(update={"network": network})
    world = type(three_sites)(config, three_sites.base_dir).build_world()
    with pytest.raises(ConfigError, match=r"links.0.rate_bps"):
        link_plan(emulation(), world)
