"""Task libraries, each set so that a killed worker loses as little as it lets one have.

What is polled is polled often, what can be batched is batched, and workers run on uvloop where the library allows it.
"""

# They are installed in folders of their own, where no type checker looks.
# pyright: reportMissingImports=false

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from peers.transport_sides import Setting, Side, note, score

#: Seconds between two looks for a result, where a library has no better way to wait; shorter, and looking would be
#: most of what is measured.
POLL_S = 0.02
#: Times that a task may run: a worker that is killed again and again must not use them up.
TRIES = 1000


async def _work(text: str, setting: Setting) -> float:
    """The task of the asynchronous libraries."""
    if setting.log:
        await asyncio.sleep(setting.work_s)
        note(text, setting)
    return 1.0


class _Library(Side):
    queued = True

    async def call(self, texts: Sequence[str]) -> list[float]:
        """A task per text."""
        return list(await asyncio.gather(*(self._one(text) for text in texts)))

    async def _one(self, text: str) -> float:
        raise NotImplementedError


class Arq(_Library):
    """arq. A killed worker's job runs again when its in-progress key ends, 10 s after the job's time limit."""

    name = "arq"
    packages = "arq"

    def serve(self) -> None:
        """One worker."""
        import uvloop

        uvloop.run(self._serve())

    async def _serve(self) -> None:
        from arq.worker import Worker, func

        setting = self.setting

        async def noop(_: Any, text: str) -> float:
            return await _work(text, setting)

        worker = Worker(
            [func(noop, name="noop", max_tries=TRIES)],
            redis_settings=self._redis(),
            max_jobs=setting.concurrency,
            job_timeout=max(1, round(setting.lease_s) - 10),
            poll_delay=POLL_S,
            keep_result=60,
            log_results=False,
        )
        await worker.async_run()

    async def open(self) -> None:
        """The pool of the client."""
        from arq import create_pool

        self._pool = await create_pool(self._redis())

    async def close(self) -> None:
        """Disconnect."""
        await self._pool.aclose()

    async def _one(self, text: str) -> float:
        job = await self._pool.enqueue_job("noop", text)
        assert job is not None
        return await job.result(poll_delay=POLL_S)

    def _redis(self) -> Any:
        from arq.connections import RedisSettings

        return RedisSettings.from_dsn(self.setting.redis_url)


class Taskiq(_Library):
    """taskiq on Redis Streams, acknowledged once the result is saved.

    Set to lose nothing, it still does: it looks for what dead workers left behind only after new work has come.
    """

    name = "taskiq"
    packages = "taskiq-redis"

    def serve(self) -> None:
        """One worker, as taskiq's command runs it in each of its processes."""
        import uvloop

        uvloop.run(self._serve())

    async def _serve(self) -> None:
        from taskiq.acks import AcknowledgeType
        from taskiq.receiver import Receiver

        broker, _ = self._broker()
        broker.is_worker_process = True
        await broker.startup()
        receiver = Receiver(
            broker,
            max_async_tasks=self.setting.concurrency,
            ack_type=AcknowledgeType.WHEN_SAVED,
            run_startup=False,
        )
        await receiver.listen(asyncio.Event())

    async def open(self) -> None:
        """The broker of the client."""
        self._client, self._task = self._broker()
        await self._client.startup()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.shutdown()

    async def _one(self, text: str) -> float:
        task = await self._task.kiq(text)
        return (await task.wait_result(check_interval=POLL_S, timeout=300)).return_value

    def _broker(self) -> tuple[Any, Any]:
        from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

        setting, url = self.setting, self.setting.redis_url
        broker = RedisStreamBroker(
            url,
            consumer_id="0",
            xread_block=500,
            idle_timeout=round(setting.lease_s * 1000),
            unacknowledged_lock_timeout=5.0,
        ).with_result_backend(RedisAsyncResultBackend(url, result_ex_time=60))

        async def noop(text: str) -> float:
            return await _work(text, setting)

        return broker, broker.register_task(noop, task_name="noop")


class Streaq(_Library):
    """streaq: a Redis stream, results announced by publish and subscribe."""

    name = "streaq"
    packages = "streaq"

    def serve(self) -> None:
        """One worker."""
        worker, _ = self._worker()
        worker.run_sync()

    async def open(self) -> None:
        """The worker object that a client enqueues with."""
        self._client, self._task = self._worker()
        await self._client.__aenter__()

    async def close(self) -> None:
        """Disconnect."""
        await self._client.__aexit__(None, None, None)

    async def _one(self, text: str) -> float:
        task = await self._task.enqueue(text)
        return (await task.result(timeout=300)).result

    def _worker(self) -> tuple[Any, Any]:
        from streaq import Worker

        setting = self.setting
        worker = Worker(
            setting.redis_url,
            # Each result that is waited for holds a connection: with the usual 64, nothing else would get one.
            redis_kwargs={"max_connections": 512},
            concurrency=setting.concurrency,
            idle_timeout=setting.lease_s,
            anyio_kwargs={"use_uvloop": True},
        )

        async def noop(text: str) -> float:
            return await _work(text, setting)

        return worker, worker.task(name="noop", max_tries=None, silent=True, ttl=60)(noop)


class Celery(_Library):
    """celery with late acknowledgement, prefork, on its Redis transport and result backend."""

    name = "celery"
    packages = "celery"

    def serve(self) -> None:
        """One worker with a child per core of a small machine."""
        app, _ = self._app()
        workers = min(2, self.setting.concurrency)
        app.worker_main(
            [
                *("worker", "--pool", "prefork", "--concurrency", str(workers), "--loglevel", "CRITICAL"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ]
        )

    async def open(self) -> None:
        """The client is not asynchronous, and has one thread that may touch it."""
        _, self._task = self._app()
        self._jobs: queue.PriorityQueue[tuple[int, int, Callable[[], None]]] = queue.PriorityQueue()
        self._order = 0
        threading.Thread(target=self._run, daemon=True).start()

    async def _one(self, text: str) -> float:
        from celery.exceptions import TimeoutError

        # What is to be sent goes before what is to be waited for, which must not hold up the thread for long.
        result = await self._in_thread(0, lambda: self._task.delay(text))
        while True:
            try:
                return await self._in_thread(1, lambda: result.get(timeout=1))
            except TimeoutError:
                continue

    async def _in_thread(self, priority: int, call: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def job() -> None:
            try:
                loop.call_soon_threadsafe(future.set_result, call())
            except Exception as error:
                loop.call_soon_threadsafe(future.set_exception, error)

        self._order += 1
        self._jobs.put((priority, self._order, job))
        return await future

    def _run(self) -> None:
        while True:
            self._jobs.get()[2]()

    def _app(self) -> tuple[Any, Any]:
        from celery import Celery as App

        setting, url = self.setting, self.setting.redis_url
        app = App("noop", broker=url, backend=url)
        app.conf.update(
            task_acks_late=True,
            task_reject_on_worker_lost=True,
            worker_prefetch_multiplier=max(1, setting.concurrency // 2),
            broker_transport_options={"visibility_timeout": round(setting.lease_s)},
            result_expires=60,
            broker_connection_retry_on_startup=True,
        )

        def noop(text: str) -> float:
            return score(text, setting)

        return app, app.task(noop, name="noop")
