"""Requests, redirects and waiting between tries."""

from __future__ import annotations

import email.utils
import time
import urllib.request
from http.client import HTTPMessage
from threading import Event

import pytest

from zinc.hub.errors import DownloadError
from zinc.hub.transport import (
    MAX_FAILURES,
    Patience,
    StatusError,
    StoppedError,
    TransientError,
    Transport,
    _Redirects,
    read_all,
    retry_after_s,
)


def redirect(old: str, new: str) -> urllib.request.Request | None:
    """Return the request that follows a redirect of a request with a token."""
    request = urllib.request.Request(old, headers={"Authorization": "Bearer secret"})
    return _Redirects().redirect_request(request, None, 302, "Found", HTTPMessage(), new)


def test_a_token_stays_on_its_server():
    same = redirect("https://a.example/x", "https://a.example/y")
    assert same.get_header("Authorization") == "Bearer secret"
    for other in ("https://b.example/y", "https://a.example:8443/y"):
        assert redirect("https://a.example/x", other).get_header("Authorization") is None


@pytest.mark.parametrize(
    "target", ["http://a.example/x", "ftp://a.example/x", "file:///etc/passwd"]
)
def test_an_encrypted_connection_is_not_left(target):
    with pytest.raises(DownloadError, match="redirects from https to https only"):
        redirect("https://a.example/x", target)


def test_retry_after_is_a_number_or_a_date():
    assert retry_after_s("30") == 30
    assert retry_after_s(email.utils.formatdate(time.time() - 60, usegmt=True)) == 0
    assert 50 < retry_after_s(email.utils.formatdate(time.time() + 60, usegmt=True)) <= 61
    assert retry_after_s("soon") is None
    assert retry_after_s(None) is None


def test_patience_waits_longer_each_time_and_ends():
    waits: list[float] = []
    patience = Patience("it", 0.001, lambda why, seconds: waits.append(seconds), hint="do this")
    for _ in range(MAX_FAILURES - 1):
        patience.wait(TransientError("cut"))
    assert waits == [0.001, 0.002, 0.004, 0.008]
    with pytest.raises(DownloadError, match=r"it failed 5 times in a row: cut\. Do this\."):
        patience.wait(TransientError("cut"))


def test_bytes_renew_patience():
    patience = Patience("it", 0, lambda *_: None)
    for _ in range(3 * MAX_FAILURES):
        patience.wait(TransientError("cut"))
        patience.reset()


@pytest.mark.parametrize(
    ("status", "headers"), [(404, {}), (429, {"retry-after": "3600"}), (401, {"Retry-After": "0"})]
)
def test_patience_does_not_wait_for_what_will_not_change(status, headers):
    with pytest.raises(StatusError):
        Patience("it", 0, lambda *_: None).wait(StatusError(status, headers, "", "http://x"))


def test_a_stopped_download_does_not_wait():
    stop = Event()
    stop.set()
    with pytest.raises(StoppedError):
        Patience("it", 1000, lambda *_: None, stop).wait(TransientError("cut"))


def test_a_silent_server_is_left(hub):
    hub.faults.bytes_per_s = 1
    sha256 = next(iter(hub.blobs))
    response = Transport(timeout_s=77.0).open(f"{hub.url}/cdn/{sha256}")
    connection = response.fp.raw._sock
    assert connection.gettimeout() == 77.0
    connection.settimeout(0.1)  # only now, as the server may begin late
    with pytest.raises(TransientError, match="timed out"):
        read_all(response, 1 << 20)


def test_an_answer_that_is_too_long_or_cut(hub):
    sha256 = next(iter(hub.blobs))
    with pytest.raises(DownloadError, match="too long"):
        read_all(Transport().open(f"{hub.url}/cdn/{sha256}"), 1000)
    hub.faults.cut = lambda n: 100
    with pytest.raises(TransientError):
        read_all(Transport().open(f"{hub.url}/cdn/{sha256}"), 1 << 20)
