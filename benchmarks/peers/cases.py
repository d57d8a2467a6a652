"""Labelled answers for math verifiers, and the groups that figures are given for."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: Traps that hang, bloat or run code: none of them is core.
DANGEROUS = ("hang", "size", "exec")
#: Cases of the group "ordinary".
ORDINARY = 200


@dataclass(frozen=True)
class Case:
    """One labelled answer; any of `references` is right, `trap` is empty for a plain case."""

    id: str
    kind: str
    trap: str
    response: str
    references: list[str]
    bare: bool
    right: bool
    disputed: bool

    @property
    def core(self) -> bool:
        """Whether it has one right label, is no prose, and ends by itself."""
        return not self.disputed and self.kind != "semantic-text" and self.trap not in DANGEROUS

    def as_message(self) -> dict[str, Any]:
        """Its fields, for JSON; `Case(**fields)` reads them back."""
        return asdict(self)


def read_cases(path: Path) -> list[Case]:
    """All cases of a JSONL file in the order of their ids; a bare answer is put in a box.

    Raises:
        OSError: the file cannot be read.
    """
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    cases = [
        Case(
            id=row["id"],
            kind=row["kind"],
            trap=row.get("trap") or "",
            response=f"\\boxed{{{row['response']}}}" if row["form"] == "answer" else row["response"],
            references=row.get("golds") or [row["gold"]],
            bare=row["form"] == "answer",
            right=row["expected"] == 1,
            disputed=bool(row.get("disputed")),
        )
        for row in rows
    ]
    return sorted(cases, key=lambda case: case.id)


def ordinary(core: Sequence[Case]) -> set[str]:
    """Ids of the first core cases, by id, that are no trap of any kind."""
    return {case.id for case in [case for case in core if not case.trap][:ORDINARY]}


def warm_up(cases: Sequence[Case]) -> list[Case]:
    """Harmless cases outside the core: what every side judges, unmeasured, before the measured ones."""
    return [case for case in cases if not case.core and not case.trap]
