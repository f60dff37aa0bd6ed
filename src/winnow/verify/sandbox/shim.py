"""The trusted part inside the sandbox: give up every right, then run the program. Sent as text, never imported.

    python -c <this text>  <message

A new interpreter, without the trainer's memory, reads frames from stdin (after them comes the program's input). It
gives up its rights, writes `<nonce> ready` to a separate pipe, and only then compiles the program. An error before
`ready` is a failure of the sandbox, a later error one of the program. The program can write to that pipe as well, but
no text there can make a run count as failed or turn a wrong value into a right one.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import ctypes
import os
import resource
import struct
import sys
from types import CodeType

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 22, 38
SIGKILL, SECCOMP_FILTER = 9, 2
LOADING = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT, PATH_BENEATH = 444, 445, 446, 1

libc = ctypes.CDLL(None, use_errno=True)


def read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            sys.exit("the message is incomplete")
        data += piece
    return data


def frame() -> bytes:
    return read(int.from_bytes(read(4), "big"))


def checked(result: int, what: str) -> int:
    if result < 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def prctl(option: int, *values: object) -> None:
    checked(libc.prctl(option, *values, *[ctypes.c_ulong(0)] * (4 - len(values))), f"prctl {option}")


def end_with(parent: int) -> None:
    """Exit with the parent. In a process namespace its number is 0 or 1, and the namespace ends with it."""
    prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(SIGKILL))
    if os.getppid() not in (0, 1, parent):
        sys.exit("the harness has exited")


def limit(memory: int, cpu: int, threads: int, files: int) -> None:
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_NPROC, threads),
        (resource.RLIMIT_NOFILE, files),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))  # SIGXCPU, then SIGKILL for programs that catch it


def restrict_files(files: int, network: int, scope: int, allowed: bytes) -> None:
    attributes = struct.pack("=QQQ", files, network, scope)
    rules = checked(libc.syscall(LANDLOCK_CREATE, attributes, ctypes.c_size_t(24), 0), "landlock")
    for line in allowed.splitlines():
        mask, _, path = line.partition(b" ")
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", int(mask), handle)
        checked(libc.syscall(LANDLOCK_ADD, rules, PATH_BENEATH, rule, 0), f"landlock {path!r}")
        os.close(handle)
    checked(libc.syscall(LANDLOCK_RESTRICT, rules, 0), "landlock")
    os.close(rules)


def restrict_calls(code: bytes) -> None:
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    prctl(PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_FILTER), program)


def lock_in(numbers: list[int], allowed: bytes, filter_code: bytes) -> None:
    parent, memory, cpu, threads, open_files, files, network, scope = numbers
    end_with(parent)
    prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1))
    if files:
        restrict_files(files, network, scope, allowed)
    limit(memory, cpu, threads, open_files)
    if filter_code:
        restrict_calls(filter_code)


def report(pipe: int, line: bytes) -> None:
    rest = memoryview(line + b"\n")
    while rest:
        rest = rest[os.write(pipe, rest) :]


def global_names(program: CodeType, usual: dict[str, list[str]]) -> set[str]:
    """Those of the usual names that the program reads as global variables; an attribute with such a name is none."""
    found: set[str] = set()
    waiting = [program]
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        places = {place for place, name in enumerate(code.co_names) if name in usual}
        found |= {code.co_names[place] for place in (places & names_read(code) if places else places)}
    return found


def names_read(code: CodeType) -> set[int]:
    """Places in co_names of the variables that the instructions load, as Python 3.11 and later encode them."""
    from opcode import EXTENDED_ARG, opmap  # not imported for programs that need none of the usual names

    shifts = {opmap[name]: name == "LOAD_GLOBAL" for name in LOADING if name in opmap}
    places, above = set(), 0
    for instruction, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        whole = above | argument
        above = whole << 8 if instruction == EXTENDED_ARG else 0
        if instruction in shifts:
            places.add(whole >> shifts[instruction])
    return places


def provide(program: CodeType, usual: bytes) -> None:
    """Add to Python's builtins: `exit` and `quit`, which -S leaves out, and the usual names that are read.

    The program's own names come before builtins, so none of them is replaced.
    """
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    sources = {name: source for name, *source in (line.split() for line in usual.decode().splitlines())}
    for name in global_names(program, sources):
        module, *member = sources[name]
        found = __import__(module)
        setattr(builtins, name, getattr(found, member[0]) if member else found)


def find(names: dict[str, object], name: str) -> object:
    """A method of the program's class Solution, which problem sites use, or else a function of the program."""
    solution = names.get("Solution")
    return getattr(solution(), name) if hasattr(solution, name) else names[name]  # type: ignore[operator]


def main() -> None:
    numbers = [int(word) for word in frame().split()]
    allowed, filter_code, nonce, usual, function, arguments, code = (frame() for _ in range(7))
    pipe, *numbers = numbers
    lock_in(numbers, allowed, filter_code)
    report(pipe, nonce + b" ready")
    try:
        program = compile(code, "solution.py", "exec", dont_inherit=True)
    except BaseException:
        report(pipe, b"compile_error")
        raise
    sys.argv[:] = ["solution.py"]
    sys.setrecursionlimit(50_000)  # both as LiveCodeBench's checker; after `compile`, whose depth depends on it
    sys.set_int_max_str_digits(50_000)
    name = "solution" if function else "__main__"  # the main part of a function's file does not run
    sys.modules["__main__"] = sys.modules[name] = module = type(sys)(name)
    try:
        provide(program, usual)
        if not function:
            exec(program, module.__dict__)
            return
        import json  # before the program could replace it

        exec(program, module.__dict__)
        value = find(module.__dict__, function.decode())(*json.loads(arguments))  # type: ignore[operator]
        report(pipe, nonce + b" value " + json.dumps(value).encode())
    except MemoryError:
        report(pipe, b"memory_limit")
        raise


main()
