from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from chappe.logs import configure_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("chappe.origin")
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    ours.setLevel(logging.NOTSET)
    structlog.reset_defaults()


def test_json_lines_of_ours_and_of_libraries() -> None:
    out = io.StringIO()
    configure_logging("json", "info", out)
    structlog.get_logger().info("landed", version=3)
    structlog.get_logger().debug("not shown")
    logging.getLogger("some.library").warning("careful")
    logging.getLogger("some.library").info("not shown either")
    logging.getLogger("chappe.origin.job").info("accepted")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("landed", "info"),
        ("careful", "warning"),
        ("accepted", "info"),
    ]
    assert lines[0]["version"] == 3
    assert lines[0]["timestamp"].endswith("Z")


def test_console_lines_have_no_colours_without_a_terminal() -> None:
    out = io.StringIO()
    configure_logging("console", "debug", out)
    structlog.get_logger().debug("edge opened", parent="r1")
    assert "edge opened" in out.getvalue()
    assert "parent=r1" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_exceptions_are_part_of_the_line() -> None:
    out = io.StringIO()
    configure_logging("json", "info", out)
    try:
        {}["gone"]
    except KeyError:
        structlog.get_logger().exception("broke")
    line = json.loads(out.getvalue())
    assert "KeyError: 'gone'" in line["exception"]


def test_unknown_values_are_refused() -> None:
    with pytest.raises(ValueError, match="log level"):
        configure_logging("json", "loud")
    with pytest.raises(ValueError, match="xml"):
        configure_logging("xml")
