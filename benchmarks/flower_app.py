"""The training of `flower_simulation` as Flower's simulation does it.

Runs in an environment of its own with ``flwr[simulation]`` and torch, without PowerTrip:
``python -c "from benchmarks.flower_app import main; main()" FOLDER ROUNDS``. Imported rather than
run as a script, because Ray sends what a script defines along with every call. The folder holds
`data.npz`; `flower.json` is written there.

Settings in Flower's favour: an actor for each processor, with one thread; data and model once an
actor, not once a call; plain steps of SGD, because the first of torch's optimizers imports its
compiler; no evaluation by the clients; no telemetry and no dashboard; `run_simulation` instead of
`flwr run`, which starts a server process first.
"""

from __future__ import annotations

import functools
import json
import os
import sys
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

FOLDER = "BENCHMARK_FOLDER"
"""Environment variable with the folder of the data; Ray's processes inherit it."""

client_app = ClientApp()


@functools.cache
def data() -> dict[str, Tensor]:
    """The images and labels of both splits, and the clients' samples, [clients, samples]."""
    with np.load(Path(os.environ[FOLDER]) / "data.npz") as stored:
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


def main() -> None:
    """Run the simulation, and write each round's end (Unix seconds) and the final accuracy."""
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    os.environ[FOLDER] = str(folder)
    ends_s: list[float] = []
    accuracies: list[float] = []
    server_app = ServerApp()

    def evaluated(round_: int, arrays: ArrayRecord) -> MetricRecord:
        if round_ > 0:
            accuracies.append(evaluate(arrays))
            ends_s.append(time.time())
        return MetricRecord({"accuracy": accuracies[-1] if accuracies else 0.0})

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        torch.manual_seed(0)
        FedAvg(fraction_evaluate=0.0).start(
            grid=grid,
            initial_arrays=ArrayRecord(Net().state_dict()),
            num_rounds=rounds,
            evaluate_fn=evaluated,
        )

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=len(data()["clients"]),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count(), "include_dashboard": False},
        },
    )
    result = {"ends_s": ends_s, "accuracy": accuracies[-1]}
    (folder / "flower.json").write_text(json.dumps(result))
