from __future__ import annotations

import pytest

from powertrip.config import load_config
from powertrip.coordination.run_dir import make_run_dir
from powertrip.errors import InputError


@pytest.fixture
def config(tmp_path):
    return load_config(None, [f"runtime.run_dir={tmp_path / 'all' / 'runs'}", "name=mine"])


def test_a_run_gets_a_folder_with_its_resolved_settings(tmp_path, config):
    folder = make_run_dir(config)
    assert folder.parent == tmp_path / "all" / "runs"
    assert folder.name.startswith("mine-together-2")
    assert load_config(folder / "config.yaml") == config


def test_runs_that_start_at_once_get_folders_of_their_own(config):
    assert len({make_run_dir(config) for _ in range(5)}) == 5


def test_a_folder_that_cannot_be_made_is_an_error_of_the_user(tmp_path, config):
    (tmp_path / "all").write_text("")
    with pytest.raises(InputError, match=r"runtime\.run_dir: .* cannot be written") as caught:
        make_run_dir(config)
    assert caught.value.exit_code == 2
