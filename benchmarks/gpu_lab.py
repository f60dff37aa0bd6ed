"""What every section of gpu.py needs: models of the public shapes, a clock that ends in time, a report on disk."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from winnow.engines.base import EngineContext
from winnow.records import Prompt

GIB = 2**30
RUNS = 2.0  # that a measurement takes at least: to warm up, and to be timed
FIRST_GUESS = 0.6  # seconds per minute of the whole run, before a kind of measurement has been taken
SECONDS = "median_seconds"  # in a record: that it was measured
SIZES: dict[str, dict[str, int]] = {  # of the public configurations of Qwen2.5; the embedding is tied in all of them
    "0.5B": dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, intermediate_size=4864),
    "1.5B": dict(hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, intermediate_size=8960),
    "3B": dict(hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, intermediate_size=11008),
    "tiny": dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=512),
}


@dataclass
class Lab:
    """One run: its settings, what is left of its time, and what it has found so far."""

    options: Any
    device: torch.device
    dtype: torch.dtype
    ends: float  # on time.perf_counter
    found: dict[str, Any]
    section: str = ""
    _seen: dict[str, dict[int, float]] = field(default_factory=dict)  # seconds of a run by kind and size

    @property
    def left(self) -> float:
        """Seconds until the section must be over."""
        return self.ends - time.perf_counter()

    def record(self, what: dict[str, Any]) -> None:
        """Add to the section's findings and write everything down, so that an end by force loses nothing."""
        self.found.setdefault(self.section, []).append(what)
        self.write()
        print(f"{self.section}: {what}", flush=True)

    def write(self) -> Path:
        return frame.write("gpu", self.found)

    def measure(
        self,
        kind: str,
        size: int,
        point: dict[str, Any],
        work: Callable[[], Any],
        *,
        warm_up: Callable[[], Any] | None = None,
        repeats: int = 3,
        budget: float | None = None,
    ) -> dict[str, Any]:
        """The point with the seconds of each run, their median (`SECONDS`) and the peak memory.

        Where there are none, with the reason instead: `out_of_memory`, `error`, or `skipped` for want of time. Runs are
        repeated as long as `budget` seconds allow (by default the options' for a point). Of one `kind`, the larger in
        `size` is expected to take longer.
        """
        expected = RUNS * self._expected(kind, size)
        if self.left < expected:
            return point | {"skipped": f"{self.left:.0f} s left, about {expected:.0f} s needed"}
        seconds: list[float] = []
        allowed = min(self.options.seconds_per_point if budget is None else budget, self.left)
        problem = self._attempt(warm_up or work)
        begin_peak(self.device)
        while not problem and (not seconds or _affords(seconds, repeats, allowed)):
            problem = self._attempt(lambda: seconds.append(self.time(work)))
        peak = peak_gib(self.device)
        release(self.device)
        if problem:
            return point | problem
        self._seen.setdefault(kind, {})[size] = max(seconds)
        return point | {"seconds": seconds, SECONDS: frame.median(seconds), "peak_gib": peak}

    def time(self, work: Callable[[], Any]) -> float:
        """Seconds from asking for the work to its end on the device."""
        synchronize(self.device)
        start = time.perf_counter()
        work()
        synchronize(self.device)
        return round(time.perf_counter() - start, 5)

    def _expected(self, kind: str, size: int) -> float:
        """Seconds of a run, from the seen one nearest in size: in proportion where that was smaller, else as many."""
        seen = self._seen.get(kind)
        if not seen:
            return float(self.options.minutes * FIRST_GUESS)
        nearest = min(seen, key=lambda other: max(other, size) / min(other, size))
        return seen[nearest] * max(1.0, size / nearest)

    def _attempt(self, work: Callable[[], Any]) -> dict[str, Any]:
        """What went wrong; a broken contestant must not cost the rest of the run."""
        try:
            work()
        except torch.OutOfMemoryError:
            return {"out_of_memory": True}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:500]}
        return {}


def _affords(seconds: Sequence[float], repeats: int, allowed: float) -> bool:
    return len(seconds) < repeats and sum(seconds) + seconds[-1] < allowed


def synchronize(device: torch.device) -> None:
    """Wait for everything that the device was asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def begin_peak(device: torch.device) -> None:
    """Count the peak from what is held now."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """The most memory allocated since `begin_peak`; None on the CPU, where nobody counts."""
    return round(torch.cuda.max_memory_allocated(device) / GIB, 2) if device.type == "cuda" else None


def random_model(shape: str, lab: Lab) -> Any:
    """A Qwen2 of a public shape with random weights, made on the device."""
    config = transformers.Qwen2Config(
        **{"vocab_size": 151936, "num_key_value_heads": 2, **SIZES[shape]},
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with lab.device:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=lab.dtype, attn_implementation="sdpa")
    return model.eval()


def random_prompts(number: int, length: int, vocabulary: int) -> list[Prompt]:
    """`number` prompts of `length` random tokens."""
    rng = np.random.default_rng(0)
    return [
        Prompt(id=str(i), tokens=rng.integers(0, vocabulary, length), text="", answer=None, task="random")
        for i in range(number)
    ]


def engine_context(model: Any, rollouts: int, context_tokens: int) -> EngineContext:
    """For rollouts that nothing ends but their length; the tokenizer has a word for each token."""
    words = WordLevel({f"w{i}": i for i in range(model.config.vocab_size)}, unk_token="w0")
    return EngineContext(
        model=model,
        tokenizer=transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)),
        stop_tokens=(),
        max_rollouts_at_once=rollouts,
        context_tokens=context_tokens,
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a model costs per token, counted rather than measured."""

    weight_bytes: int  # a tied embedding counts once: the output layer reads it, the input only looks rows up
    parameters: int
    head_parameters: int  # of these, in the output layer
    key_value_bytes: int  # per token
    attention_flops: int  # per token and token of context


def cost_of(model: Any) -> Cost:
    """Count."""
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    parameters = list(model.parameters())
    return Cost(
        weight_bytes=sum(p.numel() * p.element_size() for p in parameters),
        parameters=sum(p.numel() for p in parameters),
        head_parameters=config.vocab_size * config.hidden_size,
        key_value_bytes=config.num_hidden_layers
        * 2
        * config.num_key_value_heads
        * width
        * parameters[0].element_size(),
        attention_flops=4 * config.num_hidden_layers * config.hidden_size,
    )
