"""Gradient averaging over processes: every rank sends to rank 0, which sends the mean back."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runspan.demo.network import Array

__all__ = ["GradientExchange", "PeerLostError"]


class PeerLostError(ConnectionError):
    """Another rank has ended in the middle of the training."""


class GradientExchange:
    """An all-reduce in the shape of a star.

    Args:
        links: descriptors of connected sockets: of rank 0 one to each other rank, of the others the one to rank 0.
        rank: this process's rank.
    """

    def __init__(self, links: Sequence[int], rank: int) -> None:
        self._links = [Connection(descriptor) for descriptor in links]
        self._is_centre = rank == 0

    def mean(self, gradients: list[Array]) -> list[Array]:
        """Return the mean over all ranks; returns when all have called it.

        Raises:
            PeerLostError: another rank has ended.
        """
        flat = np.concatenate([gradient.ravel() for gradient in gradients])
        try:
            flat = self._mean(flat)
        except (EOFError, OSError) as error:
            raise PeerLostError("another rank has ended, so this one cannot go on") from error
        ends = np.cumsum([gradient.size for gradient in gradients])[:-1]
        return [part.reshape(gradient.shape) for part, gradient in zip(np.split(flat, ends), gradients, strict=True)]

    def _mean(self, flat: Array) -> Array:
        if self._is_centre:
            for link in self._links:
                flat = flat + np.frombuffer(link.recv_bytes())
            flat /= len(self._links) + 1
            for link in self._links:
                link.send_bytes(flat.data)
            return flat
        for link in self._links:
            link.send_bytes(flat.data)
            flat = np.frombuffer(link.recv_bytes())
        return flat
