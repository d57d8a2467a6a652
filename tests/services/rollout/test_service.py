"""The rollout service: groups, seeds, prompts at fault, and the policy's published weights."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from guerdon import weights
from guerdon.types import ChatMessage, GenerateRequest, GenerateResult, GenerateSample, Sampling, Status
from guerdon_services import models
from guerdon_services.rollout.service import RolloutGenerator
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.process import running
from guerdon_services.runtime.scorer import GenerateJob, NotReady
from guerdon_services.runtime.settings import Address, RuntimeSettings

SHORT = Sampling(max_new_tokens=6)


def opened(folder: Path, **settings: Any) -> RolloutGenerator:
    service = RolloutGenerator(RolloutSettings(model=folder, **settings))
    service.open()
    return service


@pytest.fixture(scope="module")
def service(tiny_llama: Path) -> RolloutGenerator:
    return opened(tiny_llama)


def ask(
    service: RolloutGenerator,
    *samples: GenerateSample,
    sampling: Sampling = SHORT,
    min_version: int | None = None,
) -> list[GenerateResult]:
    service.refresh()  # as the runtime does before each batch
    return service.generate([GenerateJob(sample, sampling, min_version) for sample in samples])


def test_a_group_carries_what_a_trainer_needs(service: RolloutGenerator) -> None:
    sampling = Sampling(n=5, max_new_tokens=6, seed=3)
    [result] = ask(service, GenerateSample(id="q", prompt="6+0+4="), sampling=sampling)
    assert (result.id, result.status) == ("q", Status.OK)
    assert result.prompt_token_ids == service.engine.tokenizer("6+0+4=").input_ids
    assert len(result.rollouts) == 5
    assert len({tuple(rollout.token_ids) for rollout in result.rollouts}) == 5
    for rollout in result.rollouts:
        assert len(rollout.token_ids) == len(rollout.logprobs)
        assert rollout.model_version == 0
        text = service.engine.tokenizer.decode(rollout.token_ids, skip_special_tokens=True)
        assert rollout.response == text


def test_seeds(service: RolloutGenerator) -> None:
    def tokens(sampling: Sampling, seed: int | None = None) -> list[list[int]]:
        [result] = ask(service, GenerateSample(prompt="a", seed=seed), sampling=sampling)
        return [rollout.token_ids for rollout in result.rollouts]

    seeded = Sampling(n=3, max_new_tokens=6, seed=1)
    assert tokens(seeded) == tokens(seeded)
    assert tokens(seeded)[:2] == tokens(Sampling(n=2, max_new_tokens=6, seed=1))
    assert tokens(seeded) == tokens(Sampling(n=3, max_new_tokens=6, seed=9), seed=1), "the sample's seed wins"
    assert tokens(seeded) != tokens(seeded, seed=2)
    assert tokens(Sampling(max_new_tokens=6)) != tokens(Sampling(max_new_tokens=6))


def test_text_chat_and_ids_are_prompts(service: RolloutGenerator) -> None:
    greedy = Sampling(max_new_tokens=6, temperature=0)
    chat = [ChatMessage(role="user", content="hi")]
    rendered = "<user>hi\n<assistant>"
    ids = service.engine.tokenizer(rendered).input_ids
    samples = [
        GenerateSample(prompt=chat),
        GenerateSample(prompt=rendered),
        GenerateSample(prompt_token_ids=ids),
    ]
    results = ask(service, *samples, sampling=greedy)
    assert results[0] == results[1] == results[2]
    assert results[0].prompt_token_ids == ids


def test_prompts_at_fault_name_the_field_and_leave_their_neighbours_alone(service: RolloutGenerator) -> None:
    good = GenerateSample(id="good", prompt="1+1=")
    bad = [
        (GenerateSample(id="none"), "prompt: missing"),
        (GenerateSample(prompt=""), "prompt: empty"),
        (GenerateSample(prompt_token_ids=[3, 100_000]), r"prompt_token_ids[1]: token id 100000 is outside"),
        (GenerateSample(prompt_token_ids=[3] * 125), "sampling.max_new_tokens: 125 prompt tokens and 6 new"),
        (GenerateSample(prompt="x" * 500), "prompt: 500 tokens leave no room in a context of 128"),
        (GenerateSample(prompt="\ud800"), "prompt: the tokenizer refuses it"),
    ]
    results = ask(service, good, *(sample for sample, _ in bad), good)
    assert [result.status for result in results] == [Status.OK, *[Status.INVALID_INPUT] * len(bad), Status.OK]
    for result, (sample, reason) in zip(results[1:-1], bad, strict=True):
        assert result.reason.startswith(reason), result.reason
        assert result.id == sample.id
        assert not result.rollouts


def test_the_context_can_be_filled_to_the_last_token(service: RolloutGenerator) -> None:
    [result] = ask(service, GenerateSample(prompt_token_ids=[3] * 122))
    assert result.status is Status.OK


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        (Sampling(stop=["ok", ""]), "sampling.stop[1]: empty"),
        (Sampling(max_new_tokens=20_000), "sampling.max_new_tokens: 20000 is more than this service's limit"),
    ],
)
def test_sampling_at_fault(service: RolloutGenerator, sampling: Sampling, reason: str) -> None:
    [result] = ask(service, GenerateSample(prompt="a"), sampling=sampling)
    assert result.status is Status.INVALID_INPUT
    assert result.reason.startswith(reason)


def test_before_open_there_is_no_version(tiny_llama: Path) -> None:
    service = RolloutGenerator(RolloutSettings(model=tiny_llama))
    assert service.model_version is None
    with pytest.raises(NotReady):
        ask(service, GenerateSample(prompt="a"))


def shifted(folder: Path, by: float) -> Callable[[Path], None]:
    """Writes the model of `folder` with every weight moved: visibly another policy."""

    def write(path: Path) -> None:
        loaded = models.load(folder)
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                parameter.add_(by * torch.sin(torch.arange(parameter.numel()).view_as(parameter).float()))
        loaded.model.save_pretrained(path)
        loaded.tokenizer.save_pretrained(path)

    return write


GREEDY = Sampling(max_new_tokens=20, temperature=0)


def greedy(service: RolloutGenerator, **given: Any) -> tuple[list[int], int]:
    [result] = ask(service, GenerateSample(prompt="6+0+4="), sampling=GREEDY, **given)
    assert result.status is Status.OK, result.reason
    return result.rollouts[0].token_ids, result.rollouts[0].model_version


def test_published_weights_answer_the_next_call(tiny_llama: Path, tmp_path: Path) -> None:
    service = opened(tiny_llama, weights_dir=tmp_path)
    first = greedy(service)
    assert first[1] == 0
    weights.publish(tmp_path, 1, shifted(tiny_llama, 0.3))
    second = greedy(service)
    fresh = opened(weights.version_path(tmp_path, 1))
    assert second == (greedy(fresh)[0], 1)
    assert second[0] != first[0]
    assert service.model_version == 1


def test_a_half_written_version_keeps_the_old_one_serving(tiny_llama: Path, tmp_path: Path) -> None:
    service = opened(tiny_llama, weights_dir=tmp_path)
    weights.publish(tmp_path, 1, shifted(tiny_llama, 0.3))
    before = greedy(service)

    def torn(path: Path) -> None:
        shifted(tiny_llama, 0.7)(path)
        file = path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])

    weights.publish(tmp_path, 2, torn)
    assert greedy(service) == before
    weights.publish(tmp_path, 3, shifted(tiny_llama, 0.5))
    after = greedy(service)
    assert after[1] == 3
    assert after[0] != before[0]


def test_a_version_that_is_not_published_is_unavailable(tiny_llama: Path, tmp_path: Path) -> None:
    service = opened(tiny_llama, weights_dir=tmp_path)
    jobs = [
        GenerateJob(GenerateSample(id=name), SHORT, min_version)
        for name, min_version in (("bad", None), ("late", 4))
    ]
    jobs.append(GenerateJob(GenerateSample(id="good", prompt="a"), SHORT, 0))
    bad, late, good = service.generate(jobs)
    assert (bad.status, late.status, good.status) == (Status.INVALID_INPUT, Status.UNAVAILABLE, Status.OK)
    assert late.reason == "version 4 is not published, the latest is 0"
    assert late.id == "late"


async def test_a_request_waits_for_its_version_and_holds_nobody_up(tiny_llama: Path, tmp_path: Path) -> None:
    service = RolloutGenerator(RolloutSettings(model=tiny_llama, weights_dir=tmp_path, version_wait_s=120))
    early = GenerateRequest(samples=[GenerateSample(prompt="a")], sampling=SHORT, min_version=2)
    async with running(service, RuntimeSettings(http=Address("127.0.0.1", 0))) as process:
        waiting = asyncio.create_task(process.dispatcher.generate(early))
        [other] = await process.dispatcher.generate(early.model_copy(update={"min_version": None}))
        await asyncio.to_thread(weights.publish, tmp_path, 1, shifted(tiny_llama, 0.1))
        assert not waiting.done()
        await asyncio.to_thread(weights.publish, tmp_path, 2, shifted(tiny_llama, 0.2))
        [late] = await waiting
    assert [one.rollouts[0].model_version for one in (other, late)] == [0, 2]


def test_says_which_versions_there_are_and_takes_up_the_newest(tiny_llama: Path, tmp_path: Path) -> None:
    service = opened(tiny_llama, weights_dir=tmp_path)
    assert (service.versions().current, service.versions().versions) == (0, [])
    weights.publish(tmp_path, 3, models.load(tiny_llama).model.save_pretrained)
    service.refresh()
    assert service.versions().current == service.model_version == 3
    assert [one.version for one in service.versions().versions] == [3]
