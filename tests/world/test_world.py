import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powertrip.errors import ConfigError, InputError
from powertrip.world import TraceError, build_world
from powertrip.world.settings import (
    DistanceNetwork,
    MatrixNetwork,
    SitesSettings,
    TableNetwork,
    WorldSettings,
)

DAY = "time_s,site,watts\n0,b,1000\n100,b,0\n200,b,4000\n300,b,2000\n"


def site(name, power, **fields):
    return {"name": name, "samples_per_s": 80, "gpus": 8, "rated_w": 250, "power": power, **fields}


def make(tmp_path, listed, *, network=None, count=None, seed=0, data_dir=None, **world):
    if network is None:
        square = np.ones((len(listed), len(listed))).tolist()
        network = MatrixNetwork.model_validate({"rtt_s": square, "bandwidth_bps": square})
    return build_world(
        SitesSettings.model_validate({"list": listed, "count": count}),
        network,
        WorldSettings.model_validate(world),
        seed=seed,
        data_dir=data_dir,
        base_dir=tmp_path,
    )


@pytest.fixture
def pair(tmp_path):
    """A constant site at a quarter of its power and one of a trace of 400 s, at 10 x speed."""
    (tmp_path / "day.csv").write_text(DAY)
    return make(
        tmp_path,
        [
            site("a", {"kind": "constant", "watts": 500}),
            site("b", {"kind": "csv", "path": "day.csv", "offset_s": 50}),
        ],
        time_scale=10,
    )


def test_instants_by_hand(pair):
    assert pair.names == ("a", "b")
    assert pair.rated_w.tolist() == [2000, 2000]
    assert pair.full_speed.tolist() == [80, 80]
    expected = {0: 1000, 4.9: 1000, 5: 0, 15: 4000, 25: 2000, 34.9: 2000, 35: 1000}
    for t_s, watts in expected.items():
        assert pair.power_w(t_s).tolist() == [500, watts]
        assert pair.used_power_w(t_s).tolist() == [500, min(watts, 2000)]
        assert pair.fraction(t_s).tolist() == [0.25, min(watts / 2000, 1)]
        assert pair.throughput(t_s).tolist() == [20, min(watts / 2000, 1) * 80]


def test_integrals_are_over_run_seconds(pair):
    assert pair.samples_done(0, 7.0, 10.0) == pytest.approx(200)
    assert pair.energy_j(0, 7.0, 10.0) == pytest.approx(5000)
    # From run second 0 (trace second 50): 5 s at 40 samples/s, 10 s off, 20 s at 80.
    assert pair.samples_done(1, 0.0, 5.0) == pytest.approx(200)
    assert pair.samples_done(1, 0.0, 15.0) == pytest.approx(200)
    assert pair.samples_done(1, 0.0, 35.0) == pytest.approx(1800)
    assert pair.energy_j(1, 0.0, 35.0) == pytest.approx(5 * 1000 + 20 * 2000)
    # A period of 40 run seconds holds 10 s at 40 and 20 s at 80.
    assert pair.samples_done(1, 3.0, 4000.0) == pytest.approx(100 * 2000)
    assert pair.seconds_for(1, 0.0, 200.0) == pytest.approx(5)
    assert pair.seconds_for(1, 0.0, 201.0) == pytest.approx(15 + 1 / 80)
    assert pair.seconds_for(1, 10.0, 0.0) == 0


@given(st.integers(0, 1), st.floats(0, 500), st.floats(0.01, 1e5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_seconds_for_inverts_samples_done(pair, site, start_s, samples):
    duration_s = pair.seconds_for(site, start_s, samples)
    assert pair.samples_done(site, start_s, duration_s) == pytest.approx(samples, rel=1e-7)


def test_integrals_agree_with_the_instants(tmp_path):
    listed = [
        site("a", {"kind": "builtin", "domain": "cella_pdu6", "capacity_w": 4000}),
        site("b", {"kind": "builtin", "domain": "cella_pdu7", "capacity_w": 900, "share": 0.5}),
        site("c", {"kind": "synthetic", "capacity_w": 2500, "std": 0.2}, gpu="a40", rated_w=300),
        site("d", {"kind": "constant", "watts": 700}),
    ]
    for world in (
        make(tmp_path, listed, power_mode="caps", time_scale=300),
        make(tmp_path, listed, power_mode="caps", whole_gpus=True, time_scale=300),
        make(tmp_path, listed, whole_gpus=True, time_scale=300),
    ):
        # The steps of the traces are multiples of 1 run second.
        seconds = np.arange(700) + 0.5
        speeds = np.array([world.throughput(t) for t in seconds])
        drawn = np.array([world.used_power_w(t) for t in seconds])
        for i in range(4):
            assert world.samples_done(i, 0.0, 700.0) == pytest.approx(speeds[:, i].sum())
            assert world.energy_j(i, 0.0, 700.0) == pytest.approx(drawn[:, i].sum())
        assert (drawn <= world.rated_w + 1e-9).all()
        assert ((world.fraction(3.0) >= 0) & (world.fraction(3.0) <= 1)).all()


def test_end_of_a_trace(tmp_path):
    (tmp_path / "day.csv").write_text(DAY)
    listed = [
        site(name, {"kind": "csv", "path": "day.csv", "site": "b", "after_end": name})
        for name in ("loop", "hold", "zero")
    ]
    world = make(tmp_path, listed)
    assert world.power_w(450.0).tolist() == [1000, 2000, 0]
    assert world.seconds_for(2, 350.0, 50 * 80.0) == pytest.approx(50)
    assert world.seconds_for(2, 350.0, 50 * 80.0 + 1) == math.inf
    assert world.samples_done(1, 400.0, 10.0) == pytest.approx(800)


def test_unpowered_site_never_finishes(tmp_path):
    world = make(tmp_path, [site("a", {"kind": "constant", "watts": 0})])
    assert world.seconds_for(0, 0.0, 1.0) == math.inf
    assert world.samples_done(0, 0.0, 1e6) == 0


def test_count_cuts_sites_and_matrices(tmp_path):
    listed = [site(name, {"kind": "constant", "watts": 1}) for name in "abc"]
    world = make(tmp_path, listed, count=2)
    assert world.names == ("a", "b")
    assert world.rtt_s.shape == world.bandwidth.shape == (2, 2)
    assert world.rtt_s.diagonal().tolist() == [0, 0]
    assert np.isinf(world.bandwidth.diagonal()).all()
    assert world.bandwidth[0, 1] == 1 / 8


def test_places_and_warnings(tmp_path):
    constant = {"kind": "constant", "watts": 1}
    world = make(
        tmp_path,
        [site("a", constant, region="gcp:us-west1"), site("b", constant)],
        network=MatrixNetwork.model_validate(
            {"rtt_s": [[0, 1], [1, 0]], "bandwidth_bps": [[0, 0], [1, 0]]}
        ),
    )
    assert world.warnings == (
        "site 'a' and site 'b' cannot exchange: the bandwidth one way or both is 0",
    )
    assert world.star(0).reachable.tolist() == [True, False]
    assert world.distance_m(0)[0] == 0
    assert math.isnan(world.distance_m(0)[1])


def test_arrays_cannot_be_changed(pair):
    for array in (pair.full_speed, pair.rated_w, pair.rtt_s, pair.bandwidth):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


def test_copies_in_other_processes_agree(pair):
    copy = pickle.loads(pickle.dumps(pair))
    assert copy.samples_done(1, 3.0, 50.0) == pair.samples_done(1, 3.0, 50.0)
    assert copy.power_w(3.0).tolist() == pair.power_w(3.0).tolist()


def test_one_problem_is_raised_as_it_is(tmp_path):
    power = {"kind": "csv", "path": "none.csv"}
    with pytest.raises(TraceError, match=r"power of 'a', 'b': there is no file none\.csv"):
        make(tmp_path, [site("a", power), site("b", power)])


def test_all_problems_are_listed_at_once(tmp_path):
    (tmp_path / "empty.csv").touch()
    listed = [
        site("a", {"kind": "csv", "path": "none.csv"}),
        site("b", {"kind": "csv", "path": "empty.csv"}),
        site("c", {"kind": "google", "path": "power.csv.gz", "capacity_w": 1}),
    ]
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, listed, network=TableNetwork(), data_dir=tmp_path / "data")
    assert isinstance(caught.value, InputError)
    assert len(caught.value.problems) == 4
    text = str(caught.value)
    for part in ("power of 'a'", "empty.csv is empty", "power.csv.gz", "'a' has no region"):
        assert part in text
    assert str(tmp_path / "data") in text


def test_bad_durations_are_refused(pair):
    with pytest.raises(ValueError, match="a duration must be finite"):
        pair.samples_done(0, 0.0, -1.0)
    with pytest.raises(ValueError, match="a duration must be finite"):
        pair.energy_j(0, 0.0, math.nan)


def test_many_sites_are_evaluated_together(tmp_path):
    n = 20_000
    listed = [
        site(
            f"s{i}",
            {"kind": "builtin", "domain": f"cella_pdu{6 + i % 3}", "capacity_w": 7000}
            if i % 2
            else {"kind": "constant", "watts": i},
            lat=i % 90,
            lon=i % 180,
        )
        for i in range(n)
    ]
    world = make(tmp_path, listed, network=DistanceNetwork())
    assert len(world._feeds._banks) == 2
    speed = world.throughput(5000.0)
    star = world.star(7)
    assert speed[100] == pytest.approx(80 * 100 / 2000)
    assert star.rtt_s.shape == (n,)


def test_importing_the_world_is_light():
    code = "import sys, powertrip.world; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
