import pytest

from powertrip.errors import InputError
from powertrip.world.site_settings import CsvPower, SiteSettings
from powertrip.world.sources import Context
from powertrip.world.sources.csv_file import load_csv


def load(tmp_path, text, *names, **options):
    (tmp_path / "power.csv").write_text(text)
    sites = [
        SiteSettings(name=name, samples_per_s=1, power=CsvPower(path="power.csv", **options))
        for name in names
    ]
    return load_csv(sites, Context(seed=0, base_dir=tmp_path, data_dir=None))


def test_sites_share_the_clock_of_the_file(tmp_path):
    text = "site,watts,time_s\nb,5,1100\na,2,1010\na,1,1000\na,3,1020\nb,6,1200\n"
    a, b = load(tmp_path, text, "a", "b")
    assert a.trace.at([0, 10, 25]).tolist() == [1, 2, 3]
    assert b.trace.at([0, 100, 199, 200]).tolist() == [5, 5, 5, 6]


def test_another_name_may_stand_in_the_file(tmp_path):
    (feed,) = load(tmp_path, "time_s,site,watts\n0,west,7\n", "a", site="west", offset_s=4)
    assert feed.trace.at(0) == 7
    assert feed.offset_s == 4


def test_sites_with_equal_traces_share_them(tmp_path):
    one, two = load(tmp_path, "time_s,site,watts\n0,x,7\n", "a", "b", site="x")
    assert one.trace is two.trace


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "power.csv is empty; it needs the header time_s,site,watts"),
        ("time_s,site,watts\n", "has a header but no rows"),
        ("time,site,watts\n0,a,1\n", "line 1: the header is 'time,site,watts', without time_s"),
        ("time_s,site,watts\n0,a,1\n1,a,nan\n", "line 3: watts is 'nan'"),
        ("time_s,site,watts\n0,a,1\n1,a,\n", "line 3: watts is ''"),
        ("time_s,site,watts\nx,a,1\n", "line 2: time_s is 'x'"),
        ("time_s,site,watts\n0,a,1\n1,a,-5\n", "line 3: watts is -5; write 0 or more"),
        ("time_s,site,watts\n0,a,1\n0,b,1\n0,a,2\n", r"time 0 s appears twice \(line 2 and line 4"),
        ("time_s,site,watts\n0,a,1\n9000,a,1\n", "gap of 9000 s from 0 s to 9000 s; raise max_gap"),
        ("time_s,site,watts\n0,b,1\n0,c,1\n", "no rows for the site 'a'; it has 'b', 'c'"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=f"power of 'a'.*{message}"):
        load(tmp_path, text, "a")
