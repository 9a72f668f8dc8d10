"""Learning rates: where they start, peak and end, for any stage and for those of every profile."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.paths import ROOT, TRAINING_STAGES
from config.profile import profile_names, resolve
from stages.profile import check
from training.config import TrainConfig
from training.schedule import MOMENTUM_WARMUP_UPDATES, momentum, rate_scale


def config(**changes) -> TrainConfig:
    return TrainConfig(**{"tokens": 100, "batch_tokens": 10, "micro_batch": 1, **changes})


def course(updates: int, config: TrainConfig) -> list[float]:
    return [rate_scale(step, updates, config) for step in range(updates)]


def assert_sound(rates: list[float], config: TrainConfig) -> None:
    """Up, along, down, and never up again."""
    peak = rates.index(max(rates))
    assert all(0 < rate <= 1 for rate in rates) or config.final_scale == 0
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True), "a rate that rises again at the end undoes the stage"
    assert rates[-1] == pytest.approx(config.final_scale if config.decay_share else 1.0)


def test_ramp_plateau_and_fall() -> None:
    rates = course(100, config(warmup_updates=9, decay_share=0.5, final_scale=0.1))
    assert rates[0] == pytest.approx(0.1) and rates[8] == pytest.approx(0.9)
    assert rates[9:50] == [1.0] * 41
    assert rates[50] == pytest.approx(0.1 + 0.9 * 49 / 50) and rates[74] == pytest.approx(0.1 + 0.9 * 25 / 50)
    assert rates[-1] == pytest.approx(0.1)


def test_without_warmup_or_fall_the_rate_is_constant() -> None:
    assert course(7, config(warmup_updates=0, decay_share=0.0)) == [1.0] * 7


def test_a_fall_over_the_whole_stage_starts_at_once() -> None:
    rates = course(10, config(warmup_updates=0, decay_share=1.0, final_scale=0.0))
    assert rates == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0])


@given(
    updates=st.integers(1, 400),
    warmup=st.integers(0, 300),
    decay=st.floats(0, 1),
    final=st.floats(0, 1),
)
def test_every_course_is_sound(updates: int, warmup: int, decay: float, final: float) -> None:
    one = config(warmup_updates=warmup, decay_share=decay, final_scale=final)
    rates = course(updates, one)
    assert_sound(rates, one)
    if decay <= 0.4 and updates >= 10:
        assert max(rates[:-1], default=1.0) == 1.0, "the ramp of a stage however short reaches the top"


@pytest.mark.parametrize("stage", TRAINING_STAGES)
@pytest.mark.parametrize("name", profile_names(ROOT / "profiles"))
def test_every_stage_of_every_profile(name: str, stage: str) -> None:
    profile = check(resolve(name, ROOT))
    one: TrainConfig = getattr(profile, stage)
    updates = one.updates(profile.data.context)
    rates = course(updates, one)
    assert_sound(rates, one)
    assert rates[0] == pytest.approx(1 / (one.warmup_updates + 1), rel=0.05), "the first update is gentle"
    assert one.warmup_updates <= updates // 2, "a longer ramp would be cut"
    if stage != "pretrain":
        assert one.decay_share > 0 and one.final_scale < 1, "a stage that ends high leaves its work unfinished"


def test_profiles_exist() -> None:
    assert {"smoke", "tiny"} <= set(profile_names(Path(ROOT / "profiles")))


def test_momentum_rises_to_the_profiles_and_stays() -> None:
    one = config(momentum=0.95)
    values = [momentum(step, one) for step in range(2 * MOMENTUM_WARMUP_UPDATES)]
    assert values[0] == pytest.approx(0.85) and values == sorted(values)
    assert values[MOMENTUM_WARMUP_UPDATES:] == pytest.approx([0.95] * MOMENTUM_WARMUP_UPDATES)
    assert momentum(0, config(momentum=0.5)) == momentum(900, config(momentum=0.5)) == 0.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 0},
        {"batch_tokens": 200},
        {"micro_batch": 0},
        {"learning_rate": 0.0},
        {"learning_rate": -1.0},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"head_ratio": -0.1},
        {"embedding_ratio": float("nan")},
        {"decay_share": 1.5},
        {"final_scale": -0.1},
        {"momentum": 1.0},
        {"warmup_updates": -1},
        {"weight_decay": -0.1},
    ],
)
def test_impossible_values(wrong: dict) -> None:
    with pytest.raises(ValueError):
        config(**wrong)


def test_updates_and_rows() -> None:
    one = TrainConfig(tokens=1000, batch_tokens=64, micro_batch=1)
    assert one.rows(16) == 4 and one.updates(16) == 15
    with pytest.raises(ValueError, match="batch_tokens 64 is no multiple of the context 24"):
        one.rows(24)
