"""The training of `flower_simulation` as Flower's simulation does it.

Runs in an environment of its own with ``flwr[simulation]`` and torch, without PowerTrip: by
``flwr run``, as Flower's documentation has it, or by
``python -c "from benchmarks.flower_app import main; main()"``, which calls the older
`run_simulation` and so needs no server process. (Imported rather than run as a script, because Ray
sends what a script defines along with every call.) The environment variables `BENCHMARK_FOLDER` and
`BENCHMARK_ROUNDS` name the folder that holds `data.npz`, where `flower.json` is written, and the
number of rounds.

Settings in Flower's favour: an actor for each processor, with one thread; data and model once an
actor, not once a call; plain steps of SGD, because the first of torch's optimizers imports its
compiler; no evaluation by the clients; no telemetry and no dashboard.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn

from benchmarks.flower_net import BATCH, LR, Net

client_app = ClientApp()
server_app = ServerApp()


def folder() -> Path:
    """Where the data are and the result goes; Ray's processes inherit the variable."""
    return Path(os.environ["BENCHMARK_FOLDER"])


@functools.cache
def data() -> dict[str, Tensor]:
    """The images and labels of both splits, and the clients' samples, [clients, samples]."""
    with np.load(folder() / "data.npz") as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


@functools.cache
def model() -> Net:
    """This process's copy of the network."""
    torch.set_num_threads(1)
    return Net()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch over the client's samples."""
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    samples = data()["clients"][int(context.node_config["partition-id"])]
    order = samples[torch.randperm(len(samples))]
    loss_sum = 0.0
    for batch in order.split(BATCH):
        loss = nn.functional.cross_entropy(net(data()["images"][batch]), data()["labels"][batch])
        net.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(parameter.grad, alpha=LR)
        loss_sum += loss.item() * len(batch)
    metrics = {"loss": loss_sum / len(samples), "num-examples": len(samples)}
    content = RecordDict(
        {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=message)


def evaluate(arrays: ArrayRecord) -> float:
    """Accuracy on the held-out samples."""
    net = model()
    net.load_state_dict(arrays.to_torch_state_dict())
    images, labels = data()["held_out_images"], data()["held_out_labels"]
    with torch.no_grad():
        parts = zip(images.split(512), labels.split(512), strict=True)
        correct = sum(int((net(x).argmax(dim=1) == y).sum()) for x, y in parts)
    return correct / len(labels)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the rounds, and write each one's end (Unix seconds) and the final accuracy."""
    ends_s: list[float] = []
    accuracies: list[float] = []

    def evaluated(round_: int, arrays: ArrayRecord) -> MetricRecord:
        if round_ > 0:
            accuracies.append(evaluate(arrays))
            ends_s.append(time.time())
        return MetricRecord({"accuracy": accuracies[-1] if accuracies else 0.0})

    torch.manual_seed(0)
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(os.environ["BENCHMARK_ROUNDS"]),
        evaluate_fn=evaluated,
    )
    result = {"ends_s": ends_s, "accuracy": accuracies[-1]}
    (folder() / "flower.json").write_text(json.dumps(result))


def main() -> None:
    """Run it by Flower's Python call."""
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=len(data()["clients"]),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count(), "include_dashboard": False},
        },
    )
