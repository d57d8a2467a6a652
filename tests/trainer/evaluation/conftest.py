"""A policy that says what the test wants, and the real verifiers as processes."""

from collections.abc import Callable, Iterator

import pytest

from guerdon.services_file import ServiceConfig, ServicesConfig, process_specs, with_addresses
from guerdon.supervisor import Supervisor
from guerdon.types import GenerateResult, GenerateSample, Rollout, Sampling, Status

Generate = Callable[[GenerateSample, Sampling], GenerateResult]


@pytest.fixture(scope="session")
def verifiers(redis_session_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """HTTP addresses of the services math, rules and code.

    They outlive the test that starts them, so they work on queues of their own: under the usual names they would take
    the work that a later test queues for a worker of its own.
    """
    services = {
        name: ServiceConfig(queue=f"evaluation-{name}", settings={"workers": 1})
        for name in ("math", "rules", "code")
    }
    config = with_addresses(ServicesConfig(services=services))
    specs = process_specs(config, redis_session_url, tmp_path_factory.mktemp("verifiers"))
    with Supervisor(specs) as supervisor:
        supervisor.wait_ready(300)
        yield {name: f"http://{service.http}" for name, service in config.services.items()}


def said(text: str, *, version: int = 0, finish_reason: str = "stop") -> GenerateResult:
    """One rollout with this text; a token is a word."""
    ids = list(range(1, len(text.split()) + 1))
    rollout = Rollout.model_validate(
        {
            "response": text,
            "token_ids": ids,
            "logprobs": [-0.5] * len(ids),
            "finish_reason": finish_reason,
            "model_version": version,
        }
    )
    return GenerateResult(status=Status.OK, rollouts=[rollout], prompt_token_ids=[1])


@pytest.fixture
def saying() -> Callable[..., GenerateResult]:
    return said
