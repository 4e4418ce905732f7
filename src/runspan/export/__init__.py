"""A trace made into what other programs read."""
