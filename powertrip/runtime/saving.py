"""A site's part of a checkpoint: copied at the commit, written beside the training."""

from __future__ import annotations

import time
from pathlib import Path

from powertrip.coordination.messages import Save, Saved, SavedFile
from powertrip.runtime.checkpoint import ModelCopy, write_model, write_site
from powertrip.runtime.checkpoint_writer import CheckpointWriter
from powertrip.runtime.control import ControlPlane, Outbox
from powertrip.runtime.durable import CheckpointUnwritable, FileEntry
from powertrip.runtime.replica import Replica
from powertrip.training.flat import FlatModel
from powertrip.training.local import LocalTrainer


class Saving:
    """Saves what belongs to a commit when the log asks for it; owns the thread that writes.

    Parameters
    ----------
    plane
        The control plane; the writing thread has a store client of its own.
    site
        The site's number.
    replica, model, trainer
        What is saved: the committed model, laid out as `model`, and the inner optimizer's state.
    """

    def __init__(
        self,
        plane: ControlPlane,
        *,
        site: int,
        replica: Replica,
        model: FlatModel,
        trainer: LocalTrainer,
    ) -> None:
        self._plane, self._site = plane, site
        self._replica, self._model, self._trainer = replica, model, trainer
        self._writer = CheckpointWriter()
        self._outbox: Outbox | None = None

    def save(self, save: Save) -> None:
        """Copy the state after a round, and have it written; the site may go on at once."""
        folder, round_ = Path(save.folder), save.round
        inner = {
            name: tensor.clone()
            for name, tensor in self._trainer.inner_state_before(round_ + 1).items()
        }
        model = digest = None
        if save.keeper == self._site:
            vector, outer_state, digest = self._replica.at(round_)
            model = ModelCopy.of(self._model, vector, outer_state)

        def write() -> tuple[list[FileEntry], float]:
            started_s = time.monotonic()
            files = []
            if model is not None and digest is not None:
                files.append(write_model(folder, model, round_=round_, digest=digest))
            if inner:
                files.append(write_site(folder, self._site, inner))
            return files, time.monotonic() - started_s

        self._writer.submit(write, lambda result: self._tell(round_, result))

    def _tell(
        self, round_: int, result: tuple[list[FileEntry], float] | CheckpointUnwritable
    ) -> None:
        if isinstance(result, CheckpointUnwritable):
            saved = Saved(site=self._site, round=round_, error=str(result))
        else:
            files = tuple(SavedFile(**entry.model_dump()) for entry in result[0])
            saved = Saved(site=self._site, round=round_, files=files, seconds=result[1])
        if self._outbox is None:
            self._outbox = self._plane.outbox()
        self._outbox.send(saved)

    def close(self, limit_s: float) -> None:
        """Finish what is being written.

        Raises
        ------
        CheckpointUnwritable
            It takes longer than `limit_s`.
        """
        self._writer.close(limit_s)
