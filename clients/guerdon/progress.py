"""A progress bar for results that come one by one: tqdm where it is installed, else rich."""

import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from guerdon.types import Result, Status

#: False: none. True: a bar on stderr. A function: is called with each result.
ProgressOption = bool | Callable[[Result], None]


@contextmanager
def reporting(progress: ProgressOption, total: int | None) -> Generator[Callable[[Result], None]]:
    """What to call with each result while the block lasts."""
    if progress is False:
        yield lambda _: None
    elif progress is not True:
        yield progress
    else:
        try:
            import tqdm as _  # noqa: F401  # pyright: ignore[reportMissingModuleSource]
        except ImportError:
            with _rich(total) as done:
                yield done
        else:
            with _tqdm(total) as done:
                yield done


@contextmanager
def _tqdm(total: int | None) -> Generator[Callable[[Result], None]]:
    from tqdm import tqdm  # pyright: ignore[reportMissingModuleSource]

    failures: Counter[Status] = Counter()
    bar: Any
    with tqdm(total=total, unit="sample", file=sys.stderr) as bar:

        def done(result: Result) -> None:
            if result.status is not Status.OK:
                failures[result.status] += 1
                bar.set_postfix({str(status): count for status, count in failures.items()}, refresh=False)
            bar.update()

        yield done


@contextmanager
def _rich(total: int | None) -> Generator[Callable[[Result], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    failures: Counter[Status] = Counter()
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)

        def done(result: Result) -> None:
            if result.status is not Status.OK:
                failures[result.status] += 1
            shown = ", ".join(f"{count} {status}" for status, count in failures.items())
            bar.update(task, advance=1, description=shown)

        yield done
