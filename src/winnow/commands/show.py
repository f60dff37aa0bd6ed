"""`winnow show`: the rollouts of a run as text: prompt, completion, reward, and whether it was trained on.

Each file is read in two passes: first the columns that the choice depends on, then the texts of the chosen prompts.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from winnow.commands.command_line import print_text
from winnow.errors import DataError
from winnow.run_view.decisions import decision_lines
from winnow.run_view.forecast import forecast_lines
from winnow.run_view.tokens import READ, Written, token_lines, written_by
from winnow.state.logbook import is_logged, log_notes
from winnow.state.rollout_files import StepFile, files_in, files_of, logs_none
from winnow.view.text import format_decimal, one_line, quote, shorten, wrap

QUESTION = 400
TEXT = 600
CHOSEN_BY = ("step", "prompt_id", "kind", "reward", "reason")
SHOWN = (
    *CHOSEN_BY, "prompt", "answer", "index", "text", "length", "finish", "extracted", "cause", "detail", "parts",
    "advantage", "advantages", "trainable", "weight", "values", "turns",
)  # fmt: skip

Row = Mapping[str, Any]
TURN_COLORS = {"policy": (86, 156, 214), "environment": (230, 159, 0)}  # differ in brightness too
_HEADING = re.compile(r"    turn \d+, (policy|environment):")
_ENDED = {"stop": "ended", "length": "cut off", "cut": "cut"}


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a file of its rollouts.")],
    step: Annotated[
        int | None, typer.Option(min=0, help="Default: the last step; all steps with --failed or --prompt.")
    ] = None,
    worst: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The N prompts with the lowest mean reward.")
    ] = None,
    best: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The N prompts with the highest mean reward.")
    ] = None,
    dropped: Annotated[bool, typer.Option("--dropped", help="Rollouts not trained on.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Rollouts whose verifier failed.")] = False,
    prompt: Annotated[str | None, typer.Option(metavar="ID", help="A prompt, by the beginning of its id.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Print whole texts, and every token.")] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Each token with log-prob, value, return and advantage.")
    ] = False,
) -> None:
    """Read a run's rollouts: text, verdict, reward, advantage, and whether it was trained on."""
    if worst is not None and best is not None:
        raise typer.BadParameter("choose one of --worst and --best")
    choice = Choice(
        step=step, worst=worst, best=best, dropped=dropped, failed=failed, prompt=prompt, full=full, tokens=tokens
    )
    whole = choice == Choice() and run.is_dir() and is_logged(run)
    if whole and logs_none(run) and not files_in(run):
        print_text(wrap('note: no rollouts are logged (log.rollouts = "none")'))
    else:
        for block in format_rollouts(run, choice):
            print_text(block, paint=paint_turns)
    if whole:
        for line in decision_lines(run):
            print_text(wrap(f"sizes: {line}"))
        for line in forecast_lines(run):
            print_text(wrap(f"forecast: {line}"))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which rollouts to show."""

    step: int | None = None  # None: the last step, or every step with `failed` or `prompt`
    worst: int | None = None  # number of groups, those with the lowest mean reward
    best: int | None = None  # number of groups, those with the highest mean reward
    dropped: bool = False  # only rollouts that were not trained on
    failed: bool = False  # only rollouts without a verdict
    prompt: str | None = None  # only prompts whose id begins with this
    full: bool = False  # whole texts
    tokens: bool = False  # also a table of tokens


@dataclass(frozen=True, slots=True)
class _Group:
    """The rollouts of a prompt in a step, and their place in a file."""

    file: StepFile
    first: int  # row of the file
    rows: list[dict[str, Any]]  # with the columns `CHOSEN_BY`

    @property
    def mean_reward(self) -> float:
        """The mean reward of the verified rollouts; NaN where there are none."""
        rewards = [row["reward"] for row in self.rows if not math.isnan(row["reward"])]
        return sum(rewards) / len(rewards) if rewards else math.nan


def format_rollouts(path: Path, choice: Choice) -> Iterator[str]:
    """One block of text per chosen group of a run folder, or of a file of its rollouts. Raises DataError if the path
    does not exist, or contains no chosen rollout.
    """
    if not path.exists():
        raise DataError(
            f"cannot read {path}: there is no such file or folder",
            remedy="name a run folder or a file of rollouts",
            code="data.missing",
        )
    files = files_of(path, choice.step)
    if choice.step is None and not (choice.failed or choice.prompt):
        files = files[-1:]
    written, unknown = written_by(path) if choice.tokens else (None, "")
    for note in (*log_notes(path), *[unknown] * bool(unknown)):
        yield wrap(f"note: {note}") + "\n"
    empty, (groups, ranking) = True, _ranked(_chosen(files, choice), choice)
    for group in groups:
        if empty and ranking:
            yield f"{ranking}\n"
        empty = False
        yield _block(group, choice, written)
    if empty:
        where = "" if choice.step is None else f" in step {choice.step}"
        raise DataError(
            f"{path} contains no such rollouts{where}",
            remedy="omit an option, or name another step",
            code="data.empty",
        )


def _chosen(files: Iterable[Path], choice: Choice) -> Iterator[_Group]:
    for path in files:
        for group in _groups(StepFile(path)):
            row = group.rows[0]
            right_step = choice.step is None or row["step"] == choice.step
            if right_step and row["prompt_id"].startswith(choice.prompt or "") and _places(group, choice):
                yield group


def _groups(file: StepFile) -> Iterator[_Group]:
    """The groups of a file; the rows of a group are consecutive."""
    rows = itertools.chain.from_iterable(file.rows(first, end, CHOSEN_BY) for first, end in file.parts)
    first = 0
    for _, same in itertools.groupby(list(rows), key=lambda row: (row["step"], row["prompt_id"])):
        group = _Group(file, first, list(same))
        yield group
        first += len(group.rows)


def _ranked(groups: Iterable[_Group], choice: Choice) -> tuple[Iterable[_Group], str]:
    """Only the worst or best groups where the choice limits them, and how many there were; a group without any verdict
    is neither.
    """
    if choice.worst is None and choice.best is None:
        return groups, ""
    means = Counter[float]()

    def judged() -> Iterator[_Group]:
        for group in groups:
            if not math.isnan(group.mean_reward):
                means[group.mean_reward] += 1
                yield group

    pick: Callable[..., list[_Group]] = heapq.nsmallest if choice.worst is not None else heapq.nlargest
    chosen = pick(choice.worst or choice.best or 0, judged(), key=lambda group: group.mean_reward)
    last = chosen[-1].mean_reward if chosen else math.nan
    equal = means[last] - sum(group.mean_reward == last for group in chosen)
    also = f"; {equal} more have the mean of the last one" if equal else ""
    word = "lowest" if choice.worst is not None else "highest"
    return chosen, f"{len(chosen)} of {means.total()} prompts, with the {word} mean reward{also}"


def _places(group: _Group, choice: Choice) -> list[int]:
    return [
        place
        for place, row in enumerate(group.rows)
        if (row["kind"] == "failed" or not choice.failed) and (row["reason"] != "trained" or not choice.dropped)
    ]


def _block(group: _Group, choice: Choice, written: Written | None) -> str:
    trained = sum(row["reason"] == "trained" for row in group.rows)
    mean = "none" if math.isnan(group.mean_reward) else f"{group.mean_reward:.3f}"
    rows = group.file.rows(group.first, group.first + len(group.rows), (*SHOWN, *READ) if written else SHOWN)
    of, prompt = rows[0], one_line(rows[0]["prompt_id"])
    lines = [
        f"step {of['step']}  {prompt}  trained on {trained} of {len(rows)} rollouts  mean reward {mean}",
        quote(of["prompt"], limit=None if choice.full else QUESTION, indent="  "),
        *[f"  gold: {_line(str(of['answer']), choice)}"] * (of["answer"] is not None),
    ]
    return "\n".join([*lines, *(_rollout(rows[place], choice, written) for place in _places(group, choice)), ""])


def _rollout(row: Row, choice: Choice, written: Written | None) -> str:
    per_token, own = row["advantages"], row["trainable"]
    per_token = per_token if per_token is None or own is None else per_token[own]
    advantage = row["advantage"] if per_token is None else float(per_token.mean()) if len(per_token) else 0.0
    # The number of tokens and how the rollout ended, as far as they are logged.
    known = [*[f"{row['length']} tokens"] * (row["length"] is not None), _ENDED.get(row["finish"])]
    numbers = [
        f"  #{row['index']} {_verdict(row)}",
        *[
            f"value {format_decimal(value, sign='+')} at first"
            for value in (() if row["values"] is None else row["values"][:1])
        ],
        *([] if advantage is None else [f"advantage {advantage:+.3f}"]),
        *([] if row["weight"] is None else [f"weight {row['weight']:.3g}"]),
        *([", ".join(filter(None, known))] if any(known) else []),
        one_line(row["reason"]),
    ]
    limit = None if choice.full else TEXT
    lines = ["  ".join(numbers), *_texts(row, limit)]
    if written and row["tokens"] is not None:
        lines += token_lines(row, written, full=choice.full, indent="    ")
    if row["extracted"] is not None:
        lines.append(f"    answer read: {_line(row['extracted'], choice)}")
    if row["detail"]:
        lines.append(quote(row["detail"], limit=None, indent="    "))
    return "\n".join(lines)


def _line(text: str, choice: Choice) -> str:
    """An answer or a gold, which may be a program or its tests."""
    return one_line(text if choice.full else shorten(text, QUESTION))


def _texts(row: Row, limit: int | None) -> Iterator[str]:
    """The text of the rollout; with an environment, each turn below the name of its writer."""
    if row["text"] is None:
        yield "    its text was not logged"
    elif row["turns"] is None:
        yield quote(row["text"], limit=limit, indent="    ")
    else:
        for place, text in enumerate(row["turns"]):
            yield f"    turn {place // 2 + 1}, {'environment' if place % 2 else 'policy'}:"
            yield quote(text, limit=limit, indent="      ")


def paint_turns(text: str) -> str:
    """The text of blocks with the turns of the policy in blue and those of an environment in orange.

    Turns are found by their headings, which no text of a model can imitate: it is behind a bar, line by line.
    """
    lines, color = [], None
    for line in text.split("\n"):
        heading = _HEADING.fullmatch(line)
        color = TURN_COLORS[heading[1]] if heading else color if line.startswith("      |") else None
        lines.append(line if color is None else typer.style(line, fg=color))
    return "\n".join(lines)


def _verdict(row: Row) -> str:
    """The verdict and the reward; for a reward of several parts also each part, before its weight."""
    if row["kind"] == "failed":
        return f"failed ({row['cause']})"
    if row["kind"] == "cut":
        return "cut while it was sampled"
    parts = [f"{one_line(name)} {math.nan if value is None else value:.3f}" for name, value in row["parts"].items()]
    of = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    verdict = "no verdict" if row["kind"] is None else row["kind"]
    return f"{verdict}  reward {row['reward']:.3f}{of}"
