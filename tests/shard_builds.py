"""Builds of the shards of a small corpus, in a folder of the test."""

from dataclasses import replace
from pathlib import Path

from data import shards
from data.config import DataConfig
from data.tokenizer import Tokenizer


def build(mixture: str, config: DataConfig, tok: Tokenizer, tmp_path: Path, name: str = "m.json") -> dict:
    return shards.build(mixture, getattr(config, mixture), tok, config, tmp_path / name, tmp_path / "work")


def from_scratch(config: DataConfig, mixture: str, tok: Tokenizer, folder: Path) -> dict:
    """What a build gives that finds nothing; without the name of its folder."""
    folder.mkdir()
    fresh = replace(config, shard_folder=str(folder / "shards"))
    return build(mixture, fresh, tok, folder) | {"folder": config.shard_folder}
