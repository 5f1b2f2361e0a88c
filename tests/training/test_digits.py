"""The packaged digits: their splits, and that they are learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from powertrip.training.digits import DIGITS_FILE, Digits
from powertrip.training.evaluation import evaluate
from powertrip.training.flat import initial_model
from powertrip.training.local import LocalTrainer, Steps
from powertrip.training.settings import TrainingSettings


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits()


def test_the_splits_hold_every_packaged_image_once(digits: Digits) -> None:
    with np.load(DIGITS_FILE) as stored:
        packaged = sorted(image.tobytes() for image in stored["images"])
    parts = [digits.train, digits.validation, digits.test]
    assert [len(images) for images, _ in parts] == [1258, 180, 359]
    held = sorted(image.numpy().tobytes() for images, _ in parts for image in images)
    assert held == packaged
    assert len(set(packaged)) == len(packaged)


def test_every_split_has_all_digits_alike(digits: Digits) -> None:
    for _, labels in (digits.train, digits.validation, digits.test):
        shares = torch.bincount(labels, minlength=10) / len(labels)
        assert float((shares - 0.1).abs().max()) < 0.01
    assert np.array_equal(digits.labels, digits.train[1].numpy())


def test_a_hundred_steps_learn_the_digits(digits: Digits) -> None:
    model = initial_model(digits, seed=3)
    before = evaluate(digits, model, "test").accuracy
    settings = TrainingSettings(lr=0.2, batch_size=32)
    trainer = LocalTrainer(digits, np.arange(1258), settings, seed=3, site=0, model=model)
    result = trainer.train(0, Steps(100))
    assert result.steps == 100
    assert before < 0.3
    assert evaluate(digits, model, "test").accuracy > 0.85
