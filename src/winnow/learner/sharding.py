"""A policy of which every rank holds a share: FSDP2, layer by layer, over the one module that every pass goes through.

A layer's parameters are gathered before it computes and freed after it. Parameters outside the layers (embedding, last
norm, head) are gathered for a whole pass. A gradient is summed over the ranks as soon as backward has computed it (Zhao
et al. 2023, arXiv 2304.11277; Rajbhandari et al. 2020, arXiv 1910.02054, section 5.3). Unlike FSDP2's default,
gradients are summed and never averaged, because the sequence weights already include every normalisation.

A policy that computes in bfloat16 on float32 masters has shares of the masters, which are rounded when they are
gathered. Only this file uses torch's DTensor.

No rank ever has a whole model. The module is divided while it is on the meta device, and each rank then reads its rows
of every matrix from the files.

A checkpoint is written by one rank: it requests tensors by name, and the others send their shares. The writer may read
in any order and stop early. This exchange has a process group of its own, so that a save can run beside training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from winnow import ranks
from winnow.errors import RunFolderError
from winnow.learner.policy_module import PolicyModule
from winnow.models.adapter import plain_model, plain_names
from winnow.models.saved_weights import SavedWeights
from winnow.models.tensor_file import WeightsOnRead

T = TypeVar("T")

PIECE_BYTES = 2**24  # of a rank's share in one exchange with the writer
DONE, FAILED = -1, -2  # sent by the writer in place of a tensor's number


def shard(module: PolicyModule, saved: SavedWeights | None, *, masters: bool = False) -> None:
    """Keep only this rank's share of the module's parameters, in place. With `masters`, the shares are in float32, and
    gathered parameters are rounded from them. It exchanges data between all ranks, and so does every later pass.

    The shares of parameters on the meta device are read from `saved`, and a value head starts at zero. Without `saved`,
    the module has no numbers at all (commands/check/rehearsal.py).
    """
    computes_in = next(module.parameters()).dtype
    plain_model(module.model).get_input_embeddings().sparse = False  # FSDP2 scatters whole gradients
    for parameter in module.model.parameters() if masters else ():
        parameter.data = parameter.data.to(torch.float32)
    mesh = init_device_mesh((module.device if saved is None else saved.device).type, (ranks.count(),))
    precision = MixedPrecisionPolicy(
        param_dtype=computes_in if masters else None,
        reduce_dtype=torch.float32 if masters else None,
        cast_forward_inputs=False,
    )
    if module.value_head is not None:  # separately and without the precision policy: it stays float32
        fully_shard(module.value_head, mesh=mesh)
    indivisible = set(getattr(plain_model(module.model), "_no_split_modules", None) or ())  # transformers' list
    layers = [part for part in module.modules() if type(part).__name__ in indivisible]
    for part in (*layers, module):
        fully_shard(part, mesh=mesh, mp_policy=precision)
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    if saved is not None:
        _read_shares(module, saved)
        ranks.gather_from_all(None)  # a rank that could not read raises on all; the pass below would wait for it
        module.check()
        reshard(module)


@torch.no_grad()
def _read_shares(module: PolicyModule, saved: SavedWeights) -> None:
    """Give every share that is on the meta device its numbers."""
    for name, parameter in plain_names(plain_model(module.model).named_parameters()):
        if local_share(parameter).is_meta:
            begin, rows = _rows(parameter)
            numbers = torch.empty_like(local_share(parameter), device=saved.device)
            if rows:
                numbers.copy_(saved.read(name, slice(begin, begin + rows)))
            _set_share(parameter, numbers)
    for parameter in module.value_head.parameters() if module.value_head is not None else ():
        if local_share(parameter).is_meta:
            _set_share(parameter, torch.zeros_like(local_share(parameter), device=saved.device))


def _set_share(parameter: Tensor, numbers: Tensor) -> None:
    """Set a share to numbers on another device. Parameters that are tied stay one object, as FSDP2 requires."""
    share = nn.Parameter(_as_share(numbers, parameter), parameter.requires_grad)
    torch.utils.swap_tensors(parameter, share)  # type: ignore[no-untyped-call]


def _as_share(numbers: Tensor, like: Tensor) -> Tensor:
    """This rank's rows of a tensor as a share, divided like `like`, which has as many rows."""
    assert isinstance(like, DTensor), "only shares are read"
    mesh, placements = like.device_mesh, like.placements
    shape = torch.Size([like.shape[0], *numbers.shape[1:]])
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(numbers, mesh, placements, run_check=False, shape=shape, stride=stride)


def share_of_rows(numbers: Tensor, like: Tensor) -> Tensor:
    """This rank's rows of a tensor that has as many rows as `like`, as a share where `like` is one."""
    return _as_share(numbers, like) if isinstance(like, DTensor) else numbers


def first_row(tensor: Tensor) -> int:
    """The number of the first row that this rank holds of a tensor."""
    return _rows(tensor)[0] if isinstance(tensor, DTensor) else 0


def _rows(tensor: Tensor) -> tuple[int, int]:
    """This rank's first row of a tensor, and the number of its rows. Of R rows each rank has the next ceil(R / ranks);
    the last ranks have fewer or none.
    """
    each = -(-tensor.shape[0] // ranks.count())
    begin = min(tensor.shape[0], ranks.rank() * each)
    return begin, min(each, tensor.shape[0] - begin)


def reshard(module: PolicyModule) -> None:
    """Free the parameters outside the layers that a pass gathered, where no backward follows that would free them."""
    if isinstance(module, FSDPModule):
        module.reshard()


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank has only a share of the tensor."""
    return isinstance(tensor, DTensor)


def gather_whole(tensor: Tensor) -> Tensor:
    """The whole tensor; gathering shares is an exchange of all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_share(tensor: Tensor) -> Tensor:
    """This rank's share of a tensor, as a plain tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This rank's share of a tensor that every rank has whole, divided like `like`; no exchange. Only the share is
    moved to the device of `like`.
    """
    if not isinstance(like, DTensor):
        return tensor.to(like.device)
    begin, rows = _rows(like)
    return _as_share(tensor[begin : begin + rows].to(like.device, copy=True), like)


class GatheredWeights(WeightsOnRead):
    """Weights that are gathered from all ranks one by one when they are read, in the precision of computation.

    Every rank must read the same names in the same order, each once. `finish` reads the remaining ones, so that a rank
    whose engine failed does not make the other ranks wait.
    """

    def __init__(self, shares: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
        self._shares, self._dtype, self.names = shares, dtype, shares.keys()
        self._unread = dict.fromkeys(shares)

    def __getitem__(self, name: str) -> Tensor:
        share = self._shares[name]
        self._unread.pop(name, None)
        rounded = share.detach().to(self._dtype or share.dtype)
        with ranks.spent.on("weights", local_share(rounded).nbytes):
            return gather_whole(rounded)

    def finish(self) -> None:
        """Read every weight that has not been read."""
        for name in list(self._unread):
            self[name]


class SharesToWriter:
    """Tensors by name, the same names on every rank. No copy is made at first: a share is read when it is requested."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._shared = [name for name, tensor in tensors.items() if is_sharded(tensor)]

    def written(self, write: Callable[[], T]) -> T | None:
        """Run `write`, which may call `read`, on the writer, and return its result. Other ranks send shares until it
        has finished, and return None; where no tensor is shared, they return at once.

        An exception of `write` is raised on the writer, and RunFolderError on the ranks that send shares.
        """
        if not self._shared:
            return write() if ranks.is_writer() else None
        if not ranks.is_writer():
            while (number := _receive_request()) >= 0:
                self._gathered(self._tensors[self._shared[number]])
            if number == FAILED:
                raise RunFolderError(
                    "rank 0 could not save",
                    remedy="read the message of rank 0 for the cause",
                    code="run_folder.unsaved",
                )
            return None
        try:
            result = write()
        except BaseException:
            _send_request(FAILED)  # else the other ranks would wait for a request for ever
            raise
        _send_request(DONE)
        return result

    def read(self, name: str) -> Tensor:
        """On the writer: the whole tensor, in host memory where it was shared."""
        tensor = self._tensors[name]
        if not is_sharded(tensor):
            return tensor
        _send_request(self._shared.index(name))
        return self._gathered(tensor)

    def _gathered(self, tensor: Tensor) -> Tensor:
        """The whole tensor on the writer; this rank's share on other ranks."""
        rows = -(-tensor.shape[0] // ranks.count())
        mine = local_share(tensor).detach().cpu()
        if len(mine) < rows:
            mine = torch.cat([mine, mine.new_zeros((rows - len(mine), *tensor.shape[1:]))])
        whole = mine.new_empty((rows * ranks.count(), *tensor.shape[1:])) if ranks.is_writer() else None
        with ranks.exchanging("what is saved"):
            for piece in _pieces(mine):
                parts = None if whole is None else [of_rank[piece] for of_rank in torch.split(whole, rows)]
                torch.distributed.gather(mine[piece], parts, dst=0, group=ranks.saving_group())
        return mine if whole is None else whole[: tensor.shape[0]]


def _pieces(share: Tensor) -> Iterator[slice]:
    """Rows of a share that are sent together: gloo makes a copy of what it gathers."""
    each = max(1, PIECE_BYTES // max(1, share[:1].nbytes))
    return (slice(begin, begin + each) for begin in range(0, len(share), each))


def _send_request(number: int) -> None:
    with ranks.exchanging("what is saved"):
        torch.distributed.broadcast(torch.tensor([number]), src=0, group=ranks.saving_group())


def _receive_request() -> int:
    number = torch.zeros(1, dtype=torch.int64)
    with ranks.exchanging("what is saved"):
        torch.distributed.broadcast(number, src=0, group=ranks.saving_group())
    return int(number)
