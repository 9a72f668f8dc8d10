"""Precision recipes: in what number format a step computes. Master weights are float32 in all of them."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # as Linux names them on x86 and on Arm


@dataclass(frozen=True)
class Recipe:
    """A recipe, resolved for a device."""

    name: str
    compute: torch.dtype
    reason: str

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """The context in which forward passes run."""
        if self.compute == torch.float32:
            return nullcontext()
        return torch.autocast(device.type, dtype=self.compute)


def has_native_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices in hardware."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and not BF16_FLAGS.isdisjoint(cpuinfo.read_text().split())


def resolve(wanted: str, device: torch.device) -> Recipe:
    """The recipe named, or for `auto` bf16 where the device has it and fp32 elsewhere."""
    native = has_native_bf16(device)
    if wanted == "auto":
        name, reason = ("bf16", "the device has bf16") if native else ("fp32", "the device has no bf16")
    else:
        name, reason = wanted, "named by the profile"
        if wanted == "bf16" and not native:
            reason += "; this device has no bf16 instructions, so it is slow here: fp32 may be faster"
    return Recipe(name, {"bf16": torch.bfloat16, "fp32": torch.float32}[name], reason)
