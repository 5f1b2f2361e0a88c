"""Steps without autograd: the same training as with it, for the models that they know."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from powertrip.training.digits import Digits, Pixels
from powertrip.training.errors import TrainingDiverged
from powertrip.training.fast_steps import FastSteps, NotAChain, fast_steps
from powertrip.training.flat import initial_model
from powertrip.training.local import LocalTrainer, Steps
from powertrip.training.settings import TrainingSettings
from powertrip.training.task import Classification

BATCH, LR, CLASSES = 6, 0.3, 4


def cnn() -> nn.Module:
    """That of `task.idx.model`, but smaller, with sides that pooling does not divide."""
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(3, 5, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 2 * 3, 7),
        nn.ReLU(),
        nn.Linear(7, CLASSES),
    )
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def strided() -> nn.Module:
    """Strides of 2 and 3, kernels that are not square, ReLU before the pooling, no bias."""
    return nn.Sequential(
        nn.Conv2d(1, 3, (5, 3), stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(3, 4, (2, 3), stride=1, padding=1, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=3, padding=2),
        nn.Flatten(),
        nn.Linear(6 * 2 * 2, CLASSES),
    )


def nested() -> nn.Module:
    head = nn.Sequential(nn.Flatten(), nn.Linear(2 * 4 * 6, 5, bias=False), nn.ReLU())
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2))
    return nn.Sequential(body, head, nn.Linear(5, CLASSES))


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(11 * 15, 8), nn.ReLU(), nn.Linear(8, 5), nn.Linear(5, CLASSES)
    )


def samples(*shape: int, count: int = 40) -> tuple[Tensor, Tensor]:
    """Images with areas of equal pixels, where the four that are pooled are equal too."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(count, *shape, generator=generator, dtype=torch.float64)
    images *= torch.rand(images.shape, generator=generator) > 0.3
    images[..., : shape[-1] // 2] = 0
    return images, torch.randint(0, CLASSES, (count,), generator=generator)


def plain_step(
    model: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], x: Tensor, y: Tensor
) -> tuple[float, float]:
    each = nn.functional.cross_entropy(model(x), y, reduction="none")
    slopes = torch.autograd.grad(each.mean(), parameters)
    for parameter, slope in zip(parameters, slopes, strict=True):
        parameter.data -= LR * slope
    return each.mean().item(), each.square().sum().item()


@pytest.mark.parametrize("build", [cnn, strided, nested, perceptron])
def test_steps_are_those_of_autograd(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = build().double()
    twin = copy.deepcopy(model)
    inputs, targets = samples(1, 11, 15)
    fast = FastSteps(model, inputs, targets, batch_size=BATCH, lr=LR)
    rng = np.random.default_rng(0)
    for _ in range(2):  # two rounds
        fast.begin()
        for _ in range(4):
            batch = rng.permutation(len(inputs))[:BATCH]
            expected = plain_step(twin, list(twin.parameters()), inputs[batch], targets[batch])
            assert fast.step(batch) == pytest.approx(expected, rel=1e-12)
        fast.end()
        for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(mine, other, rtol=0, atol=1e-10)
        with torch.no_grad():  # as the outer step does
            for parameter in (*model.parameters(), *twin.parameters()):
                parameter.mul_(0.5)


@pytest.mark.parametrize("channels_last", [False, True])
def test_bytes_become_pixels(channels_last: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Pixels(200, channels_last=channels_last), *cnn().children())
    twin = copy.deepcopy(model)
    inputs = torch.randint(0, 256, (20, 11, 15), dtype=torch.uint8)
    targets = torch.arange(20) % CLASSES
    fast = FastSteps(model, inputs, targets, batch_size=BATCH, lr=LR)
    fast.begin()
    batch = np.array([3, 1, 4, 15, 9, 2])
    expected = plain_step(twin, list(twin.parameters()), inputs[batch], targets[batch])
    assert fast.step(batch) == pytest.approx(expected, rel=1e-5)
    fast.end()
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=0, atol=1e-6)


def test_images_of_several_channels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 5 * 4, CLASSES)
    ).double()
    twin = copy.deepcopy(model)
    inputs, targets = samples(3, 7, 6)
    fast = FastSteps(model, inputs, targets, batch_size=BATCH, lr=LR)
    fast.begin()
    batch = np.arange(BATCH)
    fast.step(batch)
    fast.end()
    plain_step(twin, list(twin.parameters()), inputs[batch], targets[batch])
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, other, rtol=0, atol=1e-10)


def linear(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(165, CLASSES), *more)


def frozen() -> nn.Module:
    return linear().requires_grad_(False)


def hooked() -> nn.Module:
    model = linear()
    model[1].register_forward_hook(lambda *_: None)  # type: ignore[index]
    return model


def repeated() -> nn.Module:
    square = nn.Linear(CLASSES, CLASSES)
    return linear(square, square)


def tied() -> nn.Module:
    model = linear(nn.Linear(CLASSES, CLASSES), nn.Linear(CLASSES, CLASSES))
    model[3].weight = model[2].weight  # type: ignore[index]
    return model


def convolved(*parts: nn.Module, features: int = 165) -> nn.Module:
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(features, CLASSES))


class Own(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * self[0](x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(15, CLASSES),
        Own(*linear().children()),
        linear(nn.ReLU()),
        linear(nn.Dropout(0.5)),
        linear(nn.Tanh(), nn.Linear(CLASSES, CLASSES)),
        linear(nn.Linear(CLASSES + 1, CLASSES)),
        nn.Sequential(nn.Flatten(2), nn.Linear(165, CLASSES)),
        frozen(),
        hooked(),
        repeated(),
        tied(),
        convolved(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")),
        convolved(nn.Conv2d(1, 1, 3, padding=2, dilation=2)),
        convolved(nn.Conv2d(1, 1, 3, padding="same")),
        convolved(nn.Conv2d(1, 1, 3, padding=(1, 0), stride=(1, 2)), features=77),
        convolved(nn.MaxPool2d(2), nn.Conv2d(1, 1, 1), features=35),
        convolved(nn.Conv2d(1, 1, 1), nn.MaxPool2d(3), features=15),
        convolved(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2, ceil_mode=True), features=48),
        convolved(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2, stride=1), features=140),
        convolved(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1, groups=2), features=330),
    ],
    ids=lambda model: str(model)[:30],
)
def test_other_models_are_left_alone(model: nn.Module) -> None:
    inputs, targets = samples(1, 11, 15)
    with pytest.raises(NotAChain):
        FastSteps(model.double(), inputs, targets, batch_size=BATCH, lr=LR)


@pytest.mark.parametrize(
    ("inputs", "targets"),
    [
        (torch.zeros(3, 165), torch.tensor([0, 1, CLASSES])),
        (torch.zeros(3, 165), torch.tensor([0, 1, -100])),  # which cross entropy leaves out
        (torch.zeros(3, 165), torch.zeros(3, CLASSES)),
        (torch.zeros(3, 165, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)),
        (torch.zeros(3, 2, 165), torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_other_samples_are_left_alone(inputs: Tensor, targets: Tensor) -> None:
    with pytest.raises(NotAChain):
        FastSteps(nn.Sequential(nn.Linear(165, CLASSES)), inputs, targets, batch_size=BATCH, lr=LR)


class SmoothDigits(Digits):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


@pytest.mark.parametrize(
    ("task", "settings", "known"),
    [
        (Digits, {}, True),
        (Digits, {"momentum": 0.9}, False),
        (Digits, {"weight_decay": 0.1}, False),
        (Digits, {"optimizer": "adamw"}, False),
        (SmoothDigits, {}, False),
    ],
)
def test_only_plain_sgd_of_the_cross_entropy(
    task: type[Classification], settings: dict[str, Any], known: bool
) -> None:
    chosen, digits = TrainingSettings(**settings), task()
    assert (fast_steps(digits, chosen, initial_model(digits, seed=0)) is not None) is known


def test_a_site_trains_as_with_autograd() -> None:
    digits, settings = Digits(), TrainingSettings(batch_size=20, lr=0.2)
    slow = Digits()
    slow.losses = lambda outputs, targets: Classification.losses(slow, outputs, targets)  # type: ignore[method-assign]
    results, models = [], []
    for task in (digits, slow):
        models.append(initial_model(task, seed=0))
        trainer = LocalTrainer(task, np.arange(100), settings, 0, 0, models[-1])
        assert (trainer._fast is not None) is (task is digits)
        results.append(trainer.train(3, Steps(8)))
    mine, other = results
    assert torch.allclose(models[0].vector, models[1].vector, rtol=0, atol=1e-6)
    assert (mine.steps, mine.samples) == (other.steps, other.samples) == (8, 160)
    assert mine.loss == pytest.approx(other.loss, rel=1e-5)
    assert mine.loss_rms == pytest.approx(other.loss_rms, rel=1e-5)


def test_divergence_is_noticed() -> None:
    digits, settings = Digits(), TrainingSettings(batch_size=20, lr=1e30)
    trainer = LocalTrainer(digits, np.arange(100), settings, 0, 5, initial_model(digits, seed=0))
    with pytest.raises(TrainingDiverged, match="the loss at site 5 is"):
        trainer.train(0, Steps(20))


class Pairs(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(5), index


def test_a_dataset_goes_the_usual_way() -> None:
    digits = Digits()
    model = initial_model(digits, seed=0)
    digits.train = Pairs()
    assert fast_steps(digits, TrainingSettings(), model) is None
