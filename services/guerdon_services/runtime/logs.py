"""Structured logs on standard error: JSON lines, or colours for people."""

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import Processor

from guerdon_services.runtime import origin


def configure(log_format: Literal["auto", "json", "console"], level: str, service: str) -> None:
    """Send structlog's events and those of the standard library (uvicorn, grpc, the queue) the same way.

    "auto" means colours on a terminal and JSON elsewhere. Every line carries the name of the service, and the id of
    the request in whose task it was written.
    """
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())

    def named(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {"service": service, **origin.log_fields(), **event}

    shared: list[Processor] = [
        named,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[Processor] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # uvicorn tells of its own life at every turn; the process tells of that already.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
