"""What a site's command finds in its environment; running is tested through the command line."""

from netem.plan import Plan
from netem.runner import environment


def test_the_environment_names_the_site_and_all_addresses() -> None:
    plan = Plan.parse({"sites": ["x", "y"], "subnet": "10.99.0.0/24"})
    assert environment(plan, 1, emulated=True) == {
        "NETEM_SITE": "1",
        "NETEM_NAME": "y",
        "NETEM_ADDRESS": "10.99.0.11",
        "NETEM_SITES": "10.99.0.10,10.99.0.11",
    }
    assert environment(plan, 0, emulated=False)["NETEM_SITES"] == "127.0.0.1,127.0.0.1"
