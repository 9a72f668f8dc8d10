"""Precision recipes: in what number formats a step computes. Master weights are float32 in all of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from config.errors import UserError
from model.gpt import GPT
from model.kernels import mlp, mlp_fp8
from model.linear import Embedding, Format, Linear, refresh
from model.precision import te
from model.precision.bf16 import Bf16, Bf16Mlp, Bf16Rows
from model.precision.fp8 import Fp8
from model.precision.fp8_mlp import Fp8Mlp
from model.precision.fp8_qkv import Fp8Projection
from model.precision.measure import Choices, fastest, key
from model.precision.nvfp4 import Nvfp4

BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them on x86 and on Arm
LEAST = 128  # inputs and outputs of a product that is worth 8 bits or less
MULTIPLE = 16  # of them, as the matrix units ask
EPILOGUES = {Bf16: mlp, Fp8: mlp_fp8}  # an MLP's products with ReLU² in their epilogues


@dataclass(frozen=True)
class Recipe:
    """A recipe, resolved for a device."""

    name: str
    compute: torch.dtype
    reason: str
    device: torch.device

    @property
    def one_graph(self) -> bool:
        """Whether the whole step compiles as one graph."""
        return not self.name.startswith("te-")

    def context(self) -> AbstractContextManager:
        """What forward passes of a training step run in."""
        return te.context(self.name, self.device)

    def measure(self, model: GPT, rows: int) -> Choices:
        """How products are computed fastest, for micro-batches of `rows` tokens; empty where there is no choice."""
        if self.name not in ("bf16", "fp8") or self.device.type != "cuda":
            return {}
        linears = [module for module in model.modules() if isinstance(module, Linear) and not _small(module)]
        # The head's loss has a way of its own to sum the gradient in bf16.
        eligible = {linear.shape for linear in linears if linear is not model.head or self.name == "fp8"}
        return fastest(eligible, rows, self.device, fp8=self.name == "fp8")

    def apply(self, model: GPT, choices: Choices | None = None) -> list[str]:
        """Give the model's products and embeddings their formats, and have them take over the weights.

        Returns remarks for the user, such as a faster way that is not open here.
        """
        if self.name == "fp32":
            return []
        for name, module in model.named_modules():
            if isinstance(module, Linear):
                module.format = self.format_for(module, name, model, choices)
            elif isinstance(module, Embedding) and self.device.type == "cuda":
                # On a CPU the residual stream stays float32: bytes matter less there, and small models gain by it.
                module.format = Bf16Rows(module.weight)
        remarks = self._fuse(model)
        refresh(model)
        return remarks

    def format_for(
        self, linear: Linear, name: str = "", model: GPT | None = None, choices: Choices | None = None
    ) -> Format:
        """The format of one product; `name` is its path in the model, which says what its input is."""
        chosen = (choices or {}).get(key(*linear.shape), {})
        if (
            self.name == "bf16"
            or chosen.get("format") == "bf16"
            or _small(linear)
            or _stays_bf16(self.name, name, model)
        ):
            return Bf16(linear.weight, chosen.get("parts", 1))
        return FORMATS[self.name](linear, name, model)

    def _fuse(self, model: GPT) -> list[str]:
        """Have products do what lies beside them as well, where their formats allow it."""
        remarks: list[str] = []
        if self.device.type != "cuda":
            return remarks
        kinds = [{type(linear.format) for linear in (block.mlp.up, block.mlp.down)} for block in model.blocks]
        epilogues = {form: kernels.refuses(self.device) for form, kernels in EPILOGUES.items() if {form} in kinds}
        remarks += [refusal for refusal in epilogues.values() if refusal is not None]
        power_of_two = model.config.head_dim & (model.config.head_dim - 1) == 0
        for block, kind in zip(model.blocks, kinds, strict=True):
            if isinstance(block.attention.qkv.format, Fp8) and power_of_two:
                block.attention.fused = Fp8Projection()
            if kind == {Fp8}:
                block.mlp.fused = Fp8Mlp(epilogues=epilogues[Fp8] is None)
            elif kind == {Bf16}:
                block.mlp.fused = Bf16Mlp(epilogues=epilogues[Bf16] is None)
        return remarks


def _small(linear: Linear) -> bool:
    return min(linear.shape) < LEAST or any(size % MULTIPLE for size in linear.shape)


def _stays_bf16(recipe: str, name: str, model: GPT | None) -> bool:
    """Whether a product stays in bf16: the head, but for fp8, whose fused loss has it; and in four bits the last sixth
    of the layers, whose gradients suffer most (arXiv 2509.25149)."""
    if recipe == "fp8":
        return False
    if name == "head" or model is None or "nvfp4" not in recipe or not name.startswith("blocks."):
        return name == "head"
    layers = len(model.blocks)
    return int(name.split(".")[1]) >= layers - round(layers / 6)


def _fp8(linear: Linear, name: str, model: GPT | None) -> Format:
    """fp8, its input's bound by what stands before the product."""
    if name.endswith("attention.out"):
        return Fp8(linear.weight, "values")
    if name.endswith("mlp.down"):
        return Fp8(linear.weight, "relu2", model.get_submodule(name.replace("down", "up")).weight)
    return Fp8(linear.weight, "norm")


def _te(recipe: str, linear: Linear, _name: str, _model: GPT | None) -> Format:
    return te.TeFormat(linear.weight, recipe)


TE_RECIPES = ("te-fp8", "te-fp8-delayed", "te-nvfp4")
FORMATS: dict[str, Callable[[Linear, str, GPT | None], Format]] = {
    "fp8": _fp8,
    "nvfp4-emulated": lambda linear, _name, _model: Nvfp4(linear.weight),
    **{name: partial(_te, name) for name in TE_RECIPES},
}


def has_native_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and not BF16_FLAGS.isdisjoint(cpuinfo.read_text().split())


def refuses(name: str, device: torch.device) -> str | None:
    """Why a device can't run a recipe, or None when it can."""
    if name in TE_RECIPES:
        return te.refuses(name, device)
    if name != "fp8":
        return None
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
    refusal = refuses(wanted, device)
    if refusal is not None:
        raise UserError(f"precision {wanted} {refusal}; set model.precision to bf16, or auto")
    reason = "named by the profile"
    if wanted == "bf16" and not native:
        reason += "; this device has no bf16 instructions, so it is slow here: fp32 may be faster"
    compute = torch.float32 if wanted == "fp32" else torch.bfloat16
    return Recipe(wanted, compute, reason, device)
