"""Every example in `docs/math.md` is what the code says."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from guerdon.types import Result
from guerdon_services.math.arithmetic.values import Values
from guerdon_services.math.decide import decide
from guerdon_services.math.decision import UnreadableReference
from guerdon_services.math.extraction.extract import Mode, extract
from guerdon_services.math.service import MathSettings

PAGE = (Path(__file__).parents[3] / "docs/math.md").read_text(encoding="utf-8")
_CELL = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"`([^`]+)`")


class Policy(NamedTuple):
    """A row of a table of policies: the answers have the verdicts in turn."""

    name: str
    reference: str
    answers: list[str]
    verdicts: list[str]


def tables(*header: str) -> Iterator[list[list[str]]]:
    """The rows of each table with such a header; in a table, `\\|` is a bar."""
    rows: list[list[str]] | None = None
    for line in [*PAGE.splitlines(), ""]:
        cells = [cell.strip().replace(r"\|", "|") for cell in _CELL.split(line)[1:-1]]
        if rows is not None and not cells:
            yield rows
            rows = None
        elif rows is not None and set("".join(cells)) != {"-"}:
            rows.append(cells)
        elif rows is None and cells == list(header):
            rows = []


def policies(kind: str) -> list[Policy]:
    found: list[Policy] = []
    for rows in tables(kind, "reference", "answer", "verdict"):
        for name, reference, answers, verdicts in rows:
            (wanted,) = _CODE.findall(reference)
            found.append(Policy(name or found[-1].name, wanted, _CODE.findall(answers), verdicts.split()))
    return found


def verdict(answer: str, reference: str) -> str:
    try:
        return str(int(decide(answer, reference, Values(balls=True)).equal))
    except UnreadableReference:
        return "invalid_input"


POLICIES = policies("policy")
WRONG = policies("known to be wrong")
EXTRACTIONS = [row for rows in tables("mode", "response", "extracted") for row in rows]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.name}: {policy.reference}")
def test_a_policy_is_followed(policy: Policy) -> None:
    found = [verdict(answer, policy.reference) for answer in policy.answers]
    assert dict(zip(policy.answers, found, strict=True)) == dict(
        zip(policy.answers, policy.verdicts, strict=True)
    )


@pytest.mark.parametrize("policy", WRONG, ids=lambda policy: policy.name)
def test_what_is_known_to_be_wrong_still_is(policy: Policy) -> None:
    found = [verdict(answer, policy.reference) for answer in policy.answers]
    assert found == policy.verdicts, "this is right now: take the row out of docs/math.md"


def test_every_policy_has_an_accepted_and_a_refused_example() -> None:
    verdicts: dict[str, set[str]] = {}
    for policy in POLICIES:
        verdicts.setdefault(policy.name, set()).update(policy.verdicts)
    assert len(verdicts) >= 50
    assert [name for name, found in verdicts.items() if "1" not in found or found == {"1"}] == []


@pytest.mark.parametrize("row", EXTRACTIONS, ids=lambda row: f"{row[0]}: {row[1]}")
def test_an_answer_is_extracted(row: list[str]) -> None:
    (response,) = _CODE.findall(row[1])
    found = extract(response, cast(Mode, row[0]))
    expected = [] if row[2] == "none" else _CODE.findall(row[2])
    assert list(found.run or filter(None, [found.answer])) == expected


def test_every_mode_has_an_extraction_and_a_failure() -> None:
    outcomes = {(mode, extracted == "none") for mode, _, extracted in EXTRACTIONS}
    assert outcomes == {
        (mode, fails) for mode in ("last_box", "single_box", "strict", "lenient") for fails in (True, False)
    }


def test_the_request_is_answered_as_shown(judge: Callable[..., Result]) -> None:
    request, reply = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
    (sample,), (shown,) = request["samples"], reply["results"]
    result = judge(sample["response"], *sample["references"], **request["options"]).model_dump(mode="json")
    judged = ("status", "value", "reason", "verdict")
    assert {name: result[name] for name in judged} == {name: shown[name] for name in judged}
    assert shown.keys() == result.keys()


def test_the_settings_are_those_of_the_service() -> None:
    (rows,) = tables("setting", "default", "")
    listed = {name.strip("`"): default for name, default, _ in rows}
    defaults = {name: f"{field.default:g}" for name, field in MathSettings.model_fields.items()}
    assert listed == {**defaults, "workers": "cores"}
