import pytest
from pydantic import TypeAdapter, ValidationError

from powertrip.world.settings import MatrixNetwork, NetworkSettings, SitesSettings, WorldSettings
from powertrip.world.site_settings import PowerSettings, SyntheticPower


def site(name, **fields):
    return {
        "name": name,
        "samples_per_s": 1,
        "power": {"kind": "constant", "watts": 1},
        **fields,
    }


def test_count_selects_the_first_sites():
    sites = SitesSettings.model_validate({"list": [site("a"), site("b"), site("c")], "count": 2})
    assert [s.name for s in sites.selected] == ["a", "b"]
    assert len(SitesSettings.model_validate({"list": [site("a"), site("b")]}).selected) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"list": []}, "list them one by one, or describe a fleet"),
        ({"list": [site("a"), site("a")]}, r"the same name \('a'\)"),
        ({"list": [site("a")], "count": 2}, "count is 2 but there are only 1 sites"),
        ({"list": [site("a", lat=1)]}, "lat is given without lon"),
        ({"list": [site("a", lon=1)]}, "lon is given without lat"),
        ({"list": [site("a", gpus=0)]}, "greater than or equal to 1"),
        ({"list": [site("a", rated_w=float("nan"))]}, "finite number"),
        ({"list": [site("a", power={"kind": "constant", "watts": -1})]}, "greater than or equal"),
        ({"list": [site("a", power={"kind": "solar"})]}, "'constant', 'csv', 'google'"),
        ({"list": [site("a", colour="red")]}, "Extra inputs are not permitted"),
    ],
)
def test_bad_sites_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        SitesSettings.model_validate(fields)


@pytest.mark.parametrize(
    ("rtt_s", "bandwidth_bps", "message"),
    [
        ([[0, 1], [1, 0]], [[0]], "rtt_s is 2 x 2 but bandwidth_bps is 1 x 1"),
        ([[0, 1], [1]], [[0, 1], [1, 0]], "rtt_s has 2 rows, but its row 1 has 1 entries"),
        ([[0, 1], [1, 0]], [[0, 1, 2], [1, 0, 2]], "bandwidth_bps has 2 rows, but its row 0 has 3"),
        ([[0, 1], [1, 0]], [[0, -5], [1, 0]], r"bandwidth_bps\[0\]\[1\] is -5"),
        ([], [], "rtt_s is empty"),
    ],
)
def test_bad_matrices_are_refused(rtt_s, bandwidth_bps, message):
    with pytest.raises(ValidationError, match=message):
        MatrixNetwork.model_validate({"rtt_s": rtt_s, "bandwidth_bps": bandwidth_bps})


def test_synthetic_trace_has_a_step_at_least():
    with pytest.raises(ValidationError, match="shorter than one step_s"):
        SyntheticPower(capacity_w=1, duration_s=10, step_s=20)


@pytest.mark.parametrize("settings", [PowerSettings, NetworkSettings, SitesSettings, WorldSettings])
def test_every_field_is_described(settings):
    schema = TypeAdapter(settings).json_schema()
    for part in [schema, *schema.get("$defs", {}).values()]:
        for name, field in part.get("properties", {}).items():
            assert field.get("description", "").endswith("."), name
