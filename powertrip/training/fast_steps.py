"""Steps of plain SGD on a CPU without autograd, for models that are a chain of common layers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from powertrip.training.data import IntArray, TensorSource, source
from powertrip.training.digits import Pixels
from powertrip.training.fast_convolutions import Convolution, FirstConvolution, outputs_size
from powertrip.training.fast_layers import Dense, Layer
from powertrip.training.flat import FlatModel
from powertrip.training.inner import build_inner
from powertrip.training.settings import TrainingSettings
from powertrip.training.task import Task, is_cross_entropy

_KINDS = {nn.Sequential, Pixels, nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Linear}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class NotAChain(Exception):
    """The model is not of the kind that `FastSteps` knows."""


class FastSteps:
    """Steps on one model, each on a batch of the same size.

    What a step does is what autograd would do, but for rounding. With batches of 20 it takes 0.6 of
    the time for the `cnn` of the task `idx`, half for `small`, and a third for `mlp`.

    Parameters
    ----------
    module
        The model, on the CPU, which is trained in place: `nn.Sequential` of `Pixels` or nothing,
        convolutions, each with `MaxPool2d(2)` and `ReLU` in any order behind it or without them,
        `Flatten`, and linear layers with `ReLU` between them.
    inputs, targets
        The training samples, of which each batch takes some: images, or numbers in a row, and the
        class of each.
    batch_size
        Samples per step.
    lr
        Learning rate.

    Raises
    ------
    NotAChain
        The model is another one, or does not fit the samples.
    """

    def __init__(
        self, module: nn.Module, inputs: Tensor, targets: Tensor, *, batch_size: int, lr: float
    ) -> None:
        modules = _modules(module)
        dtype, sample = next(module.parameters()).dtype, tuple(inputs.shape[1:])
        self._white: float | None = None
        if isinstance(pixels := modules[0], Pixels):
            self._white = pixels.white
            modules, sample = modules[1:], (1, *sample)
        elif inputs.dtype != dtype:
            raise NotAChain("the samples are of another type than the model")
        if targets.dim() != 1 or targets.dtype != torch.int64:
            raise NotAChain("the targets are not one class a sample")
        # Tensors that autograd never sees are a little quicker to handle.
        with torch.inference_mode():
            self._layers = _layers(modules, sample, batch_size, lr / batch_size)
            self._logits = torch.empty(self._layers[-1].outputs_shape, dtype=dtype)
            self._logs = torch.empty_like(self._logits)
            self._chosen = self._logits.new_empty(batch_size, 1)
            self._minus = torch.full_like(self._chosen, -1)
            self._rows = _shaped(self._layers[0].inputs, inputs.shape[1:])
            whole = self._rows.is_contiguous()
            self._numbers = self._rows if whole else self._rows.new_empty(self._rows.shape)
        lowest, highest = targets.aminmax()
        if lowest < 0 or highest >= self._logits.shape[1]:
            raise NotAChain("a target is no class of the model's")
        self._inputs, self._targets = inputs, targets.view(-1, 1)
        self._losses = self._chosen.view(-1).numpy()  # quicker for so few numbers
        self._shares = np.full_like(self._losses, 1 / batch_size)
        self._outputs = [*(layer.inputs for layer in self._layers[1:]), self._logits]

    def begin(self) -> None:
        """Take up the model as it is; call this before the first step."""
        with torch.inference_mode():
            for layer in self._layers:
                layer.load()

    def step(self, batch: IntArray) -> tuple[float, float]:
        """Take a step.

        Parameters
        ----------
        batch
            Indices of its samples, `batch_size` of them.

        Returns
        -------
        tuple of float
            The mean loss of the batch before the step, and the sum of its samples' squared losses.
        """
        with torch.inference_mode():
            rows = torch.from_numpy(batch)
            self._take(rows)
            targets = self._targets.index_select(0, rows)
            for layer, out in zip(self._layers, self._outputs, strict=True):
                layer.forward(out)
            torch.log_softmax(self._logits, 1, out=self._logs)
            torch.gather(self._logs, 1, targets, out=self._chosen)
            # The slopes of the sum of the losses by the logits: softmax, less 1 at the target.
            slopes = torch.exp(self._logs, out=self._logits)
            slopes.scatter_add_(1, targets, self._minus)
            for layer in reversed(self._layers):
                slopes = layer.backward(slopes)
        losses = self._losses
        return -float(losses @ self._shares), float(losses @ losses)

    def end(self) -> None:
        """Write the model back; call this after the last step."""
        with torch.inference_mode():
            for layer in self._layers:
                layer.store()

    def _take(self, rows: Tensor) -> None:
        """Give the first layer the samples of a batch."""
        samples = self._inputs.index_select(0, rows)
        self._numbers.copy_(samples)
        if self._white is not None:
            self._numbers.div_(self._white)
        if self._numbers is not self._rows:
            self._rows.copy_(self._numbers)


def fast_steps(task: Task, settings: TrainingSettings, model: FlatModel) -> FastSteps | None:
    """Steps for a task's model without autograd, or None where they would not be the same ones.

    Parameters
    ----------
    task
        Data and loss.
    settings
        Batch size and inner optimizer.
    model
        What is trained.
    """
    lr, samples = build_inner(settings).plain_lr, source(task.train, "train")
    if lr is None or model.device.type != "cpu" or not is_cross_entropy(task):
        return None
    if not isinstance(samples, TensorSource):
        return None
    inputs, targets = samples.inputs, samples.targets
    try:
        return FastSteps(model.module, inputs, targets, batch_size=settings.batch_size, lr=lr)
    except NotAChain:
        return None


def _modules(module: nn.Module) -> list[nn.Module]:
    """The parts of a chain, in order, if they are known ones with nothing unusual about them."""
    parts: list[nn.Module] = []
    for part in module.modules():
        if type(part) not in _KINDS or any(getattr(part, hooks) for hooks in _HOOKS):
            raise NotAChain(f"{type(part).__name__} is not known, or has hooks")
    _collect(module, parts)
    weighty = [part for part in parts if next(part.parameters(), None) is not None]
    if len(set(map(id, weighty))) < len(weighty):
        raise NotAChain("a layer stands in two places")
    parameters = [parameter for part in weighty for parameter in part.parameters()]
    if len(set(map(id, parameters))) < len(parameters):
        raise NotAChain("two layers share a parameter")
    if not parameters or not all(parameter.requires_grad for parameter in parameters):
        raise NotAChain("some parameters are frozen")
    return parts


def _collect(module: nn.Module, parts: list[nn.Module]) -> None:
    if not isinstance(module, nn.Sequential):
        parts.append(module)
        return
    for part in module:
        _collect(part, parts)


def _layers(
    modules: Sequence[nn.Module], sample: tuple[int, ...], batch: int, rate: float
) -> list[Layer]:
    """Layers for the parts of a chain, the first of which takes samples of this shape."""
    layers: list[Layer] = []
    shape: tuple[int, ...] = (batch, *sample)
    if len(sample) == 3:
        channels, height, width = sample
        shape = (height, width, batch, channels)
    flat = len(sample) == 1
    rest = deque(modules)
    while rest:
        module, after = rest.popleft(), list[nn.Module]()
        while rest and isinstance(rest[0], nn.ReLU | nn.MaxPool2d):
            after.append(rest.popleft())
        relu = any(isinstance(part, nn.ReLU) for part in after)
        pools = [part for part in after if isinstance(part, nn.MaxPool2d)]
        if isinstance(module, nn.Flatten) and not after and _is_whole(module):
            flat = True
            if not layers:
                shape = (batch, math.prod(sample))
        elif isinstance(module, nn.Conv2d) and len(shape) == 4 and not flat:
            _check_convolution(module, shape, pools)
            kind = Convolution if layers else FirstConvolution
            layers.append(kind(module, shape, pool=bool(pools), relu=relu, rate=rate))
            shape = layers[-1].outputs_shape
        elif isinstance(module, nn.Linear) and flat and not pools:
            if module.in_features != math.prod(shape) // batch:
                raise NotAChain("a layer does not fit the one before it")
            layers.append(Dense(module, shape, relu=relu, rate=rate, first=not layers))
            shape = layers[-1].outputs_shape
        else:
            raise NotAChain(f"{module} cannot stand here")
    if not isinstance(modules[-1], nn.Linear):
        raise NotAChain("the last one is not a linear layer")
    return layers


def _is_whole(flatten: nn.Flatten) -> bool:
    return (flatten.start_dim, flatten.end_dim) == (1, -1)


def _check_convolution(
    convolution: nn.Conv2d, shape: tuple[int, ...], pools: Sequence[nn.MaxPool2d]
) -> None:
    height, width, _, channels = shape
    usual = (
        convolution.padding_mode == "zeros"
        and convolution.groups == 1
        and convolution.dilation == (1, 1)
        and not isinstance(convolution.padding, str)
        and len(set(convolution.padding)) == len(set(convolution.stride)) == 1
        and convolution.in_channels == channels
    )
    if not usual:
        raise NotAChain(f"{convolution} is not a usual one, or does not fit")
    if len(pools) > 1 or not all(map(_is_by_two, pools)):
        raise NotAChain("the pooling is not by two")
    if min(outputs_size(convolution, height, width)) < 1 + len(pools):
        raise NotAChain("the images are too small")


def _is_by_two(pool: nn.MaxPool2d) -> bool:
    simple = not pool.ceil_mode and not pool.return_indices
    kernel, stride = (
        value if isinstance(value, tuple) else (value, value)
        for value in (pool.kernel_size, pool.stride)
    )
    return (
        simple
        and kernel == stride == (2, 2)
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
    )


def _shaped(inputs: Tensor, sample: Sequence[int]) -> Tensor:
    """A layer's inputs as [batch, *sample], for samples as they are stored."""
    if inputs.dim() == 2:
        return inputs.view(-1, *sample)
    rows = inputs.permute(2, 3, 0, 1)
    return rows if len(sample) == 3 else rows.squeeze(1)
