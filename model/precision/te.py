"""te-fp8, te-fp8-delayed, te-nvfp4: products by NVIDIA's Transformer Engine, an optional package.

- te-fp8: one scale a tensor, from its own largest entry; E4M3 forward, E5M2 gradients (arXiv 2209.05433);
- te-fp8-delayed: the scale from the largest entries of earlier micro-batches, which saves a pass over the tensor and is
  state that a checkpoint keeps;
- te-nvfp4: four bits with a scale a block of 16 (arXiv 2509.25149), on Blackwell.

What is trained is the model's own float32 master. Transformer Engine's module lends its products only: it is no
submodule of the model, so that neither its parameter nor its `_extra_state` is in the weights that are published. It
quantises the weight in an update's first micro-batch and keeps it for the others.

Its calls are not traced by torch.compile: a step under these recipes is compiled in pieces, between the products.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from model.linear import Format

DELAYED, NVFP4 = "te-fp8-delayed", "te-nvfp4"
LEAST_CAPABILITY = {"te-fp8": (8, 9), DELAYED: (8, 9), NVFP4: (10, 0)}
TRIAL_SIZE = 256  # tokens, inputs and outputs of the first product
TRIAL_ERROR = {"te-fp8": 0.1, DELAYED: 0.1, NVFP4: 0.3}  # of its norm; 0.04-0.06 and 0.15-0.2 are usual


class TeFormat(Format):
    """A product by Transformer Engine; activations go in and out in bf16, the weight's gradient is rounded to bf16 and
    added up in float32. Under te-fp8-delayed forward passes run inside of `context`."""

    def __init__(self, weight: Tensor, name: str) -> None:
        """`name` is the recipe's; the package must be there, see `refuses`."""
        import transformer_engine.pytorch as te

        super().__init__()
        outputs, inputs = weight.shape
        self.name, self.numerics = name, numerics(name, weight.device)
        self.first = True  # whether the next micro-batch is its update's first
        # In a tuple: not a submodule. On "meta": it gets no weight of its own.
        self._held = (te.Linear(inputs, outputs, bias=False, params_dtype=weight.dtype, device="meta"),)
        if name == DELAYED:  # its scales must be there when a checkpoint is loaded, before the first product
            with torch.no_grad(), te.autocast(enabled=True, recipe=self.numerics):
                self._held[0].init_fp8_metadata()
        self._multiply = torch.compiler.disable(self._multiply)  # here and not at import: it loads the compiler

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._multiply(x, weight)

    def _multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        (linear,) = self._held
        if linear.weight is not weight:
            linear.weight = weight
        first, self.first = self.first, False
        # torch.autocast tells Transformer Engine to compute in bf16 although the weight is float32.
        with torch.autocast(x.device.type, torch.bfloat16), self._quantizing():
            return linear(x.to(torch.bfloat16), is_first_microbatch=first)

    def _quantizing(self) -> AbstractContextManager:
        import transformer_engine.pytorch as te

        if self.name != DELAYED:
            return te.autocast(enabled=True, recipe=self.numerics)
        if not te.quantization.FP8GlobalStateManager.is_fp8_enabled():
            raise RuntimeError(
                f"{DELAYED}: a product outside of model.precision.te.context, which steps the scales after each pass; "
                "enter it around every forward pass. Layers recomputed in the backward pass can't: use te-fp8 for them"
            )
        return nullcontext()

    def refresh(self, weight: Tensor) -> None:
        self.first = True

    def state(self) -> dict[str, Tensor]:
        """Delayed scaling's scales (3,) and (2,) and its history of largest entries (length, 3) and (length, 2): input,
        weight, output forward; gradients of output and input backward."""
        if self.name != DELAYED:
            return {}
        forward, backward = (self._held[0].fp8_meta[key] for key in ("scaling_fwd", "scaling_bwd"))
        return {
            "scale_forward": forward.scale,
            "history_forward": forward.amax_history,
            "scale_backward": backward.scale,
            "history_backward": backward.amax_history,
        }


def context(name: str, device: torch.device) -> AbstractContextManager:
    """What surrounds the forward pass, not the backward pass, of every micro-batch, outside of compiled code. Delayed
    scaling steps all scales when it ends, on all ranks together; the other recipes need nothing."""
    if name != DELAYED:
        return nullcontext()
    import transformer_engine.pytorch as te

    return te.autocast(enabled=True, recipe=numerics(name, device))


@cache
def numerics(name: str, device: torch.device) -> Any:
    """Transformer Engine's recipe object of this name; one a process, since it compares them in every product."""
    from transformer_engine.common import recipe as recipes

    if name == NVFP4:
        # Its kernels for the transform and for stochastic rounding are built for sm_100, and not for sm_12x.
        reduced = torch.cuda.get_device_capability(device) >= (12, 0)
        return recipes.NVFP4BlockScaling(disable_rht=reduced, disable_stochastic_rounding=reduced)
    return recipes.DelayedScaling() if name == DELAYED else recipes.Float8CurrentScaling()


def refuses(name: str, device: torch.device) -> str | None:
    """Why this device can't run the recipe, as the end of a sentence that begins with its name; None when it can."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return f"needs a CUDA GPU, found {device.type if device.type != 'cuda' else 'none'}"
    found, least = torch.cuda.get_device_capability(device), LEAST_CAPABILITY[name]
    if found < least:
        return f"needs compute capability {least[0]}.{least[1]} or later, found {found[0]}.{found[1]}"
    return _refuses_package(name) or _refuses_trial(name, device)


def _refuses_package(name: str) -> str | None:
    """What is wrong with the package: it is absent, it is broken, or it says itself that it can't."""
    try:
        import transformer_engine.pytorch as te

        asks = te.is_nvfp4_available if name == NVFP4 else te.is_fp8_available
        available, reason = asks(return_reason=True)
    except ModuleNotFoundError as error:
        if error.name in ("transformer_engine", "transformer_engine.pytorch"):
            return "needs Transformer Engine, which is not installed (pip install --no-build-isolation '.[gpu]')"
        return f"needs Transformer Engine, whose import misses the module {error.name}"
    except Exception as error:  # a package built for another torch or CUDA fails in any way: OSError, AssertionError …
        return f"needs Transformer Engine, whose import fails: {_first_line(error)}"
    return None if available else f"is refused by Transformer Engine: {reason}"


def _refuses_trial(name: str, device: torch.device) -> str | None:
    """What is wrong with a first product forward and backward: that a package imports proves little."""
    generator = torch.Generator(device).manual_seed(0)
    x, weight, dy = (torch.randn(TRIAL_SIZE, TRIAL_SIZE, device=device, generator=generator) for _ in range(3))
    expected = {"product": x @ weight.mT, "input's gradient": dy @ weight, "weight's gradient": dy.mT @ x}
    x.requires_grad_()
    weight = torch.nn.Parameter(weight)
    try:
        # Delayed scaling has the same products, and would note this one in its state.
        y = TeFormat(weight, "te-fp8" if name == DELAYED else name)(x, weight)
        y.backward(dy.to(y.dtype))
        found = dict(zip(expected, (y.detach().float(), x.grad, weight.grad), strict=True))
        errors = {key: float((found[key] - expected[key]).norm() / expected[key].norm()) for key in expected}
    except Exception as error:  # kernels fail in any way, too
        return f"fails at its first product: {_first_line(error)}"
    wrong = [f"{key} off by {error:.1%}" for key, error in errors.items() if not error <= TRIAL_ERROR[name]]
    return f"computes wrongly on this device: {', '.join(wrong)}" if wrong else None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
