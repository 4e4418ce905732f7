"""The parts of :mod:`runspan.bench`."""
