from __future__ import annotations

import subprocess
import sys

import pytest

from powertrip.config import load_config
from powertrip.coordination.run_dir import NoRecordedRun, make_run_dir
from powertrip.coordination.setup import Setup
from powertrip.errors import ConfigError, InputError
from powertrip.runtime.manifest import NoCheckpoint
from powertrip.runtime.resuming import OtherSites, resolve
from tests.runtime.checkpoints import write_checkpoint


@pytest.fixture
def run_dir(three_sites, tmp_path):
    path = three_sites.base_dir / "three-sites.yaml"
    return make_run_dir(load_config(path, [f"runtime.run_dir={tmp_path / 'runs'}"]))


def test_without_a_run_it_is_the_scenario(three_sites):
    path = three_sites.base_dir / "three-sites.yaml"
    setup = resolve(path, ["seed=7"], json_summary=True)
    assert setup == Setup.resolve(path, ["seed=7"], json_summary=True)
    assert setup.resume is None


def test_a_run_goes_on_with_its_own_scenario_and_what_was_changed(three_sites, run_dir):
    (run_dir / "scenarios").mkdir()
    write_checkpoint(run_dir, 4)
    setup = resolve(None, ["goal.max_rounds=7"], json_summary=True, resume=run_dir)
    assert setup.resume == str(run_dir)
    assert setup.json_summary
    assert setup.config.goal.max_rounds == 7
    assert setup.config.network == three_sites.config.network
    assert setup.base_dir == run_dir / "scenarios"
    (run_dir / "scenarios").rmdir()
    assert resolve(None, [], resume=run_dir).base_dir == run_dir


def test_what_is_wrong_is_told(run_dir, tmp_path):
    with pytest.raises(NoRecordedRun, match=r"config\.yaml is missing"):
        resolve(None, [], resume=tmp_path / "nowhere")
    with pytest.raises(NoCheckpoint, match="there is none at all"):
        resolve(None, [], resume=run_dir)
    (write_checkpoint(run_dir, 3) / "manifest.json").unlink()
    with pytest.raises(NoCheckpoint, match=r"round-00000003 is no use: .* was not finished"):
        resolve(None, [], resume=run_dir)
    write_checkpoint(run_dir, 2)
    with pytest.raises(InputError, match="leave --config out"):
        resolve(tmp_path / "a.yaml", [], resume=run_dir)
    with pytest.raises(ConfigError, match="max_rounds"):
        resolve(None, ["goal.max_rounds=0"], resume=run_dir)


def test_other_sites_are_refused(run_dir):
    write_checkpoint(run_dir, 2)
    with pytest.raises(OtherSites, match="the run has 3 of them, and the scenario 2"):
        resolve(None, ["sites.count=2"], resume=run_dir)
    with pytest.raises(OtherSites, match="rome was site 1, and lyon is"):
        resolve(None, ["sites.list.1.name=lyon"], resume=run_dir)


def test_nothing_of_torch_is_imported_for_it():
    code = "import sys, powertrip.runtime.resuming; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
