"""The kernels behind model.kernels.mlp_fp8: QuACK's fp8 product for Hopper with epilogues of our own, compiled when
first used; imports QuACK, so it is imported on a GPU alone.

An epilogue is a function of one sum `acc`, of the number `c` of the operand C at its place, and of scalars that lie on
the device. What it returns is rounded to the nearest number of the output's format, beyond its range to the largest.
"""

from dataclasses import dataclass

import cutlass.cute as cute
from quack.activation import relu
from quack.epilogue.frontend import EpiMod, gemm_epilogue
from quack.epilogue.ops import Scalar
from torch import Tensor


@dataclass(frozen=True)
class Tiles:
    """How a product is computed: in tiles of m × n; `pingpong` has two warp groups take turns, one doing a tile's
    epilogue while the other multiplies, otherwise they halve each tile; `fast` as in precision.fp8.scaled_product, else
    sums are added up outside the matrix unit, which takes twice the registers; `cluster` CTAs share a tile of B."""

    m: int
    n: int
    pingpong: bool
    fast: bool
    cluster: int = 2


UP = Tiles(128, 192, pingpong=True, fast=True)
DOWN_BACKWARD = Tiles(128, 192, pingpong=False, fast=False)


@gemm_epilogue(ops={"alpha": Scalar("alpha")})
def relu2(acc, alpha):
    h = relu(acc * alpha)
    return {"D": h * h}  # QuACK's relu_sq makes -0 of what is negative


@gemm_epilogue(ops={"beta": Scalar("beta")}, outputs=("dh_columns", "a_columns"))
def relu2_backward(acc, c, beta):
    dh = acc * beta * cute.math.sqrt(c, fastmath=True)
    return {"D": dh, "dh_columns": dh, "a_columns": c}


def launch_up(x8: Tensor, rows: Tensor, alpha: Tensor, a8: Tensor, tiles: Tiles = UP) -> None:
    """Fill a8 (N, M); see model.kernels.mlp_fp8.up."""
    _multiply(relu2, x8, rows, a8, None, {"alpha": alpha}, tiles)


def launch_down_backward(
    dy8: Tensor,
    columns: Tensor,
    a8: Tensor,
    beta: Tensor,
    dh8: Tensor,
    dh_columns: Tensor,
    a_columns: Tensor,
    tiles: Tiles = DOWN_BACKWARD,
) -> None:
    """Fill dh8 (N, M), dh_columns and a_columns (M, N); see model.kernels.mlp_fp8.down_backward.

    The transposes are written byte by byte, which still takes less than kernels that read all again.
    """
    operands = {"beta": beta, "dh_columns": dh_columns.mT, "a_columns": a_columns.mT}
    _multiply(relu2_backward, dy8, columns, dh8, a8, operands, tiles)


def _multiply(
    epilogue: EpiMod, a: Tensor, b: Tensor, out: Tensor, c: Tensor | None, operands: dict[str, Tensor], tiles: Tiles
) -> None:
    """a (M, K) and b (N, K), both contiguous -> epilogue(a bᵀ, c, operands) (M, N) into out."""
    epilogue.gemm(
        a,
        b,
        out,
        c,
        epi_args=operands,
        tile_M=tiles.m,
        tile_N=tiles.n,
        cluster_M=tiles.cluster,
        cluster_N=1,
        pingpong=tiles.pingpong,
        # Not among gemm's arguments, but read from the kernel's object before it is compiled.
        post_init_attrs=(("fp8_slow_accum", not tiles.fast),),
    )
