import pytest
from pydantic import ValidationError

from netem.underlay import Underlay

GOOD = {"local": "192.0.2.1", "peers": ["192.0.2.2", "192.0.2.3"], "vni": 7}


def test_it_survives_json() -> None:
    underlay = Underlay.model_validate(GOOD)
    assert underlay.port == 4789
    assert Underlay.model_validate_json(underlay.model_dump_json()) == underlay


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"local": "node-1"}, "'node-1' is no IPv4 address"),
        ({"peers": ["2001:db8::1"]}, "'2001:db8::1' is no IPv4 address"),
        ({"local": "0.0.0.0"}, "0.0.0.0 is no address of a machine"),
        ({"local": "127.0.0.1"}, "127.0.0.1 is no address by which other machines"),
        ({"peers": []}, "at least 1 item"),
        ({"peers": ["192.0.2.2", "192.0.2.1"]}, "192.0.2.1 is named twice"),
        ({"peers": ["192.0.2.2", "192.0.2.2"]}, "192.0.2.2 is named twice"),
        ({"vni": 0}, "greater than or equal to 1"),
        ({"vni": 1 << 24}, "less than 16777216"),
        ({"port": 65536}, "less than 65536"),
        ({"mtu": 1500}, "Extra inputs"),
    ],
)
def test_what_is_wrong_is_told(changed: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Underlay.model_validate(GOOD | changed)
    assert text in str(caught.value)
