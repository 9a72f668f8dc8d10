"""Backends of the flash-attention packages: FlashAttention 4 (CuTe DSL), 3 (arXiv 2407.08608), 2 (arXiv 2307.08691).
Each is tried only where its package is installed; model.attention.operators calls them."""

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch._ops import OpOverload

from model.attention import operators
from model.attention.protocol import Request, kernel_refuses, one_line


@dataclass(frozen=True)
class Flash:
    """One package: native windows and grouped heads, forward and backward, bf16 and fp16."""

    name: str
    package: str  # as pip knows it
    module: str  # where its functions are
    functions: tuple[str, ...]
    largest_head: Mapping[str, int]  # by the families of GPUs that it trains on
    operator: OpOverload  # (q, k, v, window) -> (out, lse)
    # What the package reads as it is imported, where the user has not set it.
    environment: Mapping[str, str] = field(default_factory=dict)

    def refuses(self, request: Request) -> str | None:
        if request.device.type == "cuda" and request.family not in self.largest_head:
            families = ", ".join(f"{family}x" for family in self.largest_head)
            return f"has kernels for {families}, this GPU is {request.architecture}"
        return kernel_refuses(request, self.largest_head.get(request.family, 0)) or self._missing()

    def _missing(self) -> str | None:
        """Why the package can't be called, or None."""
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        try:
            module = importlib.import_module(self.module)
        except (Exception, SystemExit) as error:  # a binary built for another torch raises anything at all
            # The name not found is this module's own or one of its parents': flash-attn-4 alone also makes a
            # `flash_attn`, with only `cute` in it.
            if isinstance(error, ModuleNotFoundError) and f"{self.module}.".startswith(f"{error.name}."):
                return f"needs the package {self.package}, which is not installed"
            # Not named as installed: flash-attn 2.8 brings an early `flash_attn.cute` of its own.
            return f"finds {self.module}, which fails to import; install {self.package} again: {one_line(error)}"
        absent = [name for name in self.functions if not callable(getattr(module, name, None))]
        if absent:
            return f"needs another version of {self.package}: the installed one has no {' and no '.join(absent)}"
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        out, _ = self.operator(q, k, v, window)
        return out


FA4 = Flash(
    "fa4",
    "flash-attn-4",
    "flash_attn.cute.interface",
    ("_flash_attn_fwd", "_flash_attn_bwd"),
    {"sm_9": 256, "sm_10": 128, "sm_11": 128, "sm_12": 128},  # on sm_8x it has no backward
    operators.FA4,
    {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"},  # compiled kernels kept on disk: the next start is seconds shorter
)
FA3 = Flash(
    "fa3",
    "flash-attn-3",
    "flash_attn_interface",
    ("_flash_attn_forward", "_flash_attn_backward"),
    {"sm_9": 256},
    operators.FA3,
)
FA2 = Flash(
    "fa2",
    "flash-attn",
    "flash_attn.flash_attn_interface",
    ("_flash_attn_forward", "_flash_attn_backward"),
    dict.fromkeys(("sm_8", "sm_9", "sm_10", "sm_11", "sm_12"), 256),
    operators.FA2,
)
