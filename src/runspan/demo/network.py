"""What the demo trains: a network of one hidden layer, in plain numpy."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Network"]

Array: TypeAlias = NDArray[Any]

_MOMENTUM = 0.9


class Network:
    """Images (n, features) -> ReLU layer -> class scores (n, classes), trained with cross-entropy and momentum.

    Args:
        random: draws the initial weights; equal on all ranks.
        features: numbers an image has.
        hidden: units of the hidden layer.
        classes: how many classes there are.
    """

    def __init__(self, random: np.random.Generator, *, features: int, hidden: int, classes: int) -> None:
        self.parameters: list[Array] = [
            random.normal(0, np.sqrt(2 / features), (features, hidden)),
            np.zeros(hidden),
            random.normal(0, np.sqrt(1 / hidden), (hidden, classes)),
            np.zeros(classes),
        ]
        self._velocities = [np.zeros_like(parameter) for parameter in self.parameters]

    def forward(self, images: Array, labels: Array) -> float:
        """Return the mean cross-entropy, and keep what :meth:`backward` and :meth:`accuracy` need."""
        weights, bias, out_weights, out_bias = self.parameters
        self._images, self._labels = images, labels
        self._hidden = np.maximum(images @ weights + bias, 0)
        scores = self._hidden @ out_weights + out_bias
        scores -= scores.max(axis=1, keepdims=True)
        self._probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        return float(-np.log(self._probabilities[np.arange(len(labels)), labels] + 1e-12).mean())

    def backward(self) -> list[Array]:
        """Return the loss's gradient for each parameter."""
        error = self._probabilities.copy()
        error[np.arange(len(self._labels)), self._labels] -= 1
        error /= len(self._labels)
        hidden_error = (error @ self.parameters[2].T) * (self._hidden > 0)
        return [
            self._images.T @ hidden_error,
            hidden_error.sum(axis=0),
            self._hidden.T @ error,
            error.sum(axis=0),
        ]

    def update(self, gradients: list[Array], learning_rate: float) -> None:
        """Take one step of gradient descent with momentum."""
        for index, gradient in enumerate(gradients):
            self._velocities[index] = _MOMENTUM * self._velocities[index] + (1 - _MOMENTUM) * gradient
            self.parameters[index] -= learning_rate * self._velocities[index]

    def accuracy(self) -> float:
        """Return the share of the last batch's images that were classified right, 0..1."""
        return float((self._probabilities.argmax(axis=1) == self._labels).mean())
