"""How supervisors come to the job's links; the links themselves are tested in tests/netem."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from netem.capabilities import Choice
from netem.errors import Unsupported
from powertrip.coordination.links import Links
from powertrip.coordination.setup import Setup
from powertrip.errors import ConfigError
from powertrip.runtime import emulation
from powertrip.runtime.emulation import SiteLinks, join_links
from powertrip.runtime.errors import LinksUnusable

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "8",
}
TWO_MACHINES = TORCHRUN | {"LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1"}
NODES = "emulation.nodes=[10.0.0.1, 10.0.0.2]"


class Joined(NamedTuple):
    choice: Choice
    socket_path: str | None


class Asked(NamedTuple):
    job: str
    wanted: str
    underlay: object


@pytest.fixture
def asked(monkeypatch) -> list[Asked]:
    """What netem is asked for, in place of asking it."""
    found: list[Asked] = []

    def join_daemon(job, plan, wanted, *, underlay, log_path):
        assert log_path.is_absolute()
        found.append(Asked(job, wanted, underlay))
        return Joined(Choice("kernel", "backend kernel: root is there"), "/run/links.sock")

    monkeypatch.setattr(emulation, "join_daemon", join_daemon)
    return found


def join(folder, environment, *overrides) -> Links:
    setup = Setup.resolve(None, [f"runtime.run_dir={folder}/runs", *overrides])
    return join_links(setup.config, setup.build_world(), environment)


def test_all_processes_of_a_job_ask_for_the_same_links_and_another_job_for_others(tmp_path, asked):
    for environment in (TORCHRUN, TORCHRUN | {"RANK": "1"}, TORCHRUN | {"MASTER_PORT": "29501"}):
        links = join(tmp_path, environment)
        assert links == Links("kernel", "backend kernel: root is there", "/run/links.sock")
    first, same, other = asked
    assert first == same
    assert first.job != other.job
    assert (first.wanted, first.underlay) == ("auto", None)


def test_links_are_left_alone_where_that_is_asked_or_there_are_several_machines(tmp_path, asked):
    off = join(tmp_path, TORCHRUN, "emulation.backend=off")
    real = join(tmp_path, TWO_MACHINES)
    assert (off.backend, real.backend) == ("off", "off")
    assert "as asked" in off.reason
    assert "several machines" in real.reason
    assert asked == []
    assert not (tmp_path / "runs").exists()


def test_machines_that_are_named_are_joined(tmp_path, asked):
    join(tmp_path, TWO_MACHINES, NODES)
    join(tmp_path, TWO_MACHINES | {"GROUP_RANK": "0"}, NODES)
    second, first = (each.underlay for each in asked)
    assert (first.local, first.peers) == ("10.0.0.1", ("10.0.0.2",))
    assert (second.local, second.peers) == ("10.0.0.2", ("10.0.0.1",))
    assert first.vni == second.vni > 0


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["emulation.backend=kernel"], "name their addresses in emulation.nodes"),
        (["emulation.nodes=[10.0.0.1]"], "names 1 machines, but the job has 2"),
        (
            [NODES, "emulation.schedule=[{at_s: 1, src: iowa, dst: all, up: false}]"],
            "works on one machine only",
        ),
    ],
)
def test_settings_that_do_not_fit_the_machines_are_told(tmp_path, asked, overrides, says):
    with pytest.raises(ConfigError, match=says):
        join(tmp_path, TWO_MACHINES, *overrides)
    assert asked == []


def test_what_netem_cannot_do_is_told_with_the_way_out(tmp_path, monkeypatch):
    def join_daemon(*_, **__):
        raise Unsupported("the backend `kernel` cannot work here")

    monkeypatch.setattr(emulation, "join_daemon", join_daemon)
    with pytest.raises(LinksUnusable, match=r"emulation\.backend=off") as caught:
        join(tmp_path, TORCHRUN)
    assert caught.value.exit_code == 2
    assert "the backend `kernel` cannot work here" in str(caught.value)


def test_a_run_folder_that_cannot_be_made_is_told(tmp_path, asked):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(LinksUnusable, match=r"runtime\.run_dir"):
        join(tmp_path, TORCHRUN)


def test_links_that_are_not_there_cannot_be_entered(tmp_path):
    links = SiteLinks(Links("kernel", "", str(tmp_path / "nobody.sock")), 3, TORCHRUN)
    with pytest.raises(LinksUnusable, match="site 3: no link daemon answers"):
        links.enter()
    links.close()
    links.close()  # a second time does nothing
