"""vLLM's routes where there is no engine yet; with one they are tested in `test_vllm.py`."""

from pathlib import Path

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient

from guerdon_services.rollout.service import RolloutGenerator
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.rollout.vllm_routes import add_routes


@pytest.fixture(scope="module")
def loading() -> TestClient:
    """The routes of a service whose policy is being loaded."""
    router = APIRouter()
    add_routes(router, RolloutGenerator(RolloutSettings(model=Path("nowhere"), engine="transformers")))
    app = FastAPI()
    app.include_router(router)
    return TestClient(app)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/pause?mode=keep", None),
        ("POST", "/resume", None),
        ("POST", "/init_weight_transfer_engine", {"init_info": {}}),
        ("POST", "/start_weight_update", None),
        ("POST", "/update_weights", {"update_info": {}}),
        ("POST", "/finish_weight_update", {"weight_version": "3"}),
        ("POST", "/finish_weight_update", {}),
        ("GET", "/is_paused", None),
        ("GET", "/weight_info", None),
    ],
)
def test_every_route_says_that_the_policy_is_being_loaded(
    loading: TestClient, method: str, path: str, body: dict[str, object] | None
) -> None:
    answer = loading.request(method, path, json=body)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json() == {"error": "the policy is being loaded"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pause?mode=often", None),
        ("/finish_weight_update", {"weight_version": "3a"}),
        ("/init_weight_transfer_engine", {"init": {}}),
    ],
)
def test_a_wrong_body_is_refused(loading: TestClient, path: str, body: dict[str, object] | None) -> None:
    assert loading.post(path, json=body).status_code == 422
