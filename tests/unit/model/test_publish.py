"""Published models: written whole, read back the same, refused in one line when broken."""

import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from config.errors import UserError
from model import publish
from tests.small_gpt import small_gpt

FACTS = {"stage": "sft", "updates": 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    publish.publish(tmp_path / "sft", small_gpt(3), '{"tok": "é"}', FACTS)
    return tmp_path / "sft"


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        publish.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_round_trip(folder: Path) -> None:
    model, original = publish.load(folder), small_gpt(3)
    assert model.config == original.config and not model.training
    for (name, ours), theirs in zip(model.named_parameters(), original.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        torch.testing.assert_close(model.logits(model(ids)), original.logits(original(ids)))
    assert publish.read_config(folder) == (original.config, FACTS)
    assert (folder / "tokenizer.json").read_text(encoding="utf-8") == '{"tok": "é"}'
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", "tokenizer.json"}


def test_weights_are_float32_whatever_the_model_is_in(tmp_path: Path) -> None:
    publish.publish(tmp_path, small_gpt().to(torch.bfloat16), "{}", {})
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.float32}
    assert publish.load(tmp_path, dtype=torch.bfloat16).embedding.weight.dtype == torch.bfloat16


def test_publishing_again_replaces(folder: Path) -> None:
    publish.publish(folder, small_gpt(4), "{}", {})
    assert torch.equal(publish.load(folder).head.weight, small_gpt(4).head.weight)


def test_a_folder_whose_writing_failed_is_not_a_model(folder: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(publish, "save_file", full)
    with pytest.raises(UserError, match="is full"):
        publish.publish(folder, small_gpt(4), "{}", {})
    assert "config.json is missing" in refused(folder)
    assert not list(folder.glob(".*"))


def test_missing_files(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is missing; run `dvc repro`" in refused(folder)
    assert "config.json is missing" in refused(folder.parent / "nothing")


@pytest.mark.parametrize("keep", [0, 4, 100, 0.5, 0.999])
def test_truncated_weights(folder: Path, keep: float) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    assert "model.safetensors can't be read" in refused(folder)


def test_weights_of_another_shape_or_name(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "head.weight": torch.zeros(63, 32)}, path)
    assert "tensor `head.weight` is (63, 32), expected (64, 32)" in refused(folder)
    save_file({name: tensor for name, tensor in tensors.items() if name != "skip_scale"}, path)
    assert "tensor `skip_scale` is absent, expected (2,)" in refused(folder)
    save_file({**tensors, "extra": torch.zeros(1)}, path)
    assert "tensor `extra` is (1,), expected none of that name" in refused(folder)


def test_broken_configs(folder: Path) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text("{")
    assert "is not valid JSON" in refused(folder)
    path.write_text(json.dumps(values | {"format": 99}))
    assert "has format 99; this version reads 1" in refused(folder)
    path.write_text(json.dumps({**values, "model": {**values["model"], "colour": "red"}}))
    assert "is not a published model's" in refused(folder)
    del values["model"]["windows"]
    for broken in (values, {}, [], 3):
        path.write_text(json.dumps(broken))
        assert "is not a published model's" in refused(folder)
