"""The stack that runs are shipped to: its files, and whether its services do their part."""
