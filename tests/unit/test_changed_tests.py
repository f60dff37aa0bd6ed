"""Which tests a change runs."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("changed_tests", ROOT / "scripts" / "changed_tests.py")
changed_tests = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(changed_tests)
LAWS = "tests/unit/test_laws.py"


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("src/winnow/algos/costs.py", "tests/unit/algos/test_costs.py"),
        ("src/winnow/algos/costs.py", "tests/unit/state/test_cost_files.py"),
        ("src/winnow_lab/sweep/file.py", "tests/unit/winnow_lab/sweep/test_sweep_plan.py"),
        ("tests/unit/test_division.py", "tests/unit/test_division.py"),
        ("scripts/changed_tests.py", LAWS),
    ],
    ids=["its own", "imports it", "same folder", "changed itself", "the laws"],
)
def test_a_change_runs_the_tests_that_it_can_affect(changed, test):
    assert test in changed_tests.affected([changed])


def test_a_page_runs_only_what_always_runs():
    assert changed_tests.affected(["docs/index.md"]) == sorted(changed_tests.ALWAYS)


def test_a_module_that_no_test_imports_runs_no_foreign_room():
    assert "tests/unit/rewards/test_shaping.py" not in changed_tests.affected(["src/winnow/algos/costs.py"])


def test_what_needs_another_environment_is_named_by_its_folder():
    chosen = changed_tests.affected(["src/winnow_lab/replay/replaying.py", "src/winnow/engines/vllm/engine.py"])
    assert {"tests/with_trl", "tests/with_vllm"} <= set(chosen)
    assert [name for name in chosen if name.startswith("tests/with_") and name.endswith(".py")] == []
