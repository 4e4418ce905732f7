"""``python -m runspan.cli``: the same as the program ``runspan``."""

from __future__ import annotations

import sys

from runspan.cli import main

sys.exit(main())
