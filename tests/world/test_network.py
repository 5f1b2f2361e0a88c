import numpy as np
import pytest

from powertrip.world.errors import NetworkError, PlaceError
from powertrip.world.network import build_links
from powertrip.world.settings import DistanceNetwork, MatrixNetwork, TableNetwork
from powertrip.world.site_settings import ConstantPower, SiteSettings
from powertrip.world.sources import Context

INF = float("inf")


def sites(*places):
    return [
        SiteSettings(name=name, samples_per_s=1, power=ConstantPower(watts=1), **place)
        for name, place in zip("abcdefgh", places, strict=False)
    ]


def build(settings, places, tmp_path):
    return build_links(settings, places, Context(seed=0, base_dir=tmp_path, data_dir=None))


def matrix(rtt_s, bandwidth_bps):
    return MatrixNetwork.model_validate({"rtt_s": rtt_s, "bandwidth_bps": bandwidth_bps})


RTT = [[0, 0.01, 0.02], [0.03, 0, 0.04], [0.05, 0.06, 0]]
BPS = [[0, 8, 16], [24, 0, 32], [40, 48, 0]]


def test_matrix_keeps_its_directions(tmp_path):
    links, warnings = build(matrix(RTT, BPS), sites({}, {}, {}), tmp_path)
    assert warnings == ()
    rtt_s, bandwidth = links.matrices()
    assert rtt_s.tolist() == RTT
    assert bandwidth.tolist() == [[INF, 1, 2], [3, INF, 4], [5, 6, INF]]
    star = links.star(1)
    assert star.rtt_s.tolist() == [0.01, 0, 0.06]
    assert star.up.tolist() == [1, INF, 6]
    assert star.down.tolist() == [3, INF, 4]
    assert star.reachable.all()


def test_larger_matrix_is_cut_to_the_first_sites(tmp_path):
    links, _ = build(matrix(RTT, BPS), sites({}, {}), tmp_path)
    assert links.matrices()[1].tolist() == [[INF, 1], [3, INF]]


def test_smaller_matrix_is_refused(tmp_path):
    with pytest.raises(NetworkError, match="3 x 3, but there are 4 sites"):
        build(matrix(RTT, BPS), sites({}, {}, {}, {}), tmp_path)


@pytest.mark.parametrize("missing", [0, None])
def test_site_without_bandwidth_is_unreachable_with_a_warning(tmp_path, missing):
    bps = [[0, 8, missing], [24, 0, missing], [40, 48, 0]]
    links, warnings = build(matrix(RTT, bps), sites({}, {}, {}), tmp_path)
    assert len(warnings) == 1
    assert "site 'c' is unreachable and left out" in warnings[0]
    star = links.star(0)
    assert star.reachable.tolist() == [True, True, False]
    assert star.up.tolist() == [INF, 3, 5]
    assert star.down[2] == 0
    assert links.star(2).reachable.tolist() == [False, False, True]
    assert links.matrices()[0][0, 2] == INF


def test_missing_round_trip_time_is_no_link(tmp_path):
    rtt = [[0, None, 0.02], [0.03, 0, 0.04], [0.05, 0.06, 0]]
    links, warnings = build(matrix(rtt, BPS), sites({}, {}, {}), tmp_path)
    assert warnings == (
        "site 'a' and site 'b' cannot exchange: the bandwidth one way or both is 0",
    )
    assert links.star(0).reachable.tolist() == [True, False, True]
    assert links.star(2).reachable.all()


def test_many_missing_pairs_are_counted(tmp_path):
    bps = np.full((8, 8), 8.0)
    bps[1:, 1:] = 0
    _, warnings = build(matrix(np.ones((8, 8)).tolist(), bps.tolist()), sites(*[{}] * 8), tmp_path)
    assert len(warnings) == 6
    assert warnings[-1] == "16 more pairs of sites cannot exchange"


def test_lone_site_needs_no_link(tmp_path):
    links, warnings = build(matrix([[None]], [[0]]), sites({}), tmp_path)
    assert warnings == ()
    assert links.star(0).reachable.tolist() == [True]


def test_packaged_table_serves_several_sites_in_a_region(tmp_path):
    settings = TableNetwork(same_region_rtt_s=0.002, same_region_bandwidth_bps=8e9)
    west, tokyo = {"region": "gcp:us-west1"}, {"region": "gcp:asia-northeast1"}
    links, warnings = build(settings, sites(west, tokyo, west), tmp_path)
    assert warnings == ()
    rtt_s, bandwidth = links.matrices()
    assert rtt_s[0, 2] == rtt_s[2, 0] == 0.002
    assert bandwidth[0, 2] == 1e9
    assert 0.08 < rtt_s[0, 1] < 0.12
    assert rtt_s[0, 1] == rtt_s[2, 1]
    assert bandwidth[0, 1] != bandwidth[1, 0]
    for hub in range(3):
        star = links.star(hub)
        assert star.rtt_s.tolist() == rtt_s[:, hub].tolist()
        assert star.up.tolist() == bandwidth[:, hub].tolist()
        assert star.down.tolist() == bandwidth[hub].tolist()


def test_table_names_a_region_it_lacks(tmp_path):
    with pytest.raises(NetworkError, match=r"'gcp:us-west9' is not in the packaged table.*us-west"):
        build(TableNetwork(), sites({"region": "gcp:us-west9"}), tmp_path)
    with pytest.raises(NetworkError, match="site 'a' has no region"):
        build(TableNetwork(), sites({"lat": 1, "lon": 2}), tmp_path)


def test_distance_model_is_near_the_measurements(tmp_path):
    names = ["us-west1", "us-east4", "europe-west4", "asia-northeast1", "southamerica-east1"]
    places = sites(*({"region": f"gcp:{name}"} for name in names))
    measured = build(TableNetwork(), places, tmp_path)[0].matrices()
    modelled, warnings = build(DistanceNetwork(), places, tmp_path)
    pairs = ~np.eye(len(names), dtype=bool)
    assert warnings == ()
    for ours, theirs, bound in zip(modelled.matrices(), measured, (0.2, 0.5), strict=True):
        assert np.median(np.abs(ours[pairs] / theirs[pairs] - 1)) < bound
    star, (rtt_s, bandwidth) = modelled.star(2), modelled.matrices()
    assert star.rtt_s == pytest.approx(rtt_s[:, 2])
    assert star.up == pytest.approx(bandwidth[:, 2])
    assert star.down == pytest.approx(bandwidth[2])


def test_distance_model_by_hand(tmp_path):
    links, _ = build(
        DistanceNetwork(), sites({"lat": 0, "lon": 0}, {"lat": 0, "lon": 90}), tmp_path
    )
    quarter_m = np.pi / 2 * 6_371_008.8
    assert links.star(0).rtt_s[1] == pytest.approx(0.00474 + 1.531e-8 * quarter_m)
    assert links.star(0).up[1] == pytest.approx(18.7e9 / 8 / (1 + quarter_m / 14.11e6))


def test_distance_needs_a_place(tmp_path):
    with pytest.raises(PlaceError, match="site 'b' has no region and no coordinates"):
        build(DistanceNetwork(), sites({"lat": 0, "lon": 0}, {}), tmp_path)
    with pytest.raises(PlaceError, match="unknown region 'mars'"):
        build(DistanceNetwork(), sites({"region": "mars"}), tmp_path)


def test_every_kind_of_network_scales_its_bandwidths_and_nothing_else(tmp_path):
    regions = sites(
        {"region": "gcp:us-west1"}, {"region": "gcp:us-west1"}, {"region": "gcp:us-east4"}
    )
    for settings in (matrix(RTT, BPS), TableNetwork(), DistanceNetwork()):
        plain, _ = build(settings, regions, tmp_path)
        scaled, _ = build(settings.model_copy(update={"bandwidth_scale": 0.25}), regions, tmp_path)
        np.testing.assert_array_equal(scaled.matrices()[0], plain.matrices()[0])
        np.testing.assert_allclose(scaled.matrices()[1], 0.25 * plain.matrices()[1])
        np.testing.assert_allclose(scaled.star(2).up, 0.25 * plain.star(2).up)
