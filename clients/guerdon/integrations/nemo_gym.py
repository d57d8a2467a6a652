"""NeMo Gym: a resources server whose verifier is a service.

    my_rewards:
      resources_servers:
        guerdon:
          entrypoint: app.py        # from guerdon.integrations.nemo_gym import Server; Server.run_webserver()
          domain: math
          url: http://127.0.0.1:8101

A failure becomes Gym's own `JudgeError`: Gym keeps the row with `mask_sample`, `failure_kind` and `failure_reason`,
leaves it out of every metric, and can ask again. A reward of 0 is a wrong answer and nothing else.

Written against nemo-gym 0.7.0, and imports it. Clients that post to a URL use `/verify` of any service instead.
"""

# The peer is not among the development tools: its types are unknown.
# pyright: basic, reportMissingImports=false

from typing import Any

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.judge import JudgeError
from pydantic import ConfigDict

from guerdon.columns import Columns
from guerdon.integrations.gym_texts import response_text, task_prompt
from guerdon.integrations.target import SETTINGS, target_in


class ServerConfig(BaseResourcesServerConfig):
    """Which service verifies; what is absent comes from GUERDON_URL and its like."""

    url: str | None = None
    service: str | None = None
    options: dict[str, Any] | None = None
    rewards: str | None = None
    timeout_s: float | None = None
    #: The field of a row that holds the right answer.
    references: str | None = None


class VerifyRequest(BaseVerifyRequest):
    """A row with whatever fields its data set has."""

    model_config = ConfigDict(extra="allow")


class VerifyResponse(BaseVerifyResponse):
    """The row with its reward."""

    model_config = ConfigDict(extra="allow")


class Server(SimpleResourcesServer):
    """Asks a service for the reward of each row."""

    config: ServerConfig

    async def verify(self, body: VerifyRequest) -> VerifyResponse:
        """The row's reward.

        Raises:
            JudgeError: there is none.
        """
        row: dict[str, Any] = body.model_dump()
        sample = Columns(references=self.config.references).judged(
            row, prompt=task_prompt(row), response=response_text(row["response"])
        )
        [result] = await target_in(self.config.model_dump(include=set(SETTINGS)), default_s=600.0).results(
            [sample]
        )
        if result.value is None:
            raise JudgeError(f"{result.status}: {result.reason}")
        return VerifyResponse(**row, reward=result.value, reward_reason=result.reason)
