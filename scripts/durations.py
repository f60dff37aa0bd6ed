"""The table of tests/durations.md from the lines that tests/cpu_times.py wrote: python scripts/durations.py FILE."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROWS = 25
START = "(start and collection)"
HEAD = """# CPU seconds of the tests

`scripts/durations` writes this page. Seconds are of the processor, user and system, and include every child process;
the first test of a worker includes the imports that all of them share. {date}, commit {commit}.

{total:.0f} CPU seconds for {tests} tests, of which {start:.0f} start the workers and collect the tests.

| file | tests | CPU seconds |
|---|---|---|
"""


def table(lines: Iterable[Mapping[str, object]], *, date: str, commit: str) -> str:
    """A page of at most 40 lines: the files with the most seconds, then all others in one row."""
    seconds, tests = Counter[str](), Counter[str]()
    for line in lines:
        file = str(line["test"]).partition("::")[0]
        seconds[file] += float(str(line["seconds"]))
        tests[file] += 1
    start = seconds.pop(START, 0.0)
    tests.pop(START, None)
    rows = [f"| {file} | {tests[file]} | {spent:.0f} |" for file, spent in seconds.most_common(ROWS)]
    others = seconds.most_common()[ROWS:]
    if others:
        count = sum(tests[file] for file, _ in others)
        rows.append(f"| {len(others)} other files | {count} | {sum(spent for _, spent in others):.0f} |")
    total = sum(seconds.values()) + start
    return HEAD.format(date=date, commit=commit, total=total, tests=tests.total(), start=start) + "\n".join(rows) + "\n"


def main() -> None:
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    print(table(lines, date=datetime.date.today().isoformat(), commit=commit.strip()), end="")


if __name__ == "__main__":
    main()
