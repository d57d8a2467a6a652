"""What is run and what is compared: `plan.yaml`, checked."""

from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

PLAN = Path(__file__).parent / "plan.yaml"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedRun(_Section):
    """One recipe with settings, run once per seed."""

    recipe: str
    settings: list[str] = []


class Comparison(_Section):
    """Runs in one plot. `claim` says what the paper claims, `arms` label the runs."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    title: str
    claim: str
    arms: Annotated[dict[str, str], Field(min_length=2)]


class Plan(_Section):
    """All runs by name, the names of the one table, and the comparisons."""

    runs: dict[str, PlannedRun]
    table: list[str]
    comparisons: list[Comparison]

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        arms = [run for comparison in self.comparisons for run in comparison.arms.values()]
        unknown = sorted({*self.table, *arms} - set(self.runs))
        if unknown:
            raise ValueError(f"these are compared but not among runs: {', '.join(unknown)}")
        return self


def load_plan(path: Path = PLAN) -> Plan:
    """The plan at `path`.

    Raises:
        pydantic.ValidationError: it does not fit, or compares a run it does not name.
    """
    return Plan.model_validate(yaml.safe_load(path.read_text()))
