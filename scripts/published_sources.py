"""Check the transcriptions in tests/published against copies of their repositories.

    python scripts/published_sources.py PODS=path/to/pods TRL=path/to/trl ...

Prints each transcribed line whose text is not on that line of that commit. The exit code is 1 if there is one.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tests" / "published"


@cache
def lines(clone: str, commit: str, file: str) -> tuple[str, ...]:
    """The lines of a file at a commit; none if the file does not exist."""
    shown = subprocess.run(["git", "-C", clone, "show", f"{commit}:{file}"], capture_output=True, text=True)
    return tuple(shown.stdout.splitlines())


def transcribed() -> Iterator[tuple[str, str, str]]:
    """(tag, file:line, text) of every transcribed value."""
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for value in table.get("values", ()):
            yield table["tag"], value["at"], value["text"]
        for value in (value for variant in table.get("variant", ()) for value in variant["values"]):
            tag, _, at = value["at"].partition(":")
            yield tag, at, value["text"]


def wrong(clones: Mapping[str, str]) -> Iterator[str]:
    """One line for each value whose text is not at its transcribed place, for the given repositories."""
    sources = [tomllib.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.toml")]
    commits: dict[str, Any] = {source["tag"]: source["commit"] for source in sources if "commit" in source}
    for tag, at, text in transcribed():
        if tag not in clones:
            continue
        place, _, number = at.rpartition(":")
        file, _, commit = place.partition("@")
        there = lines(clones[tag], commit or commits[tag], file)
        if int(number) > len(there) or text not in there[int(number) - 1]:
            yield f"{tag}:{at}: {text!r} is not there"


def main() -> int:
    clones = dict(argument.split("=", 1) for argument in sys.argv[1:])
    if not clones:
        print(__doc__)
        return 2
    found = list(wrong(clones))
    for line in found:
        print(line)
    print(f"{len(found)} of {sum(tag in clones for tag, _, _ in transcribed())} values are not where they should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
