"""Implementation of the engine `vllm`: one request per rollout to vLLM's scheduler, and weights for its workers.

vLLM is imported when the engine is made.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from winnow import seeds
from winnow.engines.base import OnRollout, PendingRollout
from winnow.engines.freshness import check_names, check_newer
from winnow.engines.policy_copy import TOLERANCES
from winnow.engines.requests import SamplingRequest
from winnow.engines.served import Served, ServedAdapter
from winnow.engines.stopping import StopRule, stop_rules
from winnow.engines.vllm.settings import VllmSettings
from winnow.engines.vllm.start import ranks_kept, start
from winnow.errors import EngineError, WinnowError
from winnow.memory.usage import memory_by_state
from winnow.records import FloatArray, Group, IntArray, Prompt, Sampling
from winnow.seeds import SeedName

if TYPE_CHECKING:
    from torch import Tensor


class VllmEngine:
    """See `vllm`. Loads whole models by the names of their checkpoints; before the first load its version is -1.

    Each rollout is a separate request, by default with a separate seed: `on_rollout` receives it when it is finished,
    it can be aborted and repeated alone, and vLLM's prefix cache shares common prefixes. Stop strings are detected here
    and not by vLLM, so that every engine ends a rollout at the same token.
    """

    def __init__(self, served: Served, settings: VllmSettings) -> None:
        self.version = -1
        self.logprob_tolerance = TOLERANCES[getattr(torch, served.dtype)]
        self._served = served
        self._sleep = settings.sleep
        self._asleep = set[str]()  # vLLM's tags of the memory that it has freed
        self.memory_mib: dict[str, float] = {}  # as winnow.memory.usage.memory_by_state
        self._rule = stop_rules(served.tokenizer, served.stop_tokens, served.vocabulary)
        with engine_errors("start"):
            self._llm = start(served, settings)
        # The second model runner has a seed per row, and takes a missing one from a generator that nobody can seed
        per_row = getattr(self._llm.llm_engine.vllm_config, "use_v2_model_runner", False)
        self._seed_per = "rollout" if per_row else settings.seed_per
        self._adapter = None if served.adapter is None else ServedAdapter(served.adapter)

    def generate(
        self,
        prompts: Sequence[Prompt],
        counts: Sequence[int],
        sampling: Sampling,
        *,
        seed: tuple[SeedName, ...],
        on_rollout: OnRollout | None = None,
    ) -> list[Group]:
        """See `Engine`. Also raises EngineError when the workers' weights are not of `version`."""
        rule = self._rule(sampling.stop)
        with SamplingRequest(prompts, counts, rule=rule, version=self.version, on_rollout=on_rollout) as request:
            _check_context(request.rollouts, sampling, self._served.context_tokens)
            self._wake()
            self._check_fresh()
            self._sample(request, rule, sampling, seed)
        self._read_memory("sampled")
        if self._sleep:
            with engine_errors("sleep"):
                self._llm.sleep(level=1)
            self._asleep = {"weights", "kv_cache"}
            self._read_memory("asleep")
        return request.groups()

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy weights to vLLM's workers, and empty the prefix cache, which was computed with older weights. Each
        weight is read once, in the mapping's order.

        The mapping contains the whole model. If an adapter is served, the first mapping contains model and adapter,
        and later ones only the adapter.
        """
        check_newer(version, than=self.version)
        adapter = [name for name in weights if name in self._served.adapter_names]
        base = [name for name in weights if name not in self._served.adapter_names]
        check_names(adapter, known=self._served.adapter_names, trained=sorted(self._served.adapter_names))
        if self._adapter is None or self.version < 0:
            check_names(base, known=self._served.names, trained=sorted(self._served.names))
        self._wake("weights")
        with engine_errors("load new weights"):
            if base:  # the workers read the weights one by one, from a mapping of this process or from the trainer
                self._llm.start_weight_update()
                self._llm.update_weights({"update_info": {"weights": weights, "names": base, "version": version}})
                self._llm.finish_weight_update(weight_version=str(version))
            if self._adapter is not None:
                self._adapter.load(self._llm, weights, adapter, version)
            emptied = self._llm.reset_prefix_cache()
        if not emptied:
            raise EngineError(
                "vLLM did not empty its prefix cache, which was computed with older weights",
                remedy="load weights only while no rollouts are in flight",
                code="engine.contract",
            )
        self.version = version
        self._read_memory("loaded")

    def close(self) -> None:
        """See `Engine`; ends vLLM's workers."""
        with ranks_kept():
            self._llm.llm_engine.engine_core.shutdown()

    def _sample(self, request: SamplingRequest, rule: StopRule, sampling: Sampling, seed: tuple[SeedName, ...]) -> None:
        adapter = {} if self._adapter is None else {"lora_request": self._adapter.request}
        engine, unfinished = self._llm.llm_engine, {str(i): pending for i, pending in enumerate(request.rollouts)}
        sampled = {name: GrowingRollout() for name in unfinished}
        try:
            with engine_errors("accept prompts"):
                if self._seed_per == "request":
                    # Other requests of this seed, such as those of other ranks, have other prompts
                    first = [pending.prompt.id for pending in request.rollouts[:1]]
                    self._llm.collective_rpc("seed_noise", args=(seeds.derive(*seed, *first) % 2**63,))
                for name, pending in unfinished.items():
                    parameters = self._parameters(pending, rule, sampling, seed)
                    engine.add_request(
                        name, {"prompt_token_ids": pending.prompt.tokens.tolist()}, parameters, **adapter
                    )
            while unfinished:
                request.check()
                with engine_errors("sample"):
                    outputs = engine.step()
                for output in outputs:
                    name, so_far = output.request_id, sampled[output.request_id]
                    so_far.add(output.outputs[0])
                    if not output.finished and not rule.ends(so_far.tokens):
                        continue
                    if not output.finished:
                        engine.abort_request([name])
                    request.finish(unfinished.pop(name), *sampled.pop(name).arrays())
        finally:
            engine.abort_request(list(unfinished))

    def _parameters(
        self, pending: PendingRollout, rule: StopRule, sampling: Sampling, seed: tuple[SeedName, ...]
    ) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            # With a seed per rollout, vLLM draws the noise of each row separately
            seed=seeds.derive(*seed, pending.prompt.id, pending.index) % 2**63 if self._seed_per == "rollout" else None,
            stop_token_ids=list(rule.tokens),
            ignore_eos=True,  # vLLM's guess of the end-of-sequence token; stop_token_ids lists the real ones
            logprobs=0,  # only that of the sampled token
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if rule.strings else RequestOutputKind.FINAL_ONLY,
        )

    def _wake(self, *tags: str) -> None:
        """Allocate again what sleeps of the memory that `tags` name, or of all of it. vLLM would allocate memory that
        is awake a second time.
        """
        if due := self._asleep.intersection(tags or self._asleep):
            with engine_errors("wake up"):
                self._llm.wake_up(sorted(due))
            self._asleep -= due

    def _read_memory(self, state: str) -> None:
        """Record the memory of the workers' devices; the workers may be separate processes."""
        with engine_errors("report its memory"):
            of_workers = self._llm.collective_rpc("used_on_devices")
        devices = {name: max(worker.get(name, 0.0) for worker in of_workers) for name in set().union(*of_workers)}
        self.memory_mib |= memory_by_state(state, devices)

    def _check_fresh(self) -> None:
        """Raise EngineError unless the workers have the weights of `version`. With an adapter, the base stays at
        version 0, and the adapter must have that version.
        """
        expected = self.version if self._adapter is None else 0
        with engine_errors("report its version"):
            versions = set(self._llm.collective_rpc("weights_version"))
            fresh = versions == {expected} and (self._adapter is None or self._adapter.is_of(self._llm, self.version))
        if not fresh:
            raise EngineError(
                f"stale weights: vLLM's workers have version {', '.join(sorted(map(str, versions)))}, and rollouts "
                f"of version {self.version} were requested",
                remedy="load the weights again",
                code="engine.stale_weights",
            )


class GrowingRollout:
    """The tokens and log-probs of a rollout so far, from vLLM's outputs.

    With stop strings, an output contains the new tokens; without, the only output contains all of them.
    """

    def __init__(self) -> None:
        self.tokens = array("q")
        self._logprobs = array("d")

    def add(self, completion: Any) -> None:
        """Append an output. Raises EngineError if a log-prob is missing or not finite."""
        if not completion.token_ids:
            return
        new = completion.logprobs.logprobs
        if len(new) != len(completion.token_ids):
            raise EngineError(
                f"vLLM returned {len(completion.token_ids)} tokens with {len(new)} log-probs",
                remedy="use the engine 'native'",
                key="rollout.engine",
                code="engine.contract",
            )
        if not all(map(math.isfinite, new)):
            raise EngineError(
                "vLLM's log-probs are not finite: the policy's weights have diverged",
                remedy="lower optimizer.learning_rate and continue from an earlier checkpoint",
                key="optimizer.learning_rate",
                code="engine.diverged",
            )
        self.tokens.extend(completion.token_ids)
        self._logprobs.extend(new)

    def arrays(self) -> tuple[IntArray, FloatArray]:
        """[L] the tokens and their log-probs."""
        return np.array(self.tokens, dtype=np.int64), np.array(self._logprobs, dtype=np.float64)


def _check_context(rollouts: Sequence[PendingRollout], sampling: Sampling, context_tokens: int) -> None:
    longest = max((len(pending.prompt.tokens) for pending in rollouts), default=0)
    if longest + sampling.max_new_tokens > context_tokens:
        raise EngineError(
            f"a prompt of {longest} tokens and max_new_tokens = {sampling.max_new_tokens} exceed the "
            f"{context_tokens} tokens that vLLM was started for",
            remedy="lower one, or raise prompt.max_prompt_tokens",
            key="prompt.max_prompt_tokens",
            code="engine.contract",
        )


@contextlib.contextmanager
def engine_errors(action: str) -> Iterator[None]:
    """Raise vLLM's exceptions as EngineError: they have too many types to distinguish."""
    try:
        yield
    except WinnowError:
        raise
    except Exception as error:
        beginning = " ".join(str(error).split()[:60])  # words, because the first of many lines rarely has the cause
        reason = f"{type(error).__name__}: {beginning}"
        raise EngineError(
            f"vLLM could not {action}: {reason}",
            remedy="resume the run after one of these: lower rollout.engine.gpu_memory_utilization (or key_value_gib) "
            "or rollout.max_rollouts_at_once where memory ran out, or use the engine 'native' where vLLM does not "
            "support the model",
            key="rollout.engine",
            code="engine.failed",
        ) from error
