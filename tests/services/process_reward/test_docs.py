"""The page documents every setting and option, and its examples are what the service accepts."""

import json
import re
from pathlib import Path

import pytest

from guerdon.types import ScoreRequest, UpdateRequest
from guerdon_services.process_reward.settings import (
    ProcessRewardOptions,
    ProcessRewardSettings,
    ReplicaSettings,
)
from guerdon_services.runtime.launch import service_settings

PAGE = (Path(__file__).parents[3] / "docs" / "process_rewards.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def rows(heading: str) -> list[str]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)


def test_every_setting_and_option_is_on_the_page() -> None:
    assert rows("Settings") == list(ProcessRewardSettings.model_fields)
    assert sorted(rows("Score")) == sorted(ProcessRewardOptions.model_fields)


def test_example_requests_are_accepted() -> None:
    score, update = (json.loads(block) for block in blocks("json"))
    ProcessRewardOptions.model_validate(ScoreRequest.model_validate(score).options)
    ProcessRewardOptions.model_validate(UpdateRequest.model_validate(update).options)


def test_every_setting_of_a_replica_is_on_the_page() -> None:
    assert set(ReplicaSettings.model_fields) <= set(re.findall(r"`(\w+)`", PAGE))


@pytest.mark.parametrize(
    ("service", "line"), re.findall(r"^guerdon serve (\w+) (.*?)(?: --.*)?$", PAGE, flags=re.MULTILINE)
)
def test_example_commands_have_settings_that_exist(service: str, line: str) -> None:
    kind = {"process_reward": ProcessRewardSettings, "process_reward_replica": ReplicaSettings}[service]
    assert service_settings(kind, line.split()).model_dump()["model"] == Path("models/sft")
