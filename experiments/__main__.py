"""`python -m experiments`: run what plan.yaml names and write the page; `make experiments` calls it."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.page import write_page
from experiments.plan import load_plan
from experiments.runs import jobs, run_all

_ROOT = Path("runs/experiments")
_PAGE = Path("docs/experiments")


def main(
    only: Annotated[list[str] | None, typer.Option(help="Names of runs; default all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per run.")] = 3,
    at_once: Annotated[
        int, typer.Option(min=1, help="Runs beside each other; each wants about one core.")
    ] = 2,
    page_only: Annotated[bool, typer.Option("--page-only", help="Run nothing, write the page.")] = False,
) -> None:
    """Run every small recipe with several seeds and write docs/experiments/results.md."""
    plan = load_plan()
    unknown = sorted(set(only or []) - set(plan.runs))
    if unknown:
        raise typer.BadParameter(f"no run {', '.join(unknown)}: they are {', '.join(plan.runs)}")
    failures: list[str] = []
    if not page_only:
        chosen = {name: run for name, run in plan.runs.items() if not only or name in only}
        failures = run_all(jobs(chosen, range(seeds), _ROOT), _ROOT, at_once=at_once)
    typer.echo(f"wrote {write_page(plan, _ROOT, _PAGE)}")
    for failure in failures:
        typer.echo(f"error: {failure}", err=True)
    if failures:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
