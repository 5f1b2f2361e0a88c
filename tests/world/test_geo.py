import numpy as np
import pytest

from powertrip.world.geo import (
    EARTH_RADIUS_M,
    coordinates,
    great_circle_m,
    measured_regions,
    region_coordinates,
    region_zones,
)
from powertrip.world.site_settings import ConstantPower, SiteSettings


def site(**place):
    return SiteSettings(name="a", samples_per_s=1, power=ConstantPower(watts=1), **place)


def test_distances_by_hand():
    quarter = np.pi / 2 * EARTH_RADIUS_M
    here = np.array([[0.0, 0.0], [0.0, 0.0], [10.0, 20.0], [0.0, 179.0]])
    there = np.array([[0.0, 90.0], [0.0, 180.0], [10.0, 20.0], [0.0, -179.0]])
    assert great_circle_m(here, there) == pytest.approx([quarter, 2 * quarter, 0, quarter * 2 / 90])


def test_oregon_to_virginia():
    regions = region_coordinates()
    distance_m = great_circle_m(regions["gcp:us-west1"], regions["gcp:us-east4"])
    assert float(distance_m) == pytest.approx(3.6e6, rel=0.05)
    assert len(regions) == 124


def test_own_coordinates_come_before_those_of_the_region():
    places = coordinates(
        [site(region="gcp:us-west1"), site(region="gcp:us-west1", lat=1, lon=2), site(region="x")]
    )
    assert places[0].tolist() == list(region_coordinates()["gcp:us-west1"])
    assert places[1].tolist() == [1, 2]
    assert np.isnan(places[2]).all()


def test_what_is_known_of_regions_is_known_of_places():
    assert len(measured_regions()) == 27
    assert measured_regions() <= region_coordinates().keys()
    assert region_zones().keys() <= region_coordinates().keys()
    assert region_zones()["gcp:us-west1"] == "US-NW-PACW"
