"""The files of the page: complete, without external resources, served with strict headers."""

from __future__ import annotations

import posixpath
import re

import pytest
from serving import Running, running

from zinc.server import page

ASSETS = page.assets()
SCRIPTS = {path: asset.body.decode() for path, asset in ASSETS.items() if path.endswith(".js")}
STYLES = {path: asset.body.decode() for path, asset in ASSETS.items() if path.endswith(".css")}
INDEX = ASSETS["/"].body.decode()


def test_every_referenced_file_exists() -> None:
    named = {f"/{name}" for name in re.findall(r'(?:src|href)="([^"#]+)"', INDEX)}
    for path, text in SCRIPTS.items():
        for name in re.findall(r'from "([^"]+)"', text):
            assert name.startswith("."), f"{path} imports {name}"
            named.add(posixpath.normpath(posixpath.join(posixpath.dirname(path), name)))
    assert named <= ASSETS.keys()
    # There is no unused file.
    assert named | {"/"} == ASSETS.keys()


def test_no_external_resources() -> None:
    assert not re.findall(r'(?:src|href)="(?:\w+:)?//', INDEX)
    for text in STYLES.values():
        assert "url(" not in text
        assert "@import" not in text
    allowed = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}
    for path, text in SCRIPTS.items():
        code = re.sub(r"(?m)^\s*(?://|\*).*$|//\s.*$", "", text)
        assert set(re.findall(r'"(\w+://[^"]*)"', code)) <= allowed, path


@pytest.mark.parametrize(
    "way", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
)
def test_no_script_turns_text_into_markup_or_code(way: str) -> None:
    assert [path for path, text in SCRIPTS.items() if way in text] == []


def test_markup_contains_no_script() -> None:
    assert not re.search(r"<script(?![^>]*\ssrc=)", INDEX)
    assert not re.search(r"\s(?:on\w+|style)=", INDEX)


def test_page_is_small() -> None:
    assert sum(len(asset.body) for asset in ASSETS.values()) < 200_000


def test_files_are_served(server: Running) -> None:
    for path, asset in ASSETS.items():
        answer = server.get(path)
        assert (answer.status, answer.body) == (200, asset.body)
        assert answer.headers["content-type"] == asset.media_type
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = server.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
    assert server.request("HEAD", "/").status == 200
    assert server.post("/", {}).status == 405


@pytest.mark.parametrize(
    "path", ["/page/__init__.py", "/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/x.js"]
)
def test_nothing_else_is_served(server: Running, path: str) -> None:
    assert server.get(path).status == 404


def test_policy_is_strict(server: Running) -> None:
    answer = server.get("/")
    directives = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == directives["style-src"] == "'self'"
    assert directives["require-trusted-types-for"] == "'script'"
    assert directives["frame-ancestors"] == directives["base-uri"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_page_needs_no_key_and_the_api_does() -> None:
    with running(api_keys=("secret",), wait=False) as server:
        server.headers.clear()
        assert server.get("/").status == 200
        assert server.get("/page/main.js").status == 200
        assert server.get("/v1/models").status == 401
