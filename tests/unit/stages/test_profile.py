"""The whole profile: every one that ships is right, and what is wrong between sections names its line."""

import math
from pathlib import Path

import pytest

from config.errors import UserError
from config.paths import ROOT, TRAINING_STAGES
from config.profile import profile_names, read_params, resolve
from model.config import matmul_parameters, shape
from stages.profile import check

GOOD = """\
data:
  context: 64
  pretrain: [{builtin: documents, count: 10}]
  midtrain: [{builtin: chats, count: 10}]
  sft: [{builtin: chats, count: 10}]
tokenizer: {vocab_size: 300}
model: {width: 32, layers: 2, heads: 2}
pretrain: {tokens: 640, batch_tokens: 128, micro_batch: 2}
midtrain: {tokens: 640, batch_tokens: 128, micro_batch: 2}
sft:
  tokens: 640
  batch_tokens: 128
  micro_batch: 2
"""


def message(tmp_path: Path, old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "p.yaml").write_text(GOOD.replace(old, new))
    with pytest.raises(UserError) as caught:
        check(resolve("p", tmp_path))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(f"{tmp_path}/profiles/", "")


@pytest.mark.parametrize("name", profile_names(ROOT / "profiles"))
def test_every_profile_is_valid(name: str) -> None:
    resolved = resolve(name, ROOT)
    profile = check(resolved)
    for stage in TRAINING_STAGES:
        assert getattr(profile, stage).updates(profile.data.context) >= 1
    assert "learning_rate" in resolved.values["sft"], "every profile has sft.learning_rate, for `dvc exp run -S`"


def test_params_name_a_profile_that_is_there() -> None:
    name, overrides = read_params(ROOT)
    check(resolve(name, ROOT, overrides))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  micro_batch: 2\n", "  micro_batch: 2\n  learning_rat: 1.0\n", "p.yaml:14: unknown key `sft.learning_rat`"),
        ("context: 64", "context: sixty", "p.yaml:2: `data.context` is 'sixty'; expected a valid integer"),
        ("tokenizer: {vocab_size: 300}\n", "", "p.yaml: `tokenizer` is missing"),
        ("vocab_size: 300", "vocab_size: 200", "p.yaml:6: `tokenizer`: `vocab_size` is 200, must be from 265"),
        ("width: 32", "depth: 4, width: 32", "p.yaml:7: `model`: `depth` sets width, layers and heads"),
        ("  batch_tokens: 128", "  batch_tokens: 100", "p.yaml:12: `sft`: batch_tokens 100 is no multiple"),
        ("  sft: [{builtin: chats, count: 10}]", "  sft: []", "p.yaml:5: `data.sft` names no source"),
        ("  sft: [{builtin: chats, count: 10}]\n", "", "p.yaml:1: `data.sft` names no source"),
        ("  sft: [{builtin: chats, count: 10}]", "  sft: [{path: x, cont: 3}]", "did you mean `count`?"),
        ("heads: 2}", "heads: 2, attention: fa9}", "p.yaml:7: `model.attention` is 'fa9'; expected 'auto', 'fa4'"),
    ],
)
def test_mistakes(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert expected in message(tmp_path, old, new)


@pytest.mark.parametrize(("name", "depth"), [("gpu-d12", 12), ("h200-d20", 20), ("h200-d24", 24)])
def test_profiles_of_the_real_runs_follow_the_depth_dial(name: str, depth: int) -> None:
    """Tokens by parameters, batches by tokens, rates by width and batch; text enough for one pass, from the hub."""
    profile = check(resolve(name, ROOT))
    smallest = check(resolve("gpu-d12", ROOT)).pretrain.tokens
    model = shape(profile.model, profile.tokenizer.vocab_size, profile.data.context)
    config = profile.pretrain
    assert model.layers == depth
    assert 11.5 < config.tokens / matmul_parameters(model) < 12.5
    assert config.batch_tokens == 2 ** round(19 + 0.383 * math.log2(config.tokens / smallest))
    assert config.learning_rate == pytest.approx(0.02 * math.sqrt(config.batch_tokens / 2**19), rel=0.01)
    assert config.embedding_ratio == pytest.approx(15 * (model.width / 768) ** -0.5, rel=0.01)
    files = {"00[0-1]": 2, "00[0-7]": 8, None: 14}  # of the sample's 14, which are 10 billion tokens
    (source,) = profile.data.pretrain
    named = next(count for part, count in files.items() if part is None or part in (source.files or ""))
    assert named / 14 * 10e9 > config.tokens
    for mixture in (profile.data.pretrain, profile.data.midtrain, profile.data.sft):
        assert mixture[0].hub is not None
