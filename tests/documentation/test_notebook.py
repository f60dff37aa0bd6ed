"""examples/winnow_in_a_notebook.ipynb runs from its first cell to its last, and is committed without what it printed.

Its cells are plain Python, so they run here without a kernel; in a notebook the same cells run in the same order.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json

import pytest
from doc_pages import REPOSITORY

NOTEBOOK = REPOSITORY / "examples" / "winnow_in_a_notebook.ipynb"
TEXT = NOTEBOOK.read_text(encoding="utf-8")
CELLS = ["".join(cell["source"]) for cell in json.loads(TEXT)["cells"] if cell["cell_type"] == "code"]


SMALLER = {
    "steps=12": "steps=2",
    '"prompts_per_step": 16, "rollouts_per_prompt": 16': '"prompts_per_step": 4, "rollouts_per_prompt": 8',
    "problems=32": "problems=4",
    '"problems": 32': '"problems": 4',
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What `run` returns of a run that is made small."""
    assert all(any(shown in cell for cell in CELLS) for shown in SMALLER)
    return run(tmp_path_factory.mktemp("notebook"), SMALLER)


def run(folder, changes):
    """(the names after the last cell, what the cells printed)."""
    pytest.importorskip("pandas", reason="the notebook reads data frames: pip install pandas")
    import matplotlib

    matplotlib.use("agg")
    names, printed = {"__name__": "__main__"}, io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr("tempfile.tempdir", str(folder))
        for cell in CELLS:
            for shown, done in changes.items():
                cell = cell.replace(shown, done)
            exec(compile(cell, str(NOTEBOOK), "exec"), names)
    matplotlib.pyplot.close("all")
    return names, printed.getvalue()


@pytest.mark.slow  # ten seconds of training; test_tutorial.py shows by default that this policy learns
def test_the_policy_learns_and_the_curve_shows_it(tmp_path):
    names, printed = run(tmp_path, {})
    assert names["accuracy"][-1] > names["accuracy"][0] + 0.2
    assert len(names["left"].lines[0].get_xdata()) == 12
    assert printed.splitlines()[-1].endswith("of sampled answers are right")


def test_the_curve_and_the_frames_hold_what_the_run_wrote(ran):
    names, printed = ran
    assert len(names["left"].lines[0].get_xdata()) == 2
    assert printed.splitlines()[-1].endswith("of sampled answers are right")
    assert list(names["held_out"]["step"]) == [0, 2]
    assert len(names["last"]) == 32
    assert names["by_prompt"]["kept"].sum() == names["last"]["keep"].sum() > 0


def test_every_cell_is_plain_python():
    for cell in CELLS:
        ast.parse(cell)


def test_it_is_committed_without_outputs_and_without_paths_of_a_machine():
    for cell in json.loads(TEXT)["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    assert not [word for word in ("/home/", "/root/", "/work/", "/tmp/", "C:\\\\") if word in TEXT]
