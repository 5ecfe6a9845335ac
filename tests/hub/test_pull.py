"""Pulls from a hub on loopback: the bytes, their places, and the errors."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hub.conftest import content, leftovers
from hub.fake_hub import COMMIT, FakeHub

from zinc.core.errors import MemoryLimitError, ZincError
from zinc.hub.choice import Fit
from zinc.hub.errors import ChecksumError, DownloadError, ModelNameError
from zinc.hub.events import Chosen, Finished, Transferred, Verified, Waiting, json_line
from zinc.hub.pull import pull
from zinc.hub.remove import remove
from zinc.hub.resolve import resolve

MODEL = "org/model-GGUF:Q4_K_M"
DATA = content(1)


def test_a_pull_puts_the_file_into_the_hugging_face_cache(hub, home, options):
    events = []
    path = pull(MODEL, events.append, options)
    repo = home.hugging_face / "models--org--model-GGUF"
    assert path == repo / "snapshots" / COMMIT / "model-Q4_K_M.gguf"
    assert path.read_bytes() == DATA
    assert path.resolve() == (repo / "blobs" / hashlib.sha256(DATA).hexdigest()).resolve()
    assert (repo / "refs" / "main").read_text() == COMMIT
    assert isinstance(events[0], Chosen)
    assert events[0].total_bytes == len(DATA)
    assert events[-1] == Finished(MODEL, str(path))
    assert any(isinstance(event, Verified) and event.sha256 for event in events)
    assert all(json.loads(json_line(event))["event"] == event.event for event in events)


def test_huggingface_hub_finds_what_zinc_has_pulled(hub, home, options):
    from huggingface_hub import try_to_load_from_cache

    path = pull(MODEL, options=options)
    found = try_to_load_from_cache(
        "org/model-GGUF", "model-Q4_K_M.gguf", cache_dir=home.hugging_face
    )
    assert found == str(path)


def test_a_pulled_model_resolves_without_the_hub(hub, home, options):
    path = pull(MODEL, options=options)
    hub.requests.clear()
    assert resolve(MODEL) == path
    assert resolve("org/model-GGUF") == path
    assert resolve("org/model-GGUF:model-Q4_K_M.gguf") == path
    assert hub.requests == []


def test_a_second_pull_downloads_nothing(hub, options):
    path = pull(MODEL, options=options)
    before = hub.n_file_requests
    assert pull(MODEL, options=options) == path
    assert hub.n_file_requests == before


def test_a_system_without_links(hub, home, options, monkeypatch):
    def refuse(self, target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    path = pull(MODEL, options=options)
    assert path.read_bytes() == DATA
    assert not path.is_symlink()
    assert resolve(MODEL) == path
    before = hub.n_file_requests
    assert pull(MODEL, options=options) == path
    assert hub.n_file_requests == before
    assert remove(MODEL, home) == len(DATA)
    assert not path.exists()


@pytest.mark.parametrize("has_ranges", [True, False])
def test_bytes_arrive_from_servers_with_and_without_ranges(hub, options, has_ranges):
    hub.faults.has_ranges = has_ranges
    assert pull(MODEL, options=options).read_bytes() == DATA


def test_progress_ends_at_all_bytes(hub, options):
    events = []
    pull(MODEL, events.append, options)
    last = [event for event in events if isinstance(event, Transferred)][-1]
    assert (last.done_bytes, last.total_bytes) == (len(DATA), len(DATA))


@pytest.mark.parametrize("has_ranges", [True, False])
def test_cut_connections_are_taken_up_again(hub, options, has_ranges):
    hub.faults.has_ranges = has_ranges
    # Every second request is cut; without ranges, the first three.
    hub.faults.cut = lambda n: 5_000 if (n % 2 if has_ranges else n < 4) else None
    events = []
    one = dataclasses.replace(options, connections=1)
    assert pull(MODEL, events.append, one).read_bytes() == DATA
    assert any(isinstance(event, Waiting) and "cut" in event.why for event in events)


def test_a_server_that_always_cuts_fails_with_a_sentence(hub, home, options):
    hub.faults.cut = lambda n: 0
    with pytest.raises(DownloadError, match=r"failed 5 times in a row.*resumes the download"):
        pull(MODEL, options=options)
    with pytest.raises(ZincError):
        resolve(MODEL)


def test_an_interrupted_pull_goes_on_where_it_stopped(hub, options):
    hub.faults.cut = lambda n: 0 if n > 6 else None
    one = dataclasses.replace(options, connections=1)
    with pytest.raises(DownloadError):
        pull(MODEL, options=one)
    hub.faults.cut = lambda n: None
    hub.requests.clear()
    assert pull(MODEL, options=one).read_bytes() == DATA
    starts = [headers["range"] for path, headers in hub.requests if path.startswith("/cdn/")]
    assert starts[0].startswith(f"bytes={6 * options.chunk_bytes}-")


def test_wrong_bytes_are_deleted_and_named(hub, home, options):
    hub.faults.corrupt = True
    with pytest.raises(ChecksumError, match="wrong SHA-256"):
        pull(MODEL, options=options)
    assert leftovers(home.hugging_face) == []


def test_a_resumed_file_that_was_damaged_is_downloaded_again(hub, home, options):
    hub.faults.cut = lambda n: 0 if n > 6 else None
    with pytest.raises(DownloadError):
        pull(MODEL, options=dataclasses.replace(options, connections=1))
    (part,) = home.hugging_face.rglob("*.zinc-part")
    with part.open("r+b") as file:
        file.write(b"damaged")
    hub.faults.cut = lambda n: None
    assert pull(MODEL, options=options).read_bytes() == DATA


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"stated_size_is_off_by": 7}, "another size than listed"),
        ({"listed_size_is_off_by": 7}, "another size than listed"),
        ({"listed_size_is_off_by": -7}, "another size than listed"),
        ({"stated_size_is_off_by": 7, "has_ranges": False}, "another size than listed"),
        ({"wrong_range": True}, "sends the wrong bytes"),
    ],
)
def test_lies_about_sizes_are_found(hub, home, options, fault, message):
    hub.faults.__dict__.update(fault)
    with pytest.raises(DownloadError, match=message):
        pull(MODEL, options=options)
    assert not list(home.hugging_face.rglob("*.gguf"))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {"X-Error-Code": "EntryNotFound"}), "a file of org/model-GGUF is gone"),
        ((403, {}), "denies access to org/model-GGUF"),
        ((429, {"Retry-After": "3600"}), "asks to wait 3600 seconds"),
        ((416, {}), "failed with status 416"),
    ],
)
def test_refused_bytes_are_explained(hub, options, answer, message):
    hub.faults.answers = [answer] * 50
    with pytest.raises(DownloadError, match=message):
        pull(MODEL, options=options)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_server_is_asked_again(hub, options, status):
    hub.faults.answers = [(status, {"Retry-After": "0"})] * 3
    events = []
    assert pull(MODEL, events.append, options).read_bytes() == DATA
    assert any(isinstance(event, Waiting) and str(status) in event.why for event in events)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([(401, {"X-Error-Message": "Invalid credentials"})], "has no repository"),
        ([(403, {"X-Error-Message": "no right"})], "no right"),
        ([(404, {})], "has no repository org/model-GGUF"),
        ([(429, {"Retry-After": "900"})], "asks to wait 900 seconds"),
        ([(500, {})] * 5, "failed with status 500"),
    ],
)
def test_a_refused_listing_is_explained(hub, options, answers, message):
    hub.faults.api_answers = list(answers)
    with pytest.raises(DownloadError, match=message):
        pull(MODEL, options=options)


def test_a_wrong_token_is_named_as_the_cause(hub, options, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    hub.faults.api_answers = [(401, {"X-Error-Message": "User Access Token is expired"})]
    with pytest.raises(DownloadError, match=r"refuses your token: User Access Token is expired"):
        pull(MODEL, options=options)


def test_a_listing_after_a_busy_answer(hub, options):
    hub.faults.api_answers = [(503, {}), (429, {"Retry-After": "0"})]
    assert pull(MODEL, options=options).read_bytes() == DATA


def test_a_gated_repository_says_what_to_accept_and_where_the_token_goes(hub, options, monkeypatch):
    hub.faults.gated = True
    hub.tokens.add("hf_right")
    with pytest.raises(DownloadError) as raised:
        pull(MODEL, options=options)
    assert "is gated" in raised.value.message
    assert f"{hub.url}/org/model-GGUF" in raised.value.message
    assert "HF_TOKEN" in raised.value.message
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert pull(MODEL, options=options).read_bytes() == DATA


def test_the_token_goes_to_the_hub_and_not_to_the_server_of_the_bytes(hub, options, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    other = FakeHub()
    try:
        other.blobs = hub.blobs
        hub.faults.other_server = other.url
        assert pull(MODEL, options=options).read_bytes() == DATA
        assert any(headers.get("authorization") for _, headers in hub.requests)
        assert other.requests
        assert not any("authorization" in headers for _, headers in other.requests)
    finally:
        other.close()


def test_the_token_is_not_sent_to_a_hub_of_a_url(hub, options, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    other = FakeHub()
    try:
        other.add("org/model-GGUF", hub.repos["org/model-GGUF"])
        url = f"{other.url}/org/model-GGUF/resolve/main/model-Q4_K_M.gguf"
        assert pull(url, options=options).read_bytes() == DATA
        assert not any("authorization" in headers for _, headers in other.requests)
        assert not hub.requests
    finally:
        other.close()


def test_names_that_do_not_exist(hub, options):
    with pytest.raises(DownloadError, match="has no repository org/absent"):
        pull("org/absent", options=options)
    with pytest.raises(ModelNameError, match="its quantisations are Q4_K_M, Q8_0"):
        pull("org/model-GGUF:Q5_K_M", options=options)
    with pytest.raises(ModelNameError, match=r"has no file other\.gguf"):
        pull("org/model-GGUF:other.gguf", options=options)
    with pytest.raises(DownloadError, match="has no revision dev"):
        pull(f"{hub.url}/org/model-GGUF/tree/dev", options=options)


def test_a_repository_without_gguf_files(hub, options):
    hub.add("org/weights", {"model.safetensors": b"x"})
    with pytest.raises(ModelNameError, match="has no GGUF files"):
        pull("org/weights", options=options)


def test_an_unreachable_hub(hub, options, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"asking 127.0.0.1:9 for org/model-GGUF failed"):
        pull(MODEL, options=options)


def test_offline_mode(hub, options, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        pull(MODEL, options=options)
    assert hub.requests == []


def test_without_huggingface_hub_the_extra_is_named(monkeypatch, options):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ZincError, match=re.escape("pip install 'zinc-llm[hub]'")):
        pull(MODEL, options=options)


@pytest.mark.parametrize("name", ["../evil.gguf", "a/../../evil.gguf", "/evil.gguf", "a\\b.gguf"])
def test_unsafe_file_names_are_refused(hub, options, home, name):
    hub.repos["org/evil"] = {name: DATA}
    with pytest.raises(DownloadError, match="unsafe name"):
        pull("org/evil", options=options)
    assert not home.hugging_face.exists()


def test_a_listing_without_hashes_is_checked_by_size(hub, options):
    hub.faults.no_hash = True
    assert pull(MODEL, options=options).read_bytes() == DATA


def test_all_parts_of_a_split_file_and_its_siblings_are_pulled(hub, home, options):
    parts = {f"Q4_K_M/big-Q4_K_M-0000{i}-of-00003.gguf": content(10 + i) for i in (1, 2, 3)}
    hub.add(
        "org/big",
        {
            **parts,
            "mmproj-F32.gguf": content(20),
            "mmproj-F16.gguf": content(21),
            "mtp-big-Q8_0.gguf": content(22),
            "big.imatrix.gguf": content(23),
        },
    )
    path = pull("org/big", options=options)
    folder = path.parent.parent
    assert path.name == "big-Q4_K_M-00001-of-00003.gguf"
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*.gguf")} == {
        *parts,
        "mmproj-F16.gguf",
        "mtp-big-Q8_0.gguf",
    }
    for name, data in parts.items():
        assert (folder / name).read_bytes() == data
    assert resolve("org/big") == path


def test_a_split_model_is_not_used_before_all_parts_are_there(hub, home, options):
    parts = {f"big-Q4_K_M-0000{i}-of-00002.gguf": content(10 + i) for i in (1, 2)}
    hub.add("org/big", parts)
    n_chunks = -(-len(content(11)) // options.chunk_bytes)
    hub.faults.cut = lambda n: 0 if n > n_chunks else None
    with pytest.raises(DownloadError):
        pull("org/big", options=options)
    with pytest.raises(ZincError, match="not on this machine"):
        resolve("org/big")


def fits_up_to(largest: int):
    """Return a fit check for a machine with room for `largest` bytes."""
    return lambda hub, repository, variants: lambda variant: Fit(variant.n_bytes, largest, 4096)


def test_the_best_quantisation_that_fits_is_chosen(hub, options):
    events = []
    small = dataclasses.replace(options, fit=fits_up_to(300_000))
    path = pull("org/model-GGUF", events.append, small)
    assert path.name == "model-Q4_K_M.gguf"
    assert "best that fits" in events[0].why
    large = dataclasses.replace(options, fit=fits_up_to(10**9))
    assert pull("org/model-GGUF", options=large).name == "model-Q8_0.gguf"


def test_a_model_that_does_not_fit_is_not_downloaded(hub, home, options):
    none = dataclasses.replace(options, fit=fits_up_to(1000))
    with pytest.raises(MemoryLimitError, match="no quantisation of org/model-GGUF fits"):
        pull("org/model-GGUF", options=none)
    assert hub.n_file_requests == 0


def test_there_must_be_room_on_the_disk_before_the_first_byte(hub, options, monkeypatch):
    usage = __import__("shutil").disk_usage(".")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DownloadError, match="not enough room"):
        pull(MODEL, options=options)
    assert hub.n_file_requests == 0


def test_a_disk_that_fills_up_keeps_the_bytes_so_far(hub, home, options, monkeypatch):
    from zinc.hub.partial import PartialFile

    write, n_left = PartialFile.write, [60_000]

    def limited(self, start, data):
        n_left[0] -= len(data)
        if n_left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self, start, data)

    monkeypatch.setattr(PartialFile, "write", limited)
    with pytest.raises(DownloadError, match=r"the disk of .* is full"):
        pull(MODEL, options=options)
    monkeypatch.setattr(PartialFile, "write", write)
    assert list(home.hugging_face.rglob("*.zinc-part"))
    assert pull(MODEL, options=options).read_bytes() == DATA


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small file system at `folder`; skip the test if this user may not."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user cannot mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize(
    ("mount_options", "message"),
    [("size=128k", "not enough room"), ("ro", "cannot write to .*HF_HUB_CACHE")],
)
def test_a_file_system_that_is_full_or_read_only(
    hub, home, options, tmp_path, mount_options, message
):
    with mounted(tmp_path / "small", mount_options) as folder:
        small = dataclasses.replace(home, hugging_face=folder / "hub")
        with pytest.raises(DownloadError, match=message):
            pull(MODEL, options=dataclasses.replace(options, folders=small))
    assert hub.n_file_requests == 0


def test_a_cache_that_cannot_be_written(hub, home, options, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder would be")
    folders = dataclasses.replace(home, hugging_face=blocked)
    with pytest.raises(DownloadError, match=r"cannot write to .*HF_HUB_CACHE"):
        pull(MODEL, options=dataclasses.replace(options, folders=folders))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache(hub, home, options):
    home.hugging_face.mkdir(parents=True)
    home.hugging_face.chmod(0o500)
    with pytest.raises(DownloadError, match="cannot write to"):
        pull(MODEL, options=options)


def test_two_pulls_of_one_file_at_once(hub, options):
    hub.faults.held = threading.Event()
    waits: list[Waiting] = []
    paths: list[Path] = []

    def note(event: object) -> None:
        if isinstance(event, Waiting):
            waits.append(event)
            hub.faults.held.set()

    threads = [
        threading.Thread(target=lambda: paths.append(pull(MODEL, note, options))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == DATA for path in paths] == [True, True]
    n_chunks = -(-len(DATA) // options.chunk_bytes)
    assert hub.n_file_requests == n_chunks  # one of them waited
    assert len(waits) == 1
