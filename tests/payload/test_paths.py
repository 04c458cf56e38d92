from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import UnsafePathError
from chappe.payload.paths import check_path, check_tree


@pytest.mark.parametrize(
    "path",
    [
        "model.safetensors",
        "tokenizer/vocab.txt",
        "a b/c+d=e,f.json",
        "..hidden",
        "a/...",
        "x..y",
        "モデル.json",
        "p" * 255,
        "/".join(["d" * 100] * 10),
    ],
)
def test_a_plain_relative_name_is_returned_as_it_is(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("", "empty part"),
        ("/etc/passwd", "absolute"),
        ("//host/share", "absolute"),
        ("..", "'..'"),
        ("../x", "'..'"),
        ("a/../../x", "'..'"),
        ("a/..", "'..'"),
        (".", "'.'"),
        ("./a", "'.'"),
        ("a/./b", "'.'"),
        ("a//b", "empty part"),
        ("a/", "empty part"),
        ("C:/x", "colon"),
        ("C:x", "colon"),
        ("a/b:stream", "colon"),
        ("a\\b", "backslash"),
        ("..\\x", "backslash"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x7fb", "control"),
        ("a\x85b", "control"),
        ("a\u2028b", "control"),
        ("a\udce4b", "UTF-8"),
        ("p" * 256, "255"),
        ("é" * 128, "255"),
        ("/".join(["d" * 100] * 11), "1024"),
    ],
)
def test_an_unsafe_name_is_refused_with_the_rule(path: str, rule: str) -> None:
    with pytest.raises(UnsafePathError, match=rule):
        check_path(path)


@given(st.text(alphabet=st.sampled_from("ab./\\:\0C"), max_size=12))
def test_what_passes_stays_inside_its_directory(path: str) -> None:
    try:
        check_path(path)
    except UnsafePathError:
        return
    joined = posixpath.normpath(posixpath.join("/store/object", path))
    assert joined == f"/store/object/{path}"


def test_a_tree_of_distinct_files_passes() -> None:
    check_tree(["a", "b/a", "b/c/a", "ab", "b.c"])


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["a", "a"], "two files have the path 'a'"),
        (["model/x", "model"], "'model' is a file and also a directory of 'model/x'"),
        (["a/b", "a/b/c/d"], "is a file and also a directory"),
        (["README.md", "readme.md"], "same file on some hosts"),
        (["Model/x", "model"], "is a file and also a directory"),
        (["caf\u00e9", "cafe\u0301"], "same file on some hosts"),
        (["ok", "../no"], "not a safe file name"),
    ],
)
def test_names_that_meet_are_refused(paths: list[str], message: str) -> None:
    with pytest.raises(UnsafePathError, match=message):
        check_tree(paths)
    with pytest.raises(UnsafePathError):
        check_tree(reversed(paths))
