"""Layers whose forward pass, gradient and step of plain SGD are written out, for CPUs.

Each writes into memory of its own, made once for a batch size, and takes the step while it has the
gradient at hand: x <- x - lr g, by one product of matrices that adds to the weights in place.

Images lie as [height, width, batch, channel]. Pooling then compares long runs of memory, and a
convolution is a few products of large matrices, one for each row of its kernel, without any copy of
the output.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn


class Layer(Protocol):
    """A part of the model between two arrays of numbers.

    Attributes
    ----------
    inputs : Tensor
        Where the layer before it writes what it passes on: [batch, features], or
        [height, width, batch, channel].
    outputs_shape : tuple of int
        Shape of what it passes on.
    """

    inputs: Tensor
    outputs_shape: tuple[int, ...]

    def load(self) -> None:
        """Take up the parameters from the model."""
        ...

    def store(self) -> None:
        """Write the parameters back to the model."""
        ...

    def forward(self, out: Tensor) -> None:
        """Compute the outputs of the inputs."""
        ...

    def backward(self, slopes: Tensor) -> Tensor:
        """Take the step; `slopes` are the loss's by the outputs, and those by the inputs return.

        What the first layer returns means nothing.
        """
        ...


class Weights:
    """A parameter as a contiguous array in the order in which a layer wants it.

    Parameters
    ----------
    view
        The model's own memory, its dimensions in the wanted order. Where it is contiguous like
        that, it is worked on directly.
    """

    def __init__(self, view: Tensor) -> None:
        self._view = view
        self.values = view if view.is_contiguous() else torch.empty_like(view).contiguous()

    def load(self) -> None:
        """Take up the values from the model."""
        if self.values is not self._view:
            self.values.copy_(self._view)

    def store(self) -> None:
        """Write the values back to the model."""
        if self.values is not self._view:
            self._view.copy_(self.values)


class Bias:
    """The bias of a layer, or none.

    Parameters
    ----------
    bias
        [channels], or None.
    rate
        What the slopes are multiplied by in a step.
    """

    def __init__(self, bias: Tensor | None, rate: float) -> None:
        self.values = None if bias is None else bias.data
        self._rate = rate
        self._ones = torch.empty(0)

    def step(self, slopes: Tensor) -> None:
        """Take the step, with slopes of [..., channels] in one piece of memory."""
        if self.values is None:
            return
        rows = slopes.view(-1, slopes.shape[-1])
        if len(self._ones) != len(rows):
            self._ones = slopes.new_ones(len(rows))
        self.values.addmv_(rows.t(), self._ones, alpha=-self._rate)


class Dense:
    """A linear layer, followed by ReLU or not.

    Parameters
    ----------
    linear
        The model's layer.
    shape
        Of the inputs: [batch, features], or of images that are flattened channel by channel.
    relu
        Whether ReLU follows.
    rate
        What the slopes are multiplied by in a step.
    first
        Whether no layer comes before.
    """

    def __init__(
        self, linear: nn.Linear, shape: tuple[int, ...], *, relu: bool, rate: float, first: bool
    ) -> None:
        weight, batch = linear.weight.data, shape[0]
        if len(shape) == 4:
            height, width, batch, channels = shape
            apart = weight.view(-1, channels, height, width)
            self._weights = Weights(apart.permute(0, 2, 3, 1))
            self._matrix = self._weights.values.view(weight.shape)
        elif first:  # turned, the product with the inputs is quicker, that with the slopes slower
            self._weights = Weights(weight.t())
            self._matrix = self._weights.values.t()
        else:
            self._weights = Weights(weight)
            self._matrix = self._weights.values
        self._turned = self._matrix.t()
        self._first = first
        self._bias = Bias(linear.bias, rate)
        self._relu, self._rate = relu, rate
        self._x = weight.new_empty(batch, linear.in_features)
        self._y = weight.new_empty(batch, linear.out_features)
        self._slopes = torch.empty_like(self._x)
        self.inputs = _as_images(self._x, shape)
        self._returned = _as_images(self._slopes, shape)
        self.outputs_shape: tuple[int, ...] = (batch, linear.out_features)
        self.load, self.store = self._weights.load, self._weights.store

    def forward(self, out: Tensor) -> None:
        """Compute the outputs of the inputs."""
        if self._bias.values is None:
            torch.mm(self._x, self._turned, out=out)
        else:
            torch.addmm(self._bias.values, self._x, self._turned, out=out)
        if self._relu:
            out.relu_()
        self._y = out

    def backward(self, slopes: Tensor) -> Tensor:
        """Take the step; the slopes by the inputs return."""
        if self._relu:
            masked(slopes, self._y, out=slopes)
        if not self._first:
            torch.mm(slopes, self._matrix, out=self._slopes)
        self._matrix.addmm_(slopes.t(), self._x, alpha=-self._rate)
        self._bias.step(slopes)
        return self._returned


def _as_images(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """[batch, features] as [height, width, batch, channel] where that is the shape."""
    if len(shape) == 2:
        return flat
    height, width, batch, channels = shape
    return flat.view(batch, height, width, channels).permute(1, 2, 0, 3)


def masked(slopes: Tensor, values: Tensor, *, out: Tensor) -> Tensor:
    """The slopes before a ReLU that has given these values."""
    masked: Tensor = torch.ops.aten.threshold_backward.grad_input(slopes, values, 0, grad_input=out)
    return masked
