from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refusals import check_printed_error
from synthetic_run import RIGHT, WRONG, group, write_run
from winnow.commands import app
from winnow.evaluation.folder import rows_of
from winnow_lab.report import html as page

PARTS = Path(__file__).parents[3] / "fixtures" / "report_page"
DATA = re.compile(r'id="winnow-data">(.*?)</script>', re.DOTALL)


@pytest.fixture(autouse=True)
def small_page(monkeypatch):
    monkeypatch.setattr(page, "PARTS", PARTS)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "toy", steps=2)


def winnow(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def notes_of(result):
    """The notes of a command, each on one line."""
    return [" ".join(note.split()) for note in re.findall(r"(?m)^note: .*(?:\n +.*)*", result.stderr)]


def data_of(path):
    return json.loads(DATA.search(path.read_text(encoding="utf-8"))[1])


def test_a_report_is_one_file_in_the_run_folder_and_can_be_replaced(run):
    for _ in range(2):
        result = winnow("report", run)
        assert result.exit_code == 0, result.output
        assert str(run / "report.html") in result.output
        assert "(0.0 MB, 14 of 14 rollouts)" in result.output
    data = data_of(run / "report.html")
    assert (data["format"], data["served"], data["limit_bytes"]) == (1, False, 20_000_000)
    assert [r["name"] for r in data["runs"]] == ["toy"]
    assert re.fullmatch(r"\d{4}-.*Z", data["made"])


def test_the_command_prints_how_many_rollouts_fit_into_the_limit(run):
    result = winnow("report", run, "--limit", "2kB")
    assert re.search(r"\(0\.0 MB, [1-9] of 14 rollouts\)", result.output)
    assert [note for note in notes_of(result) if "0.002 MB" in note]


def test_runs_of_one_name_get_longer_names_and_need_an_output(run, tmp_path):
    other = write_run((tmp_path / "b").absolute(), steps=1) / "toy"
    write_run(other, steps=1)
    check_printed_error(winnow("report", run, other), "-o FILE", code="data.unwritable")
    assert winnow("report", run, other, "-o", tmp_path / "both.html").exit_code == 0
    assert [r["name"] for r in data_of(tmp_path / "both.html")["runs"]] == [f"{tmp_path.name}/toy", "b/toy"]


def test_a_file_that_is_not_a_report_is_neither_replaced_nor_changed(run, tmp_path):
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine")
    (run / "report.html").symlink_to(mine)
    for arguments in ([run], [run, "-o", mine], [run, "-o", run / "metrics.jsonl"], [run, "-o", run]):
        result = winnow("report", *arguments)
        assert result.exit_code == 2, result.output
        assert re.search(r"^error \(data\.(exists|unwritable)\)", result.stderr), result.output
    assert mine.read_text() == "<p>mine"
    check_printed_error(winnow("report", run, "-o", tmp_path / "no" / "x.html"), "no", code="data.unwritable")


def test_only_the_scripts_of_the_file_can_run_in_it(run):
    winnow("report", run)
    text = (run / "report.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    hashes = {
        kind: base64.b64encode(hashlib.sha256((PARTS / name).read_bytes()).digest()).decode()
        for kind, name in (("script", "show.js"), ("style", "look.css"))
    }
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert f"<script>{(PARTS / 'show.js').read_text()}</script>" in text  # {{data}} in a script is a text
    assert "<title>toy - winnow report</title>" in text


def test_a_part_that_would_end_its_element_is_refused(tmp_path, monkeypatch):
    (tmp_path / "page.html").write_text('<script src="a.js"></script>')
    (tmp_path / "a.js").write_text('"</SCRIPT>"')
    monkeypatch.setattr(page, "PARTS", tmp_path)
    with pytest.raises(ValueError, match="element"):
        page.assemble("{}", title="", served=False)


HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202e</title><script>"


def test_names_and_notes_are_escaped_in_the_terminal_and_in_the_page(tmp_path):
    run = write_run(tmp_path / HOSTILE.replace("/", "-"), steps=2)
    (run / "rollouts" / "step-000001.parquet").write_bytes(b"\x1b[31mno")
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 9, "rew')
    result = winnow("report", run)
    assert result.exit_code == 0
    assert [note for note in notes_of(result) if "step-000001.parquet" in note]
    assert [note for note in notes_of(result) if "metrics.jsonl" in note]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", result.output)
    text = (run / "report.html").read_text()
    assert "<script>" not in text.replace("<script>document", "")
    assert "\x1b" not in text
    assert data_of(run / "report.html")["runs"][0]["name"].startswith("\\x1b[2J")


def test_a_wrong_argument_is_refused_before_anything_is_written(run, tmp_path):
    check_printed_error(winnow("report", tmp_path / "nowhere"), tmp_path / "nowhere", code="data.missing")
    assert winnow("report", run, "--limit", "much").exit_code == 2
    assert winnow("report", run, "--port", "8000").exit_code == 2
    assert winnow("report", run, "--serve", "-o", tmp_path / "x.html").exit_code == 2
    assert winnow("report", run, "--serve", "--limit", "5MB").exit_code == 2
    assert not (run / "report.html").exists()


def test_the_report_of_a_sweep_contains_its_runs(tmp_path):
    description = {"winnow_sweep": 1, "labels": {"a": {}, "b": {}}, "seeds": [0], "baseline": None, "inputs": {}}
    (tmp_path / "sweep.json").write_text(json.dumps(description))
    (tmp_path / "ledger.jsonl").write_text("")
    (tmp_path / "a").mkdir()
    write_run(tmp_path / "a" / "seed-0", steps=1)
    assert winnow("report", tmp_path).exit_code == 0
    assert [r["name"] for r in data_of(tmp_path / "report.html")["runs"]] == ["seed-0"]


def test_evaluations_below_the_run_and_named_ones_are_compared(run, tmp_path):
    def evaluation(folder, outcome):
        rows = [*rows_of("sampled", [group("p", (outcome,))])]
        task = {"config": {"seed": 0}, "rows": len(rows), "dropped": 0}
        folder.mkdir(parents=True)
        settings = {"winnow_evaluation": 1, "tasks": {"t": task}, "machine": {"model": folder.name}}
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "metrics.json").write_text("{}")
        return folder

    own, base = evaluation(run / "evals", RIGHT), evaluation(run / "evals" / "against", WRONG)
    assert winnow("report", run).exit_code == 0
    (evaluation_data,) = data_of(run / "report.html")["evaluations"]
    assert (evaluation_data["name"], evaluation_data["models"]) == (
        "toy/evals",
        {"other": "against", "model": "evals"},
    )
    assert evaluation_data["comparisons"][0]["won"] == 1
    result = winnow("report", run, "--evaluations", base, own)
    assert result.exit_code == 0, result.output
    both = data_of(run / "report.html")["evaluations"]
    assert [one["comparisons"][0]["lost"] for one in both] == [1, 0]
    (base / "t.jsonl").write_text("{}\n")
    assert "t.jsonl:1" in "".join(winnow("report", run).output.split())
    assert data_of(run / "report.html")["evaluations"] == []
    assert winnow("report", run, "--evaluations", own, base).exit_code == 2
