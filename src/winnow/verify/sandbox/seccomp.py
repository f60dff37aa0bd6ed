"""The system calls that a Python program needs once it has started, as a classic BPF filter; all others fail.

It is a list of allowed calls, so that calls of future kernels are refused too. Refused are, among others, fork and exec
(a run is one process, so that none outlives it), all ways to signal, sockets, and every change of a file or its
attributes. So are ptrace, mounts, namespaces, bpf, io_uring, memfd, shared memory and priorities.
"""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

_ALLOW, _EPERM, _ENOSYS, _PRETEND, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x00050000, 0x80000000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF: load word, jump if equal, jump if and, return
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_CLONE_THREAD = 0x00010000
_CLONE_REFUSED = 0x7E020000 | 0x00800000 | 0x6000  # namespaces, UNTRACED, PTRACE and VFORK
_READING_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIO(N)CLEX
_SIGNALLING_FCNTLS = (8, 10, 15)  # F_SETOWN F_SETSIG F_SETOWN_EX: a signal to anyone of the same user

# name, its number on x86_64, its number on aarch64
_CALLS = """
    read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, lseek 8 62, close 3 57,
    close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, eventfd2 290 19, fcntl 72 25,
    ioctl 16 29,
    open 2 -, openat 257 56, access 21 -, faccessat 269 48, faccessat2 439 439, stat 4 -, fstat 5 80, lstat 6 -,
    newfstatat 262 79, statx 332 291, getdents 78 -, getdents64 217 61, readlink 89 -, readlinkat 267 78,
    getcwd 79 17, umask 95 166,
    poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21,
    epoll_wait 232 -, epoll_pwait 281 22,
    mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214,
    rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137,
    rt_sigsuspend 130 133, sigaltstack 131 132, pause 34 -, alarm 37 -, getitimer 36 102, setitimer 38 103,
    restart_syscall 219 128,
    time 201 -, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, nanosleep 35 101,
    clock_nanosleep 230 115, times 100 153, getrusage 98 165, sysinfo 99 179, uname 63 160, getrandom 318 278,
    getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
    getpgrp 111 -, getpgid 121 155, getsid 124 156, getresuid 118 148, getresgid 120 150, getgroups 115 158,
    getpriority 140 141,
    getrlimit 97 163, setrlimit 160 164, prlimit64 302 261, sched_yield 24 124, sched_getaffinity 204 123,
    sched_getparam 143 121, sched_getscheduler 145 120, getcpu 309 168,
    clone 56 220, clone3 435 435, futex 202 98, set_tid_address 218 96, set_robust_list 273 99,
    get_robust_list 274 100, rseq 334 293, membarrier 324 283, arch_prctl 158 -, exit 60 93, exit_group 231 94
"""
_Line = tuple[int, int, int, int]  # code, lines to skip if true, if false, constant


def _argument(index: int) -> int:
    """Offset of an argument's low word (little-endian); every argument that is examined is an int in the kernel."""
    return 16 + 8 * index


@dataclass(frozen=True, slots=True)
class Machine:
    """The numbers of the system calls of a processor family."""

    audit: int  # AUDIT_ARCH_*: a call of another architecture kills the process
    numbers: Mapping[str, int]


def _numbers(column: int) -> Mapping[str, int]:
    rows = [row.split() for row in _CALLS.split(",")]
    return MappingProxyType({row[0]: int(row[column]) for row in rows if row[column] != "-"})


MACHINES: Mapping[str, Machine] = MappingProxyType(
    {"x86_64": Machine(0xC000003E, _numbers(1)), "aarch64": Machine(0xC00000B7, _numbers(2))}
)


def machine() -> Machine | None:
    """The numbers for this machine; None if there is no filter for it."""
    return MACHINES.get(platform.machine()) if sys.platform == "linux" else None


def assemble(machine: Machine) -> bytes:
    """The filter as an array of struct sock_filter."""
    rules = {
        "clone": [*_test(0, _ANY_BIT, (_CLONE_REFUSED,), _EPERM), *_test(0, _ANY_BIT, (_CLONE_THREAD,), _ALLOW)],
        "clone3": [(_RETURN, 0, 0, _ENOSYS)],  # a filter cannot read its flags in memory; libc falls back to clone
        "fcntl": [*_test(1, _EQUAL, _SIGNALLING_FCNTLS, _EPERM), (_RETURN, 0, 0, _ALLOW)],
        "ioctl": _test(1, _EQUAL, _READING_IOCTLS, _ALLOW),
        # Many programs raise their stack limit, so the call returns success without an effect. A program that could
        # lower a limit could imitate a kill by the harness.
        "setrlimit": [(_RETURN, 0, 0, _PRETEND)],
        "prlimit64": [*_unless_zero(0, 1, _EPERM), *_unless_zero(2, 2, _PRETEND), (_RETURN, 0, 0, _ALLOW)],
    }
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, machine.audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    for name, number in machine.numbers.items():
        body = rules.get(name, [(_RETURN, 0, 0, _ALLOW)])
        code += [(_EQUAL, 0, len(body) + (name in rules), number), *body]
        code += [(_RETURN, 0, 0, _EPERM)] * (name in rules)
    code.append((_RETURN, 0, 0, _EPERM))
    return b"".join(struct.pack("=HBBI", *line) for line in code)


def _test(argument: int, jump: int, constants: Iterable[int], verdict: int) -> list[_Line]:
    """Return `verdict` if the comparison holds for any of the constants; else continue."""
    lines: list[_Line] = [(_LOAD, 0, 0, _argument(argument))]
    for constant in constants:
        lines += [(jump, 0, 1, constant), (_RETURN, 0, 0, verdict)]
    return lines


def _unless_zero(argument: int, words: int, verdict: int) -> list[_Line]:
    """Return `verdict` if any of the argument's words is not 0; else continue."""
    lines: list[_Line] = []
    for word in range(words):
        lines += [(_LOAD, 0, 0, _argument(argument) + 4 * word), (_EQUAL, 1, 0, 0), (_RETURN, 0, 0, verdict)]
    return lines
