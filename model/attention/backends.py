"""Every attention backend by name; what they have in common is in model.attention.protocol."""

from model.attention.flash import FA2, FA3, FA4
from model.attention.native import Cudnn, Flex, Matmul, Sdpa, Varlen
from model.attention.protocol import Attend, Backend, Request, causal_mask, reference

__all__ = ["BACKENDS", "Attend", "Backend", "Request", "Sdpa", "causal_mask", "reference"]

BACKENDS: dict[str, Backend] = {
    backend.name: backend for backend in (FA4, FA3, FA2, Varlen(), Flex(), Cudnn(), Sdpa(), Matmul())
}
