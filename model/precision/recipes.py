"""Precision recipes: in what number formats a step computes. Master weights are float32 in all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from config.errors import UserError
from model.gpt import GPT
from model.linear import Embedding, Format, Linear, refresh
from model.precision.bf16 import Bf16, Bf16Rows
from model.precision.fp8 import Fp8, Fp8Mlp

BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them on x86 and on Arm
LEAST = 128  # inputs and outputs of a product that is worth 8 bits or less
MULTIPLE = 16  # of them, as the matrix units ask


@dataclass(frozen=True)
class Recipe:
    """A recipe, resolved for a device."""

    name: str
    compute: torch.dtype
    reason: str
    device: torch.device
    graph: bool = True  # whether the whole step compiles as one graph

    def apply(self, model: GPT) -> None:
        """Give the model's products and embeddings their formats, and have them take over the weights."""
        if self.name == "fp32":
            return
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                module.format = self.format_for(module, name, model)
            elif isinstance(module, Embedding) and self.device.type == "cuda":
                # On a CPU the residual stream stays float32: bytes matter less there, and small models gain by it.
                module.format = Bf16Rows(module.weight)
        for block in model.blocks:
            if isinstance(block.mlp.up.format, Fp8) and isinstance(block.mlp.down.format, Fp8):
                block.mlp.fused = Fp8Mlp()
        refresh(model)

    def format_for(self, linear: Linear, name: str = "", model: GPT | None = None) -> Format:
        """The format of one product; `name` is its path in the model, which says what its input is."""
        small = min(linear.shape) < LEAST or any(size % MULTIPLE for size in linear.shape)
        if self.compute == torch.float32:
            raise ValueError("fp32 has no formats")
        if self.name == "bf16" or small:
            return Bf16(linear.weight)
        return FORMATS[self.name](linear, name, model)


def has_native_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and not BF16_FLAGS.isdisjoint(cpuinfo.read_text().split())


def refuses_fp8(device: torch.device) -> str | None:
    """Why the device can't multiply fp8 matrices, or None when it can."""
    if device.type != "cuda":
        return "needs a GPU with fp8 (compute capability 8.9 or later)"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 9):
        return f"needs compute capability 8.9 or later, found {capability[0]}.{capability[1]}"
    return None


def resolve(wanted: str, device: torch.device) -> Recipe:
    """The recipe named, or for `auto` bf16 where the device has it and fp32 elsewhere.

    Raises UserError, with the reason, when the device can't run it.
    """
    native = has_native_bf16(device)
    if wanted == "auto":
        if native:
            return Recipe("bf16", torch.bfloat16, "the device has bf16", device)
        return Recipe("fp32", torch.float32, "the device has no bf16", device)
    refusal = REFUSALS.get(wanted, lambda _device: None)(device)
    if refusal is not None:
        raise UserError(f"precision {wanted} {refusal}; set model.precision to bf16, or auto")
    reason = "named by the profile"
    if wanted == "bf16" and not native:
        reason += "; this device has no bf16 instructions, so it is slow here: fp32 may be faster"
    compute = torch.float32 if wanted == "fp32" else torch.bfloat16
    return Recipe(wanted, compute, reason, device, graph=not wanted.startswith("te-"))


def _fp8(linear: Linear, name: str, model: GPT | None) -> Format:
    """fp8, its input's bound by what stands before the product."""
    if name.endswith("attention.out"):
        return Fp8(linear.weight, "values")
    if name.endswith("mlp.down"):
        return Fp8(linear.weight, "relu2", model.get_submodule(name.replace("down", "up")).weight)
    return Fp8(linear.weight, "norm")


FORMATS: dict[str, Callable[[Linear, str, GPT | None], Format]] = {"fp8": _fp8}
REFUSALS: dict[str, Callable[[torch.device], str | None]] = {"fp8": refuses_fp8}
