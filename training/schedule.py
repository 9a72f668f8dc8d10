"""The learning rate's course through a stage: a ramp, a plateau, a linear fall (arXiv 2405.18392)."""

import math

from training.config import TrainConfig

MOMENTUM_WARMUP_UPDATES = 400
MOMENTUM_START = 0.85


def rate_scale(step: int, updates: int, config: TrainConfig) -> float:
    """Factor on every learning rate at update `step` of `updates` (0-based).

    Rises from 1/(warmup + 1) to 1, stays, and falls to `final_scale` at the last update. The ramp takes at most half
    of a short stage, and the fall wins over it where they meet; without a fall (decay_share 0) the rate ends at 1.
    """
    rise = min(1.0, (step + 1) / (min(config.warmup_updates, updates // 2) + 1))
    fall_updates = math.ceil(config.decay_share * updates)
    left = updates - 1 - step  # updates after this one
    if left >= fall_updates:
        return rise
    return min(rise, config.final_scale + (1 - config.final_scale) * left / fall_updates)


def momentum(step: int, config: TrainConfig) -> float:
    """Muon's momentum at update `step`: up from 0.85, since early gradients go stale fast."""
    start = min(MOMENTUM_START, config.momentum)
    return start + (config.momentum - start) * min(1.0, step / MOMENTUM_WARMUP_UPDATES)
