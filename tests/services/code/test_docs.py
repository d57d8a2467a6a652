"""Every question in `docs/code.md` is answered as the page says; its table of settings is the code's."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from guerdon.types import ScoreRequest
from guerdon_services.code.service import CodeOptions, CodeSettings
from guerdon_services.runtime.scorer import ScoreJob

PAGE = (Path(__file__).parents[3] / "docs/code.md").read_text(encoding="utf-8")
BLOCKS = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)]
EXAMPLES = list(zip(BLOCKS[::2], BLOCKS[1::2], strict=True))


def shown(part: Any, whole: Any) -> bool:
    """True when all that the page shows is in the answer."""
    if isinstance(part, dict):
        return all(shown(value, whole[name]) for name, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(shown, part, whole))
    return type(part) is type(whole) and part == whole


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_questions_are_answered_as_shown(ask: Any, example: tuple[Any, Any]) -> None:
    question, answer = example
    request = ScoreRequest.model_validate_json(json.dumps(question))
    options = CodeOptions.model_validate(request.options)
    results = ask.scorer.score([ScoreJob(sample, options) for sample in request.samples])
    got = [json.loads(result.model_dump_json()) for result in results]
    for result, sample in zip(got, request.samples, strict=True):
        result["id"] = sample.id  # stamped by the runtime
    assert shown(answer["results"], got), got


def test_every_setting_and_option_is_on_the_page() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert set(CodeSettings.model_fields) <= named
    assert set(CodeOptions.model_fields) <= named


def test_defaults_are_those_of_the_code() -> None:
    for names, values in re.findall(r"^\| (`[^|]+) \| ([\d, ]+) \|", PAGE, re.MULTILINE):
        for name, value in zip(re.findall(r"\w+", names), values.split(", "), strict=True):
            assert CodeSettings.model_fields[name].default == float(value), name
