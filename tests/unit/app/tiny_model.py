"""A published model small enough to make in a moment. Its weights are random, so what it says means nothing."""

from pathlib import Path

import torch

from data.tokenizer import SPECIALS, Tokenizer
from model.config import ModelConfig, shape
from model.gpt import GPT
from model.publish import publish

CONTEXT = 128


def publish_tiny(folder: Path) -> Path:
    """Publish a random model of two layers to `folder`, which stands for runs/<profile>/<stage>."""
    tok = Tokenizer.train(["aa"], 256 + len(SPECIALS))
    tok.save(folder / "tokenizer.json")
    model = GPT(shape(ModelConfig(width=32, layers=2, heads=2), tok.vocab_size, CONTEXT))
    model.initialize(0)
    with torch.no_grad():  # a fresh head is so small that every token is as likely
        model.head.weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    tokens = (folder / "tokenizer.json").read_text(encoding="utf-8")
    publish(folder, model, tokens, {"parameters": sum(weight.numel() for weight in model.parameters())})
    return folder
