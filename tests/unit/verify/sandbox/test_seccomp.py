"""The filter as a program: interpreted here, call by call, for both processor families."""

from __future__ import annotations

import functools
import re
import struct
from pathlib import Path

import pytest

from winnow.verify.sandbox.seccomp import MACHINES, assemble

ALLOWED, REFUSED, UNKNOWN, PRETENDED, DEADLY = 0x7FFF0000, 0x00050001, 0x00050026, 0x00050000, 0x80000000
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
THREAD = 0x3D0F00  # the flags of glibc


@functools.cache
def lines(machine: str) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack("=HBBI", assemble(MACHINES[machine])))  # type: ignore[arg-type]


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """The kernel's answer to a call."""
    spoken = MACHINES[machine].audit if audit is None else audit
    data = struct.pack("=IIQ6Q", number, spoken, 0, *arguments, *[0] * (6 - len(arguments)))
    accumulator = place = 0
    while True:
        code, yes, no, constant = lines(machine)[place]
        place += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif code == 0x15:
            place += yes if accumulator == constant else no
        elif code == 0x45:
            place += yes if accumulator & constant else no
        else:
            assert code == 0x06
            return constant


def call(machine: str, name: str, *arguments: int) -> int:
    return verdict(machine, MACHINES[machine].numbers[name], *arguments)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "answer"),
    [
        ("read", (0,), ALLOWED),
        ("exit_group", (), ALLOWED),
        ("clone", (THREAD,), ALLOWED),
        ("clone", (17,), REFUSED),  # fork: SIGCHLD
        ("clone", (THREAD | 0x10000000,), REFUSED),  # CLONE_NEWUSER
        ("clone", (0x4111,), REFUSED),  # vfork
        ("clone3", (), UNKNOWN),
        ("fcntl", (3, 3), ALLOWED),  # F_GETFL
        ("fcntl", (3, 8), REFUSED),  # F_SETOWN
        ("ioctl", (0, 0x5401), ALLOWED),  # TCGETS
        ("ioctl", (0, 0x5412), REFUSED),  # TIOCSTI
        ("setrlimit", (0,), PRETENDED),
        ("prlimit64", (0, 7, 0), ALLOWED),  # reads a limit
        ("prlimit64", (0, 7, 4096), PRETENDED),
        ("prlimit64", (0, 7, 1 << 40), PRETENDED),  # a pointer with an empty low word
        ("prlimit64", (1, 7, 0), REFUSED),
    ],
)
def test_the_verdict_on_a_call(machine: str, name: str, arguments: tuple[int, ...], answer: int):
    assert call(machine, name, *arguments) == answer


@pytest.mark.parametrize("machine", MACHINES)
def test_whatever_is_not_listed_is_refused(machine: str):
    listed = set(MACHINES[machine].numbers.values())
    assert {verdict(machine, n) for n in range(600) if n not in listed} == {REFUSED}
    assert verdict(machine, 0x40000000 + MACHINES[machine].numbers["read"]) == REFUSED  # x32's numbering


@pytest.mark.parametrize("machine", MACHINES)
def test_another_numbering_is_deadly(machine: str):
    assert verdict(machine, 2, audit=0x40000003) == DEADLY  # i386, where 2 is fork


@pytest.mark.parametrize("machine", MACHINES)
def test_the_kernel_would_take_it(machine: str):
    assert 100 < len(lines(machine)) <= 4096


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_the_kernel_headers(machine: str):
    header = HEADERS[machine]
    if not header.is_file():
        pytest.skip(f"no kernel headers: {header}")
    defined = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    numbers = {name: int(number) for name, number in defined}
    numbers.setdefault("newfstatat", numbers.get("fstatat", -1))
    ours = MACHINES[machine].numbers
    assert {name: numbers.get(name) for name in ours} == dict(ours)
