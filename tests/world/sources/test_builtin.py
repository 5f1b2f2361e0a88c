import csv

import numpy as np
import pytest

from powertrip.world.site_settings import BuiltinPower, SiteSettings
from powertrip.world.sources import Context
from powertrip.world.sources.builtin import load_builtin

DOMAINS = ("cella_pdu6", "cella_pdu7", "cella_pdu8")


def feeds(tmp_path, **options):
    sites = [
        SiteSettings(
            name=domain,
            samples_per_s=1,
            power=BuiltinPower(domain=domain, capacity_w=1000, share=0.5, **options),
        )
        for domain in DOMAINS
    ]
    return load_builtin(sites, Context(seed=0, base_dir=tmp_path, data_dir=None))


def test_week_of_three_domains(tmp_path):
    made = feeds(tmp_path, offset_s=60)
    for feed in made:
        assert feed.gain == 500
        assert feed.offset_s == 60
        assert feed.trace.end_s == 7 * 86400
        assert len(feed.trace.times_s) == 672
        assert 0.27 < feed.trace.values.mean() < 0.33
    assert made[0].trace.values[:2] == pytest.approx([0.340, 0.323])
    assert feeds(tmp_path)[0].trace.at(7 * 86400) == pytest.approx(0.340)


def test_table_is_that_of_google(real_data, tmp_path):
    for domain, feed in zip(DOMAINS, feeds(tmp_path), strict=True):
        with (real_data / f"google_power/{domain}.csv").open() as file:
            used = [float(r["measured_power_util"]) for r in csv.DictReader(file)]
        means = np.reshape(used[: 672 * 3], (672, 3)).mean(axis=1)
        assert feed.trace.values == pytest.approx(1 - means, abs=0.00051)
