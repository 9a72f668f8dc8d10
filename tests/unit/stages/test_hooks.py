"""What is looked at during training: when, and that looking changes nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from config.run import RunConfig
from data.tokenizer import Tokenizer
from stages.hooks import Watch, hooks, spread
from tests.small_gpt import small_gpt
from tests.small_job import MemoryRows
from training.telemetry import Telemetry, read_events


@given(count=st.integers(0, 50), updates=st.integers(1, 5000), power=st.integers(1, 3))
def test_looks_are_spread_over_the_run_and_end_with_it(count: int, updates: int, power: int) -> None:
    steps = spread(count, updates, power)
    assert len(steps) <= count and all(1 <= step <= updates for step in steps)
    assert (updates in steps) == (count > 0)


def test_evenly_or_denser_at_the_beginning() -> None:
    assert sorted(spread(4, 100)) == [25, 50, 75, 100]
    assert sorted(spread(4, 160, power=2)) == [10, 40, 90, 160]


@pytest.fixture
def watch(tmp_path):
    text = ["the cat sat on the mat. What is 3 + 4? It is 7.\n"] * 20
    tokenizer = Tokenizer.train(text, 270)
    model = small_gpt(vocab_size=tokenizer.vocab_size)

    def make(stage: str) -> Watch:
        telemetry = Telemetry(tmp_path / f"{stage}.jsonl", stage, active=True)
        return Watch(stage, model, tokenizer, telemetry, updates=10)

    return make


RUN = RunConfig(sample_texts=("the cat",), sample_prompts=("What is 3?", "Hi"), sample_count=1, validation_count=2)


@pytest.mark.parametrize(("stage", "prompts"), [("pretrain", ["the cat"]), ("sft", ["What is 3?", "Hi"])])
def test_validation_and_answers_are_events(watch, stage: str, prompts: list[str]) -> None:
    one = watch(stage)
    for hook in hooks(one, RUN, MemoryRows(vocab=256, context=31)):
        for step in sorted(hook.steps):
            hook.call(step)
    found = read_events(one.telemetry.path)
    assert [event["step"] for event in found if event["event"] == "validation"] == [5, 10]
    assert all(event["bits_per_byte"] > 0 and event["loss"] > 0 for event in found if event["event"] == "validation")
    samples = [event for event in found if event["event"] == "sample"]
    assert [(event["step"], event["prompt"]) for event in samples] == [(10, prompt) for prompt in prompts]


def test_looking_changes_neither_weights_nor_generators(watch) -> None:
    one = watch("sft")
    before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    generator = torch.get_rng_state()
    for hook in hooks(one, RUN, MemoryRows(vocab=256, context=31)):
        hook.call(1)
    assert all(torch.equal(before[name], tensor) for name, tensor in one.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for parameter in one.model.parameters())


def test_without_prompts_nothing_is_asked(watch) -> None:
    assert len(hooks(watch("sft"), RunConfig(), MemoryRows())) == 1
    never = hooks(watch("sft"), RunConfig(validation_count=0, sample_count=0, sample_prompts=("Hi",)), MemoryRows())
    assert all(not hook.steps for hook in never)
