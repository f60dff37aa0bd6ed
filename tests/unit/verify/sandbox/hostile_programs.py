"""Programs that attack. Each prints `breach` for what it got, so a sandbox that holds makes every one of them silent.

A program finds in `world` where its witnesses are (see hostile_world). `attempt` is refused by an OSError and by
nothing else: a slip of the pen ends in runtime_error, which is not what the list expects. `unguarded` marks those that
must breach without a sandbox, harmlessly; that is how the list proves that it has teeth.
"""

from __future__ import annotations

from dataclasses import dataclass

MODULES = ("fcntl", "gc", "mmap", "resource", "signal", "socket", "subprocess", "threading", "time")
PRELUDE = """\
import ctypes, os, sys
world = eval(input())  # texts and whole numbers: to import json takes longer
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what):
    try:
        what()
    except OSError:
        return
    print("breach", flush=True)
def call(*arguments):
    "A C call that says -1 when refused."
    if arguments[0](*arguments[1:]) == -1:
        raise OSError(ctypes.get_errno(), "refused")
def child(does):
    if os.fork() == 0:
        does()
        os._exit(0)
"""


@dataclass(frozen=True)
class Hostile:
    name: str
    code: str
    endings: tuple[str, ...] = ("finished",)
    unguarded: bool = False
    prelude: bool = True
    sleeps: bool = False  # so that only the clock can end it; every other program has all the time that it needs

    @property
    def busy(self) -> bool:
        """Whether it may burn all the seconds of a processor that it is allowed."""
        return "time_limit" in self.endings

    @property
    def source(self) -> bytes:
        """With a prelude, and the modules that the code names: to import all takes longer than most programs."""
        if not self.prelude:
            return self.code.encode()
        named = [f"import {name}\n" for name in MODULES if f"{name}." in self.code]
        return "".join([*named, PRELUDE, self.code]).encode()


FILES = [
    Hostile("read /etc/passwd", 'attempt(lambda: open("/etc/passwd").read())', unguarded=True),
    Hostile("read the expected output", 'attempt(lambda: open(world["answers"]).read())', unguarded=True),
    Hostile("read it from its folder", 'os.chdir(world["folder"]); attempt(lambda: open("answers").read())',
            endings=("finished", "runtime_error"), unguarded=True),
    Hostile("read it through a handle",
            'attempt(lambda: os.read(os.open("answers", 0, dir_fd=os.open(world["folder"], os.O_PATH)), 9))',
            unguarded=True),
    Hostile("write beside it", 'attempt(lambda: open(world["folder"] + "/mine", "w"))', unguarded=True),
    Hostile("write over it", 'attempt(lambda: open(world["answers"], "r+").write("mine"))', unguarded=True),
    Hostile("write anywhere", """
for folder in (".", "/", "/tmp", "/var/tmp", "/dev/shm", "/root", "/etc", "/usr/lib", sys.prefix, sys.prefix + "/lib"):
    attempt(lambda: open(folder + "/winnow-hostile", "w"))
"""),
    Hostile("leave a module to be imported", """
for folder in [".", *sys.path]:
    attempt(lambda: open(folder + "/sitecustomize.py", "w"))
"""),
    Hostile("link to /etc/shadow", 'attempt(lambda: os.symlink("/etc/shadow", world["folder"] + "/link"))',
            unguarded=True),
    Hostile("second name for it", 'attempt(lambda: os.link(world["answers"], world["folder"] + "/twin"))',
            unguarded=True),
    Hostile("setuid bit", 'attempt(lambda: os.chmod(world["answers"], 0o4755))', unguarded=True),
    Hostile("other owner", 'attempt(lambda: os.chown(world["answers"], os.getuid(), os.getgid()))', unguarded=True),
    Hostile("other date", 'attempt(lambda: os.utime(world["answers"], (0, 0)))', unguarded=True),
    Hostile("attributes", 'attempt(lambda: os.setxattr(world["answers"], "user.mine", b"1"))'),
    Hostile("remove it", 'attempt(lambda: os.remove(world["answers"]))', unguarded=True),
    Hostile("move it", 'attempt(lambda: os.rename(world["answers"], world["folder"] + "/moved"))', unguarded=True),
    Hostile("empty it", 'attempt(lambda: os.truncate(world["answers"], 0))', unguarded=True),
    Hostile("one file of 1 GB", """
def huge():
    handle = os.open(world["folder"] + "/huge", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(handle, 0, 2**30)
attempt(huge)
"""),
    Hostile("20,000 inodes", 'attempt(lambda: [os.mkdir(f"{world[\'folder\']}/{i}") for i in range(20_000)])'),
    Hostile("a pipe with a name", 'attempt(lambda: os.mkfifo(world["folder"] + "/fifo"))', unguarded=True),
    Hostile("memory by /dev/shm", 'attempt(lambda: open("/dev/shm/winnow-hostile", "wb").write(bytes(2**20)))'),
    Hostile("memory by memfd", 'attempt(lambda: os.memfd_create("mine"))', unguarded=True),
    Hostile("memory by pipes", """
def fill():
    for _ in range(2_000):
        fcntl.fcntl(os.pipe()[1], 1031, 2**20)  # F_SETPIPE_SZ
attempt(fill)
"""),
]  # fmt: skip

NETWORK = [
    Hostile("TCP", 'attempt(lambda: socket.create_connection(("127.0.0.1", world["tcp"])))', unguarded=True),
    Hostile("TCP over IPv6", 'attempt(lambda: socket.create_connection(("::1", world["tcp"])))'),
    Hostile("UDP", """
attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", world["udp"])))
""", unguarded=True),
    Hostile("a unix socket", 'attempt(lambda: socket.socket(socket.AF_UNIX).connect(world["unix"]))', unguarded=True),
    Hostile("an abstract socket", 'attempt(lambda: socket.socket(socket.AF_UNIX).connect("\\0" + world["abstract"]))',
            unguarded=True),
    Hostile("raw packets", "attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))"),
    Hostile("netlink", "attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))", unguarded=True),
    Hostile("a port of its own", """
attempt(lambda: socket.create_server(("127.0.0.1", 0)))
""", unguarded=True),
    Hostile("shared memory left behind", "attempt(lambda: call(libc.shmget, 0x77696E, 2**20, 0o1600))"),
    Hostile("a message queue left behind", 'attempt(lambda: call(libc.msgget, 0x77696E, 0o1600))'),
]  # fmt: skip

PROCESSES = [
    Hostile("signal the harness", """
attempt(lambda: os.kill(world["harness"], 0))
attempt(lambda: os.kill(os.getppid(), 0))
attempt(lambda: os.killpg(0, 0))
""", unguarded=True),
    Hostile("kill a neighbour", 'attempt(lambda: os.kill(world["neighbour"], signal.SIGKILL))'),
    Hostile("kill everyone", "attempt(lambda: os.kill(-1, signal.SIGKILL))"),
    Hostile("kill by handle", """
def shoot():
    signal.pidfd_send_signal(os.pidfd_open(world["neighbour"]), signal.SIGKILL)
attempt(shoot)
"""),
    Hostile("kill by queue", """
attempt(lambda: call(libc.sigqueue, world["neighbour"], 9, None))
attempt(lambda: call(libc.syscall, 234, world["neighbour"], world["neighbour"], 9))
attempt(lambda: call(libc.syscall, 200, world["neighbour"], 9))
"""),
    Hostile("signal by a pipe's owner", """
def own():
    read, write = os.pipe()
    fcntl.fcntl(read, fcntl.F_SETOWN, world["neighbour"])
attempt(own)
attempt(lambda: fcntl.fcntl(0, 10, signal.SIGKILL))  # F_SETSIG
"""),
    Hostile("limit a neighbour", """
attempt(lambda: resource.prlimit(world["neighbour"], resource.RLIMIT_NOFILE, (3, 3)))
if resource.prlimit(0, resource.RLIMIT_AS)[0] > 2**30: print("breach")
"""),
    Hostile("fork bomb", """
def bomb():
    while True: os.fork()
attempt(bomb)
"""),
    Hostile("one fork", "attempt(lambda: child(lambda: None))", unguarded=True),
    Hostile("vfork", 'attempt(lambda: os.posix_spawn("/bin/true", ["true"], {}))', unguarded=True),
    Hostile("a shell", """
if os.system("true") == 0: print("breach")
attempt(lambda: subprocess.run(["/bin/true"], check=True))
""", unguarded=True),
    Hostile("become a shell", 'attempt(lambda: os.execv("/bin/echo", ["echo", "breach"]))', unguarded=True),
    Hostile("clone by hand", """
attempt(lambda: call(libc.syscall, 435, 0, 0))
if os.name == "posix" and os.uname().machine == "x86_64":
    attempt(lambda: call(libc.syscall, 57))
"""),
    Hostile("more threads than the limit", """
def start():
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]  # of a machine with many threads, more than 600
    threading.stack_size(2**16)
    done = threading.Event()
    for _ in range(max(600, limit + 1)): threading.Thread(target=done.wait, args=(10,), daemon=True).start()
try: start()
except RuntimeError: pass
else: print("breach")
""", unguarded=True),
    Hostile("a daemon that strikes later", """
def strike():
    os.setsid(); time.sleep(0.5); open(world["folder"] + "/late", "w")
attempt(lambda: child(lambda: child(strike)))
"""),
    Hostile("a grandchild on stdout", "attempt(lambda: child(lambda: time.sleep(60)))"),
    Hostile("deaf and asleep", """
for number in range(1, 32):
    if number not in (9, 19): signal.signal(number, signal.SIG_IGN)
time.sleep(600)
""", endings=("time_limit",), sleeps=True),
    Hostile("asleep with closed pipes", "os.close(1); os.close(2); os.closerange(3, 64); time.sleep(600)",
            endings=("time_limit",), sleeps=True),
    Hostile("stopped", """
attempt(lambda: os.kill(os.getpid(), signal.SIGSTOP))
attempt(lambda: signal.raise_signal(signal.SIGSTOP))
"""),
    Hostile("busy", "while True: pass", endings=("time_limit",)),
    Hostile("busy and deaf", """
signal.signal(signal.SIGXCPU, signal.SIG_IGN)
while True: pass
""", endings=("time_limit",)),
    Hostile("busy in C", "9 ** 9 ** 9", endings=("time_limit",)),
    Hostile("busy in eight threads", """
import hashlib
data = bytes(2**24)
def burn():
    while True: hashlib.sha256(data)
for _ in range(7): threading.Thread(target=burn).start()
burn()
""", endings=("time_limit",)),
    Hostile("cheap suicide", """
resource.setrlimit(resource.RLIMIT_CPU, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (0, 0))
while True: pass
""", endings=("time_limit",)),
    Hostile("suicide by alarm", "signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(0.2)",
            endings=("runtime_error", "finished")),
    Hostile("trace the harness", """
attempt(lambda: call(libc.ptrace, 16, world["harness"], None, None))
attempt(lambda: call(libc.ptrace, 0, 0, None, None))
"""),
    Hostile("read a neighbour's memory", """
class Vector(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
mine = ctypes.create_string_buffer(8)
here = Vector(ctypes.addressof(mine), 8)
attempt(lambda: call(libc.process_vm_readv, world["neighbour"], ctypes.byref(here), 1, ctypes.byref(here), 1, 0))
attempt(lambda: open(f"/proc/{world['neighbour']}/mem", "rb"))
"""),
    Hostile("list processes", 'attempt(lambda: os.listdir("/proc"))', unguarded=True),
    Hostile("more than its share", """
attempt(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt(lambda: os.sched_setaffinity(world["neighbour"], {0}))
"""),
    Hostile("type into the terminal", 'attempt(lambda: fcntl.ioctl(0, 0x5412, b"x"))'),
]  # fmt: skip

MEMORY_AND_OUTPUT = [
    Hostile("1.5 GB", "data = bytearray(3 * 2**29)", endings=("memory_limit",)),
    Hostile("1.5 GB, patiently", """
held = []
try:
    while True: held.append(bytearray(2**24))
except MemoryError:
    if len(held) * 2**24 > 2**29: print("breach")
"""),
    Hostile("1 GB of pages", "attempt(lambda: mmap.mmap(-1, 2**30))", unguarded=True),
    Hostile("memory in children", "attempt(lambda: [child(lambda: bytearray(2**28)) for _ in range(8)])"),
    Hostile("pinned memory", "attempt(lambda: call(libc.mlockall, 3))"),
    Hostile("stdout flood", 'while True: sys.stdout.write("x" * 65536)', endings=("output_limit",)),
    Hostile("stderr flood", 'while True: sys.stderr.write("x" * 65536)', endings=("output_limit",)),
    Hostile("report flood", """
for handle in range(3, 64):
    try:
        while True: os.write(handle, b"x" * 65536)
    except OSError: pass
""", endings=("output_limit",)),
    Hostile("segmentation fault", "ctypes.string_at(0)", endings=("runtime_error",)),
    Hostile("abort", "os.abort()", endings=("runtime_error",)),
    Hostile("endless recursion", """
sys.setrecursionlimit(10**9)
def deeper(n): return deeper(n + 1) + 1
deeper(0)
""", endings=("memory_limit", "runtime_error", "time_limit")),
    Hostile("recursion in C", """
sys.setrecursionlimit(10**9)
data = []
for _ in range(10**6): data = [data]
repr(data)
""", endings=("runtime_error", "memory_limit", "time_limit")),
    Hostile("brackets for the parser", "(" * 200_000, endings=("compile_error", "runtime_error"), prelude=False),
    Hostile("signs for the parser", "-" * 1_000_000 + "1", endings=("compile_error", "runtime_error"), prelude=False),
    Hostile("no text", "\0", endings=("compile_error",), prelude=False),
]  # fmt: skip

PRIVILEGE = [
    Hostile("mount", """
attempt(lambda: call(libc.mount, b"none", b"/tmp", b"tmpfs", 0, None))
attempt(lambda: call(libc.umount2, b"/", 2))
"""),
    Hostile("new namespaces", """
for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000):
    attempt(lambda: call(libc.unshare, flag))
attempt(lambda: call(libc.setns, 0, 0))
"""),
    Hostile("io_uring, userfaultfd, perf, bpf, keyctl", """
memory = ctypes.create_string_buffer(256)
for number in (425, 323, 298, 321, 250, 282, 241):
    attempt(lambda: call(libc.syscall, number, 1, memory, 0, -1, 0))
"""),
    Hostile("kernel settings", """
for file in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/dev/kmsg"):
    attempt(lambda: os.open(file, os.O_WRONLY))
"""),
    Hostile("become root", """
attempt(lambda: os.setuid(0))
attempt(lambda: os.setgid(0))
attempt(lambda: os.setgroups([0]))
attempt(lambda: os.setresuid(0, 0, 0))
if os.getuid() == 0 or os.geteuid() == 0: print("breach")
"""),
    Hostile("another root folder", 'attempt(lambda: os.chroot("/usr"))'),
    Hostile("undo the locks", """
attempt(lambda: call(libc.prctl, 22, 0, 0, 0, 0))
attempt(lambda: call(libc.prctl, 38, 0, 0, 0, 0))
attempt(lambda: call(libc.prctl, 1, 0, 0, 0, 0))
attempt(lambda: call(libc.personality, 0x0040000))
"""),
    Hostile("32-bit calls", """
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b802000000cd80c3"))  # eax = 2, fork; int 0x80; return
print("breach", ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
""", endings=("runtime_error",)),
]  # fmt: skip

SECRETS = [
    Hostile("the environment", """
if "SECRET_TOKEN" in os.environ or set(os.environ) - {"PYTHONHASHSEED", "LD_LIBRARY_PATH", "LC_CTYPE", "PWD"}:
    print("breach", set(os.environ))
for pid in (1, "self", world["harness"]):
    attempt(lambda: open(f"/proc/{pid}/environ").read())
"""),
    Hostile("memory of the harness", """
secret = "winnow-" + "secret-" + "answer"
seen = [o for o in gc.get_objects() if isinstance(o, (dict, list, tuple)) and len(o) < 9]
if sum(secret in repr(o) for o in seen if secret in str(o)) and not world: print("breach")
frame = sys._getframe()
while frame:
    values = [v for v in frame.f_locals.values() if isinstance(v, (str, bytes)) and v is not secret]
    if any(secret in str(v) for v in values): print("breach")
    frame = frame.f_back
"""),
    Hostile("inherited files", """
import stat
for handle in range(3, 1024):
    try: mode = os.fstat(handle).st_mode
    except OSError: continue
    if not stat.S_ISFIFO(mode): print("breach", handle)
"""),
]  # fmt: skip

HOSTILE = [*FILES, *NETWORK, *PROCESSES, *MEMORY_AND_OUTPUT, *PRIVILEGE, *SECRETS]
