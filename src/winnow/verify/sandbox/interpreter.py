"""The Python that runs the programs, and the paths that it has to read."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom")
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # tried where only this user may enter TMPDIR
_LEFT_OUT = (
    *("site-packages", "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"),
    *("config-*", "*.a", "*.opt-?.pyc"),
)
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class Interpreter:
    executable: str
    readable: tuple[str, ...]  # existing paths, the executable's own included
    environment: tuple[tuple[str, str], ...]  # the whole environment of a program


def own() -> Interpreter:
    """The interpreter that runs winnow, without its virtual environment."""
    return _interpreter(Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable))), Path(sys.base_prefix))


def reachable_by_others(interpreter: Interpreter) -> bool:
    """Whether every user can start it; false for an interpreter below /root, for example."""
    library = Path(os.path.realpath(os.__file__))
    paths = [Path(interpreter.executable), library]
    return all(path.stat().st_mode & 0o5 for path in paths) and all(_enterable(path.parent) for path in paths)


def copied() -> Interpreter:
    """A copy that other users can start: executable and standard library, once per machine, in the first temporary
    folder that they may enter.

    Raises OSError if there is no such folder, if copying fails, and if the copy does not belong to this user
    alone.
    """
    source = own()
    mark = hashlib.sha256(f"{source.executable} {sys.version}".encode()).hexdigest()[:12]
    home = _open_folder() / f"winnow-{_VERSION}-{os.geteuid()}-{mark}"
    if not home.exists():
        _copy(source, home)
    status = home.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o22 or not home.is_dir():
        raise PermissionError(f"{home} does not belong to this user alone; remove it")
    if not (home / "lib" / _VERSION / "os.py").exists():
        raise FileNotFoundError(f"{home} is incomplete, as after a cleaning of temporary files; remove it")
    return _interpreter(home / "bin" / Path(source.executable).name, home)


def _open_folder() -> Path:
    folders = dict.fromkeys((tempfile.gettempdir(), *_TEMPORARY))
    for folder in map(Path, folders):
        usable = folder.is_dir() and os.access(folder, os.W_OK) and _enterable(folder.resolve())
        if usable and not os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return folder
    raise PermissionError(
        f"Python has to be copied to a folder that all users may enter, that this user may write to, and that is not "
        f"mounted noexec; none of {', '.join(folders)} is such a folder; set TMPDIR to one (chmod 755 on it and on "
        f"every folder above)"
    )


def _enterable(folder: Path) -> bool:
    """Whether every user may enter it and the folders above."""
    return all(one.stat().st_mode & 0o1 for one in (folder, *folder.parents))


def _interpreter(executable: Path, prefix: Path) -> Interpreter:
    libraries = [str(prefix / name) for name in ("lib", "lib64")]
    readable = dict.fromkeys([str(executable), *libraries, *SYSTEM])
    return Interpreter(
        executable=str(executable),
        readable=tuple(path for path in readable if os.path.exists(path)),
        # A fixed hash seed makes verdicts repeatable; the library is this Python's, not another one in /usr/lib.
        environment=(("PYTHONHASHSEED", "0"), ("LD_LIBRARY_PATH", libraries[0])),
    )


def _copy(source: Interpreter, home: Path) -> None:
    """Copy under another name first, so that no process uses an incomplete copy."""
    prefix = Path(sys.base_prefix)
    draft = Path(tempfile.mkdtemp(prefix="winnow-python-", dir=home.parent))
    try:
        draft.chmod(0o755)
        (draft / "bin").mkdir(mode=0o755)
        shutil.copy(source.executable, draft / "bin")
        library = draft / "lib" / _VERSION
        shutil.copytree(
            os.path.realpath(os.path.dirname(os.__file__)), library, ignore=shutil.ignore_patterns(*_LEFT_OUT)
        )
        for shared in (prefix / "lib").glob("libpython*.so*"):
            shutil.copy(shared, draft / "lib", follow_symlinks=False)
        for path in (path for path in draft.rglob("*") if not path.is_symlink()):  # open to all users
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        try:
            draft.rename(home)
        except OSError:
            if not home.exists():  # else another process was faster
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
