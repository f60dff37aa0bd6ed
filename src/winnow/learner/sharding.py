"""A policy of which every rank holds a share: FSDP2, layer by layer, over the one module that every pass goes through.

A layer's parameters are gathered before it computes and freed after it, and so are those around the layers (embedding,
last norm, head) for a whole pass; a gradient is summed over the ranks as soon as a backward has made it (Zhao et al.
2023, arXiv 2304.11277; Rajbhandari et al. 2020, arXiv 1910.02054, section 5.3). What winnow asks for otherwise than the
default: gradients are summed and never averaged, for the weights of the sequences already say what each counts.

A policy that computes in bfloat16 on float32 masters has the masters as its shares, which are rounded when they are
gathered. What is torch's DTensor is known to this file, and to nobody else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from winnow import ranks
from winnow.learner.policy_module import PolicyModule
from winnow.models.adapter import plain_model
from winnow.models.weights_on_read import WeightsOnRead


def shard(module: PolicyModule, masters: Mapping[str, Tensor] | None = None) -> None:
    """Leave every rank its share of the module's parameters, in place; with `masters`, of those, from which what
    computes is rounded. Exchanges between all ranks: every later pass, too.
    """
    computes_in = next(module.parameters()).dtype
    for name, parameter in module.model.named_parameters():
        if masters:
            parameter.data = masters[name]
    mesh = init_device_mesh(module.device.type, (ranks.count(),))
    precision = MixedPrecisionPolicy(
        param_dtype=computes_in if masters else None,
        reduce_dtype=torch.float32 if masters else None,
        cast_forward_inputs=False,
    )
    if module.value_head is not None:  # apart, as it is never rounded
        fully_shard(module.value_head, mesh=mesh)
    for part in (*_layers(module), module):
        fully_shard(part, mesh=mesh, mp_policy=precision)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)


def reshard(module: PolicyModule) -> None:
    """Free what a pass has gathered and no backward follows that would: the parameters around the layers."""
    if isinstance(module, FSDPModule):
        module.reshard()


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank has only a share of it."""
    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; of a share, an exchange of all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def own_share(tensor: Tensor) -> Tensor:
    """What this rank has of it, as a plain tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def share_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Of a whole tensor that every rank has, this rank's share, cut as that of `like` is; no exchange."""
    moved = tensor.to(like.device)
    if not isinstance(like, DTensor):
        return moved
    return distribute_tensor(moved, like.device_mesh, like.placements, src_data_rank=None)


class GatheredWeights(WeightsOnRead):
    """Weights of which each is gathered from all ranks when it is read, in the precision that it is computed with.

    Every rank reads the same names in the same order, each once; `finish` reads those that are left, so that a rank
    whose engine has failed does not leave the others waiting.
    """

    def __init__(self, shares: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
        self._shares, self._dtype = shares, dtype
        self._left = dict.fromkeys(shares)

    def __getitem__(self, name: str) -> Tensor:
        share = self._shares[name]
        self._left.pop(name, None)
        rounded = share.detach().to(self._dtype or share.dtype)
        with ranks.spent.on("weights", own_share(rounded).nbytes):
            return whole(rounded)

    @property
    def names(self) -> Collection[str]:
        return self._shares.keys()

    def finish(self) -> None:
        """Read what has not been read."""
        for name in list(self._left):
            self[name]


def _layers(module: PolicyModule) -> list[nn.Module]:
    """The layers of a transformers model, which says by its classes what must stay in one piece."""
    names = set(getattr(plain_model(module.model), "_no_split_modules", None) or ())
    return [part for part in module.modules() if type(part).__name__ in names]
