"""The main job, small: data-parallel training on real data over several processes, recorded with runspan.

``worker`` is what one rank runs, and the example to read. ``launcher`` starts the ranks, ``exchange`` averages their
gradients, ``network`` is what is trained.
"""

from __future__ import annotations

from runspan.demo.launcher import DemoOptions, DemoResult, check_demo, run_demo

__all__ = ["DemoOptions", "DemoResult", "check_demo", "run_demo"]
