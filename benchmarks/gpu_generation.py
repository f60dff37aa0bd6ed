"""Tokens per second of plain generate, of continuous batching and of the native engine, by concurrent rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import frame
from baselines import Work, generate, generate_batch
from gpu_lab import SECONDS, Cost, Lab, ceilings, cost_of, engine_context, random_model, random_prompts, release, share

from winnow.options import bind
from winnow.records import Sampling
from winnow.registry import resolve

ROLLOUTS_PER_PROMPT = 32  # at most
WARM_UP_TOKENS = 8
PAIRED_AT = 64  # rollouts at which native and generate take turns, and continuous batching tries CUDA graphs
PAIRS = 5
VARIANTS_AT = (8, 64, 512)  # rollouts at which native's further options are measured
Run = Callable[[], Any]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A sampler. `prepare` is not timed; the function that it returns is."""

    name: str
    prepare: Callable[[Work], Run]
    only_at: Sequence[int] = ()  # numbers of rollouts; empty: all
    briefly: bool = True  # warm up with a few tokens; false if an engine prepares itself for a length
    in_turns: bool = False  # whether it is paired with the others at PAIRED_AT


def generation(lab: Lab) -> None:
    """The first shape with every number of rollouts, then the other shapes with a few."""
    entrants(lab)  # refuses an unknown option of native before a measurement
    known = ceilings(lab)
    first, *others = lab.sizes.shapes
    with lab.within(0.6 if others else 1.0):
        sampling(lab, first, lab.sizes.rollouts, known)
    for shape in others:
        sampling(lab, shape, lab.sizes.few_rollouts, known)


def sampling(lab: Lab, shape: str, counts: Sequence[int], ceilings: Mapping[str, float]) -> None:
    """One record per entrant and number of rollouts, native and generate in turns for the first shape, and a summary.

    An entrant that has failed is omitted from then on.
    """
    model = random_model(shape, lab)
    lab.record({"shape": shape, "model": asdict(cost_of(model))})
    records: list[Record] = []
    for rollouts in counts:
        work = _work(lab, model, rollouts)
        for entrant in entrants(lab):
            failed = any("error" in record and record["engine"] == entrant.name for record in records)
            if not failed and (not entrant.only_at or rollouts in entrant.only_at):
                records.append(_point(lab, shape, entrant, work, ceilings))
        if rollouts == PAIRED_AT and shape == lab.sizes.shapes[0]:
            _pairs(lab, shape, work)
    lab.record({"shape": shape, "summary": _summary([record for record in records if SECONDS in record])})
    del model, work
    release(lab.device)


def entrants(lab: Lab) -> list[Entrant]:
    """name -> entrant. Raises ConfigError for an unknown option of native."""
    everyone = [
        Entrant("native", _native({}), briefly=False, in_turns=True),
        Entrant("generate", lambda work: lambda: generate(work, 1), in_turns=True),
        Entrant("generate_batch", lambda work: lambda: generate_batch(work, 1)),
        Entrant(
            "generate_batch with CUDA graphs",
            lambda work: lambda: generate_batch(work, 1, cuda_graphs=True),
            only_at=(PAIRED_AT,),
        ),
    ]
    for text, options in lab.native:
        everyone.append(Entrant(f"native {text}", _native(options), only_at=VARIANTS_AT, briefly=False, in_turns=True))
    return everyone


def _native(options: Mapping[str, Any]) -> Callable[[Work], Run]:
    engine_of = bind(resolve("engine", "native"), options, key="--native")

    def prepare(work: Work) -> Run:
        at_once = work.rollouts * len(work.prompts)
        engine = engine_of(engine_context(work.model, at_once, len(work.prompts[0].tokens) + work.max_new_tokens))
        counts = [work.rollouts] * len(work.prompts)
        sampling = Sampling(max_new_tokens=work.max_new_tokens)
        return lambda: engine.generate(work.prompts, counts, sampling, seed=(1,))

    return prepare


def _work(lab: Lab, model: Any, rollouts: int) -> Work:
    per_prompt = min(rollouts, ROLLOUTS_PER_PROMPT)
    prompts = random_prompts(rollouts // per_prompt, lab.sizes.prompt_tokens, model.config.vocab_size)
    return Work(model, prompts, per_prompt, lab.sizes.tokens, stop_tokens=())


def _point(lab: Lab, shape: str, entrant: Entrant, work: Work, ceilings: Mapping[str, float]) -> Record:
    rollouts = work.rollouts * len(work.prompts)
    point = {"shape": shape, "engine": entrant.name, "rollouts": rollouts}
    prepared: list[Run] = []

    def warm_up() -> None:
        prepared.append(entrant.prepare(work))
        (entrant.prepare(replace(work, max_new_tokens=WARM_UP_TOKENS)) if entrant.briefly else prepared[0])()

    record = lab.measure(f"{entrant.name} {shape}", rollouts, point, lambda: prepared[0](), warm_up=warm_up)
    if SECONDS in record:
        record |= _rates(record[SECONDS], work, cost_of(work.model), ceilings)
    lab.record(record)
    return record


def _rates(seconds: float, work: Work, cost: Cost, ceilings: Mapping[str, float]) -> Record:
    """Speed, and its share of the machine's bandwidth and operations.

    The bytes are those of the weights for every token, and a prompt's keys and values once for all its rollouts.
    Reading the prompts adds seconds, and neither bytes nor operations.
    """
    prompts, length = len(work.prompts), work.max_new_tokens
    rollouts, prompt_tokens = prompts * work.rollouts, len(work.prompts[0].tokens)
    read = length * prompts * prompt_tokens + rollouts * length * length // 2  # tokens of context, summed over steps
    attended = rollouts * length * (prompt_tokens + length // 2)
    size = length * cost.weight_bytes + read * cost.key_value_bytes
    operations = rollouts * length * 2 * cost.parameters + attended * cost.attention_flops
    return {
        "tokens_per_second": round(rollouts * length / seconds, 1),
        "seconds_per_token": seconds / (rollouts * length),
        "bandwidth_share": share(size / seconds, ceilings["bandwidth"]),
        "matmul_share": share(operations / seconds, ceilings["matmul"]),
    }


def _pairs(lab: Lab, shape: str, work: Work) -> None:
    """Native (and native with further options) and generate in turns: the median of the ratios within a turn."""
    runs = {entrant.name: entrant.prepare(work) for entrant in entrants(lab) if entrant.in_turns}
    turns: list[dict[str, float]] = []
    measured = lab.measure(
        f"turns {shape}",
        PAIRED_AT,
        {"shape": shape, "in_turns": list(runs), "rollouts": PAIRED_AT},
        lambda: turns.append({name: lab.time(run) for name, run in runs.items()}),
        warm_up=lambda: [run() for name, run in runs.items() if name != "generate"],
        repeats=PAIRS,
        budget=lab.sizes.seconds_for_pairs,
    )
    if SECONDS in measured:
        seconds = {name: [turn[name] for turn in turns] for name in runs}
        medians = {name: frame.median_ratio(seconds["generate"], seconds[name]) for name in runs if name != "generate"}
        measured |= {"turns": turns, "median_of_generate_over": medians}
    lab.record(measured)


def _summary(records: Sequence[Record]) -> Record:
    """The ratio of the times per token at the fewest and the most rollouts, and of native to the others."""
    speed = {(record["engine"], record["rollouts"]): record["tokens_per_second"] for record in records}
    names = list(dict.fromkeys(record["engine"] for record in records))
    at = {name: sorted(rollouts for engine, rollouts in speed if engine == name) for name in names}
    return {
        "time_per_token_falls": {
            name: {"from": few, "to": many, "times": round(speed[name, many] / speed[name, few], 2)}
            for name, few, many in ((name, found[0], found[-1]) for name, found in at.items())
            if few < many
        },
        "native_over": {
            name: {n: round(speed["native", n] / speed[name, n], 2) for n in at[name] if ("native", n) in speed}
            for name in names
            if name != "native"
        },
    }
