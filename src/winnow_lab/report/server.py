"""`winnow report --serve`: serves the page and a run's rollouts, step by step, to browsers of this machine only.

The server binds to the loopback address 127.0.0.1, which cannot be configured. Other users of the machine can reach it
too, so every path begins with a random secret, new for each server and part of the printed URL. Pages of other sites
do not have the secret. Also, a request is refused unless its Host is this server's (DNS rebinding gives another name)
and its Origin and Sec-Fetch-Site, where present, are this page's. No part of a request is used as a file's path: a
request is for the page, for the data of the page alone, or for a step of a run by two numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from winnow.errors import DataError, WinnowError
from winnow.view.text import one_line
from winnow_lab.report.data import ReportedRun, report_data
from winnow_lab.report.files import title_of
from winnow_lab.report.html import assemble

ADDRESS = "127.0.0.1"
LONGEST_LINE = 8192  # bytes of a request's first line
LONGEST_HEAD = 32768  # bytes of all its headers
HEADER_SECONDS = 10.0  # time limit for a request's headers
SEND_SECONDS = 60.0  # time limit for a browser to receive a part of an answer
AT_ONCE = 32  # connections
HTTP_PORT = 80  # browsers omit it in Host and Origin
_STEP = re.compile(r"/runs/(0|[1-9][0-9]{0,5})/steps/(0|[1-9][0-9]{0,14})")
_OWN = ("same-origin", "none")  # Sec-Fetch-Site of a request by the page itself, or by the address bar
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
ELSEWHERE = "Forbidden: the request is from another page. To open this page, paste its address into the address bar."
NOTHING = "default-src 'none'; frame-ancestors 'none'"  # the policy of answers other than the page


class ReportServer(ThreadingHTTPServer):
    """Answers from its runs' folders, which are read again for each request. `serve_forever` until `shutdown`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * AT_ONCE
    allow_reuse_port = False  # else a second server at the same port would get some of this one's requests

    def __init__(
        self, runs: Sequence[ReportedRun], *, port: int = 0, evaluations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Bind to a port, with 0 to any free one. Raises DataError if it is in use."""
        self.runs, self.evaluations = tuple(runs), tuple(evaluations)
        self.secret = secrets.token_urlsafe(16)
        self.reading = threading.Lock()  # one request at a time reads the folders
        self._deadlines: dict[socket.socket, float] = {}  # of connections whose headers have not arrived
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        try:
            super().__init__((ADDRESS, port), _Request)
        except OSError as error:
            raise DataError(
                f"cannot serve at port {port}: {error.strerror}", remedy="name another, or none", code="data.port"
            ) from error
        own = (ADDRESS, "localhost")
        self.hosts = tuple(f"{name}:{self.server_port}" for name in own) + own * (self.server_port == HTTP_PORT)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/{self.secret}/"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take a slot for the connection. Returns False if none is free; the connection is then closed."""
        return self._slots.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._deadlines[request] = time.monotonic() + HEADER_SECONDS
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started, so process_request_thread does not release the slot
            self._release(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(request)

    def _release(self, request: Any) -> None:
        self.headers_received(request)
        self._slots.release()

    def headers_received(self, request: Any) -> None:
        """End the time limit for headers; the answer has none."""
        self._deadlines.pop(request, None)

    def service_actions(self) -> None:
        """Called twice a second by `serve_forever`: close the connections whose headers are late."""
        now = time.monotonic()
        for request, until in list(self._deadlines.items()):
            if now > until:
                self.headers_received(request)
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error in one line. A connection that a browser closed, or a timeout, is not printed."""
        error = sys.exception() if hasattr(sys, "exception") else sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            print(one_line(f"a request failed: {error!r}"), file=sys.stderr)

    def data(self) -> str:
        """The page's data, without rollouts. Raises WinnowError if a run cannot be read."""
        with self.reading:
            runs = [run.served() for run in self.runs]
        return report_data(runs, served=True, limit=0, made=None, evaluations=self.evaluations)

    def revision(self) -> str:
        """An entity tag of the runs' files, which changes with them: no file is read for it."""
        seen = [(str(run.path), run.files()) for run in self.runs]
        return f'"{hashlib.sha256(repr(seen).encode()).hexdigest()[:32]}"'

    def page(self) -> tuple[str, str]:
        """The page and its content security policy. Raises WinnowError if a run cannot be read."""
        text, policy = assemble(self.data(), title=title_of(self.runs), served=True)
        return text, f"{policy}; frame-ancestors 'none'"

    def step(self, run: int, step: int) -> Iterator[str]:
        """The groups of a step as JSON, in parts. Raises WinnowError for a run or a step that does not exist."""
        if run >= len(self.runs):
            raise DataError(
                f"there is no run {run}", remedy=f"name one from 0 to {len(self.runs) - 1}", code="data.missing"
            )
        with self.reading:
            groups = self.runs[run].step(step)
            first = list(itertools.islice(groups, 1))
        yield '{"groups":[' + "".join(first)
        while True:
            with self.reading:
                group = next(groups, None)
            if group is None:
                break
            yield f",{group}"
        yield "]}"


class _Request(BaseHTTPRequestHandler):
    server: ReportServer
    raw_requestline: bytes
    timeout = SEND_SECONDS
    default_request_version = "HTTP/1.0"  # for a request without a version: 0.9 has no headers, hence no policy

    def parse_request(self) -> bool:
        if len(self.raw_requestline) > LONGEST_LINE:
            self.requestline, self.request_version, self.command = "", self.default_request_version, ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return False
        self.rfile: Any = _Head(self.rfile)
        parsed = super().parse_request()
        self.server.headers_received(self.connection)
        return parsed

    def do_GET(self) -> None:
        """Answer with the page, a step of a run, or a refusal."""
        if status := self._refusal():
            return self._answer_text(status, ELSEWHERE) if status is HTTPStatus.FORBIDDEN else self.send_error(status)
        target = self.requestline.split()[1]  # unchanged: `self.path` merges several slashes at its beginning
        root, path = target[: len(self.server.secret) + 1], target[len(self.server.secret) + 1 :]
        if not hmac.compare_digest(root.encode("latin-1", "replace"), f"/{self.server.secret}".encode()):
            return self.send_error(HTTPStatus.NOT_FOUND)
        step = _STEP.fullmatch(path)
        if path not in ("/", "/data") and not step:
            return self.send_error(HTTPStatus.NOT_FOUND)
        tag = self.server.revision() if path == "/data" else None
        if tag is not None and self.headers.get("If-None-Match") == tag:
            return self._answer("application/json", NOTHING, [], HTTPStatus.NOT_MODIFIED, tag)
        try:
            if path == "/data":
                kind, policy, parts = "application/json", NOTHING, iter([self.server.data()])
            elif step:
                parts = self.server.step(int(step[1]), int(step[2]))
                first = next(parts)  # raises for an unknown step, before the answer's status is sent
                kind, policy, parts = "application/json", NOTHING, itertools.chain([first], parts)
            else:
                page, policy = self.server.page()
                kind, parts = "text/html", iter([page])
        except WinnowError as error:
            return self._answer_text(HTTPStatus.NOT_FOUND, one_line(str(error)))
        except Exception as error:
            self._answer_text(HTTPStatus.INTERNAL_SERVER_ERROR, one_line(repr(error)))
            raise
        # Outside the try: after an error in a later part, a second answer would be inside the first one.
        return self._answer(kind, policy, parts, tag=tag)

    do_HEAD = do_GET

    def _refusal(self) -> HTTPStatus | None:
        """The status with which a request from elsewhere is refused, by its headers; None for the page's requests."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return HTTPStatus.MISDIRECTED_REQUEST
        origins, sites = self.headers.get_all("Origin", []), self.headers.get_all("Sec-Fetch-Site", [])
        if any(origin != f"http://{hosts[0].lower()}" for origin in origins) or any(site not in _OWN for site in sites):
            return HTTPStatus.FORBIDDEN
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send a refusal that contains nothing of the request."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self._answer_text(status, status.phrase)

    def _answer_text(self, status: HTTPStatus, text: str) -> None:
        self._answer("text/plain", NOTHING, [f"{text}\n"], status)

    def _answer(
        self,
        kind: str,
        policy: str,
        parts: Iterable[str],
        status: HTTPStatus = HTTPStatus.OK,
        tag: str | None = None,
    ) -> None:
        self.close_connection = True
        self.send_response_only(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Security-Policy": policy, **HEADERS}
        if tag is not None:
            headers["ETag"] = tag
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for part in parts:
                self.wfile.write(part.encode("utf-8", "backslashreplace"))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


class _Head:
    """The head of a request, read up to `LONGEST_HEAD` bytes."""

    def __init__(self, file: Any) -> None:
        self._file, self._left = file, LONGEST_HEAD

    def readline(self, size: int) -> bytes:
        line: bytes = self._file.readline(min(size, self._left + LONGEST_LINE))
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head")
        return line

    def close(self) -> None:
        self._file.close()


def serve(server: ReportServer, on_ready: Callable[[str], None]) -> None:
    """Call `on_ready` with the page's address, and serve until Ctrl-C."""
    with server, contextlib.suppress(KeyboardInterrupt):
        for run in server.runs[:1]:
            run.load_tokenizer()  # before the first request, as the import takes seconds
        on_ready(server.url)
        server.serve_forever()
