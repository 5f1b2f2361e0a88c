"""Convolutions whose gradient and step of plain SGD are written out; see `fast_layers`."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor, nn

from powertrip.training.fast_layers import Bias, Weights, masked


class Finish:
    """What follows a convolution: pooling by two, the bias, ReLU.

    A bias is added after the pooling, where there is a quarter to add to, and ReLU comes last: the
    largest of four numbers is the same one before and after both.

    Parameters
    ----------
    z
        Where the convolution puts its outputs, [height, width, batch, channel]; afterwards their
        slopes.
    bias
        Of the convolution.
    pool, relu
        Whether they follow, in whatever order.
    """

    def __init__(self, z: Tensor, bias: Bias, *, pool: bool, relu: bool) -> None:
        height, width, batch, channels = z.shape
        self._z, self._bias, self._pool, self._relu = z, bias, pool, relu
        if pool:
            height, width = height // 2, width // 2
        self.shape: tuple[int, ...] = (height, width, batch, channels)
        self._sums = z.new_empty(self.shape)
        self._upper, self._lower = torch.empty_like(self._sums), torch.empty_like(self._sums)
        self._corners = [
            z[row : 2 * height : 2, column : 2 * width : 2]
            for row, column in product((0, 1), (0, 1))
        ]
        self._beyond = [rest for rest in (z[2 * height :], z[:, 2 * width :]) if rest.numel()]

    def forward(self, out: Tensor) -> None:
        """From the convolution's outputs to what is passed on."""
        largest, place = self._z, out if out.is_contiguous() else self._sums
        if self._pool:
            a, b, c, d = self._corners
            torch.maximum(a, b, out=self._upper)
            torch.maximum(c, d, out=self._lower)
            largest = torch.maximum(self._upper, self._lower, out=place)
        if self._bias.values is not None:
            largest = torch.add(largest, self._bias.values, out=place)
        if self._relu:
            torch.clamp_min(largest, 0, out=out)
        elif largest is not out:
            out.copy_(largest)
        self._passed_on = out

    def backward(self, slopes: Tensor) -> None:
        """Put the slopes by the convolution's outputs in their place, and move the bias.

        Those that are given may be changed.
        """
        place = slopes if slopes.is_contiguous() else self._sums
        if self._relu:
            masked(slopes, self._passed_on, out=place)
        elif place is not slopes:
            place.copy_(slopes)
        slopes = place
        self._bias.step(slopes)
        if not self._pool:
            self._z.copy_(slopes)
            return
        # Of equal ones the first in reading order has the slope, as in torch. What is not needed
        # any more is written over: this takes as long as the memory that it goes through.
        a, b, c, d = self._corners
        lower = self._lower.gt_(self._upper).mul_(slopes)
        upper = slopes.sub_(lower)
        choice = self._upper
        for first, second, of_both in ((a, b, upper), (c, d, lower)):
            torch.gt(second, first, out=choice)
            torch.mul(of_both, choice, out=second)
            torch.sub(of_both, second, out=first)
        for rest in self._beyond:
            rest.zero_()


class FirstConvolution:
    """A convolution of the images themselves, to which no slopes return.

    Its input is small, so the patches that the kernel sees are laid out in full, and their long
    side is that along which memory runs.

    Parameters
    ----------
    convolution
        The model's layer.
    shape
        Of the images, [height, width, batch, channel].
    pool, relu
        What follows.
    rate
        What the slopes are multiplied by in a step.
    """

    def __init__(
        self, convolution: nn.Conv2d, shape: tuple[int, ...], *, pool: bool, relu: bool, rate: float
    ) -> None:
        height, width, batch, channels = shape
        weight = convolution.weight.data
        (rows, columns), stride, padding = geometry(convolution)
        out_height, out_width = outputs_size(convolution, height, width)
        padded = weight.new_zeros(channels, height + 2 * padding, width + 2 * padding, batch)
        inner = padded[:, padding : padding + height, padding : padding + width]
        self.inputs = inner.permute(1, 2, 3, 0)
        plane, line, _, _ = padded.stride()
        self._seen = padded.as_strided(
            (channels, rows, columns, out_height, out_width, batch),
            (plane, line, batch, stride * line, stride * batch, 1),
        )
        self._patches = torch.empty_like(self._seen).contiguous()
        self._x = self._patches.view(channels * rows * columns, -1)
        self._x_turned = self._x.t()
        self._weights = Weights(weight.permute(1, 2, 3, 0))
        self._matrix = self._weights.values.view(len(self._x), -1)
        self._rate = rate
        z = weight.new_empty(out_height, out_width, batch, convolution.out_channels)
        self._z = z.view(-1, convolution.out_channels)
        self._finish = Finish(z, Bias(convolution.bias, rate), pool=pool, relu=relu)
        self.outputs_shape = self._finish.shape
        self.load, self.store = self._weights.load, self._weights.store

    def forward(self, out: Tensor) -> None:
        """Compute the outputs of the inputs."""
        self._patches.copy_(self._seen)
        torch.mm(self._x_turned, self._matrix, out=self._z)
        self._finish.forward(out)

    def backward(self, slopes: Tensor) -> Tensor:
        """Take the step."""
        self._finish.backward(slopes)
        self._matrix.addmm_(self._x, self._z, alpha=-self._rate)
        return slopes


class Convolution:
    """A convolution between others.

    For each column of the kernel, the input is laid out once more, shifted by that column. Then
    each row of the kernel is a product of matrices with a part of the lines of that layout: lines
    that are a stride apart lie together in it.

    Parameters are those of `FirstConvolution`.
    """

    def __init__(
        self, convolution: nn.Conv2d, shape: tuple[int, ...], *, pool: bool, relu: bool, rate: float
    ) -> None:
        height, width, batch, channels = shape
        weight = convolution.weight.data
        (rows, columns), stride, padding = geometry(convolution)
        out_height, out_width = outputs_size(convolution, height, width)
        lines = max(-(-(height + 2 * padding) // stride), (rows - 1) // stride + out_height)
        layout = weight.new_zeros(stride, lines, out_width, batch, columns, channels)
        layout_slopes = torch.zeros_like(layout)
        self.inputs = weight.new_empty(shape)
        self._slopes = torch.empty_like(self.inputs)
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._returns: list[tuple[Tensor, Tensor]] = []
        for phase, column in product(range(stride), range(columns)):
            down, down_inputs = _span(lines, phase, height, stride, padding)
            across, across_inputs = _span(out_width, column, width, stride, padding)
            cells = (phase, down, across, slice(None), column)
            part = (down_inputs, across_inputs)
            self._copies.append((layout[cells], self.inputs[part]))
            self._returns.append((self._slopes[part], layout_slopes[cells]))
        self._returns.sort(key=lambda pair: -pair[0].numel())
        self._largest_part, self._largest_cells = self._returns.pop(0)
        self._covered = self._largest_part.numel() == self._slopes.numel()
        self._below = layout_slopes[:, out_height:]

        z = weight.new_empty(out_height, out_width, batch, convolution.out_channels)
        self._finish = Finish(z, Bias(convolution.bias, rate), pool=pool, relu=relu)
        self.outputs_shape = self._finish.shape
        self._z = z.view(-1, convolution.out_channels)
        self._z_turned = self._z.t()
        self._rate = rate
        self._weights = Weights(weight.permute(0, 2, 3, 1))
        self.load, self.store = self._weights.load, self._weights.store
        wide = columns * channels
        self._matrices = self._weights.values.view(-1, rows, wide).unbind(1)
        self._turned = [matrix.t() for matrix in self._matrices]
        self._seen, self._seen_slopes = (
            [
                array[row % stride, row // stride : row // stride + out_height].view(-1, wide)
                for row in range(rows)
            ]
            for array in (layout, layout_slopes)
        )
        # The first rows of the kernel set the slopes of their lines, the others add to them.
        self._betas = [int(row >= stride) for row in range(rows)]

    def forward(self, out: Tensor) -> None:
        """Compute the outputs of the inputs."""
        for cells, part in self._copies:
            cells.copy_(part)
        z, beta = self._z, 0
        for seen, turned in zip(self._seen, self._turned, strict=True):
            torch.addmm(z, seen, turned, beta=beta, out=z)
            beta = 1
        self._finish.forward(out)

    def backward(self, slopes: Tensor) -> Tensor:
        """Take the step; the slopes by the inputs return."""
        self._finish.backward(slopes)
        self._below.zero_()
        for beta, matrix, seen in zip(self._betas, self._matrices, self._seen_slopes, strict=True):
            torch.addmm(seen, self._z, matrix, beta=beta, out=seen)
        if not self._covered:
            self._slopes.zero_()
        self._largest_part.copy_(self._largest_cells)
        for part, cells in self._returns:
            part.add_(cells)
        for matrix, seen in zip(self._matrices, self._seen, strict=True):
            matrix.addmm_(self._z_turned, seen, alpha=-self._rate)
        return self._slopes


def geometry(convolution: nn.Conv2d) -> tuple[tuple[int, int], int, int]:
    """Rows and columns of the kernel; the stride; the padding."""
    rows, columns = convolution.kernel_size
    stride, padding = convolution.stride[0], convolution.padding[0]
    assert isinstance(padding, int)
    return (rows, columns), stride, padding


def outputs_size(convolution: nn.Conv2d, height: int, width: int) -> tuple[int, int]:
    """Height and width of what a convolution makes of images, before any pooling."""
    (rows, columns), stride, padding = geometry(convolution)
    return (
        (height + 2 * padding - rows) // stride + 1,
        (width + 2 * padding - columns) // stride + 1,
    )


def _span(cells: int, first: int, size: int, stride: int, padding: int) -> tuple[slice, slice]:
    """The cells that lie within the input, and their places in it.

    Cell i holds the input's line, or column, i * stride + first - padding.
    """
    start = min(cells, max(0, -(-(padding - first) // stride)))
    stop = max(start, min(cells, -(-(size + padding - first) // stride)))
    begin = start * stride + first - padding
    return slice(start, stop), slice(begin, max(begin, begin + (stop - start) * stride), stride)
