"""The training of `flower_simulation` as a plain loop: the least that it can take on CPUs.

``python -m benchmarks.flower_plain``: a process for each processor, with one thread,
which trains its clients one after the other and adds up their models; the parameters are in shared
memory. It reads and writes where `flower_app` does, `plain.json` instead of `flower.json`.
"""

from __future__ import annotations

import json
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from benchmarks.flower_net import BATCH, LR, Net

LIMIT_S = 300.0


def worker(
    rank: int, count: int, folder: Path, vector: Tensor, sums: Tensor, pipe: Connection
) -> None:
    """Train and evaluate this process's part of each round, until the pipe says no."""
    torch.set_num_threads(1)
    with np.load(folder / "data.npz") as stored:
        data = {name: torch.from_numpy(stored[name]) for name in stored.files}
    net = Net()
    parameters = list(net.parameters())
    while pipe.recv():
        sums[rank].zero_()
        for samples in data["clients"][rank::count]:
            nn.utils.vector_to_parameters(vector.clone(), parameters)
            for batch in samples[torch.randperm(len(samples))].split(BATCH):
                outputs = net(data["images"][batch])
                loss = nn.functional.cross_entropy(outputs, data["labels"][batch])
                for parameter, slope in zip(
                    parameters, torch.autograd.grad(loss, parameters), strict=True
                ):
                    parameter.data.sub_(slope, alpha=LR)
            sums[rank] += nn.utils.parameters_to_vector(parameters).detach()
        pipe.send(None)
        pipe.recv()
        nn.utils.vector_to_parameters(vector.clone(), parameters)
        with torch.no_grad():
            images = data["held_out_images"][rank::count].split(512)
            labels = data["held_out_labels"][rank::count].split(512)
            hits = [(net(x).argmax(dim=1) == y).sum() for x, y in zip(images, labels, strict=True)]
        pipe.send(int(sum(hits)))


def replies(pipes: list[Connection]) -> list[int]:
    """One answer of each process."""
    for pipe in pipes:
        if not pipe.poll(LIMIT_S):
            raise TimeoutError(f"a process of the plain loop gave no answer in {LIMIT_S:g} s")
    return [pipe.recv() for pipe in pipes]


def main() -> None:
    """Run the rounds, and write each one's end (Unix seconds) and the final accuracy."""
    folder, rounds = Path(os.environ["BENCHMARK_FOLDER"]), int(os.environ["BENCHMARK_ROUNDS"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    vector = nn.utils.parameters_to_vector(Net().parameters()).detach().share_memory_()
    count = os.cpu_count() or 1
    sums = torch.zeros(count, len(vector)).share_memory_()
    with np.load(folder / "data.npz") as stored:
        clients, held_out = len(stored["clients"]), len(stored["held_out_labels"])
    context = mp.get_context("spawn")
    pipes, processes = [], []
    for rank in range(count):
        mine, theirs = context.Pipe()
        arguments = (rank, count, folder, vector, sums, theirs)
        processes.append(context.Process(target=worker, args=arguments, daemon=True))
        processes[-1].start()
        pipes.append(mine)
    ends_s, accuracy = [], 0.0
    for _ in range(rounds):
        for pipe in pipes:
            pipe.send(True)
        replies(pipes)
        vector.copy_(sums.sum(dim=0) / clients)
        for pipe in pipes:
            pipe.send(True)
        accuracy = sum(replies(pipes)) / held_out
        ends_s.append(time.time())
    for pipe in pipes:
        pipe.send(False)
    for process in processes:
        process.join(LIMIT_S)
    (folder / "plain.json").write_text(json.dumps({"ends_s": ends_s, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
