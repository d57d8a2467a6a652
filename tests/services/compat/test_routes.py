"""Other systems' requests, posted as their clients post them: the answers they read; no number for a failure."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any, ClassVar

import httpx
import pytest

from guerdon.client import AsyncClient
from guerdon.types import Result, Sample, Status, failed
from guerdon_services.compat import roll
from guerdon_services.runtime.process import running
from guerdon_services.runtime.scorer import (
    Batching,
    ScoreJob,
    Scorer,
    ScorerOptions,
    ScorerSettings,
    Unscorable,
)
from guerdon_services.runtime.settings import Address, RuntimeSettings

#: Responses that get no reward, and the HTTP status that says so.
FAILURES = {
    "timeout": 504,
    "overloaded": 429,
    "unavailable": 503,
    "internal_error": 500,
    "invalid_input": 422,
}


class Options(ScorerOptions):
    """One of no consequence but for its effect."""

    scale: float = 1.0


class Judge(Scorer[ScorerSettings, Options]):
    """1 where a reference is in the response; the failure that the response names."""

    name: ClassVar[str] = "judge"
    version: ClassVar[str] = "1"
    options_type: ClassVar[type[ScorerOptions]] = Options

    def __init__(self) -> None:
        super().__init__(ScorerSettings())
        self.batching = Batching(max_wait_ms=0.0)
        self.jobs: list[ScoreJob[Options]] = []
        #: Samples that are still to fail before any is judged.
        self.failures = 0

    def score(self, batch: Sequence[ScoreJob[Options]]) -> list[Result]:
        self.jobs += batch
        return [self._one(job) for job in batch]

    def _one(self, job: ScoreJob[Options]) -> Result:
        if self.failures:
            self.failures -= 1
            return failed(Status.UNAVAILABLE, "said the test")
        response = job.sample.response or ""
        if response in FAILURES:
            return failed(Status(response), "said the test")
        if not job.sample.references and job.sample.code is None:
            raise Unscorable("references: missing")
        right = any(reference in response for reference in job.sample.references)
        return Result(status=Status.OK, value=job.options.scale * right, reason="compared")


@pytest.fixture
async def service() -> AsyncGenerator[tuple[Judge, httpx.AsyncClient]]:
    """The scorer and a client of its HTTP door."""
    judge = Judge()
    settings = RuntimeSettings(http=Address("127.0.0.1", 0), drain_s=10.0)
    async with running(judge, settings) as process:
        assert process.url is not None
        async with httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False) as http:
            yield judge, http


Served = tuple[Judge, httpx.AsyncClient]


async def test_openrlhf(service: Served) -> None:
    judge, http = service
    prompt = "<|im_start|>user\n1+1<|im_end|>\n"
    body = {
        "query": [prompt + "It is 2<|im_end|>", prompt + "3</s>"],
        "prompts": [prompt] * 2,
        "labels": ["2", "2"],
    }
    answer = await http.post("/get_reward", json=body)
    assert answer.status_code == 200
    assert answer.json() == {"rewards": [1.0, 0.0], "scores": [1.0, 0.0], "extra_logs": {}}
    assert [job.sample.response for job in judge.jobs] == ["It is 2", "3"]
    scaled = await http.post("/get_reward", params={"options": '{"scale": 5}'}, json=body)
    # Dynamic filtering wants scores in [0, 1].
    assert scaled.json() == {"rewards": [5.0, 0.0], "scores": [1.0, 0.0], "extra_logs": {}}


async def test_openrlhf_sends_empty_lists_to_all_but_one_of_its_servers(service: Served) -> None:
    _, http = service
    answer = await http.post("/get_reward", json={"query": [], "prompts": [], "labels": []})
    assert (answer.status_code, answer.json()) == (200, {"rewards": [], "scores": [], "extra_logs": {}})


async def test_slime(service: Served) -> None:
    judge, http = service
    body = {"prompt": [{"role": "user", "content": "1+1"}], "response": "2<|im_end|>", "label": "2"}
    answer = await http.post("/rm", json=body)
    # A bare number is what becomes `sample.reward`.
    assert (answer.status_code, answer.json()) == (200, 1.0)
    keyed = await http.post("/rm", params={"key": "score"}, json={**body, "response": "3"})
    assert keyed.json() == {"score": 0.0, "reason": "compared"}
    assert judge.jobs[0].sample.response == "2"


GYM_ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "1+1"}], "tools": []},
    "response": {
        "id": "r",
        "object": "response",
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "2"}]}
        ],
    },
    "expected_answer": "2",
    "level": 3,
}


def gym_row(text: str) -> dict[str, Any]:
    row = json.loads(json.dumps(GYM_ROW))
    row["response"]["output"][0]["content"][0]["text"] = text
    return row


async def test_nemo_gym(service: Served) -> None:
    _, http = service
    assert (await http.post("/seed_session", json={})).json() == {}
    assert (await http.get("/reverify_mode")).json() == "stateless"
    answer = await http.post("/verify", json=GYM_ROW)
    assert answer.status_code == 200
    # The row comes back whole, as Gym wants it.
    assert answer.json() == {**GYM_ROW, "reward": 1.0, "reward_reason": "compared"}
    named = await http.post("/verify", params={"references": "gold"}, json={**GYM_ROW, "gold": "no"})
    assert named.json()["reward"] == 0.0


async def test_nemo_gym_with_masks(service: Served) -> None:
    _, http = service
    answer = await http.post("/verify", params={"failures": "mask"}, json=gym_row("unavailable"))
    assert answer.status_code == 200
    content = answer.json()
    # What Gym 0.7.0's own judges send of a failure, field by field.
    reason = "unavailable: said the test"
    assert content == {
        **gym_row("unavailable"),
        "reward": 0.0,
        "mask_sample": True,
        "failure_kind": "provider_unavailable",
        "failure_reason": reason,
        "instance_config": {"mask_sample": True},
        "_ng_failure_class": "judge_failed",
        "_ng_failure_judge_error": reason,
    }


async def poll(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    """As ROLL does: GET with a body, until `errcode` is not 1."""
    async with asyncio.timeout(60):
        while True:
            content = {"reward_request_id": id}
            answer = (await http.request("GET", "/task_result", json=content)).json()
            if answer["errcode"] != 1:
                return answer
            await asyncio.sleep(0.01)


async def test_roll(service: Served) -> None:
    judge, http = service
    body = {
        "priority": 1,
        "project_id": "p",
        "data_id": "d",
        "rollout_id": "r",
        "prompt": "1+1",
        "response": "2",
        "reward_info": {"ground_truth": "2"},
        "reward_manager": [{"plugin_name": "math"}],
        "timeout": 300,
    }
    submitted = (await http.post("/submit_task", json=body)).json()
    assert submitted["errcode"] == 0
    answer = await poll(http, submitted["reward_request_id"])
    assert (answer["errcode"], answer["reward_score"]) == (0, 1.0)
    assert answer["dimention_reward_score"] == {"judge": {"score": 1.0, "debug_info": {}}}
    tests = {"inputs": ["1"], "outputs": ["2"]}
    await http.post("/submit_task", json={**body, "reward_info": {"case_type": "stdio", "test_cases": tests}})
    unknown = await http.request("GET", "/task_result", json={"reward_request_id": "never"})
    assert (unknown.json()["errcode"], "reward_score" in unknown.json()) == (3, False)
    assert judge.jobs[0].sample.references == ["2"]


async def test_roll_tries_again_for_as_long_as_it_is_asked(
    service: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, http = service
    monkeypatch.setattr(roll, "_PAUSE_S", 0.01)
    judge.failures = 2
    body = {"response": "2", "reward_info": {"ground_truth": "2"}}
    id = (await http.post("/submit_task", json={**body, "timeout": 60})).json()["reward_request_id"]
    assert (await poll(http, id))["reward_score"] == 1.0
    assert len(judge.jobs) == 3
    # Nothing but failures until ROLL asks no more: the last may have been cut short by that.
    lost = {"response": "unavailable", "reward_info": {"ground_truth": "2"}, "timeout": 0.3}
    id = (await http.post("/submit_task", json=lost)).json()["reward_request_id"]
    answer = await poll(http, id)
    assert (answer["errcode"], "reward_score" in answer) == (2, False)
    assert answer["errmsg"].startswith(("no reward: unavailable: ", "no reward: timeout: "))
    wrong = {"response": "invalid_input", "reward_info": {"ground_truth": "2"}}
    id = (await http.post("/submit_task", json=wrong)).json()["reward_request_id"]
    asked = len(judge.jobs)
    assert (await poll(http, id))["errcode"] == 2
    assert len(judge.jobs) <= asked + 1


@pytest.mark.parametrize(("word", "status"), FAILURES.items())
async def test_a_failure_is_a_status_and_no_number(service: Served, word: str, status: int) -> None:
    _, http = service
    bodies: dict[str, dict[str, Any]] = {
        "/get_reward": {"query": ["p" + word], "prompts": ["p"], "labels": ["2"]},
        "/rm": {"prompt": "p", "response": word, "label": "2"},
        "/verify": gym_row(word),
    }
    for path, body in bodies.items():
        answer = await http.post(path, json=body)
        assert answer.status_code == status, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert not {"reward", "rewards", "score"} & set(answer.json())
        assert ("retry-after" in answer.headers) == (status in (429, 503))


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/get_reward", {"prompts": []}, 422, "query"),
        ("/get_reward", {"query": ["a"], "prompts": ["a", "b"]}, 422, "prompts"),
        ("/rm", {"response": 4}, 422, "response"),
        ("/rm?options=no", {"response": "2", "label": "2"}, 422, "options"),
        ('/rm?options={"scal":1}', {"response": "2", "label": "2"}, 422, "scale"),
        ('/rm?optons={"scale":1}', {"response": "2", "label": "2"}, 422, "did you mean options?"),
        ("/get_reward?key=a", {"query": ["2"], "labels": ["2"]}, 422, "key"),
        ("/verify", {"response": {}}, 422, "responses_create_params"),
        ("/verify?references=gold", GYM_ROW, 422, "gold"),
        ("/verify?failures=masked", GYM_ROW, 422, "failures"),
        ("/verify", {**GYM_ROW, "response": {}}, 422, "response.output"),
        ("/verify", {**GYM_ROW, "response": {"output": [None]}}, 422, "response.output"),
        ("/verify", {**GYM_ROW, "response": {"output": [{"content": "2"}]}}, 422, "response.output.type"),
        (
            "/verify",
            {**GYM_ROW, "responses_create_params": {"input": 5}},
            422,
            "responses_create_params.input",
        ),
        # The model's server failed: the policy has said nothing that could be wrong.
        ("/verify", {**GYM_ROW, "response": {"status": "failed", "output": []}}, 422, "request failed"),
        ("/verify", {**GYM_ROW, "response": {"error": {"code": "x"}, "output": []}}, 422, "request"),
        ("/submit_task", {"response": "2", "timeout": -1}, 422, "timeout"),
    ],
)
async def test_what_is_wrong_is_named(
    service: Served, path: str, body: dict[str, Any], status: int, word: str
) -> None:
    _, http = service
    answer = await http.post(path, json=body)
    assert answer.status_code == status
    assert word in answer.text


async def test_a_body_that_is_no_json(service: Served) -> None:
    _, http = service
    for path in ("/get_reward", "/rm", "/verify", "/submit_task"):
        for content in (b"{", b'{"response": NaN}', b"\xff"):
            assert (await http.post(path, content=content)).status_code == 400


async def test_the_document_shows_the_routes(service: Served) -> None:
    _, http = service
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert {"/get_reward", "/rm", "/verify", "/seed_session", "/submit_task", "/task_result"} <= set(paths)


async def test_a_crowd_is_waited_out() -> None:
    judge = Judge()
    settings = RuntimeSettings(http=Address("127.0.0.1", 0), drain_s=10.0, max_pending=1, max_request_items=1)
    async with running(judge, settings) as process:
        assert process.url is not None
        async with httpx.AsyncClient(base_url=process.url, timeout=60, trust_env=False) as http:
            body = {"prompt": "p", "response": "2", "label": "2"}
            answers = await asyncio.gather(*(http.post("/rm", json=body) for _ in range(20)))
    assert [answer.json() for answer in answers] == [1.0] * 20


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_a_thousand_requests_at_once_on_one_client(service: Served) -> None:
    _, http = service
    async with AsyncClient(str(http.base_url), retries=0, timeout_s=1000.0) as client:
        asked = [[Sample(response=str(number), references=[str(number)])] for number in range(1000)]
        answers = await asyncio.gather(*(client.score(samples) for samples in asked))
    assert [result.value for [result] in answers] == [1.0] * 1000
