"""The learning rate as a function of the version: nothing to store, and exact after every restart or return."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def lr_factor(version: int, schedule: Schedule, *, warmup: int, total: int, floor: float = 0.0) -> float:
    """What the learning rate is multiplied by in the update of `version`, in [0, 1].

    It rises from 0 at version 0 to 1 at version `warmup`, then stays (`constant`) or falls in a line or half a
    cosine to `floor` at version `total`, and stays there. With floor 0 it equals transformers' schedules of these
    names at step `version`, up to `total`: from there their cosine rises again.
    """
    if version < warmup:
        return version / warmup
    if schedule == "constant":
        return 1.0
    progress = min((version - warmup) / max(1, total - warmup), 1.0)
    fallen = 1 - progress if schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return floor + (1 - floor) * fallen
