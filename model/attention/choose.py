"""Which attention a run uses: chosen once, at start, by trying it on this device; the reason is printed."""

from dataclasses import dataclass

from config.errors import UserError
from model.attention.backends import BACKENDS, Attend, Request
from model.attention.check import check

# The backends of each family of devices, in the order they are tried: the fastest first where they were measured.
ORDER = {
    # Ampere and Ada. FlashAttention 4 has no backward here, and 3 is Hopper's. varlen is 2's kernel, as torch ships it.
    "sm_8": ("fa2", "varlen", "flex", "cudnn", "sdpa"),
    # Hopper, measured on an H200 (forward and backward of B 32, T 2048, 10 heads × 128, bf16; ms full causal, then
    # window 512): fa4 2.37, 1.52; cudnn 2.64, no window; flex 4.02, 2.67; sdpa 4.49, no window; varlen 4.59, 2.81.
    # Not measured: fa3, written for Hopper alone and fa4's forerunner; fa2, whose kernel is varlen's.
    "sm_9": ("fa4", "fa3", "cudnn", "flex", "varlen", "fa2", "sdpa"),
    # Data-centre Blackwell, and Thor. Not measured. fa4 and cudnn were written for its tensor memory, flex reaches it
    # through Triton; varlen, fa2 and sdpa's own kernel run on Ampere's instructions.
    "sm_10": ("fa4", "cudnn", "flex", "varlen", "fa2", "sdpa"),
    "sm_11": ("fa4", "cudnn", "flex", "varlen", "fa2", "sdpa"),
    # RTX Blackwell and DGX Spark: Ampere's instructions and 99 KiB of shared memory. fa2 carried week-long runs on two
    # Sparks; varlen is the same kernel. fa4 is young here, so it comes after all that have a window.
    "sm_12": ("fa2", "varlen", "flex", "fa4", "cudnn", "sdpa"),
    "cpu": ("matmul", "sdpa"),
}
OTHERS = {"cuda": ("flex", "sdpa")}  # GPUs before Ampere: Triton reaches them, flash-attention kernels don't


@dataclass(frozen=True)
class Choice:
    """The backend that a run uses, and why; `rejected` holds (name, reason) of those that came before it."""

    name: str
    attend: Attend
    reason: str
    rejected: tuple[tuple[str, str], ...]


def order(request: Request) -> tuple[str, ...]:
    """Names of the backends to try on the request's device."""
    return ORDER.get(request.family) or OTHERS.get(request.device.type, ("sdpa",))


def choose(wanted: str, request: Request) -> Choice:
    """The backend named by `wanted`, or for `auto` the first of this device's order that agrees with the reference.

    Raises UserError when the named one refuses or fails its check, or when none is left.
    """
    rejected: list[tuple[str, str]] = []
    for name in order(request) if wanted == "auto" else (wanted,):
        backend = BACKENDS[name]
        problem = backend.refuses(request) or check(backend, request)
        if problem is None:
            reason = "named by the profile" if wanted != "auto" else f"first that works on {request.architecture}"
            return Choice(name, backend.attend, f"{reason}, checked against the reference", tuple(rejected))
        rejected.append((name, problem))
    reasons = "; ".join(f"{name} {why}" for name, why in rejected)
    raise UserError(f"no attention backend serves this run on {request.architecture}: {reasons}")
