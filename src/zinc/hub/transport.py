"""HTTP for downloads: one request at a time, redirects, and when to try again.

It uses the standard library alone, which honours HTTP_PROXY, HTTPS_PROXY and NO_PROXY. A token is
sent to its own server only, never to a server that a redirect names.
"""

from __future__ import annotations

import email.utils
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import field
from http.client import HTTPException, HTTPMessage, HTTPResponse
from threading import Event
from typing import IO, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from zinc import __version__
from zinc.core.dataclass import dataclass
from zinc.hub.errors import DownloadError

T = TypeVar("T")

TIMEOUT_S = 30.0
# A download ends after this many failures in a row without a byte received.
MAX_FAILURES = 5
# Longest wait that a server may ask for with Retry-After.
MAX_WAIT_S = 120.0
# First pause after a failure; each further one is twice as long.
PAUSE_S = 1.0
_TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
_MAX_ERROR_BODY = 4096


class StatusError(Exception):
    """An answer with an error status. `body` is the beginning of its text."""

    def __init__(self, status: int, headers: Mapping[str, str], body: str, url: str) -> None:
        super().__init__(f"{status} from {url}")
        self.status, self.body = status, body
        self._headers = {name.lower(): value for name, value in headers.items()}

    def header(self, name: str) -> str:
        """Return a header of the response, "" if it has none of that name."""
        return self._headers.get(name.lower(), "")

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in _TRANSIENT_STATUS

    @property
    def retry_after_s(self) -> float | None:
        """The seconds that the server asks to wait; None if it does not say."""
        return retry_after_s(self.header("Retry-After") or None)


class TransientError(Exception):
    """A connection that failed, was cut or went silent; the request may succeed later."""


class StoppedError(Exception):
    """The end of a download because another connection failed or the user stopped it."""


def retry_after_s(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header: a number or a date; None if it is neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, when.timestamp() - time.time())


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Handler of redirects that refuses https to http and sends no token to another server."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme, new.scheme) == ("https", "http"):
            raise DownloadError(
                f"{old.netloc} redirects to {new.scheme}://{new.netloc}",
                "zinc follows redirects from https to https only",
                "check the address, or HF_ENDPOINT",
            )
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and (old.scheme, old.netloc) != (new.scheme, new.netloc):
            following.remove_header("Authorization")
        return following


@dataclass(frozen=True, slots=True)
class Transport:
    """Sender of GET requests. headers: of every request, such as Authorization."""

    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S
    pause_s: float = PAUSE_S

    def open(self, url: str, extra: Mapping[str, str] | None = None) -> HTTPResponse:
        """Return the response to a GET of `url`, its status below 300, with headers `extra`.

        Raises StatusError for an error status, TransientError if the connection failed, and
        DownloadError for a failure that a retry does not fix.
        """
        headers = {"User-Agent": f"zinc/{__version__}", **self.headers, **(extra or {})}
        request = urllib.request.Request(url, headers=headers)
        opener = urllib.request.build_opener(_Redirects())
        try:
            response: HTTPResponse = opener.open(request, timeout=self.timeout_s)
        except HTTPError as error:
            with error:
                body = error.read(_MAX_ERROR_BODY).decode("utf-8", "replace")
            raise StatusError(error.code, dict(error.headers.items()), body, url) from None
        except URLError as error:
            raise _connection_error(url, error.reason) from error
        except (OSError, HTTPException) as error:
            raise _connection_error(url, error) from error
        return response


def read(response: HTTPResponse, n_bytes: int) -> bytes:
    """Return at most `n_bytes` of a response, b"" at its end. Raises TransientError."""
    try:
        return response.read(n_bytes)
    except (OSError, HTTPException) as error:
        raise TransientError(str(error) or type(error).__name__) from error


def read_all(response: HTTPResponse, limit: int) -> bytes:
    """Return the whole body of a response.

    Raises TransientError if it is cut, DownloadError if it has more than `limit` bytes.
    """
    with response:
        body = read(response, limit + 1)
    if len(body) > limit:
        raise DownloadError(
            "the server's answer is too long",
            f"it has more than {limit:,} bytes",
            "check the address",
        )
    stated = response.headers.get("Content-Length")
    if stated is not None and stated.isdecimal() and len(body) < int(stated):
        raise TransientError(f"the answer ended after {len(body):,} of {int(stated):,} bytes")
    return body


class Patience:
    """Retry policy with a growing wait after each failure.

    what, hint: what is tried, and what to do if it fails, for the error. on_wait: called with the
    reason and the seconds. stop: ends a wait early.
    """

    def __init__(
        self,
        what: str,
        pause_s: float,
        on_wait: Callable[[str, float], None],
        stop: Event | None = None,
        hint: str = "check the network and the name of the server, and try again",
    ) -> None:
        self._what, self._hint, self._pause_s = what, hint, pause_s
        self._on_wait, self._stop = on_wait, stop or Event()
        self._failures = 0

    def reset(self) -> None:
        """Note that bytes have arrived: earlier failures do not count."""
        self._failures = 0

    def wait(self, error: StatusError | TransientError) -> None:
        """Wait before the next try.

        Raises `error` if a retry is useless, DownloadError after too many failures, StoppedError if
        the download was stopped meanwhile.
        """
        self._failures += 1
        wanted = None
        if isinstance(error, StatusError):
            if not error.is_transient:
                raise error
            wanted = error.retry_after_s
            if wanted is not None and wanted > MAX_WAIT_S:
                raise error
        if self._failures >= MAX_FAILURES:
            if isinstance(error, StatusError):
                raise error
            raise DownloadError(
                f"{self._what} failed {self._failures} times in a row",
                str(error),
                self._hint,
            )
        seconds = self._pause_s * 2 ** (self._failures - 1) if wanted is None else wanted
        why = f"status {error.status}" if isinstance(error, StatusError) else str(error)
        self._on_wait(why, seconds)
        if self._stop.wait(seconds):
            raise StoppedError


def persist(
    action: Callable[[], T], patience: Patience, describe: Callable[[StatusError], DownloadError]
) -> T:
    """Return the result of `action`, tried again as `patience` allows.

    describe: turns the last error status into the error for the user. Raises DownloadError.
    """
    while True:
        try:
            return action()
        except (StatusError, TransientError) as error:
            try:
                patience.wait(error)
            except StatusError as last:
                raise describe(last) from None


def _connection_error(url: str, reason: object) -> Exception:
    host = urlsplit(url).netloc
    if isinstance(reason, ssl.SSLCertVerificationError):
        return DownloadError(
            f"the certificate of {host} is not valid",
            reason.verify_message,
            "check the clock and the proxy of this machine",
        )
    return TransientError(f"{host}: {getattr(reason, 'strerror', None) or reason}")
