"""Shared by the parts of gpu.py: models of public shapes, time limits, and the report on disk."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
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
RUNS = 2.0  # minimum runs of a measurement: a warm-up, and a timed one
FIRST_GUESS = 0.6  # estimated seconds of a first measurement, per minute of the part
PER_RUN = 10  # operations per timed run of a ceiling
SECONDS = "median_seconds"  # the key of a record that was measured
SHAPES: dict[str, dict[str, int]] = {  # from the public configurations of Qwen2.5; all have tied embeddings
    "0.5B": dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, intermediate_size=4864),
    "1.5B": dict(hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, intermediate_size=8960),
    "3B": dict(hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, intermediate_size=11008),
    "tiny": dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=512),
}
PEAKS = {"H200": 989.4e12, "H100": 989.4e12, "A100": 312e12}  # dense bfloat16 operations per second, by the vendor


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a measurement on a GPU, and of a dry run, which is a smoke test."""

    shapes: tuple[str, ...] = ("1.5B", "0.5B", "3B")  # the first one is measured in full
    prompt_tokens: int = 128
    tokens: int = 256  # per rollout
    rollouts: tuple[int, ...] = (64, 8, 512, 128, 256, 32, 16)  # concurrent ones, in order of measurement
    few_rollouts: tuple[int, ...] = (64, 512, 8)  # for the other shapes
    updated: int = 128  # rollouts per update
    unequal: tuple[int, int] = (800, 4096)  # tokens of rollouts of unequal lengths: median, and maximum
    micro_batches: tuple[int, ...] = (16384, 65536)  # tokens
    most_rollouts: int = 1024  # maximum tried in one micro-batch
    cap_gib: float = 47.0  # on a card of 48 GiB, less the memory of CUDA itself
    seconds_per_point: float = 8.0  # spent on repeating a measurement
    seconds_for_pairs: float = 45.0
    resumed: tuple[str, ...] = ("grpo_pods", "gvm_window", "lora_kl")
    kills: int = 24
    published: tuple[tuple[int, int], ...] = ((64, 16), (64, 64))  # rollouts per prompt sampled, and trained on
    published_steps: int = 60


TINY = Sizes(
    shapes=("tiny",),
    prompt_tokens=6,
    tokens=4,
    rollouts=(64,),
    few_rollouts=(),
    updated=4,
    unequal=(4, 12),
    micro_batches=(64,),
    most_rollouts=8,
    seconds_per_point=0.1,
    seconds_for_pairs=0.1,
    resumed=("grpo_pods",),
    kills=1,
    published=((4, 2), (4, 4)),
    published_steps=1,
)


SHORT = replace(  # for a machine that is lent for minutes
    Sizes(),
    shapes=("1.5B",),
    rollouts=(64, 512, 8),
    micro_batches=(16384,),
    resumed=("grpo_pods",),
    kills=4,
    seconds_per_point=5.0,
    seconds_for_pairs=20.0,
)


@dataclass
class Lab:
    """One part: its sizes, its remaining time, and its results so far."""

    part: str
    device: torch.device
    folder: Path  # of the results
    sizes: Sizes
    minutes: float
    ends: float  # on time.perf_counter
    found: dict[str, Any]
    dry: bool = False
    dtype: torch.dtype = torch.bfloat16
    native: Sequence[tuple[str, dict[str, Any]]] = ()  # further options of native to measure, with their text
    _seen: dict[str, dict[int, float]] = field(default_factory=dict)  # kind -> size -> seconds of a run

    @property
    def left(self) -> float:
        """Seconds until the time limit of the part, or of its section."""
        return self.ends - time.perf_counter()

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """A section with a share of the remaining time."""
        ends = self.ends
        self.ends = time.perf_counter() + share * self.left
        try:
            yield
        finally:
            self.ends = ends

    def record(self, what: dict[str, Any], *, section: str = "records") -> None:
        """Add results to those of the part, and save all, so that a kill loses nothing."""
        self.found.setdefault(section, []).append(what)
        self.write()
        print(f"{self.part}: {what}", flush=True)

    def write(self) -> Path:
        report = {"device": described(self.device), "sizes": asdict(self.sizes), **self.found}
        return frame.write(f"gpu_{self.part}", report, folder=self.folder)

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

        Without a measurement it contains the reason: `out_of_memory`, `error`, or `skipped` for lack of time. Runs are
        repeated for `budget` seconds (by default those of the sizes). Within a `kind`, a larger `size` is expected to
        be slower.
        """
        expected = RUNS * self._expected(kind, size)
        if self.left < expected:
            return point | {"skipped": f"{self.left:.0f} s left, about {expected:.0f} s needed"}
        seconds: list[float] = []
        allowed = min(self.sizes.seconds_per_point if budget is None else budget, self.left)
        problem = self.attempt(warm_up or work)
        begin_peak(self.device)
        while not problem and (not seconds or _affords(seconds, repeats, allowed)):
            problem = self.attempt(lambda: seconds.append(self.time(work)))
        peak = peak_gib(self.device)
        release(self.device)
        if problem:
            return point | problem
        self._seen.setdefault(kind, {})[size] = max(seconds)
        return point | {"seconds": seconds, SECONDS: frame.median(seconds), "peak_gib": peak}

    def time(self, work: Callable[[], Any]) -> float:
        """Seconds from the start of the work to its end on the device."""
        synchronize(self.device)
        start = time.perf_counter()
        work()
        synchronize(self.device)
        return round(time.perf_counter() - start, 5)

    def attempt(self, work: Callable[[], Any]) -> dict[str, Any]:
        """Run the work, and return its error, so that a broken contestant does not end the part."""
        try:
            work()
        except torch.OutOfMemoryError:
            return {"out_of_memory": True}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:500]}
        return {}

    def _expected(self, kind: str, size: int) -> float:
        """Estimated seconds of a run, from the measured one nearest in size, scaled up in proportion to the size."""
        seen = self._seen.get(kind)
        if not seen:
            return self.minutes * FIRST_GUESS
        nearest = min(seen, key=lambda other: max(other, size) / min(other, size))
        return seen[nearest] * max(1.0, size / nearest)


def _affords(seconds: Sequence[float], repeats: int, allowed: float) -> bool:
    return len(seconds) < repeats and sum(seconds) + seconds[-1] < allowed


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Release unused memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def held(device: torch.device) -> int:
    """Bytes allocated now; 0 on the CPU, where they are not counted."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def begin_peak(device: torch.device) -> None:
    """Reset the peak to the current use."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    """The most bytes allocated since `begin_peak`; None on the CPU, where they are not counted."""
    return round(torch.cuda.max_memory_allocated(device) / GIB, 3) if device.type == "cuda" else None


def described(device: torch.device) -> dict[str, Any]:
    """A description of the device, for the result."""
    if device.type != "cuda":
        return {"name": device.type}
    has = torch.cuda.get_device_properties(device)
    return {"name": has.name, "memory_gib": round(has.total_memory / GIB, 1), "cuda": torch.version.cuda}


def ceilings(lab: Lab) -> dict[str, float]:
    """`bandwidth` in bytes per second, the best of three kinds of copies, and `matmul` in operations per second.

    `peak` is the vendor's figure for the operations, or 0.
    """
    large = lab.device.type == "cuda"
    rows = torch.randn(65536 if large else 1024, 16384 if large else 1024, device=lab.device, dtype=lab.dtype)  # 2 GiB
    side = 8192 if large else 256
    a, b = (torch.randn(side, side, device=lab.device, dtype=lab.dtype) for _ in range(2))
    speeds = {name: _speed(lab, name, work, amount) for name, (work, amount) in _moves(rows).items()}
    matmul = _speed(lab, "matmul", lambda: a @ b, 2 * side**3)
    name = described(lab.device)["name"]
    peak = next((operations for chip, operations in PEAKS.items() if chip in name), 0.0)
    return {"bandwidth": max(speeds.values()), "matmul": matmul, "peak": peak}


def _moves(rows: torch.Tensor) -> dict[str, tuple[Callable[[], Any], int]]:
    """The work, and the number of bytes that it reads and writes."""
    size = rows.numel() * rows.element_size()
    other, target = torch.ones_like(rows), torch.empty_like(rows)
    vector = torch.ones(rows.shape[1], device=rows.device, dtype=rows.dtype)
    return {
        "copy": (lambda: target.copy_(rows), 2 * size),
        "triad": (lambda: torch.add(rows, other, alpha=3.0, out=target), 3 * size),
        "matrix times vector": (lambda: rows @ vector, size),
    }


def _speed(lab: Lab, name: str, work: Callable[[], Any], amount: int) -> float:
    """Amount per second; 0 if it could not be measured."""

    def run() -> None:
        for _ in range(PER_RUN):
            work()

    measured = lab.measure("ceiling", 1, {"what": name}, run, repeats=5)
    speed = PER_RUN * amount / min(measured["seconds"]) if SECONDS in measured else 0.0
    unit, scale = ("tera_operations", 1e12) if name == "matmul" else ("gigabytes", 1e9)
    lab.record(measured | {f"{unit}_per_second": round(speed / scale, 2)}, section="ceilings")
    return speed


def share(speed: float, ceiling: float) -> float | None:
    """The share of a ceiling; None if the ceiling is unknown."""
    return round(speed / ceiling, 4) if ceiling else None


def random_model(shape: str, lab: Lab) -> Any:
    """A Qwen2 of a public shape with random weights, created on the device."""
    config = transformers.Qwen2Config(
        **{"vocab_size": 151936, "num_key_value_heads": 2, **SHAPES[shape]},
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
    """An engine's context without stop tokens; its tokenizer has a word for each token."""
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
    """The costs of a model per token, computed from its shape."""

    weight_bytes: int  # a tied embedding counts once: only the output layer reads all of it
    parameters: int
    head_parameters: int  # of these, in the output layer
    key_value_bytes: int  # per token
    attention_flops: int  # per token, per token of context
    vocabulary: int


def cost_of(model: Any) -> Cost:
    """Count."""
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    parameters = list(model.parameters())
    return Cost(
        weight_bytes=sum(p.numel() * p.element_size() for p in parameters),
        parameters=sum(p.numel() for p in parameters),
        head_parameters=config.vocab_size * config.hidden_size,
        key_value_bytes=2
        * config.num_hidden_layers
        * config.num_key_value_heads
        * width
        * parameters[0].element_size(),
        attention_flops=4 * config.num_hidden_layers * config.hidden_size,
        vocabulary=config.vocab_size,
    )
