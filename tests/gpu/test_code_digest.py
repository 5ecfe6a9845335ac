"""Digests of kernel code, on which tables of tuned tiles depend: which edits change them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import pytest
from backends.test_cuda_compiler import needs_nvrtc

from zinc.backends.cuda import compiler
from zinc.backends.vulkan import shaders
from zinc.gpu.code_digest import code_digest, code_of
from zinc.gpu.dispatch import KernelVariant

# A file of each backend, and code with a number in it.
BACKENDS = pytest.mark.parametrize(
    ("backend", "name", "code"),
    [(compiler, "gemm_few.cu", "TILE_SUMS * 4"), (shaders, "gemm_store.slang", "j < 4")],
    ids=["cuda", "vulkan"],
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("int a = 1;  // one\n", "int a = 1;"),
        ("// A kernel.\n\nint a;\n\n\n    int b;\n", "int a;\nint b;"),
        ("int a; // a \\\n still a comment\nint b;", "int a;\nint b;"),
        ("int /* b\n */a;", "int a;"),
        ("int/**/a/* // */=/***/1;", "int a = 1;"),
        ("int a; // /*\nint b; // */", "int a;\nint b;"),
        ("#define F (x)\t/* x\n */ + 1\nint a;", "#define F (x) + 1\nint a;"),
        ("#define F     \\\n    1", "#define F \\\n1"),
        ('f("a  //  b /* c */");  // d', 'f("a  //  b /* c */");'),
        (r'f("\"// a", "\\"); // "', r'f("\"// a", "\\");'),
        ('f("a\\\n  // b");', 'f("a\\\n  // b");'),
        ("f('\"'); // '\"'", "f('\"');"),
        (r"f('\'', '\\', '\x41'); // '", r"f('\'', '\\', '\x41');"),
        ("int a = 1'000'000; // it's a million", "int a = 1'000'000;"),
        ('f(R"(")  // a)", R"-()" // b)-"); // c', 'f(R"(")  // a)", R"-()" // b)-");'),
        ("a = b / c; // d", "a = b / c;"),
        ("a = b // c\n    / d;", "a = b\n/ d;"),
        ("#error it's wrong // a", "#error it's wrong"),
        ('#include "a//b.cuh" // c', '#include "a//b.cuh"'),
    ],
)
def test_code_has_no_comments_and_no_padding(text: str, code: str) -> None:
    assert code_of(text) == code
    assert code_of(code) == code
    assert code_digest({"a.cu": text}) == code_digest({"a.cu": code})


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("int a = 1;", "int a = 2;"),
        ('f("// a");', 'f("// b");'),
        ('f("/* a */");', 'f("/* b */");'),
        ('f("a  b");', 'f("a b");'),
        ("int a;", "inta;"),
        ("a = b + +c;", "a = b ++c;"),
        ("#define F (x)", "#define F(x)"),
        ("#define F 1 // a\n+ 2", "#define F 1 /* a\n*/ + 2"),
        ("int a = 1; // \\\nint b;", "int a = 1; //\nint b;"),
    ],
)
def test_other_code_has_another_digest(text: str, other: str) -> None:
    assert code_digest({"a.cu": text}) != code_digest({"a.cu": other})
    assert code_digest({"a.cu": text}) != code_digest({"b.cu": text})


def edited(backend: ModuleType, name: str, old: str, new: str, tmp_path: Path) -> str:
    """Return the digest of the kernels of `backend` after an edit of the file `name`."""
    folder = tmp_path / "kernels"
    shutil.copytree(backend.KERNELS, folder)
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "KERNELS", folder)
        return backend.sources_digest.__wrapped__()


@BACKENDS
def test_a_comment_leaves_the_digest_of_a_backend(
    backend: ModuleType, name: str, code: str, tmp_path: Path
) -> None:
    digest = edited(backend, name, code, f'/* "4\n */  {code}', tmp_path)
    assert digest == backend.sources_digest()


@BACKENDS
def test_a_number_changes_the_digest_of_a_backend(
    backend: ModuleType, name: str, code: str, tmp_path: Path
) -> None:
    digest = edited(backend, name, code, code.replace("4", "5"), tmp_path)
    assert digest != backend.sources_digest()


@needs_nvrtc
def test_code_without_comments_compiles_to_the_same_cubin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = KernelVariant("concat", (("THREADS", 128),))
    want, _ = compiler.compile(kernel, "sm_90")
    for name, text in compiler.sources().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code_of(text), encoding="utf-8")
    monkeypatch.setattr(compiler, "KERNELS", tmp_path)
    code, _ = compiler.compile(kernel, "sm_90")
    assert code == want
