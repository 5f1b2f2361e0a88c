"""A model whose parameters and buffers are views into one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from powertrip.training.errors import TaskError
from powertrip.training.task import Task


class FlatModel:
    """An `nn.Module` together with one flat tensor that holds everything it learns.

    The vector is laid out as [parameters | rest], each in the module's own order; the rest are the
    floating-point buffers, after any parameters that are frozen. Within a tensor the module's own
    order of dimensions in memory stays, such as that of `torch.channels_last`. Writing into the
    vector changes the model, and training the model changes it. Buffers of whole numbers, such as
    the batch counter of a batch norm, stay outside.

    Parameters
    ----------
    module
        The model; its parameters and floating-point buffers become float32.
    device
        Where it is kept.

    Attributes
    ----------
    vector : Tensor
        Float32, one dimension.
    parameters_size : int
        Length of the part of the vector that holds the parameters to be trained.
    parameters : Tensor
        That part, a view.
    gradient : Tensor
        Flat gradient of that part, filled by `backward()`; it adds up until it is set to zero.
    trained : tuple of nn.Parameter
        The module's parameters that are trained, views of that part.
    module : nn.Module
        The model, in training mode.
    device : torch.device
        Where it is kept.

    Raises
    ------
    TaskError
        If the module has nothing to train, or a parameter that is not a real number.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        for name, parameter in module.named_parameters():
            if not parameter.is_floating_point():
                raise TaskError(
                    f"the parameter {name} has type {parameter.dtype}; "
                    "only real floating-point parameters can be averaged"
                )
        self.device = torch.device(device)
        self.module = module.to(self.device, torch.float32).train()
        named = list(module.named_parameters())
        trained: list[tuple[str, Tensor]] = [(n, p) for n, p in named if p.requires_grad]
        frozen: list[tuple[str, Tensor]] = [(n, p) for n, p in named if not p.requires_grad]
        buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        self._parts = [*trained, *frozen, *buffers]
        self.vector = torch.empty(
            sum(tensor.numel() for _, tensor in self._parts),
            dtype=torch.float32,
            device=self.device,
        )
        self.parameters_size = sum(tensor.numel() for _, tensor in trained)
        if self.parameters_size == 0:
            raise TaskError("the model has no parameters to train")
        self.parameters = self.vector[: self.parameters_size]
        self.gradient = torch.zeros_like(self.parameters)
        offset = 0
        for _, tensor in self._parts:
            where = slice(offset, offset + tensor.numel())
            view = _shaped_like(tensor, self.vector[where])
            view.copy_(tensor.detach())
            tensor.data = view
            if tensor.requires_grad:
                tensor.grad = _shaped_like(tensor, self.gradient[where])
            offset += tensor.numel()
        self.trained = tuple(tensor for _, tensor in trained)

    @property
    def update_bytes(self) -> int:
        """Size of one update as it travels: the member's weight takes one slot behind it."""
        return (self.vector.numel() + 1) * self.vector.element_size()

    def norms(self, vector: Tensor) -> list[float]:
        """Euclidean norm of each trained parameter's part of a vector that is laid out like this.

        Parameters
        ----------
        vector
            As long as the model's own; an update, for example.
        """
        sizes = [tensor.numel() for _, tensor in self._parts if tensor.requires_grad]
        parts = torch.split(vector[: self.parameters_size], sizes)
        return [float(norm) for norm in torch.stack([part.norm() for part in parts]).tolist()]

    def views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Each part of vectors that are laid out like the model's own, by its name.

        Parameters
        ----------
        vectors
            [..., size], or [..., parameters_size] for the trained parameters alone.
        """
        views, offset = {}, 0
        for name, tensor in self._parts:
            if offset < vectors.shape[-1]:
                part = vectors[..., offset : offset + tensor.numel()]
                views[name] = _shaped_like(tensor, part)
            offset += tensor.numel()
        return views

    def check_views(self) -> None:
        """Make sure that no part of the model has come off the vector.

        Raises
        ------
        TaskError
            If the module has replaced a buffer or a parameter instead of changing it in place:
            its changes would silently stay at this site.
        """
        current = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        address, slope = self.vector.data_ptr(), self.gradient.data_ptr()
        for name, tensor in self._parts:
            if tensor.numel() == 0:
                continue
            held = current.get(name)
            if held is None or held.data_ptr() != address:
                raise TaskError(
                    f"the model has replaced its {name}; change it in place, for example with "
                    f"{name.rpartition('.')[2]}.copy_(...), so that it can be averaged"
                )
            if held.requires_grad and (held.grad is None or held.grad.data_ptr() != slope):
                raise TaskError(
                    f"the gradient of {name} was replaced; leave zero_grad() to the trainer"
                )
            address += tensor.numel() * tensor.element_size()
            slope += tensor.numel() * tensor.element_size()


def initial_model(task: Task, *, seed: int, device: torch.device | str = "cpu") -> FlatModel:
    """The task's model as every site starts with it: the same for the same seed.

    Raises
    ------
    TaskError
        If `build_model` does not return a module that can be trained.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = task.build_model()
    if not isinstance(module, nn.Module):
        raise TaskError(
            f"build_model() returned a {type(module).__name__}; it must return a torch.nn.Module"
        )
    return FlatModel(module, device)


def _shaped_like(tensor: Tensor, flat: Tensor) -> Tensor:
    """A view of [..., n] as [..., *tensor.shape], its dimensions in the tensor's memory order."""
    lead, count = flat.dim() - 1, tensor.dim()
    order = list(range(count))
    if not tensor.is_contiguous():
        strides = torch.empty_like(tensor).stride()  # those that it would have without gaps
        order.sort(key=lambda d: (-strides[d], -tensor.shape[d]))
    stored = flat.view(*flat.shape[:-1], *(tensor.shape[d] for d in order))
    return stored.permute(*range(lead), *(lead + order.index(d) for d in range(count)))
