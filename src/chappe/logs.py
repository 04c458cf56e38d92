"""Logging of both daemons: one structured line for each event, on stderr, for a person or for a machine.

`structlog.get_logger()` everywhere; an event is a short name, everything else is a field. Lines of libraries that use
the standard module come out in the same form.
"""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import TextIO

import structlog
from structlog.typing import Processor


class LogFormat(StrEnum):
    CONSOLE = "console"
    JSON = "json"


def configure_logging(log_format: str = LogFormat.CONSOLE, level: str = "info", stream: TextIO | None = None) -> None:
    """Set the process's logging up; calling it again replaces what was there.

    Raises ValueError for a format or level that does not exist.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log level {level!r} is not one of debug, info, warning, error")
    out = stream or sys.stderr
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    final: list[Processor]
    if LogFormat(log_format) is LogFormat.JSON:
        final = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(sort_keys=True)]
    else:
        final = [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    formatter = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final]
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=formatter, foreign_pre_chain=shared))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING))  # libraries speak up only when something is wrong
    logging.getLogger("chappe.origin").setLevel(number)  # of a library in somebody's trainer: the standard module
