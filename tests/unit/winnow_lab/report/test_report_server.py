"""Access control of `winnow report --serve`, with requests that no client library sends, written byte by byte."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refusals import refused
from synthetic_run import write_run
from winnow.commands import app
from winnow.errors import DataError, WinnowError
from winnow_lab.report import html as page
from winnow_lab.report.data import ReportedRun
from winnow_lab.report.server import ELSEWHERE, HEADERS, LONGEST_HEAD, ReportServer, serve

PARTS = Path(__file__).parents[3] / "fixtures" / "report_page"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("runs") / "toy", steps=2)
    with pytest.MonkeyPatch.context() as patch, answering(ReportedRun(run, "toy")) as running:
        patch.setattr(page, "PARTS", PARTS)
        yield running


@contextlib.contextmanager
def answering(*runs):
    with ReportServer(runs) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join()


def exchange(server, data, address="127.0.0.1"):
    """The answer to these bytes, up to the end of the connection."""
    with socket.create_connection((address, server.server_port), timeout=20) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # refused before all was sent
            pass
        answer = b""
        try:
            while some := connection.recv(2**16):
                answer += some
        except ConnectionResetError:  # the server closed it before it had read everything
            pass
    return answer


def send(server, path, *, host=None, method="GET", headers=(), version="HTTP/1.1"):
    """(status, headers, body) of a request; `path` is without the server's secret, unless it begins with "http"."""
    host = f"127.0.0.1:{server.server_port}" if host is None else host
    path = path if path.startswith(("http", "*")) else f"/{server.secret}{path}"
    lines = [f"{method} {path} {version}", *([f"Host: {host}"] if host else []), *headers, "", ""]
    return parsed(exchange(server, "\r\n".join(lines).encode("latin-1", "surrogateescape")))


def parsed(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


def test_the_page_and_its_steps_are_answered(server):
    status, headers, body = send(server, "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    data = json.loads(re.search(rb'id="winnow-data">(.*?)</script>', body, re.DOTALL)[1])
    assert data["served"] is True
    assert data["runs"][0]["groups"] == []
    status, headers, body = send(server, "/runs/0/steps/1", host=f"localhost:{server.server_port}")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    assert [group["prompt_id"] for group in json.loads(body)["groups"]] == ["toy-easy", "toy-hard"]


def test_the_data_alone_is_answered_with_a_tag_and_unchanged_runs_with_none(tmp_path):
    run = write_run(tmp_path / "toy", steps=2)
    with answering(ReportedRun(run, "toy")) as running:
        status, headers, body = send(running, "/data")
        assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        data = json.loads(body)
        assert (data["served"], [step["step"] for step in data["runs"][0]["steps"]]) == (True, [0, 1])
        known = [f"If-None-Match: {headers['ETag']}"]
        assert send(running, "/data", headers=known)[::2] == (304, b"")
        os.utime(run / "metrics.jsonl", ns=(0, 0))
        status, later, _ = send(running, "/data", headers=known)
        assert (status, later["ETag"] == headers["ETag"]) == (200, False)
        (run / "metrics.jsonl").write_text("no row\n")
        assert send(running, "/data", headers=known)[0] == 404  # with the reason, and the page stays as it was


def test_every_answer_has_restrictive_headers(server):
    for path, status in (("/", 200), ("/data", 200), ("/runs/0/steps/0", 200), ("/runs/0/steps/9", 404), ("/x", 404)):
        answered, headers, _ = send(server, path)
        assert answered == status
        assert HEADERS.items() <= headers.items()
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert policy.endswith("frame-ancestors 'none'")
        assert ("connect-src 'self'" in policy) == (path == "/")
        assert "Server" not in headers
        assert "Access-Control-Allow-Origin" not in headers


PATHS = (
    "/../../../../etc/passwd", "/runs/0/steps/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
    "/runs/0/steps/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/%252e%252e%252fetc%252fpasswd", "/..\\..\\..\\etc\\passwd",
    "/runs/0/steps/1%00.parquet", "/runs/0/steps/1\x00", "/....//....//etc/passwd", "//etc/passwd", "/metrics.jsonl",
    "/runs/0/rollouts/step-000000.parquet", "/%c0%ae%c0%ae/etc/passwd", "/.", "/./runs/0/steps/0", "/?file=/etc/passwd",
    "/runs/0/steps/0/", "/runs/0/steps/0?x", "/;/etc/passwd", "http://127.0.0.1/etc/passwd", "http:///etc/passwd", "*",
    "http://127.0.0.1:{port}/{secret}/", "http://evil.example/{secret}/", "\\", "/%2e/", "/..;/", "//",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
def test_no_spelling_of_a_path_leads_to_a_file(server, path):
    path = path.replace("{port}", str(server.server_port)).replace("{secret}", server.secret)
    status, _, body = send(server, path)
    assert status == 404
    assert body == b"Not Found\n"


@pytest.mark.parametrize(
    "number", ["-1", "+1", "01", "1.0", "1e0", "0x1", " 1", "1_0", "१", "99999999999999999999", "nan", ""]
)
def test_a_run_and_a_step_are_plain_numbers(server, number):
    number = number.encode().decode("latin-1")
    assert send(server, f"/runs/0/steps/{number}")[0] in (400, 404)
    assert send(server, f"/runs/{number}/steps/0")[0] in (400, 404)


def test_a_missing_run_or_step_is_answered_with_its_number(server):
    status, _, body = send(server, "/runs/1/steps/0")
    assert (status, b"run 1" in body) == (404, True)
    status, _, body = send(server, "/runs/0/steps/9")
    assert (status, b"step 9" in body) == (404, True)


def test_a_request_without_the_secret_gets_nothing(server):
    own = server.secret
    for wrong in (
        "",
        f"/{own}",
        f"//{own}",
        own[:-1],
        own + "x",
        own.upper(),
        "a" * len(own),
        "é" * len(own),
        f"x/{own}",
        own[1:],
        "%",
        "/",
    ):
        line = f"GET /{wrong}/ HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n"
        assert parsed(exchange(server, line.encode("latin-1")))[0] == 404, wrong
    assert len(own) >= 20


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "localhost", "127.0.0.1:1", "127.0.0.1.evil.example:{port}",
     "localhost.:{port}", "evil@127.0.0.1:{port}", "[::1]:{port}", "0.0.0.0:{port}", "127.1:{port}",
     "2130706433:{port}", "localhost:{port}.", "127.0.0.1:{port}, evil.example", "127.0.0.1:{port}#", ""],
)  # fmt: skip
def test_a_foreign_host_is_refused(server, host):
    """By DNS rebinding, a page of another site reaches the server under the other site's name."""
    assert send(server, "/", host=host.format(port=server.server_port))[0] == 421


def test_at_port_80_a_host_without_a_port_is_accepted(server, monkeypatch):
    assert "127.0.0.1" not in server.hosts
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def bound(self):
            self.socket.close()
            self.socket, self.server_name, self.server_port = listening.dup(), "localhost", 80

        monkeypatch.setattr(ReportServer, "server_bind", bound)
        with ReportServer(()) as http:
            assert {"127.0.0.1", "localhost", "localhost:80"} <= set(http.hosts)


def test_the_tokenizer_is_loaded_before_the_address_is_printed(server, monkeypatch):
    happened = []
    monkeypatch.setattr(ReportedRun, "load_tokenizer", lambda run: happened.append(run.name))
    other = ReportServer([ReportedRun(server.runs[0].path, name) for name in ("one", "two")])
    monkeypatch.setattr(other, "serve_forever", lambda: happened.append("serving"))
    serve(other, lambda url: happened.append("printed"))
    assert happened == ["one", "printed", "serving"]  # the import is the slow part, so one run is enough


def test_two_hosts_are_refused(server):
    again = f"Host: 127.0.0.1:{server.server_port}"
    assert send(server, "/", headers=[again])[0] == 421
    assert send(server, "/", headers=["Host: evil.example"])[0] == 421


@pytest.mark.parametrize(
    "header",
    ["Origin: http://evil.example", "Origin: null", "Origin: https://127.0.0.1:{port}", "Origin: http://127.0.0.1",
     "Origin: http://localhost:{port}", "Origin: http://127.0.0.1:{port}.evil.example", "Sec-Fetch-Site: cross-site",
     "Sec-Fetch-Site: same-site", "Sec-Fetch-Site: Same-Origin2", "Sec-Fetch-Site: "],
)  # fmt: skip
def test_a_request_of_another_site_is_refused(server, header):
    status, _, body = send(server, "/runs/0/steps/0", headers=[header.format(port=server.server_port)])
    assert status == 403
    assert body.decode().strip() == ELSEWHERE


def test_a_request_of_the_page_itself_is_answered(server):
    own = [f"Origin: http://127.0.0.1:{server.server_port}", "Sec-Fetch-Site: same-origin"]
    assert send(server, "/runs/0/steps/0", headers=own)[0] == 200
    own = [f"Origin: http://localhost:{server.server_port}", "Sec-Fetch-Site: none"]
    assert send(server, "/", host=f"LocalHost:{server.server_port}", headers=own)[0] == 200


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "head", "PROPFIND"]
)
def test_nothing_but_get_and_head_is_answered(server, method):
    status, headers, _ = send(server, "/", method=method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/runs/0/steps/0", "/runs/0/steps/9", "/x"])
def test_head_has_the_headers_of_get_alone(server, path):
    status, headers, body = send(server, path, method="HEAD")
    assert (status, headers) == send(server, path)[:2]
    assert body == b""


def broken(error, *, after=()):
    """A run's `step` that yields some groups and then raises."""

    def step(number):
        yield from after
        raise error

    return step


@pytest.mark.parametrize(
    ("error", "status", "answer", "logged"),
    [
        (WinnowError("torn \x1b[31m<b>"), 404, rb"torn \x1b[31m<b>" + b"\n", ""),
        (PermissionError(13, "denied"), 500, b"PermissionError(13, 'denied')\n", "PermissionError(13, 'denied')"),
        (ValueError("bad \x1b[31m"), 500, rb"ValueError('bad \x1b[31m')" + b"\n", r"ValueError('bad \x1b[31m')"),
    ],
)
def test_an_error_is_answered_and_so_is_the_next_request(server, monkeypatch, capfd, error, status, answer, logged):
    with monkeypatch.context() as patch:
        patch.setattr(server.runs[0], "step", broken(error))
        answered, headers, body = send(server, "/runs/0/steps/0")
    assert (answered, headers["Content-Type"], body) == (status, "text/plain; charset=utf-8", answer)
    assert send(server, "/runs/0/steps/0")[0] == 200
    printed = capfd.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1 if logged else 0)
    assert logged in printed.err


@pytest.mark.parametrize("error", [DataError("torn"), PermissionError(13, "denied")])
def test_an_answer_that_breaks_off_is_reported_and_has_no_second_one(server, monkeypatch, capfd, error):
    with monkeypatch.context() as patch:
        patch.setattr(server.runs[0], "step", broken(error, after=["{}", "{}"]))
        status, _, body = send(server, "/runs/0/steps/0")
    assert (status, body) == (200, b'{"groups":[{},{}')  # invalid JSON, so the page reports that it is not readable
    printed = capfd.readouterr()
    assert (printed.out, repr(error) in printed.err) == ("", True)


REQUESTS = {
    "a long line": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", (414,)),
    "an endless line": (b"GET /" + b"a" * 10**6, (414, None)),
    "a long header": (b"GET / HTTP/1.1\r\nA: " + b"a" * 2 * LONGEST_HEAD + b"\r\n\r\n", (431, None)),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", (431,)),
    "long headers": (b"GET / HTTP/1.1\r\n" + (b"A: " + b"b" * 1000 + b"\r\n") * 50 + b"\r\n", (431, None)),
    "no version": (b"GET /\r\n\r\n", (421,)),
    "a version of our own": (b"GET / HTTP/9.9\r\n\r\n", (505,)),
    "nonsense": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", (400, None)),
    "escape sequences": (b"\x1b[2J \x1b[31m \x1b]0;owned\x07\r\n\r\n", (400, None)),
    "nothing": (b"", (None,)),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_malformed_request_is_refused_without_repeating_it(server, kind, capfd):
    data, statuses = REQUESTS[kind]
    answer = exchange(server, data)
    assert (parsed(answer)[0] if answer else None) in statuses
    assert b"owned" not in answer
    assert b"aaaa" not in answer
    assert send(server, "/")[0] == 200  # the next request is answered
    assert capfd.readouterr() == ("", "")


def test_the_server_listens_on_the_loopback_address_only(server):
    assert server.socket.getsockname() == ("127.0.0.1", server.server_port)
    others = {f"127.0.0.{last}" for last in range(2, 10)} | {"127.1.2.3", "127.255.255.254", "::1"}
    for address in others | _own_addresses():
        with pytest.raises(OSError, match=r"refused|unreachable|assign|family|timed out"):  # not "reset": no answer
            exchange(server, b"GET / HTTP/1.1\r\n\r\n", address)


def _own_addresses():
    """The addresses at which other machines reach this one."""
    addresses = set()
    with contextlib.suppress(OSError):
        addresses |= {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for kind, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as connection:
            connection.connect((elsewhere, 9))  # sends nothing, and selects the interface to that address
            addresses.add(connection.getsockname()[0])
    return addresses - {"127.0.0.1"}


@pytest.mark.parametrize(
    "option",
    ["--host=0.0.0.0", "--address=0.0.0.0", "--bind=::", "--interface=eth0", "--listen=0.0.0.0", "--ip=10.0.0.1",
     "--port=0.0.0.0:80", "--port=evil.example", "--port=-1", "--port=65536"],
)  # fmt: skip
def test_no_option_configures_another_address(server, option):
    result = CliRunner().invoke(app, ["report", str(server.runs[0].path), "--serve", option])
    assert result.exit_code == 2


def test_a_port_in_use_is_refused(server):
    with refused(DataError, server.server_port, code="data.port"):
        ReportServer([], port=server.server_port)


def test_a_slow_request_delays_no_other_and_is_closed_in_time(server):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as slow:
        slow.sendall(b"GET / HT")
        assert send(server, "/")[0] == 200
        (waiting,) = server._deadlines
        server._deadlines[waiting] = 0.0  # in the past
        assert slow.recv(10) == b""  # the server has closed it
    assert not server._deadlines


def test_two_clients_at_once_are_answered(server, monkeypatch):
    """Both answers are in progress at the same time: each waits for the other."""
    together = threading.Barrier(2, timeout=20)
    page_of, answers = server.page, []

    def page():
        together.wait()
        return page_of()

    monkeypatch.setattr(server, "page", page)
    clients = [threading.Thread(target=lambda: answers.append(send(server, "/")[0])) for _ in range(2)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert answers == [200, 200]


def test_a_connection_is_for_one_request(server):
    """No connection stays open between requests, and no second request can be smuggled behind the first."""
    line = f"GET /{server.secret}/x HTTP/1.1\r\nHost: localhost:{server.server_port}\r\nConnection: keep-alive\r\n\r\n"
    assert exchange(server, line.encode() * 2).count(b"HTTP/1.0 404") == 1


def test_the_number_of_open_connections_is_limited():
    with answering() as server, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", server.server_port)
        kept = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(40)]
        ended = 0
        for connection in kept[32:]:
            try:
                ended += connection.recv(1) == b""
            except OSError:
                ended += 1
    assert ended == 8


def test_ctrl_c_stops_the_server(tmp_path):
    run = write_run(tmp_path / "toy\x1b[31m", steps=1)
    command = [sys.executable, "-m", "winnow", "report", str(run), "--serve"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    default = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # ignored in a shell's background job
    with subprocess.Popen(command, preexec_fn=default, **pipes) as process:
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert re.search(r" http://127\.0\.0\.1:\d+/[\w-]{20,}/ ", line)
    assert (process.returncode, rest, errors) == (0, "", "")


def test_a_failing_test_stops_the_server():
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), answering():
        raise ZeroDivisionError
    assert threading.active_count() == before
