"""Files of rows in the columns and types of the published data sets, for the commands of docs/data.md:

- verl: what its script for GSM8K writes (examples/data_preprocess/gsm8k.py): one user message that ends with the
  request for `####`, the gold as text in the struct reward_model, and in extra_info the split, the place, the raw
  question and the worked solution.
- TRL: trl-lib/DeepMath-103K on the hub has two columns, `prompt` (a list of structs with content and role) and
  `solution` (text). A system message may come first, as in TRL's example script.
- open-instruct: allenai/RLVR-GSM has `messages`, `ground_truth` and `dataset`; newer sets of the same project have
  lists of texts in the last two.
- prime-rl and verifiers: `question`, `answer` and `info`, whose value is an object or, as in INTELLECT-3-RL, its JSON.
- OpenRLHF: its PromptDataset reads the field `--input_key` (default "input"), text or messages, the field
  `--label_key`, and `datasource`.
- Big-Math: SynthLabsAI/Big-Math-RL-Verified has problem, answer and source as text, domain as a list of texts, and
  llama8b_solve_rate as a float64 that may be null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 40
PAIRS = [(i, i + 1) for i in range(ROWS)]
MESSAGES = pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))


def user(text: str) -> dict[str, str]:
    return {"content": text, "role": "user"}


def verl(start: int = 0) -> pa.Table:
    told = 'Let\'s think step by step and output the final answer after "####".'
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [user(f"What is {a} plus {b}? {told}")],
            "ability": "math",
            "reward_model": {"ground_truth": str(a + b), "style": "rule"},
            "extra_info": {
                "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}",
                "index": place,
                "question": f"What is {a} plus {b}?",
                "split": "train",
            },
        }
        for place, (a, b) in enumerate((start + a, b) for a, b in PAIRS)
    ]
    return pa.Table.from_pylist(rows)


def trl() -> pa.Table:
    system = {"content": "Put the answer in a box.", "role": "system"}
    rows = [{"prompt": [system, user(f"{a} plus {b}?")], "solution": f"${a + b}$"} for a, b in PAIRS]
    return pa.Table.from_pylist(rows, pa.schema([("prompt", MESSAGES), ("solution", pa.string())]))


def open_instruct() -> pa.Table:
    kinds = pa.schema(
        [("messages", MESSAGES), ("ground_truth", pa.list_(pa.string())), ("dataset", pa.list_(pa.string()))]
    )
    rows = [
        {"messages": [user(f"{a} plus {b}?")], "ground_truth": [str(a + b), f"{a + b}.0"], "dataset": ["math"]}
        for a, b in PAIRS
    ]
    return pa.Table.from_pylist(rows, kinds)


def prime_rl() -> pa.Table:
    info = json.dumps({"source": "made", "level": 1})
    kinds = pa.schema([("question", pa.large_string()), ("answer", pa.large_string()), ("info", pa.large_string())])
    rows = [{"question": f"{a} plus {b}?", "answer": str(a + b), "info": info} for a, b in PAIRS]
    return pa.Table.from_pylist(rows, kinds)


def big_math() -> pa.Table:
    return pa.table(
        {
            "problem": [f"What is ${a} + {b}$?" for a, b in PAIRS],
            "answer": [str(a + b) for a, b in PAIRS],
            "source": ["made"] * ROWS,
            "domain": [["Mathematics -> Algebra -> Prealgebra"]] * ROWS,
            "llama8b_solve_rate": pa.array([None, *[0.5] * (ROWS - 1)], pa.float64()),
        }
    )


def openrlhf() -> list[dict[str, Any]]:
    """Text in some rows and messages in others, which the same program reads."""
    texts = [f"{a} plus {b}?" for a, b in PAIRS]
    inputs = [text if place % 2 else [user(text)] for place, text in enumerate(texts)]
    return [{"input": i, "label": str(a + b), "datasource": "m"} for i, (a, b) in zip(inputs, PAIRS, strict=True)]


TABLES: dict[str, Callable[[], pa.Table]] = {
    "verl.parquet": verl,
    "train.parquet": verl,
    "test.parquet": lambda: verl(100),
    "trl.parquet": trl,
    "open_instruct.parquet": open_instruct,
    "prime_rl.parquet": prime_rl,
    "big_math.parquet": big_math,
}


def write_files(folder: Path) -> None:
    for name, table in TABLES.items():
        pq.write_table(table(), folder / name)
    (folder / "openrlhf.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in openrlhf()), encoding="utf-8")
    page = Path(__file__).parents[2] / "docs" / "data.md"
    (toml,) = re.findall(r"(?ms)^```toml\n(.*?)^```", page.read_text(encoding="utf-8"))
    for name in ("rows.toml", "run.toml"):
        (folder / name).write_text(toml, encoding="utf-8")
