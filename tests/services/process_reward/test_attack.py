"""Garbage labels against the real service at its doors: refused by name or harmless, and the weights never suffer."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import torch

from guerdon.v1 import reward_pb2, update_pb2, update_pb2_grpc
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardSettings
from guerdon_services.runtime.process import Process, running
from guerdon_services.runtime.settings import Address, RuntimeSettings

LOOPBACK = Address("127.0.0.1", 0)
GOOD: dict[str, Any] = {"id": "a", "prompt": "1+1=", "response": "2", "outcome": 1.0, "group": "q"}
BAD: dict[str, Any] = {"id": "b", "prompt": "1+1=", "response": "3", "outcome": 0.0, "group": "q"}


class Served:
    """The service, a client of its HTTP door, and its weights."""

    def __init__(self, scorer: ProcessRewardScorer, process: Process, http: httpx.AsyncClient) -> None:
        self.scorer, self.grpc, self._http = scorer, str(process.grpc), http
        self._updates = 0

    async def update(self, samples: Any, **given: Any) -> tuple[int, dict[str, Any]]:
        """Status code and body of an update; NaN and infinities go out as Python writes them."""
        self._updates += 1
        body = {"request_id": f"u{self._updates}", "samples": samples, "order": "after"} | given
        answer = await self._http.post("/v1/update", content=json.dumps(body))
        return answer.status_code, answer.json()

    async def score(self, **options: Any) -> tuple[int, dict[str, Any]]:
        answer = await self._http.post("/v1/score", json={"samples": [GOOD], "options": options})
        return answer.status_code, answer.json()

    def state(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in self.scorer._trained.model.state_dict().values()]


@asynccontextmanager
async def served(model: Path, folder: Path, **settings: Any) -> AsyncIterator[Served]:
    scorer = ProcessRewardScorer(
        ProcessRewardSettings.model_validate({"model": model, "weights_dir": folder, "lr": 1e-2} | settings)
    )
    doors = RuntimeSettings(http=LOOPBACK, grpc=LOOPBACK, max_request_items=2000)
    async with running(scorer, doors) as process:
        assert process.url is not None
        async with httpx.AsyncClient(base_url=process.url, timeout=240, trust_env=False) as http:
            yield Served(scorer, process, http)


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


#: What to change in the second sample or in the request, and what the refusal must name.
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"outcome": float("nan")}, {}, "outcome"),
    ({"outcome": float("inf")}, {}, "outcome"),
    ({"outcome": -float("inf")}, {}, "outcome"),
    ({"outcome": 1.0000001}, {}, "outcome"),
    ({"outcome": -1}, {}, "outcome"),
    ({"outcome": 1e308}, {}, "outcome"),
    ({"outcome": "1.0"}, {}, "outcome"),
    ({"outcome": "right"}, {}, "outcome"),
    ({"outcome": [1.0]}, {}, "outcome"),
    ({"outcome": {"value": 1}}, {}, "outcome"),
    ({"outcome": True}, {}, "outcome"),
    ({"response_token_ids": [2**31]}, {}, "response_token_ids"),
    ({"group": 7}, {}, "group"),
    ({}, {"options": {"beta": 0}}, "beta"),
    ({}, {"options": {"beta": -1}}, "beta"),
    ({}, {"options": {"beta": 1e300}}, "beta"),
    ({}, {"options": {"beta": float("nan")}}, "beta"),
    ({}, {"options": {"beta": "big"}}, "beta"),
    ({}, {"options": {"temperature": 0}}, "temperature"),
    ({}, {"options": {"temperature": 1e-300}}, "temperature"),
    ({}, {"options": {"temperature": float("inf")}}, "temperature"),
    ({}, {"options": {"loss": "garbage"}}, "loss"),
    ({}, {"options": {"granularity": None}}, "granularity"),
    ({}, {"options": {"step_separator": ""}}, "step_separator"),
    ({}, {"options": {"lr": 1e9}}, "lr"),
    ({}, {"order": "sideways"}, "order"),
    ({}, {"base_version": 99}, "base_version"),
    ({}, {"base_version": -1}, "base_version"),
    ({}, {"request_id": ""}, "request_id"),
]


async def test_what_makes_no_sense_is_refused_by_name_and_changes_no_bit(
    tiny_llama: Path, tmp_path: Path
) -> None:
    async with served(tiny_llama, tmp_path / "prm") as service:
        assert (await service.update([GOOD, BAD]))[1]["version_after"] == 1
        before = service.state()
        for sample, request, named in REFUSED:
            code, body = await service.update([GOOD, BAD | sample], **request)
            said = json.dumps(body)
            assert code == 422 or code == 400 or body["status"] == "invalid_input", (sample, request, said)
            assert named in said, (sample, request, said)
            assert body.get("version_after") is None
        # None of a batch can be learnt from: refused as well.
        for samples in ([], [GOOD | {"outcome": None}] * 3, [GOOD | {"response": ""}] * 3):
            _, body = await service.update(samples)
            assert (body["status"], body["version_after"]) == ("invalid_input", None)
            assert body["reason"].startswith("samples")
        assert service.scorer.model_version == 1
        assert same(before, service.state())
        # And the service still learns.
        assert (await service.update([GOOD, BAD]))[1]["version_after"] == 2


async def test_numbers_that_only_protobuf_can_carry_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    async with (
        served(tiny_llama, tmp_path / "prm") as service,
        grpc.aio.insecure_channel(service.grpc) as channel,
    ):
        stub = update_pb2_grpc.UpdateServiceStub(channel)
        before = service.state()
        for outcome in (float("nan"), float("inf"), -float("inf"), 2.0, -0.5):
            samples = [
                reward_pb2.Sample(prompt_token_ids=[5], response="2", outcome=1.0),
                reward_pb2.Sample(prompt_token_ids=[5], response="3", outcome=outcome),
            ]
            request = update_pb2.UpdateRequest(request_id=f"u{outcome}", samples=samples, order="after")
            with pytest.raises(grpc.aio.AioRpcError, match="outcome") as refused:
                await stub.Update(request)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert service.scorer.model_version == 0
        assert same(before, service.state())


@pytest.mark.parametrize("loss", ["ce", "pairwise"])
async def test_labels_that_are_useless_are_harmless(tiny_llama: Path, tmp_path: Path, loss: str) -> None:
    async with served(tiny_llama, tmp_path / "prm", max_tokens=2000) as service:
        options = {"loss": loss, "beta": 1000.0}
        batches = {
            "all right": [GOOD, BAD | {"outcome": 1.0}],
            "all wrong": [GOOD | {"outcome": 0.0}, BAD],
            "all undecided": [GOOD | {"outcome": 0.5}, BAD | {"outcome": 0.5}],
            "contradictory, under one id": [GOOD, GOOD | {"outcome": 0.0}, GOOD | {"outcome": 0.5}],
            "empty responses among others": [GOOD, BAD, GOOD | {"response": ""}, BAD | {"response": ""}],
            "without a label among others": [GOOD, BAD, GOOD | {"outcome": None}],
            "alone": [BAD],
            "huge": [GOOD | {"outcome": (n % 7) / 6, "group": str(n % 50)} for n in range(400)],
        }
        for name, samples in batches.items():
            code, body = await service.update(samples, options=options, order="before")
            assert (code, body["status"]) == (200, "ok"), (name, body["reason"])
            assert len(body["results"]) == len(samples)
            for sample, one in zip(samples, body["results"], strict=True):
                assert one["id"] == sample["id"]
                assert (one["value"] is None) == (one["status"] != "ok") == (sample["outcome"] is None)
            assert all(torch.isfinite(tensor).all() for tensor in service.state()), name
        assert service.scorer.model_version == len(batches)
        code, body = await service.score()
        assert (code, body["results"][0]["status"]) == (200, "ok")


async def test_a_batch_beyond_the_limits_is_refused_whole(tiny_llama: Path, tmp_path: Path) -> None:
    async with served(tiny_llama, tmp_path / "prm") as service:
        before = service.state()
        code, body = await service.update([GOOD] * 2001)
        assert code == 413 or body.get("status") == "invalid_input", body
        assert service.scorer.model_version == 0
        assert same(before, service.state())
