"""Imports without garbage collection."""

from __future__ import annotations

import gc

from powertrip.simulation.starting import without_collection


def test_collection_goes_on_afterwards_but_not_over_what_was_made() -> None:
    try:
        with without_collection():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
        gc.disable()
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.unfreeze()
        gc.enable()
