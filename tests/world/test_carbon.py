import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from powertrip.errors import ConfigError, InputError
from powertrip.world import TraceError, build_world
from powertrip.world.carbon import JOULES_PER_KWH, carbon_feeds
from powertrip.world.settings import MatrixNetwork, SitesSettings, WorldSettings
from powertrip.world.site_settings import SiteSettings
from powertrip.world.sources import Context

HOURS = """timestamp_utc,north,south
2022-01-01T01:00:00Z,200,300
2022-01-01T00:00:00Z,100,300
2022-01-01T02:00:00Z,400,300
"""
MAPS = """Datetime (UTC),Zone {0},Carbon {1}ntensity gCO₂eq/kWh (direct),\
Carbon {1}ntensity gCO₂eq/kWh ({2})
2022-01-01 00:00:00,NO,33.1,63.0
2022-01-01 01:00:00,NO,27.0,
2022-01-01 02:00:00,NO,38.0,69.0
2022-01-01 03:00:00,NO,39.0,71.0
2022-01-01 04:00:00,NO,39.0,71.0
"""


def site(name, watts=1000, **fields):
    power = fields.pop("power", {"kind": "constant", "watts": watts})
    return {"name": name, "samples_per_s": 80, "gpus": 8, "rated_w": 250, "power": power, **fields}


def make(tmp_path, listed, **world):
    square = np.ones((len(listed), len(listed))).tolist()
    return build_world(
        SitesSettings.model_validate({"list": listed}),
        MatrixNetwork.model_validate({"rtt_s": square, "bandwidth_bps": square}),
        WorldSettings.model_validate(world),
        seed=0,
        data_dir=None,
        base_dir=tmp_path,
    )


def per_kwh(tmp_path, at_s, **carbon):
    listed = [SiteSettings.model_validate(site("a", carbon=carbon))]
    bank = carbon_feeds(listed, Context(seed=0, base_dir=tmp_path, data_dir=None))
    return [float(bank.at(t)[0]) * JOULES_PER_KWH for t in at_s]


@pytest.fixture
def hours(tmp_path):
    (tmp_path / "hours.csv").write_text(HOURS)
    return {"kind": "csv", "path": "hours.csv"}


@pytest.fixture
def pair(tmp_path, hours):
    """Two sites whose power and carbon have periods and offsets of their own, at 10 x speed."""
    (tmp_path / "day.csv").write_text("time_s,site,watts\n0,b,1000\n2000,b,0\n4000,b,4000\n")
    return make(
        tmp_path,
        [
            site("a", carbon=hours | {"zone": "north", "offset_s": 1800}),
            site(
                "b",
                power={"kind": "csv", "path": "day.csv", "offset_s": 500},
                carbon=hours | {"zone": "north", "after_end": "hold"},
                price={"kind": "constant", "per_kwh": 0.36},
            ),
        ],
        time_scale=10,
    )


def test_instants_by_hand(pair):
    for t_s, north_a, north_b in (
        (0, 100, 100),
        (200, 200, 100),
        (360, 200, 200),
        (2000, 100, 400),
    ):
        assert pair.carbon_g_per_j(t_s) * JOULES_PER_KWH == pytest.approx([north_a, north_b])
        assert pair.price_per_j(t_s) == pytest.approx([0, 1e-7])


def test_integrals_by_hand(pair):
    # Site a draws 1000 W; from 1800 s of its table on: 180 run seconds at 100, 360 at 200, 60 at
    # 400 g/kWh.
    expected_g = 1000 * (180 * 100 + 360 * 200 + 60 * 400) / JOULES_PER_KWH
    assert pair.carbon_g(0, 0.0, 600.0) == pytest.approx(expected_g)
    # Site b in trace seconds of its own: 1000 W for 1500, 0 W for 2000, 2000 W (its rating) for
    # 2000, then 1000 W; the table changes after 3600.
    expected_g = (1000 * 150 * 100 + 2000 * (10 * 100 + 190 * 200)) / JOULES_PER_KWH
    assert pair.carbon_g(1, 0.0, 550.0) == pytest.approx(expected_g)
    assert pair.carbon_g(1, 0.0, 560.0) == pytest.approx(
        expected_g + 1000 * 10 * 200 / JOULES_PER_KWH
    )
    assert pair.money(1, 0.0, 550.0) == pytest.approx(1e-7 * (1000 * 150 + 2000 * 200))
    assert pair.money(0, 0.0, 550.0) == 0
    assert pair.carbon_g(1, 3.0, 0.0) == 0


@given(st.integers(0, 1), st.floats(0, 5000), st.floats(0, 3000), st.floats(0, 3000))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_integrals_add_up_and_are_bounded(pair, site, start_s, first_s, second_s):
    whole_g = pair.carbon_g(site, start_s, first_s + second_s)
    parts_g = pair.carbon_g(site, start_s, first_s) + pair.carbon_g(
        site, start_s + first_s, second_s
    )
    assert whole_g == pytest.approx(parts_g, rel=1e-7, abs=1e-9)
    kwh = pair.energy_j(site, start_s, first_s + second_s) / JOULES_PER_KWH
    assert 100 * kwh - 1e-6 <= whole_g <= 400 * kwh + 1e-6


def test_integral_agrees_with_the_instants(tmp_path, hours):
    world = make(
        tmp_path,
        [
            site(
                "a",
                power={"kind": "synthetic", "capacity_w": 5000, "std": 0.3},
                carbon=hours | {"zone": "north"},
            )
        ],
        time_scale=300,
    )
    seconds = np.arange(400) + 0.5
    rate = [world.used_power_w(t)[0] * world.carbon_g_per_j(t)[0] for t in seconds]
    assert world.carbon_g(0, 0.0, 400.0) == pytest.approx(np.sum(rate))


def test_without_tables_all_is_free(tmp_path):
    world = make(tmp_path, [site("a"), site("b")])
    assert world.carbon_g_per_j(5.0).tolist() == world.price_per_j(5.0).tolist() == [0, 0]
    assert world.carbon_g(1, 0.0, 100.0) == world.money(1, 0.0, 100.0) == 0
    with pytest.raises(ValueError, match="a duration must be finite"):
        world.carbon_g(1, 0.0, -1.0)


def test_end_of_a_table(tmp_path, hours):
    carbon = hours | {"zone": "north"}
    assert per_kwh(tmp_path, [10799, 10800, 14400], **carbon) == pytest.approx([400, 100, 200])
    held = per_kwh(tmp_path, [10800, 1e6], **carbon, after_end="hold")
    assert held == pytest.approx([400, 400])
    assert per_kwh(tmp_path, [10800], **carbon, after_end="zero") == [0]


@pytest.mark.parametrize(
    "names", [("Id", "I", "LCA"), ("id", "i", "Life cycle"), ("id", "i", "life cycle assessment")]
)
def test_electricity_maps_exports_of_all_years(tmp_path, names):
    (tmp_path / "NO.csv").write_text(MAPS.format(*names), encoding="utf-8-sig")
    carbon = {"kind": "electricity-maps", "path": "NO.csv"}
    # The empty hour is filled in.
    assert per_kwh(tmp_path, [0, 3600, 7200], **carbon) == pytest.approx([63, 66, 69])
    assert per_kwh(tmp_path, [0], **carbon, zone="NO", emissions="direct") == pytest.approx([33.1])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {"zone": "x"}, "is empty; it needs the header timestamp_utc"),
        ("time,x\n0,1\n", {}, "line 1: the header is 'time,x', without timestamp_utc"),
        ("timestamp_utc,x\nnoon,1\n", {}, "line 2: timestamp_utc is 'noon'; write a time such as"),
        ("timestamp_utc,x\n2022-01-01,1\n2022-01-02,y\n", {}, "line 3: x is 'y'"),
        ("timestamp_utc,x\n2022-01-01,-1\n", {}, "line 2: x is -1; write 0 or more"),
        ("timestamp_utc,x\n2022-01-01,\n", {}, "the column x is empty; take another zone"),
        ("timestamp_utc,x\n2022-01-01,1\n2022-01-02,1\n", {}, "gap of 86400 s .* raise max_gap_s"),
        ("timestamp_utc,x,y\n2022-01-01,1,1\n", {}, "holds x, y; as zone, name one of them"),
        ("timestamp_utc,x\n2022-01-01,1\n", {"zone": "z"}, "holds x; as zone, 'z' is none of them"),
        ("timestamp_utc\n2022-01-01\n", {}, "holds no zone"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, options, message):
    (tmp_path / "hours.csv").write_text(text)
    with pytest.raises(InputError, match=f"carbon of 'a': .*hours.csv.*{message}"):
        per_kwh(tmp_path, [], kind="csv", path="hours.csv", **options)


def test_bad_exports_are_refused(tmp_path):
    (tmp_path / "NO.csv").write_text(MAPS.format("id", "i", "sum"))
    with pytest.raises(TraceError, match="no column of the lifecycle carbon intensity"):
        per_kwh(tmp_path, [], kind="electricity-maps", path="NO.csv")
    (tmp_path / "NO.csv").write_text(MAPS.format("id", "i", "LCA"))
    with pytest.raises(TraceError, match=r"holds NO; as zone, 'SE' is none of them"):
        per_kwh(tmp_path, [], kind="electricity-maps", path="NO.csv", zone="SE")


def test_all_problems_are_listed_at_once(tmp_path, hours):
    listed = [
        site("a", power={"kind": "csv", "path": "none.csv"}),
        site("b", carbon=hours, price={"kind": "csv", "path": "prices.csv"}),
        site("c", carbon=hours),
    ]
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, listed)
    assert [text.split(":")[0] for text in caught.value.problems] == [
        "power of 'a'",
        "carbon of 'b', 'c'",
        "price of 'b'",
    ]
    with pytest.raises(TraceError, match="carbon of 'c'"):
        make(tmp_path, listed[2:])


def test_real_tables(real_data):
    context = Context(seed=0, base_dir=real_data / "carbon", data_dir=None)
    listed = [
        {"kind": "csv", "path": "em2022_hourly_gcp_zones_derived.csv", "zone": "DE"},
        {"kind": "electricity-maps", "path": "raw_NO_2022_hourly.csv"},
    ]
    sites = [SiteSettings.model_validate(site(str(i), carbon=c)) for i, c in enumerate(listed)]
    bank = carbon_feeds(sites, context)
    assert bank.at(3600.0) * JOULES_PER_KWH == pytest.approx([220.88, 56.47])
    assert (bank.at(8000 * 3600.0) > 0).all()


def test_a_site_without_a_zone_takes_that_of_its_region(tmp_path):
    (tmp_path / "two.csv").write_text(
        "timestamp_utc,FR,US-NW-PACW\n2022-01-01T00:00:00Z,50,300\n2022-01-01T01:00:00Z,60,310\n"
    )
    table = {"kind": "csv", "path": "two.csv"}
    world = make(
        tmp_path,
        [
            site("a", carbon=table, region="gcp:us-west1"),
            site("b", carbon=table, region="gcp:europe-west9"),
            site("c", carbon={**table, "zone": "FR"}, region="gcp:us-west1"),
        ],
    )
    assert world.carbon_g_per_j(0.0) * JOULES_PER_KWH == pytest.approx([300, 50, 50])
    with pytest.raises(InputError, match="holds FR, US-NW-PACW; as zone, name one of them"):
        make(tmp_path, [site("a", carbon=table)])
    with pytest.raises(InputError, match="as zone, 'DE' is none of them"):
        make(tmp_path, [site("a", carbon=table, region="gcp:europe-west3")])


def test_the_packaged_week_of_carbon(tmp_path):
    packaged = {"kind": "builtin", "zone": "BR-CS", "offset_s": 3600}
    world = make(tmp_path, [site("a", carbon=packaged)])
    # Electricity Maps: 76.17 g at 2022-05-01T01:00Z, and the week after its end again.
    first = world.carbon_g_per_j(0.0)[0]
    assert first == pytest.approx(76 / JOULES_PER_KWH)
    assert world.carbon_g_per_j(7 * 86400.0)[0] == first
