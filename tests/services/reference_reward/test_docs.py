"""The requests on `docs/reference_rewards.md` are answered as the page says; its tables name what the code has."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from guerdon.types import ScoreRequest
from guerdon_services.reference_reward.service import ReferenceRewardScorer
from guerdon_services.reference_reward.settings import (
    CustomTemplate,
    ReferenceRewardOptions,
    ReferenceRewardSettings,
)
from guerdon_services.reference_reward.shaping import Shaping
from guerdon_services.runtime.scorer import ScoreJob

PAGE = (Path(__file__).parents[3] / "docs/reference_rewards.md").read_text(encoding="utf-8")
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
def test_requests_are_answered_as_shown(tiny_qwen2: Path, example: tuple[Any, Any]) -> None:
    scorer = ReferenceRewardScorer(ReferenceRewardSettings(model=tiny_qwen2))
    scorer.open()
    request = ScoreRequest.model_validate_json(json.dumps(example[0]))
    options = ReferenceRewardOptions.model_validate_json(json.dumps(request.options), strict=True)
    results = scorer.score([ScoreJob(sample, options) for sample in request.samples])
    got = [json.loads(result.model_dump_json()) for result in results]
    assert shown(example[1]["results"], got), got


def test_every_setting_and_option_is_on_the_page() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert set(ReferenceRewardSettings.model_fields) <= named
    assert set(ReferenceRewardOptions.model_fields) <= named
    assert set(CustomTemplate.model_fields) <= named


def test_every_shape_on_the_page_is_one() -> None:
    shapes = re.findall(r'`(\{"kind".*?\})`', PAGE)
    assert len(shapes) == 6
    for shape in shapes:
        TypeAdapter(Shaping).validate_json(shape, strict=True)
