"""A service whose samples say what to do: door_service.py OPTIONS-AS-JSON [key=value ...]. Run as a process."""

import asyncio
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter

from guerdon.types import Result, Status, failed
from guerdon_services.runtime import launch
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.progress import report_progress
from guerdon_services.runtime.scorer import Batching, ScoreJob, Scorer, ScorerOptions, ScorerSettings

#: Characters of a large answer.
LARGE = 1_000_000


class DoorSettings(ScorerSettings):
    """A folder for what tests and samples tell each other, and the batches."""

    folder: Path
    max_items: int = 16


class Doors(Scorer[DoorSettings, ScorerOptions]):
    """A number is its own value; `_ACTIONS` says what the other words do before they are worth 0."""

    name = "doors"
    version = "1"
    settings_type = DoorSettings

    def __init__(self, settings: DoorSettings) -> None:
        super().__init__(settings)
        self.batching = Batching(max_items=settings.max_items, max_wait_ms=1.0)

    def score(self, batch: Sequence[ScoreJob[ScorerOptions]]) -> list[Result]:
        """One result per job; `executed` in the folder gets a line with the id of each that was finished."""
        results = [self._one(job.sample.response or "") for job in batch]
        with (self.settings.folder / "executed").open("a") as executed:
            executed.write("".join(f"{job.sample.id}\n" for job in batch))
        return results

    def routes(self, dispatch: Dispatcher) -> APIRouter:
        """POST /stall: the event loop stands still."""
        router = APIRouter()

        async def stall() -> None:
            await asyncio.sleep(0)
            time.sleep(3600)  # noqa: ASYNC251  (the point of it)

        router.add_api_route("/stall", stall, methods=["POST"])
        return router

    def _one(self, word: str) -> Result:
        action, _, argument = word.partition(" ")
        match action:
            case "sleep":
                time.sleep(float(argument))
            case "gate":
                while not (self.settings.folder / "gate").exists():
                    time.sleep(0.01)
            case "slow":
                ends = time.monotonic() + float(argument)
                while time.monotonic() < ends:
                    report_progress()
                    time.sleep(0.02)
            case "hang" if self._first(action):
                threading.Event().wait()
            case "freeze" if self._first(action):
                # Holds the interpreter's lock, as a regular expression or a large division does.
                ctypes.PyDLL(None).sleep(3600)
            case "large":
                return Result(status=Status.OK, value=0.0, reason="x" * LARGE)
            case "hang" | "freeze":
                pass
            case _:
                return _value(word)
        return Result(status=Status.OK, value=0.0)

    def _first(self, action: str) -> bool:
        """Whether this is the first time, over all processes that share the folder."""
        try:
            os.close(os.open(self.settings.folder / f"{action}-began", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def _value(word: str) -> Result:
    try:
        return Result(status=Status.OK, value=float(word))
    except ValueError:  # no number, or none that may be a value
        return failed(Status.INVALID_INPUT, "response: neither a number nor an action")


if __name__ == "__main__":
    service = Doors(launch.service_settings(DoorSettings, sys.argv[2:]))
    sys.exit(launch.run(service, launch.runtime_settings(json.loads(sys.argv[1]))))
