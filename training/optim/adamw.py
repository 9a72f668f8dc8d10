"""AdamW (arXiv 1711.05101) without decay, for embeddings, head and scalars, as one pure function on flat tensors."""

import torch
from torch import Tensor

BETAS = (0.8, 0.95)
EPSILON = 1e-10
# Of vectors, such as the layers' scales. At the first update their gradient is 0 but for rounding, which a smaller
# epsilon would blow up to a whole step: runs that differ in nothing but their number of ranks drift apart by it.
VECTOR_EPSILON = 1e-6


def adamw_step(
    weights: Tensor,
    gradients: Tensor,
    mean: Tensor,
    square: Tensor,
    rate: Tensor,
    corrections: tuple[Tensor, Tensor],
    gradient_scale: Tensor,
    epsilon: float,
) -> None:
    """One step on any shape; updates `weights`, `mean` and `square` in place.

    `corrections` are 1 - β₁ᵗ and 1 - β₂ᵗ at this step, and `gradient_scale` the factor on the gradients, as scalar
    tensors.
    """
    gradients = gradients * gradient_scale
    # Computed in float32 also where they are kept in bf16.
    new_mean = torch.lerp(mean.float(), gradients, 1 - BETAS[0])
    new_square = torch.lerp(square.float(), gradients.square(), 1 - BETAS[1])
    mean.copy_(new_mean)
    square.copy_(new_square)
    denominator = (new_square / corrections[1]).sqrt() + epsilon
    weights.sub_(rate * (new_mean / corrections[0]) / denominator)
