"""slime's contract, as of August 2026 (0b420f1): `async fn(args, sample)`, or samples with `--group-rm`.

slime is not on PyPI. `slime/rollout/rm_hub/__init__.py` awaits the function and stores what it returns as
`sample.reward`; `remove_sample` zeroes a sample's loss mask, while its number stays in its group's normalisation.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from guerdon.errors import GuerdonError
from guerdon.integrations.slime import reward
from guerdon.testing import StubService
from guerdon.types import ScoreRequest

ARGS = SimpleNamespace(reward_key=None)


@dataclass
class SlimeSample:
    """The fields of slime's Sample that a reward function sees."""

    response: str
    prompt: str | list[dict[str, str]] = "1+1"
    label: str | None = "2"
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


async def test_a_single_sample(stub: StubService) -> None:
    sample = SlimeSample("2<|im_end|>", prompt=[{"role": "user", "content": "1+1"}], metadata={"level": 1})
    assert await reward(ARGS, sample) == 1.0
    assert await reward(SimpleNamespace(reward_key="score"), sample) == {"score": 1.0, "status": "ok"}
    request = stub.requests[0]
    assert isinstance(request, ScoreRequest)
    assert (request.samples[0].response, request.samples[0].metadata) == ("2", {"level": 1})


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
async def test_a_failure_in_a_group_is_removed_and_leaves_the_baseline(stub: StubService, word: str) -> None:
    group = [SlimeSample("2"), SlimeSample(word), SlimeSample("3"), SlimeSample("2")]
    rewards = await reward(ARGS, group)
    assert rewards == [1.0, pytest.approx(2 / 3), 0.0, 1.0]
    assert [sample.remove_sample for sample in group] == [False, True, False, False]
    assert word in group[1].metadata["guerdon"]
    scored = [value for value, sample in zip(rewards, group, strict=True) if not sample.remove_sample]
    assert sum(rewards) / 4 == pytest.approx(sum(scored) / 3)


@pytest.mark.parametrize("word", ["timeout", "overloaded", "unavailable", "internal", "invalid"])
async def test_without_a_group_a_failure_is_raised(stub: StubService, word: str) -> None:
    with pytest.raises(GuerdonError, match=word):
        await reward(ARGS, SlimeSample(word))
    with pytest.raises(GuerdonError, match=word):
        await reward(ARGS, [SlimeSample(word), SlimeSample(word)])
