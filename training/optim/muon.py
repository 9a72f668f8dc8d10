"""Muon: momentum whose update is made orthogonal (Jordan 2024), for stacks of equal matrices at once.

Orthogonalisation by Polar Express (Amsel et al., arXiv 2505.16932), variance reduction by NorMuon (Li et al.,
arXiv 2510.05491), and weight decay only where it agrees with the update (arXiv 2510.12402).
"""

import torch
from torch import Tensor

# Polar Express for 5 iterations, bound 1e-3, with a safety factor of 1.02 on each polynomial (their algorithm 1).
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
SECOND_MOMENT = 0.95
EPSILON = 1e-10


def orthogonalize(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Nearest semi-orthogonal matrices of (N, rows, columns), about: singular values end within 0.7 … 1.2.

    Computed in `dtype`; bf16 is enough, since the iteration corrects itself.
    """
    x = matrices.to(dtype)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-6)
    if x.shape[-2] > x.shape[-1]:  # the smaller Gram matrix, on the other side
        for a, b, c in POLAR_EXPRESS:
            gram = x.mT @ x
            x = a * x + x @ (b * gram + c * (gram @ gram))
        return x
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x


def muon_step(
    weights: Tensor,
    gradients: Tensor,
    velocity: Tensor,
    variance: Tensor,
    rate: Tensor,
    momentum: Tensor,
    decay: Tensor,
    gradient_scale: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """One step on a stack (N, rows, columns); returns the new weights, updates `velocity` and `variance` in place.

    `variance` is (N, rows, 1) or (N, 1, columns), along the longer side. `rate`, `momentum`, `decay` and the factor
    on the gradients are scalar tensors, so that a compiled step is not compiled again as they change.
    """
    gradients = gradients * gradient_scale
    smoothed = torch.lerp(velocity.float(), gradients, 1 - momentum)  # float32 also where velocity is kept in bf16
    velocity.copy_(smoothed)
    update = orthogonalize(torch.lerp(gradients, smoothed, momentum), dtype).float()  # Nesterov
    # NorMuon: even out the rows' (or columns') sizes, then restore the update's norm.
    across = -1 if variance.shape[-1] == 1 else -2
    square = update.square().mean(dim=across, keepdim=True)
    before = update.square().sum(dim=(-2, -1), keepdim=True)
    variance.lerp_(square, 1 - SECOND_MOMENT)
    update = update * variance.clamp_min(EPSILON).rsqrt()
    update = update * (before / update.square().sum(dim=(-2, -1), keepdim=True).clamp_min(EPSILON)).sqrt()
    scale = rate * max(1.0, weights.shape[-2] / weights.shape[-1]) ** 0.5
    shrink = scale * decay * weights * ((update * weights) >= 0)
    return weights - scale * update - shrink
