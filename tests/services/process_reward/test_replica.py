"""One learner, two scoring replicas, as processes: under load, and with kills in the middle of everything."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import httpx
import pytest
import torch

from guerdon import Client, weights
from guerdon.errors import GuerdonError, InvalidRequest
from guerdon.types import Result, Sample, Status, UpdateRequest
from guerdon_services import models
from guerdon_services.models import FollowedModel, HalfRead, following
from guerdon_services.process_reward.replica import ProcessRewardReplica
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardOptions, ReplicaSettings
from guerdon_services.runtime.scorer import NotReady, ScoreJob
from guerdon_services.scoring import ScoredSequence, token_logprobs
from tests.waiting import PATIENCE_S, until

BETA = 0.5
SAMPLES = [
    Sample(prompt_token_ids=[5, 6, 7], response_token_ids=[10 + number, 20, 30 + number][: 1 + number % 3])
    for number in range(12)
]


class Starter:
    """Starts services as processes, from one that has imported all they need."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("fork_services.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, arguments: Sequence[str], environment: dict[str, str], log: Path) -> int:
        """The id of the new process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"arguments": list(arguments), "environment": environment, "log": str(log)}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class Service:
    """A process that can be killed and started again with the same settings."""

    def __init__(self, starter: Starter, folder: Path, name: str, *assignments: str) -> None:
        self._starter, self._folder, self._name, self._assignments = starter, folder, name, assignments
        self._lives = 0
        self.url = ""
        self.start()

    def start(self) -> None:
        self._lives += 1
        self._ready = self._folder / f"{self._name}-{self._lives}.json"
        self.log = self._folder / f"{self._name}.log"
        arguments = ["serve", self._name.partition("-")[0], *self._assignments]
        arguments += ["--http", "127.0.0.1:0", "--ready-file", str(self._ready)]
        cache = {"GUERDON_CACHE_DIR": str(self._folder / "cache")}
        self.pid = self._starter.start(arguments, cache, self.log)

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self._alive(), self.log.read_text()
            if not self._ready.exists():
                return False
            self.url = json.loads(self._ready.read_text())["http"]
            return httpx.get(f"{self.url}/readyz", trust_env=False, timeout=PATIENCE_S).status_code == 200

        until(ready, said=self.log.read_text)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not self._alive())

    def _alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


class Cluster:
    """A learner, a replica that follows its folder, and one that follows the URL it uploads to."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.model, self.weights_dir, url = model, folder / "prm", f"file://{folder}/store"
        shared = (f"model={model}", f"beta={BETA}")
        self.starter = Starter()
        self.learner = Service(
            self.starter,
            folder,
            "process_reward",
            *shared,
            f"weights_dir={self.weights_dir}",
            f"mirror_url={url}",
            "lr=0.001",
            "keep_last=1000",
        )
        # Requests wait for the versions that they ask for, however slow the machine is.
        shared = (*shared, f"version_wait_s={PATIENCE_S}")
        replica = "process_reward_replica"
        self.near = Service(
            self.starter, folder, f"{replica}-near", *shared, f"weights_dir={self.weights_dir}"
        )
        self.far = Service(self.starter, folder, f"{replica}-far", *shared, f"weights_dir={url}")
        self.services = [self.learner, self.near, self.far]
        for service in self.services:
            service.wait_ready()

    def expected(self, version: int, sample: Sample) -> torch.Tensor:
        """The token rewards that the published weights of a version give."""
        prm = models.load(weights.version_path(self.weights_dir, version)).model
        reference = models.load(self.model).model
        sequence = ScoredSequence(sample.prompt_token_ids, sample.response_token_ids)
        [prm_T] = token_logprobs(prm, [sequence])
        [reference_T] = token_logprobs(reference, [sequence])
        return BETA * (prm_T - reference_T)

    def assert_exact(self, answers: Sequence[tuple[Sample, Result]], count: int) -> None:
        """Some of the answers, of different versions, are what those versions' weights give."""
        by_version = {result.model_version or 0: (sample, result) for sample, result in answers}
        for version in random.Random(1).sample(sorted(by_version), min(count, len(by_version))):
            sample, result = by_version[version]
            rewards = torch.tensor(result.token_rewards)
            torch.testing.assert_close(rewards, self.expected(version, sample), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def cluster(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"), tiny_llama)
    yield made
    for service in made.services:
        service.kill()
    made.starter.close()


class Load(threading.Thread):
    """Scores batch after batch on one replica, until it is told to stop."""

    def __init__(self, service: Service, seed: int, *, may_fail: bool = False) -> None:
        super().__init__(daemon=True)
        self._service, self._random, self._may_fail = service, random.Random(seed), may_fail
        self.answers: list[list[tuple[Sample, Result]]] = []
        self.failures: list[GuerdonError] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.01):
            # Now and then more than the 64 items of a batch.
            size = self._random.choice([1, 3, 7, 12, 12, 30, 90])
            samples = [self._random.choice(SAMPLES) for _ in range(size)]
            try:
                with Client(self._service.url, retries=0) as client:
                    results = client.score(samples)
                self.answers.append(list(zip(samples, results, strict=True)))
            except GuerdonError as error:
                self.failures.append(error)
                time.sleep(0.05)

    def wait_for(self, version: int) -> None:
        """Until it has an answer by `version`, or a newer one."""

        def answered() -> bool:
            return bool(self.answers) and (self.answers[-1][0][1].model_version or 0) >= version

        until(answered, said=lambda: self.failures)

    def stop(self) -> None:
        self.stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()

    def assert_one_version_each(self) -> list[int]:
        """The version of each answer, in order."""
        versions: list[int] = []
        for answer in self.answers:
            assert {result.status for _, result in answer} == {Status.OK}
            [version] = {result.model_version for _, result in answer}
            assert version is not None
            versions.append(version)
        return versions


def update(number: int) -> UpdateRequest:
    samples = [
        sample.model_copy(update={"outcome": float((index + number) % 2)})
        for index, sample in enumerate(SAMPLES[:4])
    ]
    return UpdateRequest(request_id=f"u{number}", samples=samples, order="after", base_version=number)


def test_two_replicas_follow_a_learner_through_50_updates(cluster: Cluster) -> None:
    loads = [Load(cluster.near, 1), Load(cluster.near, 2), Load(cluster.far, 3), Load(cluster.far, 4)]
    for load in loads:
        load.start()
    with Client(cluster.learner.url) as learner, Client(cluster.near.url) as near:
        first = learner.versions().current
        for number in range(first, first + 50):
            assert learner.update(update(number)).version_after == number + 1
            if number % 10 == 0:  # a request for the newest weights waits for them
                [asked] = near.score(SAMPLES[:1], min_version=number + 1, timeout_s=PATIENCE_S)
                assert (asked.status, asked.model_version) == (Status.OK, number + 1)
                for load in loads:
                    load.wait_for(number + 1)
    for replica in (cluster.near, cluster.far):
        with Client(replica.url) as client:
            assert client.wait_for_version(first + 50, timeout_s=PATIENCE_S).current == first + 50
    for load in loads:
        load.stop()
    seen: set[int] = set()
    for load in loads:
        assert load.failures == []
        versions = load.assert_one_version_each()
        assert versions == sorted(versions)
        seen |= set(versions)
    assert len(seen) >= 5  # they were scored while it learned
    cluster.assert_exact([one for load in loads for answer in load.answers for one in answer], 6)


def test_kills_leave_old_or_new_weights_and_never_between(cluster: Cluster) -> None:
    loads = [Load(cluster.near, 5), Load(cluster.far, 6)]
    for load in loads:
        load.start()
    with Client(cluster.learner.url) as client:
        first = client.versions().current
    done = first
    killer = threading.Timer(0.7, cluster.learner.kill)  # in an update, or while one is published or uploaded
    killer.start()
    while killer.is_alive():
        try:
            with Client(cluster.learner.url, retries=0) as client:
                done = client.update(update(done)).version_after or done
        except GuerdonError:
            pass
    killer.join()
    cluster.far.kill()
    for service in (cluster.learner, cluster.far):
        service.start()
    for service in (cluster.learner, cluster.far):
        service.wait_ready()
    with Client(cluster.learner.url) as client:
        survived = client.versions().current
        assert survived in (done, done + 1)
        for number in range(done, done + 5):  # the first of them was applied already, or is now
            assert client.update(update(number)).version_after == number + 1
    for replica in (cluster.near, cluster.far):
        with Client(replica.url) as client:
            assert client.wait_for_version(done + 5, timeout_s=PATIENCE_S).current == done + 5
            assert {one.model_version for one in client.score(SAMPLES)} == {done + 5}
    for load in loads:
        load.stop()
    for load in loads:
        versions = load.assert_one_version_each()
        assert versions == sorted(versions)
    assert loads[0].failures == []  # whose replica lived
    cluster.assert_exact([one for load in loads for answer in load.answers for one in answer], 6)


def test_a_replica_does_not_learn(cluster: Cluster) -> None:
    with Client(cluster.near.url) as client:
        assert client.info().operations == ["score"]
        with pytest.raises(InvalidRequest, match="no operation 'update'"):
            client.update(update(0))
        current = client.versions().current
        assert [one.version for one in client.versions().versions][-1] == current


def score(replica: ProcessRewardReplica, min_version: int | None = None) -> Result:
    return replica.score([ScoreJob(SAMPLES[0], ProcessRewardOptions(), min_version)])[0]


def test_a_replica_before_anything_is_published(tiny_llama: Path, tmp_path: Path) -> None:
    replica = ProcessRewardReplica(ReplicaSettings(model=tiny_llama, weights_dir=tmp_path))
    replica.open()
    assert replica.versions().current == replica.model_version == 0
    result = score(replica)
    assert (result.value, result.model_version, result.update_order) == (0.0, 0, "none")
    assert score(replica, min_version=1).status is Status.UNAVAILABLE
    replica.close()


@pytest.mark.parametrize(("own", "used"), [(None, 0.5), (0.2, 0.2)])
def test_a_replica_scales_as_the_learner_does_unless_told_otherwise(
    start: Callable[..., ProcessRewardScorer],
    tiny_llama: Path,
    tmp_path: Path,
    own: float | None,
    used: float,
) -> None:
    learner = start(beta=BETA, lr=0.01)
    settings = ReplicaSettings(model=tiny_llama, weights_dir=tmp_path / "prm", beta=own)
    replica = ProcessRewardReplica(settings)
    replica.open()
    labelled = [
        SAMPLES[index].model_copy(update={"outcome": float(index % 2)}) for index in range(len(SAMPLES))
    ]
    learner.update(UpdateRequest(request_id="u1", samples=labelled, order="before"))
    replica.refresh()
    [learners] = learner.score([ScoreJob(SAMPLES[0], ProcessRewardOptions())])
    result = score(replica)
    assert replica.details()["beta"] == str(used)
    assert (result.model_version, learners.model_version) == (1, 1)
    assert learners.value
    assert result.value == pytest.approx(learners.value * used / BETA, rel=1e-4)
    replica.close()


def test_weights_that_were_read_half_way_never_score(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = FollowedModel(tiny_llama, tmp_path)
    weights.publish(tmp_path, 1, lambda path: followed.model.save_pretrained(path))

    def breaks(model: object, folder: Path) -> None:
        raise HalfRead(f"{folder}: input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(following, "read_weights", breaks)
        for _ in range(2):
            with pytest.raises(NotReady, match="half read"):
                followed.refresh()
    assert followed.refresh()
    assert followed.version == 1
