"""Proof of a plan without its hardware: what a rehearsed update takes and does, by instruments that torch contains.

    memory      torch.distributed._tools: FSDPMemTracker of a sharded learner, MemTracker of any other
    operations  torch.utils.flop_counter.FlopCounterMode
    bytes       the collectives that reach the process group

The tracker counts live tensors, as the plan does. It counts none of NCCL's buffers, workspaces of kernels, and memory
that an allocator keeps. Operations of attention are those of whole matrices, without regard to the causal mask.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from winnow.commands.check.rehearsal import Rehearsal, full_batch, rehearsal
from winnow.errors import ConfigError
from winnow.learner.gradient_norms import Rollouts, embedding_gradients, output_head_norms
from winnow.learner.learner import Learner
from winnow.learner.policy import Policy
from winnow.learner.policy_module import PolicyModule
from winnow.learner.sharding import reshard
from winnow.learner.value_model import Critic, ValueModel
from winnow.memory.demand import Demand
from winnow.memory.parts import micro_batch_tokens, model_parts
from winnow.memory.plan import MemoryPart
from winnow.records import Batch, MicroBatch

UPDATE, VALUE_UPDATE, LOGPROBS = "update", "value update", "log-probs"
ATEN, C10D = torch.ops.aten, torch.ops.c10d


@dataclass(frozen=True)
class ProvedPart:
    """Bytes of a part or a moment of training on one rank, by the plan and by the tracker."""

    name: str
    planned: int
    tracked: int

    @property
    def ratio(self) -> float:
        """Plan over tracker; 1 where both are 0."""
        return self.planned / self.tracked if self.tracked else float(self.planned == 0) or float("inf")


@dataclass(frozen=True)
class Pass:
    """A rank's pass over one micro-batch."""

    name: str  # "update", "value update", "old log-probs", "reference", "probe", "prefill"
    tokens: int  # that the backbone reads, padding included
    operations: int
    gathered: int  # bytes of the whole tensors that all-gathers return
    scattered: int  # bytes of the whole tensors that reduce-scatters sum
    reduced: int  # bytes of the tensors that all-reduces sum


@dataclass(frozen=True)
class Proof:
    """What torch's instruments find in a rehearsed step."""

    tracker: str  # the class that tracked memory
    rows: tuple[ProvedPart, ...]
    passes: tuple[Pass, ...]
    seconds: float


def prove(demand: Demand, *, needs: frozenset[str], limit: float = float("inf")) -> Proof:
    """Rehearse the passes of a step, beside the plan for the same demand.

    `needs` are what loss and terms read besides log-probs, with "ref_logprobs" where anything reads the reference's.
    Raises ConfigError if torch has no such instruments, for settings that cannot be rehearsed, and after `limit`
    seconds.
    """
    begin = time.monotonic()
    try:
        with rehearsal(demand, needs=needs) as made, made.mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the trackers' about gradients that winnow has already summed
            walk = _Walk(made, demand, needs, until=begin + limit)
            walk.run()
    except ImportError as error:
        raise ConfigError(
            f"torch {torch.__version__} has no instrument for a proof ({error})",
            remedy="install torch 2.11 or later, or plan without a proof",
            code="config.unsupported",
        ) from error
    except TimeoutError as error:
        raise ConfigError(
            f"the rehearsal was stopped after {limit:g} seconds",
            remedy="give it more time, or lower update.tokens_per_micro_batch",
            code="config.unsupported",
        ) from error
    rows = [ProvedPart(name, size, walk.tracked[name]) for name, size in planned(demand, needs).items()]
    return Proof(walk.tracker_name, tuple(rows), tuple(walk.passes), time.monotonic() - begin)


def planned(demand: Demand, needs: frozenset[str]) -> dict[str, int]:
    """Name of a part -> bytes of the plan on the policy's device, without those of an engine."""
    parts = [part for part in model_parts(demand, needs) if part.device == demand.device and not part.writer]
    always, moments = _sum(parts, "always"), _sum(parts, "always", "optimizer")
    rows = {"parameters": always - moments, "moments": moments}
    for phase, after in ((UPDATE, "sums"), (VALUE_UPDATE, "value sums")):
        if any(part.phase == phase for part in parts):
            rows[f"{phase}: gradients"] = _sum(parts, phase, "gradients")
            rows[f"{phase}: activations"] = _sum(parts, phase, "activations", "what the value head reads")
            rows[f"{phase}: peak"] = always + max(_sum(parts, phase), _sum(parts, after))
    if needs & {"old_logprobs", "ref_logprobs"}:
        rows[f"{LOGPROBS}: peak"] = always + _sum(parts, "logprobs")
    return rows


def _sum(parts: list[MemoryPart], phase: str, *endings: str) -> int:
    return sum(part.bytes for part in parts if part.phase == phase and part.name.endswith(endings or ("",)))


class _Walk:
    """The passes of a step, in a training step's order, each under the instruments."""

    def __init__(self, made: Rehearsal, demand: Demand, needs: frozenset[str], *, until: float) -> None:
        self.learner, self.critic, self._demand, self._needs = made.learner, made.critic, demand, needs
        self._until = until
        self.tracked: dict[str, int] = {}
        self.passes: list[Pass] = []
        self.tracker_name = ""

    def run(self) -> None:
        """Fill `tracked` and `passes`."""
        config, demand = self._demand.config, self._demand
        tokens = micro_batch_tokens(demand, demand.step_rollouts)
        batch = full_batch(config, prompt_tokens=demand.prompt_tokens, tokens=tokens, number=demand.ranks)
        policy = self.learner.model
        with self._tracking(policy.module) as memory:
            self.tracked["parameters"] = memory.held
            for trained in (self.critic, self.learner):
                if trained is not None:
                    _give_gradients(trained)
                    trained.step()  # makes the moments
        with self._tracking(policy.module) as memory:
            self.tracked["moments"] = memory.held - self.tracked["parameters"]
            (mb,) = policy.micro_batches(batch.sequences)
            self._log_probs(mb)
            self.tracked[f"{LOGPROBS}: peak"] = memory.peak
        if self.critic is not None:
            self._update(VALUE_UPDATE, self.critic, batch)
        self._update(UPDATE, self.learner, batch)
        if self._demand.measured:
            self._probe(mb)
        self._prefill(mb)

    def _probe(self, mb: MicroBatch) -> None:
        """The pass for gradient norms, up to the gradients. The rest separates their tokens, which needs numbers."""
        policy, config = self.learner.model, self._demand.config
        of = {"embedding": embedding_gradients, "output_head": output_head_norms}[config.probe.gradient_norm]
        rollouts = Rollouts(mb.sequences, policy, config.rollout.temperature, self._demand.chunk_tokens)
        with self._counting("probe", mb):
            of(policy.module, rollouts)
        reshard(policy.module)

    @torch.no_grad()
    def _prefill(self, mb: MicroBatch) -> None:
        """An engine's pass over prompts: as many as the micro-batch has rows, and the logits of their last tokens."""
        module = self.learner.model.module
        prompts = torch.zeros((len(mb.sequences), len(mb.sequences[0].prompt.tokens)), dtype=torch.int64)
        with self._counting("prefill", mb, read=prompts.numel()):
            module(lambda backbone, head: module.model(input_ids=prompts, use_cache=True, logits_to_keep=1).logits)
        reshard(module)

    def _update(self, name: str, trained: Any, batch: Batch) -> None:
        """A micro-batch whose gradients are added to those of an earlier one, and an update."""
        (mb,) = trained.micro_batches(batch)
        with self._counting(name, mb):
            trained.backward(self._forward(trained.model, mb))
        for holder, _ in trained.sums():
            holder.grad = None
        with self._tracking(trained.model.module) as memory:
            before = memory.held
            _give_gradients(trained)
            earlier = memory.held
            scalar = self._forward(trained.model, mb)
            self.tracked[f"{name}: activations"] = memory.held - earlier - memory.gathered
            trained.backward(scalar)
            del scalar
            self.tracked[f"{name}: gradients"] = memory.held - before
            trained.step()
            self.tracked[f"{name}: peak"] = memory.peak

    def _forward(self, model: Policy | ValueModel, mb: MicroBatch) -> Tensor:
        """A scalar with the gradient's paths of the objective."""
        if isinstance(model, ValueModel):
            return model.values(mb).sum()
        out = model.forward(mb, self._needs)
        return sum((part.sum() for part in (out.entropy, out.values) if part is not None), out.logprobs.sum())

    @torch.no_grad()
    def _log_probs(self, mb: MicroBatch) -> None:
        """The passes before a step's updates, of the policy and of its reference."""
        policy = self.learner.model
        with self._counting("old log-probs", mb):
            policy.forward(mb)
        reshard(policy.module)
        if self.learner.reference is not None:
            with self.learner.reference.active() as module:
                with self._counting("reference", mb):
                    policy.forward(mb, module=module)
                reshard(module)

    @contextmanager
    def _tracking(self, module: PolicyModule) -> Iterator[_Memory]:
        """Track memory while passes go through a module, from what exists at all times."""
        memory = _Memory(module, self._lasting())
        self.tracker_name = type(memory.tracker).__name__
        with memory.tracker, _Limit(self._until):
            memory.forget_modules()
            yield memory

    def _lasting(self) -> list[Tensor]:
        """Parameters, buffers, masters and moments of all models."""
        modules: list[nn.Module] = [self.learner.model.module]
        if self.critic is not None:
            modules.append(self.critic.model.module)
        if self.learner.reference is not None:
            with self.learner.reference.active() as module:
                modules.append(module)
        tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        states = [each.state() for each in (self.learner, self.critic) if each is not None]
        return [*tensors, *(t for state in states for t in state.values())]

    @contextmanager
    def _counting(self, name: str, mb: MicroBatch, *, read: int | None = None) -> Iterator[None]:
        """Count operations and collectives of a pass that reads a micro-batch, or `read` other tokens.

        It is no context for an update whose memory is tracked: the counter keeps what checkpointed layers compute
        again.
        """
        watch = _Collectives(self._until)
        counter = flop_counter.FlopCounterMode(display=False, custom_mapping=ATTENTION)
        counter.mod_tracker = _OnePlace()  # type: ignore[assignment]
        with counter, watch:
            yield
        longest = max(len(s.prompt.tokens) + len(s.rollout.tokens) for s in mb.sequences)
        self.passes.append(
            Pass(
                name=name,
                # nothing follows the last token, so it is not read
                tokens=len(mb.sequences) * (longest - 1) if read is None else read,
                operations=counter.get_total_flops(),
                **watch.bytes,
            )
        )


def _give_gradients(trained: Learner | Critic) -> None:
    """Gradients of every trained parameter, as an earlier micro-batch leaves them."""
    for holder, parameter in trained.sums():
        holder.grad = torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32))


class _Memory:
    """Bytes by torch's tracker."""

    def __init__(self, module: PolicyModule, lasting: list[Tensor]) -> None:
        from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
        from torch.distributed._tools.mem_tracker import MemTracker
        from torch.distributed.fsdp import FSDPModule

        self.tracker: Any
        if isinstance(module, FSDPModule):
            self.tracker = FSDPMemTracker(module)
            self.tracker.track_inputs(tuple(lasting))
        else:
            self.tracker = MemTracker()
            self.tracker.track_external(*lasting)

    @property
    def held(self) -> int:
        """Bytes that exist now."""
        return self._snapshot("current").get("Total", 0)

    @property
    def peak(self) -> int:
        """The most bytes that existed at once so far."""
        return self._snapshot("peak").get("Total", 0)

    @property
    def gathered(self) -> int:
        """Bytes of other ranks' shares that exist now."""
        now = self._snapshot("current")
        return now.get("Unsharded Param", 0) + now.get("All Gather", 0)

    def forget_modules(self) -> None:
        """Drop the statistics of modules, which a tracker keeps for one iteration only. Those of every module would
        take most of the time.
        """
        self.tracker.reset_mod_stats()
        self.tracker._mod_tracker.clear_user_hooks()

    def _snapshot(self, kind: str) -> dict[str, int]:
        every = self.tracker.get_tracker_snapshot(kind).values()
        return {getattr(key, "value", key): size for of_device in every for key, size in of_device.items()}


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *others: Any, **more: Any) -> int:
    return int(flop_counter.sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _attention_backward(
    gradient: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *others: Any, **more: Any
) -> int:
    return int(flop_counter.sdpa_backward_flop_count(gradient, query, key, value))  # type: ignore[no-untyped-call]


ATTENTION = {  # torch's counter has no formula for its kernel of the CPU
    ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


class _OnePlace:
    """In place of the counter's tracker of modules, whose hooks forbid a backward pass to chosen tensors."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class _Limit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises TimeoutError in the first operation after `until`. It answers for the device of a fake tensor, the most
    frequent operation, before a counter or tracker sees it.
    """

    def __init__(self, until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._until = until

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(each is DTensor for each in types):  # its local tensors follow
            return NotImplemented
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if time.monotonic() > self._until:
            raise TimeoutError
        return func(*args, **(kwargs or {}))


class _Collectives(_Limit):  # type: ignore[no-untyped-call]
    """Bytes that the collectives exchange."""

    def __init__(self, until: float) -> None:
        super().__init__(until)
        self.bytes = {"gathered": 0, "scattered": 0, "reduced": 0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is C10D._allgather_base_.default:
            self.bytes["gathered"] += args[0].nbytes
        elif func is C10D._reduce_scatter_base_.default:
            self.bytes["scattered"] += args[1].nbytes
        elif func is C10D.allreduce_.default:
            self.bytes["reduced"] += sum(tensor.nbytes for tensor in args[0])
        return super().__torch_dispatch__(func, types, args, kwargs)
