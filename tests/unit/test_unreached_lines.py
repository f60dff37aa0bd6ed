"""scripts/unreached_lines.py: which statements of a source no process has run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import unreached_lines as lines  # noqa: E402

SOURCE = '''"""A docstring."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch

class Engine:
    """Another."""

    @property
    def speed(self):
        return max(
            1,
            2,
        )

    def run(self, fast):
        if fast:
            return 1
        try:
            return self.speed
        except ValueError:
            return 0

def protocol(): ...
'''


def test_what_no_line_reaches_is_counted_by_function() -> None:
    """At import: 2, 6, 9, 16 and 24. Two returns and `try` were not run; `max` was, by one of its lines."""
    assert lines.missed(SOURCE, {2, 6, 9, 16, 24, 12, 17, 18}) == Counter({"Engine.run": 3})
    assert lines.missed(SOURCE, {2, 6, 9, 16, 24}) == Counter({"Engine.run": 5, "Engine.speed": 1})
    every = Counter({"(module)": 3, "Engine": 2, "Engine.speed": 1, "Engine.run": 5})
    assert lines.missed(SOURCE, ()) == every


def test_a_process_and_its_child_are_traced(tmp_path: Path) -> None:
    """Both end without a farewell. The child runs one statement of `winnow.seeds` that the parent does not."""
    child = "import winnow.seeds, os; winnow.seeds.derive(1); os._exit(0)"
    parent = f"import subprocess, sys, os, winnow.seeds; subprocess.run([sys.executable, '-c', {child!r}]); os._exit(0)"
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys; sys.path.append({str(SCRIPTS)!r}); import unreached_lines as lines; lines.trace()\n"
    )
    reached = tmp_path / "reached"
    path = os.pathsep.join([str(tmp_path), str(SCRIPTS.parent / "src")])
    environment = {**os.environ, "PYTHONPATH": path, lines.TRACE: str(reached)}
    subprocess.run([sys.executable, "-c", parent], env=environment, check=True, timeout=120)
    source = lines.files()["seeds.py"].read_text(encoding="utf-8")
    ran = {int(line.rpartition(":")[2]) for line in reached.read_text().splitlines() if line.startswith("seeds.py:")}
    missing = lines.missed(source, ran)
    assert "derive" not in missing
    assert "(module)" not in missing
    assert missing["uniforms"] > 0


def test_the_packages_beside_winnow_are_named_by_their_folder() -> None:
    names = {"seeds.py", "winnow_lab/audit.py", "winnow_lab/compare/curve.py", "winnow_trl/release.py"}
    assert names <= set(lines.files())
    assert lines.first_for("winnow_lab/audit.py") == ""


def test_every_folder_of_the_table_exists() -> None:
    assert [path for path in lines.FIRST if not (lines.SOURCE / lines.OWN / path).exists()] == []
    assert lines.first_for("learner/packing.py") != lines.first_for("learner/head.py")
    assert lines.first_for("view/text.py") == ""


def test_the_table_has_the_files_that_a_device_can_reach() -> None:
    found = {"learner/head.py": Counter({"Chunk.add": 2, "f": 1}), "view/text.py": Counter({"g": 4}), "a.py": Counter()}
    table = lines.table(found, "scripts/test")
    assert [row.split("|")[2].strip() for row in table if row.startswith("| `")] == ["3"]
