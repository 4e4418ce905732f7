"""One rank of the demo: train a small network on scikit-learn's digits, and record it with runspan's public API."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.datasets import load_digits

import runspan
from runspan.demo.exchange import GradientExchange, PeerLostError
from runspan.demo.network import Network

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runspan.demo.network import Array

PEER_LOST = 70
"""Exit code of a rank that ends because another one did."""


def train(options: argparse.Namespace, exchange: GradientExchange, checkpoint: Path) -> None:
    """Train over all ranks; each sees its own share of the data, and all apply the same averaged gradients."""
    with runspan.start_run("digits", params=vars(options), tags={"dataset": "sklearn.digits"}) as run:
        rank, ranks = run.rank_context.rank, run.rank_context.world_size
        train_images, train_labels, test_images, test_labels = load_data(options.seed)
        network = Network(np.random.default_rng(options.seed), features=64, hidden=48, classes=10)

        for epoch in range(options.epochs):
            with run.epoch(epoch):
                order = np.random.default_rng([options.seed, epoch]).permutation(len(train_labels))
                batches = list(split(order, rank, ranks, options.batch_size))
                for batch in run.steps(batches, progress=rank == 0):
                    with run.phase("forward"):
                        loss = network.forward(train_images[batch], train_labels[batch])
                        if rank == options.slow_rank:
                            time.sleep(options.slow_ms / 1000)
                    with run.phase("backward"):
                        gradients = network.backward()
                    with run.phase("all_reduce"):
                        gradients = exchange.mean(gradients)
                    with run.phase("optimizer"):
                        network.update(gradients, options.learning_rate)
                    run.log_metric("loss/train", loss)
                    run.count("images", len(batch))

                with run.evaluate():
                    loss = network.forward(test_images, test_labels)
                    run.log_metrics({"loss/test": loss, "accuracy/test": network.accuracy()}, step=epoch)

            if rank == 0:
                with run.checkpoint(checkpoint):
                    np.savez(checkpoint, *network.parameters)
                run.log_artifact("network.npz", checkpoint, step=epoch)


def load_data(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return images (n, 64) in 0..1 and labels (n,): four fifths to train with, the rest to test with."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    images, labels = images[order] / 16, labels[order]
    cut = len(labels) * 4 // 5
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def split(order: Array, rank: int, ranks: int, batch_size: int) -> Iterator[Array]:
    """Yield a rank's batches of an epoch; every rank has the same number of them."""
    for start in range(0, len(order) - batch_size * ranks + 1, batch_size * ranks):
        yield order[start + rank * batch_size :][:batch_size]


def main() -> int:
    """Run the rank that the environment names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("network.npz"))
    parser.add_argument("--links", type=int, nargs="*", default=[], help="sockets to the other ranks, by number")
    options = parser.parse_args()
    links, checkpoint = vars(options).pop("links"), vars(options).pop("checkpoint")
    exchange = GradientExchange(links, runspan.RankContext.from_env(os.environ).rank)
    try:
        train(options, exchange, checkpoint)
    except PeerLostError as error:
        sys.stderr.write(f"runspan demo: {error}\n")
        return PEER_LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
