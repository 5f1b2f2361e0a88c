from __future__ import annotations

import pytest

from powertrip.config import load_config
from powertrip.coordination.run_dir import make_run_dir, reopen_run_dir
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


def test_a_run_that_goes_on_keeps_the_settings_that_it_began_with(config):
    folder = make_run_dir(config)
    assert reopen_run_dir(folder, config) == folder
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    longer = config.model_copy(update={"goal": config.goal.model_copy(update={"max_rounds": 7})})
    longest = config.model_copy(update={"goal": config.goal.model_copy(update={"max_rounds": 9})})
    for changed in (longer, longer, longest):
        reopen_run_dir(folder, changed)
        assert load_config(folder / "config.yaml") == changed
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.yaml", "config.yaml.before-1", "config.yaml.before-2"
    ]  # fmt: skip
    assert load_config(folder / "config.yaml.before-1") == config


def test_a_run_that_cannot_be_written_is_an_error_of_the_user(tmp_path, config):
    with pytest.raises(InputError, match="nowhere cannot be written: No such file"):
        reopen_run_dir(tmp_path / "nowhere", config)
