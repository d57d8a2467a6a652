"""The verifiers' manifest without a cluster: the autoscaler's arithmetic starts math pods, which drain under load."""

import asyncio
import math
import time

import pods
import pytest
from redis import Redis

from guerdon import AsyncClient, Sample

#: Entries that wait when nobody works.
WAITING = 700
#: Answers after which a pod goes.
BEFORE_DRAIN = 150


def right(index: int) -> Sample:
    return Sample(id=str(index), response=rf"\boxed{{{index}}}", references=[str(index)])


@pytest.mark.timeout(1200)
async def test_math_scales_from_none_to_three_and_drains_without_loss() -> None:
    with pods.cluster("verifiers-only") as cluster:
        redis = cluster.start("redis")
        await asyncio.to_thread(redis.wait, "startupProbe")
        url = f"redis://:{pods.PASSWORD}@127.0.0.1:{redis.ports['redis']}/0"
        [scaled] = [
            one["spec"]
            for one in cluster.items
            if (one["kind"], one["metadata"]["name"]) == ("ScaledObject", "guerdon-math")
        ]

        def wanted() -> int:
            """Replicas, as KEDA and its autoscaler reckon: none without work, else those of the largest trigger."""
            with Redis.from_url(url) as client:
                lengths = [client.xlen(one["metadata"]["stream"]) for one in scaled["triggers"]]
            targets = [int(one["metadata"]["streamLength"]) for one in scaled["triggers"]]
            needed = [
                math.ceil(int(length) / target)  # pyright: ignore[reportArgumentType]
                for length, target in zip(lengths, targets, strict=True)
            ]
            return min(max(scaled["minReplicaCount"], *needed), scaled["maxReplicaCount"])

        def reached(count: int) -> None:
            while wanted() < count:
                time.sleep(0.05)

        assert (scaled["minReplicaCount"], wanted()) == (0, 0)
        async with AsyncClient(url, service="math", timeout_s=pods.PATIENCE_S) as client:
            first = [asyncio.create_task(client.score([right(index)])) for index in range(WAITING)]
            await asyncio.to_thread(reached, 3)
            started = [cluster.start("math") for _ in range(wanted())]
            assert len(started) == 3
            for pod in started:
                await asyncio.to_thread(pod.wait, "startupProbe")
            # While it works: the autoscaler wants fewer, and more work comes.
            second = [
                asyncio.create_task(client.score([right(index)])) for index in range(WAITING, 2 * WAITING)
            ]
            for answered in asyncio.as_completed([*first, *second]):
                await answered
                if sum(task.done() for task in (*first, *second)) >= BEFORE_DRAIN:
                    break
            assert await asyncio.to_thread(started[0].stop) == 0
            answers = [(await task)[0] for task in (*first, *second)]
            assert [(one.id, one.value) for one in answers] == [(str(i), 1.0) for i in range(2 * WAITING)]
        assert wanted() == 0
        assert [await asyncio.to_thread(pod.stop) for pod in started[1:]] == [0, 0]
