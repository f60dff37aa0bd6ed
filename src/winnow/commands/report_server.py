"""`winnow report --serve`: the page and a run's rollouts, step by step, to this machine's browser alone.

What answers is the loopback address 127.0.0.1, and there is no way to ask for another. As other users of the machine
can reach it too, every address begins with a secret that is drawn anew for each server and stands in the URL that is
printed. A page of another site cannot read: it does not know the secret, and a request is refused unless its Host
names this server (DNS rebinding gives another name) and its Origin and Sec-Fetch-Site, where there are any, are this
page's. Nothing in a request is a path: it is one of a few forms, with two numbers in it.
"""

from __future__ import annotations

import contextlib
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

from winnow.commands.report import title_of
from winnow.errors import DataError, WinnowError
from winnow.report.page.assembled import assembled
from winnow.report.page.run_data import ReportedRun, report_data
from winnow.report.text import one_line

ADDRESS = "127.0.0.1"
LONGEST_LINE = 8192  # bytes of a request's first line
LONGEST_HEAD = 32768  # bytes of all its headers
SECONDS_TO_ASK = 10.0  # until a request's headers have come
SECONDS_TO_TAKE = 60.0  # until a browser has taken a part of an answer
AT_ONCE = 32  # connections
HTTP_PORT = 80  # which a browser leaves out of Host and Origin
_STEP = re.compile(r"/runs/(0|[1-9][0-9]{0,5})/steps/(0|[1-9][0-9]{0,14})")
_OWN = ("same-origin", "none")  # what a browser says of a request that the page, or a person, made
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
ELSEWHERE = "Forbidden: another page asked for this. To open it yourself, paste the address into the address bar."
NOTHING = "default-src 'none'; frame-ancestors 'none'"  # the policy of what is no page


class ReportServer(ThreadingHTTPServer):
    """Answers from its runs' folders, which are read anew for each request. `serve_forever` until `shutdown`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * AT_ONCE
    allow_reuse_port = False  # a second server at one port would answer some of the first one's requests

    def __init__(
        self, runs: Sequence[ReportedRun], *, port: int = 0, evaluations: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Take a port, 0 for any that is free. Raises DataError where it is taken."""
        self.runs, self.evaluations = tuple(runs), tuple(evaluations)
        self.secret = secrets.token_urlsafe(16)
        self.reading = threading.Lock()  # of the folders: one request at a time
        self._asking: dict[
            socket.socket, float
        ] = {}  # connections whose headers have not come, and until when they may
        self._places = threading.BoundedSemaphore(AT_ONCE)
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
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/{self.secret}/"

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is a place for a connection; one that is not taken is closed."""
        return self._places.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._asking[request] = time.monotonic() + SECONDS_TO_ASK
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread for it
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def _ended(self, request: Any) -> None:
        self.asked(request)
        self._places.release()

    def asked(self, request: Any) -> None:
        """The headers have come: from here on the answer takes its time."""
        self._asking.pop(request, None)

    def service_actions(self) -> None:
        """Twice a second: end the connections that do not ask in time."""
        now = time.monotonic()
        for request, until in list(self._asking.items()):
            if now > until:
                self.asked(request)
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error; anything else is told in a line."""
        error = sys.exception() if hasattr(sys, "exception") else sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            print(one_line(f"a request failed: {error!r}"), file=sys.stderr)

    def page(self) -> tuple[str, str]:
        """(the page, its policy). Raises WinnowError where a run cannot be read."""
        with self.reading:
            runs = [run.served() for run in self.runs]
        data = report_data(runs, served=True, limit=0, made=None, evaluations=self.evaluations)
        made = assembled(data, title=title_of(self.runs), served=True)
        return made.text, f"{made.policy}; frame-ancestors 'none'"

    def step(self, run: int, step: int) -> Iterator[str]:
        """The groups of a step as JSON, in parts. Raises WinnowError where there is no such step."""
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
    timeout = SECONDS_TO_TAKE
    default_request_version = "HTTP/1.0"  # also of a request without one: 0.9 would have no headers, so no policy

    def parse_request(self) -> bool:
        if len(self.raw_requestline) > LONGEST_LINE:
            self.requestline, self.request_version, self.command = "", self.default_request_version, ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return False
        self.rfile: Any = _Head(self.rfile)
        come = super().parse_request()
        self.server.asked(self.connection)
        return come

    def do_GET(self) -> None:
        """The page, a step of a run, or nothing."""
        if status := self._refusal():
            return self._say(status, ELSEWHERE) if status is HTTPStatus.FORBIDDEN else self.send_error(status)
        target = self.requestline.split()[1]  # as it came: in `self.path`, several slashes at its beginning are one
        root, path = target[: len(self.server.secret) + 1], target[len(self.server.secret) + 1 :]
        if not hmac.compare_digest(root.encode("latin-1", "replace"), f"/{self.server.secret}".encode()):
            return self.send_error(HTTPStatus.NOT_FOUND)
        asked = _STEP.fullmatch(path)
        if path != "/" and not asked:
            return self.send_error(HTTPStatus.NOT_FOUND)
        try:
            if asked:
                parts = self.server.step(int(asked[1]), int(asked[2]))
                begun = next(parts)  # what is not there is said before the answer begins
                kind, policy, parts = "application/json", NOTHING, itertools.chain([begun], parts)
            else:
                page, policy = self.server.page()
                kind, parts = "text/html", iter([page])
        except WinnowError as error:
            return self._say(HTTPStatus.NOT_FOUND, one_line(str(error)))
        except Exception as error:
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, one_line(repr(error)))
            raise
        return self._answer(kind, policy, parts)  # an error in a later part ends it: a second answer would be within it

    do_HEAD = do_GET

    def _refusal(self) -> HTTPStatus | None:
        """Why a request is no one's of this page: told by what a browser says of it."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return HTTPStatus.MISDIRECTED_REQUEST
        origins, sites = self.headers.get_all("Origin", []), self.headers.get_all("Sec-Fetch-Site", [])
        if any(origin != f"http://{hosts[0].lower()}" for origin in origins) or any(site not in _OWN for site in sites):
            return HTTPStatus.FORBIDDEN
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A refusal in words of our own: nothing of the request is in it."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self._say(status, status.phrase)

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer("text/plain", NOTHING, [f"{text}\n"], status)

    def _answer(self, kind: str, policy: str, parts: Iterable[str], status: HTTPStatus = HTTPStatus.OK) -> None:
        self.close_connection = True
        self.send_response_only(status)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Security-Policy": policy, **HEADERS}
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for part in parts:
                self.wfile.write(part.encode("utf-8", "backslashreplace"))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what was asked is no news."""


class _Head:
    """The head of a request, of which no more is read than a browser sends."""

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


def serve(server: ReportServer, say: Callable[[str], None]) -> None:
    """Say where the page is, and answer until Ctrl-C."""
    with server, contextlib.suppress(KeyboardInterrupt):
        for run in server.runs[:1]:
            run.load_tokenizer()  # before anybody waits: what loads it takes seconds to import
        say(server.url)
        server.serve_forever()
