from __future__ import annotations

import pytest

from powertrip.coordination.messages import Saved, SavedFile
from powertrip.runtime.checkpoints import Checkpoints
from powertrip.runtime.settings import CheckpointSettings


@pytest.mark.parametrize(
    "file",
    [
        SavedFile(name="../model.pt", bytes=3, checksum="0" * 64),
        SavedFile(name="model.pt", bytes=3, checksum="none"),
        SavedFile(name="other.pt", bytes=3, checksum="0" * 64),
    ],
)
def test_a_report_of_odd_files_is_no_checkpoint_and_training_goes_on(tmp_path, file):
    warnings = []
    checkpoints = Checkpoints(
        tmp_path, CheckpointSettings(), sites=("oslo",), base_dir=tmp_path, warn=warnings.append
    )
    assert checkpoints.begin(1, "d", {}, holders={0}, present={0}) is not None
    assert checkpoints.take(Saved(site=0, round=1, files=(file,))) is None
    assert not checkpoints.open
    (warning,) = warnings
    assert "no checkpoint of round 1, the one before stays" in warning
