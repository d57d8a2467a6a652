"""How many tokens each job counts, as its scorer says."""

from collections.abc import Callable, Sequence
from operator import index
from typing import TypeVar

import structlog

from guerdon.types import Status
from guerdon_services.runtime.lane import contained
from guerdon_services.runtime.scorer import AnyScorer, Scorer, Unscorable
from guerdon_services.runtime.submission import Failure

JobT = TypeVar("JobT")

log = structlog.get_logger(__name__)


def counted(scorer: AnyScorer) -> bool:
    """Whether tokens matter to a scorer."""
    return any("tokens" in vars(kind) for kind in type(scorer).__mro__ if kind is not Scorer)


def of(
    jobs: Sequence[JobT | Failure], tokens: Callable[[JobT], int]
) -> tuple[list[JobT | Failure], list[int]]:
    """The jobs, with a `Failure` for each whose tokens cannot be counted, and the tokens of each."""
    kept, sizes = list(jobs), [0] * len(jobs)
    for number, job in enumerate(jobs):
        if isinstance(job, Failure):
            continue
        try:
            sizes[number] = index(contained(tokens, job))
        except Unscorable as error:
            kept[number] = Failure(Status.INVALID_INPUT, str(error))
        except Exception as error:
            log.exception("counting tokens failed")
            kept[number] = Failure(Status.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
    return kept, sizes
