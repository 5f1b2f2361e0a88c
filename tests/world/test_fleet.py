import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from powertrip.world import build_world
from powertrip.world.fleet import FleetSettings, deal_regions, fleet_sites
from powertrip.world.geo import coordinates, great_circle_m, region_coordinates
from powertrip.world.settings import (
    DistanceNetwork,
    SitesSettings,
    TableNetwork,
    WorldSettings,
)

CONSTANT = {"kind": "constant", "watts": 1000}


def fleet(count, **fields):
    return FleetSettings.model_validate(
        {"count": count, "samples_per_s": 160, "power": CONSTANT, **fields}
    )


def make(settings, network=None, seed=0):
    return build_world(
        SitesSettings(fleet=settings),
        network or DistanceNetwork(),
        WorldSettings(),
        seed=seed,
        data_dir=None,
        base_dir=Path(),
    )


def test_each_region_has_a_site_before_any_has_two_the_hub_first():
    settings = fleet(60, regions="measured", hub="gcp:us-central1")
    sites = fleet_sites(settings)
    regions = [site.region for site in sites]
    assert regions[0] == regions[27] == regions[54] == "gcp:us-central1"
    assert len(set(regions[:27])) == 27
    assert regions[:27] == regions[27:54]
    assert set(Counter(regions).values()) == {2, 3}
    assert [sites[i].name for i in (0, 27, 54)] == [
        "us-central1",
        "us-central1.2",
        "us-central1.3",
    ]
    assert len({site.name for site in sites}) == 60


def test_a_larger_fleet_begins_with_the_smaller_one():
    spread = {"median": 100, "spread": 0.5}
    power = {"kind": "builtin", "capacity_w": spread}
    few, many = (
        fleet_sites(fleet(n, regions=["gcp", "aws"], samples_per_s=spread, power=power))
        for n in (9, 150)
    )
    assert many[:9] == few
    other = fleet_sites(fleet(9, regions=["gcp", "aws"], samples_per_s=spread, power=power, seed=1))
    assert [site.region for site in other] != [site.region for site in few]
    assert [site.power for site in other] != [site.power for site in few]


def test_sites_are_what_a_list_would_hold():
    power = {"kind": "synthetic", "capacity_w": {"median": 4000, "spread": 0.3}}
    settings = fleet(5, regions="gcp", power=power, carbon={"kind": "builtin"}, gpus=4)
    listed = [site.model_dump(mode="json") for site in fleet_sites(settings)]
    assert SitesSettings.model_validate({"list": listed}).selected == fleet_sites(settings)
    again = FleetSettings.model_validate(settings.model_dump(mode="json"))
    assert again == settings
    assert fleet_sites(again) == fleet_sites(settings)


def test_regions_of_providers_of_a_list_and_those_left_out():
    three = ["aws:us-east-1", "gcp:us-east1", "azure:eastus"]
    assert set(deal_regions(fleet(3, regions=three))) == set(three)
    assert set(deal_regions(fleet(3, regions=three, without="aws"))) == set(three[1:])
    azure = {name for name in region_coordinates() if name.startswith("azure:")}
    staging = {"azure:centraluseuap", "azure:eastus2euap", "azure:eastusstg"}
    assert set(deal_regions(fleet(1, regions="azure"))) == azure - staging - {
        "azure:southcentralusstg"
    }


def test_without_a_hub_the_most_central_region_is_first():
    # Oregon, Iowa and Virginia.
    regions = ["gcp:us-west1", "gcp:us-central1", "gcp:us-east4"]
    assert deal_regions(fleet(3, regions=regions))[0] == "gcp:us-central1"


def test_sites_of_one_region_are_scattered():
    settings = fleet(400, regions="gcp:europe-north1", scatter_m=50_000)
    places = coordinates(fleet_sites(settings))
    centre = region_coordinates()["gcp:europe-north1"]
    away_m = great_circle_m(places, np.array(centre))
    assert away_m[0] == 0
    assert away_m[1:].max() < 50_500
    # Evenly over a disc: half of them within 1/sqrt(2) of the radius, as many north as south.
    assert np.median(away_m) == pytest.approx(50_000 / math.sqrt(2), rel=0.05)
    assert np.mean(places[1:, 0] > centre[0]) == pytest.approx(0.5, abs=0.08)
    at_home = coordinates(fleet_sites(fleet(3, regions="gcp:europe-north1", scatter_m=0)))
    assert at_home == pytest.approx(np.array([centre] * 3), abs=1e-4)


def test_speeds_and_capacities_are_lognormal_and_unrelated():
    spread = {"median": 200, "spread": 0.4}
    sites = fleet_sites(
        fleet(4000, samples_per_s=spread, power={"kind": "constant", "watts": spread})
    )
    speed, watts = np.log([(site.samples_per_s, site.power.watts) for site in sites]).T
    assert sites[0].samples_per_s == sites[0].power.watts == 200
    for drawn in (speed, watts):
        assert drawn.mean() == pytest.approx(math.log(200), abs=0.02)
        assert drawn.std() == pytest.approx(0.4, rel=0.04)
    assert abs(np.corrcoef(speed, watts)[0, 1]) < 0.05


def test_a_plain_number_is_the_same_everywhere():
    sites = fleet_sites(fleet(50, samples_per_s=123.456789))
    assert {site.samples_per_s for site in sites} == {123.456789}


@pytest.mark.parametrize("kind", ["builtin", "google"])
def test_real_traces_are_read_at_shifted_times(kind):
    traces = {"builtin": {}, "google": {"paths": ["a.csv", "b.csv"]}}[kind]
    power = {"kind": kind, "capacity_w": 3000, "offset_s": 100, "shift_s": 86400, **traces}
    powers = [site.power for site in fleet_sites(fleet(300, power=power))]
    offsets_s = np.array([power.offset_s for power in powers])
    assert offsets_s.min() >= 100
    assert offsets_s.max() < 86500
    assert len(set(offsets_s.tolist())) > 290
    which = Counter(power.domain if kind == "builtin" else str(power.path) for power in powers)
    assert len(which) == (3 if kind == "builtin" else 2)
    assert min(which.values()) > 300 / len(which) * 0.7


def test_synthetic_power_follows_the_fleets_seed_and_not_the_runs():
    power = {"kind": "synthetic", "capacity_w": 4000}
    settings = fleet(4, power=power, seed=7)
    first, second = (make(settings, seed=seed).power_w(3600.0) for seed in (0, 1))
    assert first.tolist() == second.tolist()
    assert len(set(first.tolist())) == 4
    own = fleet_sites(fleet(1, power={**power, "seed": 5}, seed=7))
    assert own[0].power.seed == 5


def test_carbon_is_that_of_the_regions_zone():
    settings = fleet(2, regions=["gcp:us-west1", "gcp:europe-west9"], carbon={"kind": "builtin"})
    world = make(settings)
    # 2022-05-01T00:00Z in the packaged table: US-NW-PACW 339, FR 84 gCO2e/kWh.
    by_name = dict(zip(world.names, world.carbon_g_per_j(0.0) * 3.6e6, strict=True))
    assert by_name == pytest.approx({"us-west1": 339, "europe-west9": 84})


def test_sites_of_one_region_share_its_links_of_the_table():
    world = make(fleet(30, regions="measured", hub="gcp:us-central1"), TableNetwork())
    assert world.star(0).rtt_s[27] == TableNetwork().same_region_rtt_s
    assert world.star(1).rtt_s[0] == world.star(1).rtt_s[27]
    assert world.star(0).reachable.all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regions": "ibm"}, "'ibm' is neither a provider"),
        ({"regions": ["gcp:us-west9"]}, "gcp:us-west4"),
        ({"without": "gcp:nowhere"}, "'gcp:nowhere' is neither"),
        ({"without": "gcp"}, "leaves no region"),
        ({"hub": "aws:us-east-1"}, "not among the regions"),
        ({"count": 0}, "greater than or equal to 1"),
        ({"samples_per_s": 0}, "greater than 0"),
        ({"power": {"kind": "google", "capacity_w": 1, "paths": []}}, "at least 1 item"),
        ({"power": {"kind": "builtin", "capacity_w": 1, "domains": ["x"]}}, "cella_pdu6"),
    ],
)
def test_mistakes_are_told(fields, message):
    with pytest.raises(ValidationError, match=message):
        fleet(fields.pop("count", 3), **fields)


def test_listed_sites_come_before_the_fleet():
    own = {"name": "mine", "samples_per_s": 1, "power": CONSTANT, "lat": 1, "lon": 2}
    sites = SitesSettings.model_validate({"list": [own], "fleet": fleet(5), "count": 3})
    assert [site.name for site in sites.selected] == [
        "mine",
        *(site.name for site in fleet_sites(fleet(2))),
    ]
    twin = {**own, "name": fleet_sites(fleet(1))[0].name}
    with pytest.raises(ValidationError, match="several sites have the same name"):
        SitesSettings.model_validate({"list": [twin], "fleet": fleet(5)})
    with pytest.raises(ValidationError, match="only 6 sites"):
        SitesSettings.model_validate({"list": [own], "fleet": fleet(5), "count": 7})


def test_ten_thousand_sites_make_no_matrices():
    power = {"kind": "synthetic", "capacity_w": {"median": 4000, "spread": 0.5}}
    world = make(fleet(10_000, regions=["gcp", "aws", "azure"], power=power))
    assert world._matrices is None
    assert world.throughput(0.0).shape == world.star(0).rtt_s.shape == (10_000,)
    assert world._matrices is None
