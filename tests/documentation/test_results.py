"""docs/results.md is what scripts/results.py makes of the results, and answers every claim."""

import importlib.util
import tomllib

import pytest
from doc_pages import REPOSITORY

SPEC = importlib.util.spec_from_file_location("results_page", REPOSITORY / "scripts" / "results.py")
results_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(results_page)

CLAIMS = tomllib.loads(results_page.CLAIMS.read_text(encoding="utf-8"))["claim"]
MEASURED = [claim for claim in CLAIMS if results_page.newest(claim["sweep"])]
APPENDIX = dict.fromkeys(["claim_11_weighting", "claim_12_ppo", "claim_13_losses", "claim_13_off_policy"], 3)
MAIN = ("claim_01_equal_m", "claim_02_equal_n", "claim_07_allocation_grpo", "claim_07_allocation_raft")
SEEDS = {**APPENDIX, **dict.fromkeys(MAIN, 8)}  # of each cell of a sweep; 5 of the others


def test_the_claims_are_the_thirteen():
    assert {claim["number"] for claim in CLAIMS} == set(range(1, 14))


def test_the_page_is_made_from_the_results():
    found = {claim["sweep"]: results_page.newest(claim["sweep"]) for claim in CLAIMS}
    assert results_page.PAGE.read_text(encoding="utf-8") == results_page.page(CLAIMS, found)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim["sweep"])
def test_a_claim_s_sweep_has_its_cells(claim):
    sweep = tomllib.loads((REPOSITORY / "configs" / "sweeps" / f"{claim['sweep']}.toml").read_text(encoding="utf-8"))
    assert {label for contrast in claim["contrasts"] for label in contrast} <= sweep["variants"].keys()
    assert len(sweep["seeds"]) == SEEDS.get(claim["sweep"], 5)


@pytest.mark.parametrize("claim", MEASURED, ids=lambda claim: claim["sweep"])
def test_a_measured_claim_has_each_contrast_with_seeds_and_an_interval(claim):
    _, result = results_page.newest(claim["sweep"])
    rows = {(row["baseline"], row["group"], row["axis"], row["costs"]): row for row in result["contrasts"]}
    assert {(first, second) for first, second, _, _ in rows} == set(map(tuple, claim["contrasts"]))
    for row in rows.values():
        seeds = SEEDS.get(claim["sweep"], 5)
        assert {side: len(times) for side, times in row["times"].items()} == {"baseline": seeds, "group": seeds}
        ended = [time for times in row["times"].values() for time in times.values() if isinstance(time, str)]
        assert ended or row["low"] is not None
    assert result["command"]
    assert result["commit"]
    assert (results_page.PICTURES / f"{claim['sweep']}.svg").exists()
