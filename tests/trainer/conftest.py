"""A service layer in this process behind the interface of `AsyncClient`, and a run small enough for a unit test.

The policy samples for real, from the weights the run publishes. A response is right when it begins with a digit,
which an untrained policy does about every other time and a trained one nearly always.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from guerdon import weights
from guerdon.types import (
    GenerateResult,
    GenerateSample,
    Options,
    Result,
    Rollout,
    Sample,
    Sampling,
    ServiceInfo,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsResponse,
    failed,
)
from guerdon_trainer import plots
from guerdon_trainer.config import RunConfig, load_recipe
from guerdon_trainer.groups import Group, Response
from guerdon_trainer.prepare.tiny import build_tokenizer
from guerdon_trainer.questions import Question

#: What a call does instead of answering: a status for its items, or an exception.
Fault = Status | Exception

RECIPE: dict[str, Any] = {
    "policy": {
        "kind": "tiny",
        "hidden_size": 16,
        "layers": 1,
        "heads": 2,
        "key_value_heads": 1,
        "warmup_steps": 1,
        "warmup_batch": 8,
    },
    "data": {"source": "arithmetic", "size": 40},
    "eval_data": {"source": "arithmetic", "size": 16, "settings": {"split": "held_out"}},
    "rollout": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 5},
    "rewards": [{"service": "math"}, {"service": "process_reward", "role": "process"}],
    "process_reward": {"order": "before", "time_limit_s": 60},
    "advantage": {"name": "prime"},
    "loss": {"name": "gspo_token"},
    "optimizer": {"lr": 0.01, "warmup_steps": 2},
    "filter": {"kind": "accuracy", "lower": 0.01, "upper": 0.99},
    "training": {"steps": 6, "checkpoint_every": 2},
    "failures": {"pause_s": 0.0, "timeout_s": 60, "window": 16},
}


class FakeService:
    """Answers with `faults` first, then properly, each call after a random pause that shuffles the order."""

    def __init__(self) -> None:
        self.faults: deque[Fault] = deque()
        self.always: Fault | None = None
        self.calls = 0
        self.closed = False

    async def fault(self) -> Status | None:
        self.calls += 1
        await asyncio.sleep(random.random() * 0.003)
        fault = self.faults.popleft() if self.faults else self.always
        if isinstance(fault, Exception):
            raise fault
        return fault

    async def score(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> list[Result]:
        raise AssertionError("this service does not score")

    async def generate(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
    ) -> list[GenerateResult]:
        raise AssertionError("this service does not generate")

    async def update(self, request: UpdateRequest, *, timeout_s: float | None = None) -> UpdateResponse:
        raise AssertionError("this service does not learn")

    async def versions(self) -> VersionsResponse:
        raise AssertionError("this service has no versions")

    async def info(self) -> ServiceInfo:
        return ServiceInfo(
            scorer="fake",
            scorer_version="1",
            operations=[],
            options_schema="{}",
            max_request_items=1,
            max_body_bytes=1,
        )

    async def aclose(self) -> None:
        self.closed = True


class FakeRollout(FakeService):
    """Samples from the latest weights in a folder, or gives what `script` says for a prompt."""

    def __init__(self, folder: Path, script: Callable[[GenerateSample], list[str]] | None = None) -> None:
        super().__init__()
        self._folder = folder
        self._script = script
        self._tokenizer = build_tokenizer()
        self._loaded: tuple[object, Any] = (None, None)
        self.version_served: int | None = None
        self.seeds: list[int | None] = []

    async def generate(
        self,
        samples: Sequence[GenerateSample],
        sampling: Sampling,
        *,
        min_version: int | None = None,
        timeout_s: float | None = None,
    ) -> list[GenerateResult]:
        fault = await self.fault()
        if fault is not None:
            return [GenerateResult(id=sample.id, status=fault, reason="as told") for sample in samples]
        self.seeds += [sample.seed for sample in samples]
        return [self._group(sample, sampling) for sample in samples]

    def _group(self, sample: GenerateSample, sampling: Sampling) -> GenerateResult:
        prompt = self._tokenizer(str(sample.prompt))["input_ids"]
        version = self.version_served
        if self._script is not None:
            texts = self._script(sample)
            rollouts = [rollout(text, version or 0) for text in texts]
        else:
            version, model = self._model()
            rollouts = self._sample(model, prompt, sampling, sample.seed or 0, version)
        return GenerateResult(id=sample.id, status=Status.OK, rollouts=rollouts, prompt_token_ids=prompt)

    def _model(self) -> tuple[int, Any]:
        latest = weights.latest(self._folder)
        assert latest is not None
        key = (latest.version, latest.path.stat().st_mtime_ns)
        if self._loaded[0] != key:
            self._loaded = (key, AutoModelForCausalLM.from_pretrained(latest.path).eval())
        return latest.version, self._loaded[1]

    @torch.no_grad()
    def _sample(
        self, model: Any, prompt: list[int], sampling: Sampling, seed: int, version: int
    ) -> list[Rollout]:
        generator = torch.Generator().manual_seed(seed)
        ids_KT = torch.empty(sampling.n, 0, dtype=torch.int64)
        logps_KT = torch.empty(sampling.n, 0)
        prompt_KS = torch.tensor([prompt] * sampling.n)
        for _ in range(sampling.max_new_tokens):
            logits_KV = model(input_ids=torch.cat([prompt_KS, ids_KT], 1)).logits[:, -1]
            all_KV = (logits_KV / (sampling.temperature or 1.0)).log_softmax(-1)
            chosen_K1 = torch.multinomial(all_KV.exp(), 1, generator=generator)
            if not sampling.temperature:
                chosen_K1 = logits_KV.argmax(-1, keepdim=True)
            ids_KT = torch.cat([ids_KT, chosen_K1], 1)
            logps_KT = torch.cat([logps_KT, all_KV.gather(-1, chosen_K1)], 1)
        rows = zip(ids_KT.tolist(), logps_KT.tolist(), strict=True)
        return [self._cut(ids, logps, version) for ids, logps in rows]

    def _cut(self, ids: list[int], logprobs: list[float], version: int) -> Rollout:
        eos = self._tokenizer.eos_token_id
        end = ids.index(eos) + 1 if eos in ids else len(ids)
        return Rollout(
            response=str(self._tokenizer.decode(ids[:end], skip_special_tokens=True)),
            token_ids=ids[:end],
            logprobs=logprobs[:end],
            finish_reason="stop" if eos in ids else "length",
            model_version=version,
        )


class FakeMath(FakeService):
    """1 when the response begins with a digit, else 0."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[str | None] = []

    async def score(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> list[Result]:
        self.keys.append(key)
        fault = await self.fault()
        if fault is not None:
            return [failed(fault, "as told", id=sample.id) for sample in samples]
        return [
            Result(
                id=sample.id,
                status=Status.OK,
                value=float((sample.response or " ")[0].isdigit()),
                reason="first",
            )
            for sample in samples
        ]


class FakeProcessReward(FakeService):
    """Token rewards that depend on token, place and version; versions that can be returned to."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.answers: dict[str, UpdateResponse] = {}
        self.requests: list[UpdateRequest] = []
        self.shift_token_ids = 0

    async def update(self, request: UpdateRequest, *, timeout_s: float | None = None) -> UpdateResponse:
        fault = await self.fault()
        self.requests.append(request)
        if fault is not None:
            return UpdateResponse(request_id=request.request_id, status=fault, reason="as told")
        if request.request_id not in self.answers:
            assert request.base_version is not None
            assert request.base_version <= self.version
            self.version = request.base_version + 1
            self.answers[request.request_id] = UpdateResponse(
                request_id=request.request_id,
                status=Status.OK,
                results=self._results(request.samples),
                version_before=request.base_version,
                version_after=self.version,
                metrics={"loss": 1.0 / self.version},
            )
        return self.answers[request.request_id]

    async def score(
        self,
        samples: Sequence[Sample],
        *,
        options: Options | None = None,
        min_version: int | None = None,
        timeout_s: float | None = None,
        key: str | None = None,
    ) -> list[Result]:
        fault = await self.fault()
        if fault is not None:
            return [failed(fault, "as told", id=sample.id) for sample in samples]
        return self._results(samples)

    async def versions(self) -> VersionsResponse:
        return VersionsResponse(current=self.version)

    def _results(self, samples: Sequence[Sample]) -> list[Result]:
        results: list[Result] = []
        for sample in samples:
            ids = sample.response_token_ids
            rewards = [((7 * id + 3 * self.version + at) % 11 - 5) / 100 for at, id in enumerate(ids)]
            shifted = [id + self.shift_token_ids for id in ids]
            results.append(
                Result(
                    id=sample.id,
                    status=Status.OK,
                    value=sum(rewards),
                    token_rewards=rewards,
                    token_ids=shifted,
                    model_version=self.version,
                )
            )
        return results


class FakeServices:
    """The three services that `RECIPE` uses."""

    def __init__(self, folder: Path, script: Callable[[GenerateSample], list[str]] | None = None) -> None:
        self.rollout = FakeRollout(folder, script)
        self.math = FakeMath()
        self.process_reward = FakeProcessReward()

    @property
    def clients(self) -> dict[str, Any]:
        return {"rollout": self.rollout, "math": self.math, "process_reward": self.process_reward}


def rollout(text: str, version: int = 0) -> Rollout:
    ids = build_tokenizer()(text)["input_ids"]
    return Rollout(
        response=text, token_ids=ids, logprobs=[-0.5] * len(ids), finish_reason="stop", model_version=version
    )


def leave_plots_undrawn() -> None:
    """The report of a run has empty pictures: drawing its many takes longer than all else in a run of a test."""
    plots._svg = lambda figure, label: f"<svg><title>{label}</title></svg>"


@pytest.fixture(autouse=True)
def _plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are drawn where they are looked at, in the tests of the report."""
    if request.path.stem != "test_report":
        monkeypatch.setattr(plots, "_svg", plots._svg)  # as it was comes back
        leave_plots_undrawn()


@pytest.fixture
def unit_recipe() -> dict[str, Any]:
    return RECIPE


@pytest.fixture
def make_services() -> type[FakeServices]:
    return FakeServices


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., RunConfig]:
    """`RECIPE` with overrides, in a folder of the test."""

    def make(*overrides: str, recipe: dict[str, Any] | None = None) -> RunConfig:
        path = tmp_path / "unit.yaml"
        path.write_text(yaml.safe_dump(recipe or RECIPE))
        return load_recipe(str(path), [f"folder={tmp_path / 'run'}", *overrides])

    return make


@pytest.fixture
def make_group() -> Callable[..., Group]:
    """A judged group: `rewards` by response text, None for a response without reward."""

    def make(position: int, rewards: dict[str, float | None], prompt: str = "1+2=") -> Group:
        responses = [
            Response(
                id=f"{position}/{number}",
                rollout=rollout(text),
                results={"math": _result(reward)},
                outcome=reward,
                reward=reward,
            )
            for number, (text, reward) in enumerate(rewards.items())
        ]
        question = Question(id=f"q{position}", prompt=prompt, references=["3"], metadata=None, code=None)
        return Group(position, question, build_tokenizer()(prompt)["input_ids"], responses)

    return make


def _result(reward: float | None) -> Result:
    if reward is None:
        return failed(Status.TIMEOUT, "as told")
    return Result(status=Status.OK, value=reward)
