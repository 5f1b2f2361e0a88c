import numpy as np
import pytest

from powertrip.world.site_settings import SiteSettings, SyntheticPower
from powertrip.world.sources import Context
from powertrip.world.sources.synthetic import load_synthetic, normal_processes


def load(tmp_path, *names, seed=1, **options):
    sites = [
        SiteSettings(
            name=name, samples_per_s=1, power=SyntheticPower(**{"capacity_w": 1, **options})
        )
        for name in names
    ]
    return load_synthetic(sites, Context(seed=seed, base_dir=tmp_path, data_dir=None))


def test_statistics_are_those_asked_for(tmp_path):
    feeds = load(tmp_path, *map(str, range(40)), duration_s=20 * 86400, capacity_w=500, share=0.5)
    used = 1 - np.array([feed.trace.values for feed in feeds])
    assert used.shape == (40, 5760)
    assert used.mean() == pytest.approx(0.72, abs=0.002)
    assert used.std() == pytest.approx(0.023, rel=0.05)
    centred = (used - 0.72) / 0.023
    assert (centred[:, 1:] * centred[:, :-1]).mean() == pytest.approx(0.98, abs=0.06)
    assert np.corrcoef(centred[:, 1:].ravel(), centred[:, :-1].ravel())[0, 1] == pytest.approx(
        0.98, abs=0.004
    )
    assert feeds[0].gain == 250
    assert feeds[0].trace.end_s == 20 * 86400


def test_first_value_is_as_spread_as_the_others():
    x = normal_processes(
        [str(i) for i in range(4000)],
        seed=3,
        steps=50,
        step_correlation=0.9,
        site_correlation=0.0,
    )
    assert x.std(axis=0) == pytest.approx(np.ones(50), rel=0.06)


@pytest.mark.parametrize("wanted", [0.0, 0.5, 0.9])
def test_sites_correlate_as_asked_for(wanted):
    x = normal_processes(
        ["a", "b", "c", "d"], seed=2, steps=40_000, step_correlation=0.5, site_correlation=wanted
    )
    between = np.corrcoef(x)[np.triu_indices(4, 1)]
    assert between == pytest.approx(np.full(6, wanted), abs=0.03)


def test_trace_follows_name_and_seed_alone(tmp_path):
    alone = load(tmp_path, "a")[0].trace.values
    among = load(tmp_path, "c", "a", "b")
    assert among[1].trace.values.tolist() == alone.tolist()
    assert among[0].trace.values.tolist() != alone.tolist()
    assert load(tmp_path, "a", seed=2)[0].trace.values.tolist() != alone.tolist()
    own = SyntheticPower(capacity_w=1, seed=1)
    site = SiteSettings(name="a", samples_per_s=1, power=own)
    (feed,) = load_synthetic([site], Context(seed=2, base_dir=tmp_path, data_dir=None))
    assert feed.trace.values.tolist() == alone.tolist()


def test_utilisation_stays_a_fraction(tmp_path):
    (feed,) = load(tmp_path, "a", mean=0.95, std=0.5)
    assert feed.trace.values.min() == 0
    assert feed.trace.values.max() == 1
