"""How fast one linear layer trains, forward and backward, in the number format of each recipe.

    python -m bench.linear --json --shapes 1280x3840,1280x5120 --recipes bf16,fp8,te-fp8

Shapes are inputs × outputs. Beside each layer stand the same three products alone, on operands that are cast already:
what the layer takes longer goes into casts, scales and transposes. FLOPs are 2 × 3 × rows × inputs × outputs.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.timing import (
    ceiling_of,
    ceilings,
    first_device,
    header,
    median_ms,
    number_format,
    report,
)
from config.errors import UserError, run_main
from hardware.limits import has_fp8, normal
from model.linear import Linear
from model.precision import te
from model.precision.bf16 import Bf16
from model.precision.recipes import Recipe, resolve

# Of a token's loss, as it comes back through a model: far below 1.
GRADIENT_DEVIATION = 1e-3
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PRODUCTS = ("forward_ms", "input_gradient_ms", "weight_gradient_ms")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=65_536, help="tokens; few enough fit into a cache")
    parser.add_argument("--shapes", default="1280x3840,1280x1280,1280x5120,5120x1280,1280x32768")
    parser.add_argument("--recipes", default="bf16,fp8,te-fp8,te-fp8-delayed")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile", default="auto", choices=["auto", "on", "off"], help="auto: on a GPU")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def parse_shapes(text: str) -> list[tuple[int, int]]:
    """`1280x3840,…` -> [(inputs, outputs), …]; UserError when it is anything else."""
    try:
        shapes = [tuple(int(size) for size in shape.split("x")) for shape in text.split(",")]
    except ValueError:
        shapes = [()]
    if any(len(shape) != 2 or min(shape) < 1 for shape in shapes):
        raise UserError(f"--shapes is {text!r}; expected inputs x outputs, as in 1280x3840,1280x1280")
    return shapes


def products_ms(shape: tuple[int, int, int], eight_bit: bool, device: torch.device, repeats: int) -> dict[str, float]:
    """Milliseconds of a layer's three products alone, in bf16 or fp8; shape is rows, inputs, outputs."""
    calls = fp8_products(shape, device) if eight_bit else bf16_products(shape, device)
    return {name: median_ms(call, device, repeats=repeats) for name, call in zip(PRODUCTS, calls, strict=True)}


def operands(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """A layer's input (rows, inputs), weight (outputs, inputs) and gradient (rows, outputs), as training has them."""
    rows, inputs, outputs = shape
    return (
        normal((rows, inputs), dtype, device),
        normal((outputs, inputs), dtype, device, inputs**-0.5, seed=1),
        normal((rows, outputs), dtype, device, GRADIENT_DEVIATION, seed=2),
    )


def bf16_products(shape: tuple[int, int, int], device: torch.device) -> list[Callable[[], Tensor]]:
    """y = x wᵀ, dx = dy w, dw = dyᵀ x: bf16 out but for dw, which is float32 on a GPU."""
    x, w, dy = operands(shape, torch.bfloat16, device)
    wide = {"out_dtype": torch.float32} if device.type == "cuda" else {}
    return [lambda: torch.mm(x, w.mT), lambda: torch.mm(dy, w), lambda: torch.mm(dy.mT, x, **wide)]


def fp8_products(shape: tuple[int, int, int], device: torch.device) -> list[Callable[[], Tensor]]:
    """The same with E4M3 values and E5M2 gradients, each operand lying along the dimension that is summed; the
    weight's gradient sums in full float32, as training needs it."""
    one = torch.ones((), device=device)
    x, w, dy = operands(shape, torch.bfloat16, device)
    x, w, dy = x.to(E4M3), (w * 2**8).to(E4M3), (dy * 2**12).to(E5M2)
    x_columns, w_columns, dy_columns = (tensor.mT.contiguous() for tensor in (x, w, dy))

    def multiply(a: Tensor, b: Tensor, dtype: torch.dtype, fast: bool) -> Callable[[], Tensor]:
        return lambda: torch._scaled_mm(a, b.mT, scale_a=one, scale_b=one, out_dtype=dtype, use_fast_accum=fast)

    return [
        multiply(x, w, torch.bfloat16, True),
        multiply(dy, w_columns, torch.bfloat16, True),
        multiply(dy_columns, x_columns, torch.float32, False),
    ]


def layer(inputs: int, outputs: int, recipe: Recipe, device: torch.device) -> Linear:
    """A Linear with random weights in the recipe's format."""
    with torch.device(device):
        linear = Linear(inputs, outputs)
    with torch.no_grad():
        linear.weight.copy_(normal((outputs, inputs), torch.float32, device, inputs**-0.5, seed=1))
        if recipe.compute != torch.float32:
            linear.format = recipe.format_for(linear)
            linear.format.refresh(linear.weight)
    return linear


def layer_ms(linear: Linear, rows: int, recipe: Recipe, compiled: bool, device: torch.device, repeats: int) -> float:
    """Milliseconds of one forward and backward of a layer, gradients of input and weight included. The weight is cast
    before, as it is for all micro-batches of an update but the first."""
    outputs, inputs = linear.shape
    if compiled:
        torch.compiler.reset()  # each layer is one more graph of the same code, of which torch keeps a few only
    call = torch.compile(linear, dynamic=False, fullgraph=recipe.graph) if compiled and recipe.graph else linear

    x, _, dy = operands((rows, inputs, outputs), recipe.compute, device)
    x.requires_grad_()

    def step() -> None:
        x.grad = linear.weight.grad = None
        with te.context(recipe.name, device):
            y = call(x)
        y.backward(dy)

    return median_ms(step, device, repeats=repeats)


def floor_ms(shape: tuple[int, int, int], ceiling: float | None, gbps: float) -> float | None:
    """The products at the ceiling, or x (read twice), dx, y and dy in bf16 at the bandwidth: whichever is longer."""
    if ceiling is None:
        return None
    rows, inputs, outputs = shape
    traffic = 2 * rows * (3 * inputs + 2 * outputs)
    return max(6 * rows * inputs * outputs / ceiling / 1e9, traffic / gbps / 1e6)


def measure(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """The whole result: the limits, the products alone, and each shape under each recipe."""
    shapes = parse_shapes(args.shapes)
    compiled = args.compile == "on" or (args.compile == "auto" and device.type == "cuda")
    recipes, refused = allowed(args.recipes.split(","), device)
    limits = ceilings(device)
    products, layers = [], []
    for inputs, outputs in shapes:
        shape = (args.rows, inputs, outputs)
        name = {"inputs": inputs, "outputs": outputs}
        alone = {}
        for form in ("bf16", "fp8") if has_fp8(device) else ("bf16",):
            parts = products_ms(shape, form == "fp8", device, args.repeats)
            alone[form] = sum(parts.values())
            products.append(name | {"format": form} | parts | {"ms": alone[form], "tflops": tflops(shape, alone[form])})
        for recipe in recipes:
            linear = layer(inputs, outputs, recipe, device)
            ms = layer_ms(linear, args.rows, recipe, compiled, device, args.repeats)
            layers.append(name | layer_row(shape, linear, recipe, ms, limits, alone))
            del linear
    result = header("linear", device) | limits | {"rows": args.rows, "compiled": compiled}
    return result | {"refused": refused, "products": products, "layers": layers}


def allowed(names: list[str], device: torch.device) -> tuple[list[Recipe], dict[str, str]]:
    """The recipes that the device runs, and why it refuses the others."""
    recipes, refused = [], {}
    for name in names:
        try:
            recipes.append(resolve(name, device))
        except UserError as error:
            refused[name] = str(error)
    return recipes, refused


def tflops(shape: tuple[int, int, int], ms: float) -> float:
    """TFLOP/s of a layer's three products of rows × inputs × outputs."""
    return 6 * math.prod(shape) / ms / 1e9


def layer_row(
    shape: tuple[int, int, int],
    linear: Linear,
    recipe: Recipe,
    ms: float,
    limits: dict[str, float | None],
    alone: dict[str, float],
) -> dict[str, Any]:
    """One layer's figures; `alone` holds the milliseconds of its products by number format."""
    # A recipe leaves a layer that is small or misaligned in bf16.
    form = "bf16" if isinstance(linear.format, Bf16) else number_format(recipe.name)
    ceiling = ceiling_of(form, limits)
    return {
        "recipe": recipe.name,
        "format": type(linear.format).__name__,
        "ms": ms,
        "tflops": tflops(shape, ms),
        "share_of_ceiling": tflops(shape, ms) / ceiling if ceiling else None,
        "floor_ms": floor_ms(shape, ceiling, limits["copy_gbps"]),
        "beside_products_ms": ms - alone[form] if form in alone else None,
    }


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    report(measure(args, first_device()), args.json)


if __name__ == "__main__":
    run_main(main)
