"""The tokens of a rollout as a table: log-prob, value, return (the value model's target) and advantage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from winnow.errors import WinnowError
from winnow.state.foreign import open_log
from winnow.state.manifest import MANIFEST
from winnow.state.saved_runs import checkpoints, read_manifest
from winnow.view.text import format_decimal, one_line

COLUMNS = {"log-prob": "logprobs", "value": "values", "return": "returns", "advantage": "advantages"}
READ = ("tokens", "trainable", *COLUMNS.values())  # columns of a rollout that the table needs
LISTED = 20  # tokens at the beginning and at the end of a long rollout

Written = Callable[[int], str]


def written_by(path: Path) -> tuple[Written, str]:
    """A function from a token id to its text, and a note if no tokenizer is available: then all texts are empty."""
    tokenizer, unknown = tokenizer_of(path)
    if tokenizer is None:
        return lambda token: "", unknown
    return lambda token: str(tokenizer.decode([token])) if 0 <= token < len(tokenizer) else "", ""


def tokenizer_of(path: Path) -> tuple[Any | None, str]:
    """The tokenizer of a run's token ids, or None and a note with the reason.

    `path` is a run folder, its folder of rollouts, or a file in it. The tokenizer is that of the run's newest
    checkpoint, or of the initial model. The tokenizer of another user's run is not loaded. No code in either folder is
    executed.
    """
    whole = Path(os.path.abspath(path))  # from inside of a run, the parents of a relative path are not its folders
    for run in (whole, whole.parent, whole.parent.parent):  # the nearest one: other logs may lie beside a run
        if (run / MANIFEST).is_file():
            break
        if open_log(run) is not None:
            return None, ""  # the notes on its log contain that it has no tokens
    else:
        return None, "tokens have no text here: these rollouts are not in a run folder, so the tokenizer is not known"
    from winnow.models.folder import cached_folder, is_hub_id
    from winnow.models.load import load_tokenizer

    try:
        if (run / MANIFEST).stat().st_uid != os.geteuid():
            return None, "tokens have no text here: the run belongs to another user; copy it to see them"
        manifest = read_manifest(run)
        saved = checkpoints(run)
        model = str(saved[-1]) if saved else str(manifest.config["model"]["path"])
        local = cached_folder(model) if is_hub_id(model) else model  # a report never downloads a model
        if local is None:
            return None, f"tokens have no text here: {model} is not on this machine"
        return load_tokenizer(str(local)), ""
    except (WinnowError, KeyError, TypeError) as error:
        return None, f"tokens have no text here: {error}"


def token_lines(row: Mapping[str, Any], written: Written, *, full: bool, indent: str) -> Iterator[str]:
    """A line of headings and a line for each token of a rollout; only both ends of a long one, unless `full`."""
    named = {heading: row[name] for heading, name in COLUMNS.items() if row[name] is not None}
    yield indent + "".join(["  place   token", *(f"{heading:>11}" for heading in named)])
    count, trainable = len(row["tokens"]), row["trainable"]
    for place in range(count):
        if not full and LISTED <= place < count - LISTED:
            if place == LISTED:
                yield f"{indent}[... {count - 2 * LISTED:,} tokens ...]"
            continue
        token = int(row["tokens"][place])
        numbers = "".join(f"{format_decimal(float(of[place])):>11}" for of in named.values())
        foreign = "" if trainable is None or trainable[place] else "  (not the policy's)"
        yield f"{indent}{place:>7} {token:>7}{numbers}  | {one_line(written(token))}{foreign}"
