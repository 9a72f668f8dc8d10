"""GPTs small enough for a test, whose every weight is random: a fresh model is nearly the identity and hides faults."""

import torch

from model.attention.backends import Attend
from model.config import GPTConfig
from model.gpt import GPT

DEFAULTS = {
    "vocab_size": 64,
    "context": 32,
    "layers": 2,
    "width": 32,
    "heads": 2,
    "kv_heads": 2,
    "mlp_width": 64,
    "windows": (8, 32),
    "value_layers": (1,),
}


def small_config(**changes) -> GPTConfig:
    return GPTConfig(**{**DEFAULTS, **changes})


def small_gpt(seed: int = 0, attend: Attend | None = None, **changes) -> GPT:
    model = GPT(small_config(**changes), attend)
    model.initialize(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and name != "embedding.weight":
                parameter.normal_(0, 1.5 * parameter.shape[1] ** -0.5, generator=generator)
    return model
