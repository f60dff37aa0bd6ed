"""Each page names the extras that its commands need, so that a reader who installs what the page names can run them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from doc_pages import PAGES, blocks, codes
from first_blocks import extras
from test_blocks import PROJECT

# What a command, or a part of it, needs besides winnow's own requirements.
NEEDS = {
    r"winnow plot (?!.*--summary-only)": "plot",
    r"winnow compare .*(-o|--output) ": "plot",
    r"winnow sweep (?!.*--ray)": "plot",  # its comparison has no picture otherwise
    r"winnow profile .*--output ": "plot",
    r"scripts/results\.py": "plot",
    r"--ray ": "ray",
    r"winnow (train|check|plan) gsm8k|winnow fetch (gsm8k|math|aime24) |--tasks .*math500": "hub",
    r"--tasks .*math500|configs/published/": "math",
    r"winnow fetch \S+\.gguf": "gguf",
    r"smollm2_instructions|--task ifbench": "instructions",
    r"configs/published/pods_a|moments=8bit|quantization=nf4": "bnb",
    r"blog_two_gpus\.toml(?!.*engine=native)|rollout\.engine=vllm": "vllm",
    r"track=wandb": "wandb",
    r"pods_in_trl": "trl",
}
NOT_COMMANDS = {"docs/design.md", "docs/reference.md"}  # their indented blocks are drawings and lists


def named(page: str) -> set[str]:
    """The extras in the page's install lines, and those that it calls an extra."""
    lines = re.findall(r"(?:winnow-rl|'\.)\[([\w,]+)\]", PAGES[page]) + re.findall(r"^`\[(\w+)\]`", PAGES[page])
    return {name for line in lines for name in line.split(",")} | set(re.findall(r"extras? `(\w+)`", PAGES[page]))


def commands(page: str) -> Iterator[str]:
    for block in blocks(page):
        if block.language in ("", "sh"):
            yield from block.commands()
    yield from (code for code in codes(page) if code.startswith(("winnow ", "--set ")))


def needed(page: str) -> dict[str, str]:
    """{extra: the first command that needs it}"""
    found: dict[str, str] = {}
    for command in commands(page):
        for pattern, extra in NEEDS.items():
            if re.search(pattern, command + " "):
                found.setdefault(extra, command)
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page not in NOT_COMMANDS])
def test_a_page_names_the_extras_that_its_commands_need(page):
    assert {extra: command for extra, command in needed(page).items() if extra not in named(page)} == {}


def test_the_extras_of_every_install_line_exist():
    extras_of_pages = {name for page in PAGES for name in named(page)}
    assert extras_of_pages | set(NEEDS.values()) <= set(PROJECT["optional-dependencies"])


def test_every_need_is_of_a_command_that_a_page_shows():
    """A pattern that matches no command any more would check nothing."""
    shown = [f"{command} " for page in PAGES if page not in NOT_COMMANDS for command in commands(page)]
    unused = {pattern for pattern in NEEDS if not any(re.search(pattern, command) for command in shown)}
    assert unused == set()


def test_the_line_for_the_whole_page_is_not_the_line_of_one_feature():
    assert extras("docs/tutorial.md") == "plot"  # "The installation is ..."
    assert extras("docs/from-trl.md") == "trl"  # in the first block
    assert extras("docs/engines.md") == ""  # names vllm, for one of the engines
