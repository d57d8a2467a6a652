"""Every container command of the laptop's manifest, started from the manifest itself: the trainer trains, probes pass.

The order of starts is the worst: services wait for what the trainer has not made yet.
"""

import subprocess
import tempfile
import threading
from pathlib import Path

import httpx
import pods
import pytest

from guerdon_trainer.run_folder import read_lines

#: The quickstart, as small as it goes.
SMALL = (
    "policy.warmup_steps=5",
    "policy.warmup_batch=16",
    "policy.layers=1",
    "policy.hidden_size=32",
    "data.size=40",
    "eval_data.size=4",
    "rollout.prompts_per_step=2",
    "rollout.group_size=2",
    "filter=null",
    "training.steps=1",
    "training.eval_every=0",
    "training.threads=1",
)
SERVICES = ("math", "rules", "process_reward", "rollout")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_manifest_trains() -> None:
    with pods.cluster("cpu") as cluster:
        assert set(pods.workloads(cluster.items)) == {"redis", "trainer", *SERVICES}
        redis = cluster.start("redis")
        redis.wait("startupProbe")
        trainer = cluster.start("trainer", *SMALL)
        started: dict[str, pods.Pod] = {}

        def start(name: str) -> None:
            started[name] = cluster.start(name)

        # The init containers of two of them wait for what the trainer makes first.
        starts = [threading.Thread(target=start, args=(name,)) for name in SERVICES]
        for one in starts:
            one.start()
        for one in starts:
            one.join()
        for name, pod in started.items():
            for probe in PROBES:
                pod.wait(probe)
            with httpx.Client(base_url=pod.url, trust_env=False, timeout=60, verify=False) as client:
                assert client.get("/v1/info").status_code == 401
                client.headers["Authorization"] = f"Bearer {pods.TOKEN}"
                assert client.get("/v1/info").json()["scorer"] == name
                assert "guerdon_ready 1.0" in client.get("/metrics").text
        assert trainer.process.wait(pods.PATIENCE_S) == 0, trainer.log.read_text()[-3000:]
        [row] = read_lines(cluster.folder / "data/runs/quickstart/metrics.jsonl")
        assert (row["step"], row["unrewarded"], row["prm_version"]) == (1, 0, 1)
        # A pod is deleted: it ends in order, well within its grace period.
        assert {name: pod.stop() for name, pod in started.items()} == dict.fromkeys(SERVICES, 0)
        assert redis.stop() == 0


def test_a_pod_writes_to_its_folders_alone() -> None:
    if not pods.can_lock():
        pytest.skip(
            "a read-only root takes root's rights and mount namespaces: the pods here have an ordinary one"
        )
    elsewhere = 'for one in /var/tmp/c /root/d "$2/e"; do touch "$one" 2>/dev/null && echo "$one"; done'
    tries = f'touch "$1/a" /tmp/b && {elsewhere}'
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        (Path(folder) / "tmp").mkdir()
        words = ["sh", "-c", f"{tries}; true", "sh", folder, Path(__file__).parent]
        done = subprocess.run(
            [*pods.LOCKED, folder, f"{folder}/tmp", "", *words], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0, ""), done
        assert {path.name for path in Path(folder).rglob("*")} == {"a", "tmp", "b"}


def test_a_checkout_in_tmp_is_seen_by_pods_and_not_written_to() -> None:
    if not pods.can_lock():
        pytest.skip("no pod has a /tmp of its own here")
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        tempfile.TemporaryDirectory(dir="/tmp") as kept,
    ):
        (Path(kept) / "program").write_text("echo here; touch $1/a 2>/dev/null || echo kept")
        words = ["sh", f"{kept}/program", kept]
        done = subprocess.run([*pods.LOCKED, folder, folder, kept, *words], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "here\nkept\n"), done
