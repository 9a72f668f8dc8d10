"""Finished models on disk: `model.safetensors`, `config.json`, and the tokenizer beside them."""

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from config.errors import UserError
from config.files import raise_if_disk_full, read_json, write_atomic, write_json
from model.config import GPTConfig
from model.gpt import GPT, rotary_tables

FORMAT = 1  # of config.json and of the tensors' names


def publish(folder: Path, model: GPT, tokenizer_json: str, facts: dict[str, Any]) -> None:
    """Write a model that stands alone: weights in float32, its config with `facts` about its training, its tokenizer.

    `config.json` goes last: a folder that has it is whole. Raises UserError when the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    weights = folder / "model.safetensors"
    temporary = folder / ".model.safetensors.tmp"
    tensors = {name: tensor.detach().float().cpu().contiguous() for name, tensor in model.state_dict().items()}
    try:
        save_file(tensors, temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(weights)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise_if_disk_full(error, folder, sum(tensor.nbytes for tensor in tensors.values()))
        raise UserError(f"could not write {weights}: {error}") from None
    write_atomic(folder / "tokenizer.json", tokenizer_json)
    write_json(folder / "config.json", {"format": FORMAT, "model": model.config.to_json(), "training": facts})


def read_config(folder: Path) -> tuple[GPTConfig, dict[str, Any]]:
    """The shape of a published model and the facts about its training; UserError when absent or unreadable."""
    values = read_json(folder / "config.json", "a published model")
    try:
        if values["format"] != FORMAT:
            raise UserError(
                f"{folder}/config.json has format {values['format']}; this version reads {FORMAT}: retrain it"
            )
        return GPTConfig.from_json(values["model"]), values["training"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder}/config.json is not a published model's: {error}; run `dvc repro`") from None


def load(folder: Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> GPT:
    """A published model, ready to generate: on `device`, in `dtype` (default: bf16 on a GPU, float32 elsewhere).

    Raises UserError when the folder holds no whole model.
    """
    config, _ = read_config(folder)
    device = torch.device(device)
    model = GPT(config)
    model.load_state_dict(read_weights(folder, config))
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    model = model.to(device=device, dtype=dtype).eval()
    # In float32, as training has them: their rounding would turn far positions by a visible angle.
    model.cos, model.sin = rotary_tables(config.context, config.head_dim, config.rope_base, device)
    return model


def read_weights(folder: Path, config: GPTConfig) -> dict[str, torch.Tensor]:
    """The float32 tensors of a published model, their names and shapes checked against `config`."""
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run `dvc repro`") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} can't be read ({error}); delete it and run `dvc repro`") from None
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in GPT(config).state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        wrong = sorted(set(found.items()) ^ set(expected.items()))[0][0]
        there, due = found.get(wrong, "absent"), expected.get(wrong, "none of that name")
        raise UserError(f"{path}: tensor `{wrong}` is {there}, expected {due}; run `dvc repro`")
    return tensors
