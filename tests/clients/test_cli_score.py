"""guerdon score DATA: rows in, the same rows with rewards out, in order, resumable, summed up by status."""

import errno
import fcntl
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from typer.testing import CliRunner, Result

from guerdon import background, bulk_files
from guerdon.cli import app
from guerdon.testing import StubService
from guerdon.types import Result as ItemResult
from guerdon.types import Sample, ScoreRequest, Status, failed
from tests.waiting import PATIENCE_S


def judge(sample: Sample) -> ItemResult | float:
    if sample.response == "refused":
        return failed(Status.INVALID_INPUT, "said the test")
    if sample.response == "gone":
        return failed(Status.UNAVAILABLE, "said the test")
    return float(sample.response in sample.references)


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService(judge) as service:
        yield service
    background.stop()


def score(*arguments: str | Path) -> Result:
    return CliRunner().invoke(
        app, ["score", *map(str, arguments)], env={"COLUMNS": "200", "GUERDON_TOKEN": ""}
    )


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().split("\n") if line]


def rows(*responses: str) -> list[dict[str, Any]]:
    return [{"question": "1+1", "response": text, "answer": "2", "n": n} for n, text in enumerate(responses)]


def samples(stub: StubService) -> int:
    return sum(len(request.samples) for request in stub.requests if isinstance(request, ScoreRequest))


def test_rows_come_back_with_rewards(stub: StubService, tmp_path: Path) -> None:
    data, out = write(tmp_path / "data.jsonl", rows("2", "3", "refused")), tmp_path / "scored.jsonl"
    result = score(data, "--url", stub.url, "--service", "stub", "-o", out)
    assert result.exit_code == 1
    assert "3 samples: 2 ok, 1 invalid_input; mean reward 0.5000" in result.stderr
    assert "samples/s" in result.stderr
    assert result.stdout == ""
    first, second, third = read(out)
    assert first == {
        **rows("2")[0],
        "reward": 1.0,
        "reward_status": "ok",
        "reward_reason": "",
        "reward_scorer": "stub",
    }
    assert (second["reward"], second["n"]) == (0.0, 1)
    assert (third["reward"], third["reward_status"]) == (None, "invalid_input")
    # Nothing is left to do, and nothing is done.
    asked = samples(stub)
    assert score(data, "--url", stub.url, "-o", out).exit_code == 0
    assert (samples(stub), len(read(out))) == (asked, 3)


def test_a_run_goes_on_where_it_ended(stub: StubService, tmp_path: Path) -> None:
    data, out = write(tmp_path / "data.jsonl", rows(*["2"] * 10)), tmp_path / "scored.jsonl"
    assert score(data, "--url", stub.url, "-o", out).exit_code == 0
    whole = out.read_bytes()
    lines = whole.split(b"\n")
    # Four rows, and a fifth that was torn.
    out.write_bytes(b"\n".join(lines[:4]) + b"\n" + lines[4][:7])
    asked = samples(stub)
    assert score(data, "--url", stub.url, "-o", out).exit_code == 0
    assert out.read_bytes() == whole
    assert samples(stub) == asked + 6


def test_again_scores_what_failed_and_may_pass(stub: StubService, tmp_path: Path) -> None:
    texts = ["2", "gone", "refused", "3", "gone"]
    data, out = write(tmp_path / "data.jsonl", rows(*texts)), tmp_path / "scored.jsonl"
    assert score(data, "--url", stub.url, "-o", out, "--timeout", "3").exit_code == 1
    assert [row["reward"] for row in read(out)] == [1.0, None, None, 0.0, None]
    stub.score = lambda _: 0.5
    asked = samples(stub)
    assert score(data, "--url", stub.url, "-o", out, "--again").exit_code == 0
    assert [row["reward"] for row in read(out)] == [1.0, 0.5, None, 0.0, 0.5]
    assert samples(stub) == asked + 2


def test_a_killed_run_loses_nothing_that_it_wrote(stub: StubService, tmp_path: Path) -> None:
    data, out = write(tmp_path / "data.jsonl", rows(*["2"] * 200)), tmp_path / "scored.jsonl"
    reached, released = threading.Event(), threading.Event()

    def slow(sample: Sample) -> float:
        if samples(stub) > 128:
            reached.set()
            released.wait(PATIENCE_S)
        return 1.0

    stub.score = slow
    command = [sys.executable, "-m", "guerdon", "score", str(data), "--url", stub.url, "-o", str(out)]
    child = subprocess.Popen(
        [*command, "--in-flight", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert reached.wait(PATIENCE_S)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(PATIENCE_S)
    released.set()
    kept = len(read(out)) if out.exists() else 0
    assert kept <= 128
    stub.score = judge
    asked = samples(stub)
    assert score(data, "--url", stub.url, "-o", out).exit_code == 0
    assert [row["n"] for row in read(out)] == list(range(200))
    assert samples(stub) == asked + 200 - kept


def test_parquet_in_and_out(stub: StubService, tmp_path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    data, out = tmp_path / "data.parquet", tmp_path / "scored.parquet"
    parquet.write_table(arrow.Table.from_pylist(rows("2", "3")), data)
    assert score(data, "--url", stub.url, "-o", out).exit_code == 0
    scored = parquet.read_table(out).to_pylist()
    assert [row["reward"] for row in scored] == [1.0, 0.0]
    assert scored[0]["question"] == "1+1"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.parquet", "scored.parquet"]


def test_a_folder_of_datasets_and_samples_as_they_are(stub: StubService, tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(rows("2", "3")).save_to_disk(tmp_path / "data")
    assert score(tmp_path / "data", "--url", stub.url).exit_code == 0
    assert [row["reward"] for row in read(tmp_path / "data.scored.jsonl")] == [1.0, 0.0]
    data = write(tmp_path / "samples.jsonl", [{"id": "a", "response": "2", "references": ["1", "2"]}])
    assert score(data, "--url", stub.url, "--name", "math").exit_code == 0
    assert read(tmp_path / "samples.scored.jsonl")[0]["math"] == 1.0


def test_a_mix_of_services(stub: StubService, tmp_path: Path) -> None:
    mix = tmp_path / "rewards.yaml"
    mix.write_text(f"rewards: [{{name: half, url: '{stub.url}', weight: 0.5}}]")
    data = write(tmp_path / "data.jsonl", rows("2"))
    assert score(data, "--rewards", mix).exit_code == 0
    [row] = read(tmp_path / "data.scored.jsonl")
    assert (row["reward"], row["reward_scorer"]) == (0.5, "half")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--service", "math"], "is 'stub', not 'math'"),
        (["--columns", '{"references": "gold"}'], "row 1: references: the row has no column 'gold'"),
        (["--columns", "{"], "--columns"),
        (["--columns", '{"refernces": "answer"}'], "--columns: refernces: unknown field"),
        (["--name", "n"], "a column 'n' already"),
        (["--response", "4"], "either DATA"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    stub: StubService, tmp_path: Path, arguments: list[str], message: str
) -> None:
    data = write(tmp_path / "data.jsonl", rows("2"))
    result = score(data, "--url", stub.url, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_file_that_is_not_there_and_why_rows_have_no_reward(stub: StubService, tmp_path: Path) -> None:
    result = score(tmp_path / "absent.jsonl", "--url", stub.url)
    assert result.exit_code == 2
    assert "there is no file" in result.stderr
    failed = score(write(tmp_path / "data.jsonl", rows("2", "refused")), "--url", stub.url)
    [_, row] = read(tmp_path / "data.scored.jsonl")
    assert f"the first without a reward: {row['reward_reason']}" in failed.stderr


def test_an_output_that_another_run_writes_is_not_added_to(stub: StubService, tmp_path: Path) -> None:
    data, out = write(tmp_path / "data.jsonl", rows("2")), tmp_path / "out.jsonl"
    with out.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused = score(data, "--url", stub.url, "-o", out)
        assert (refused.exit_code, out.read_text()) == (2, "")
        assert "another run is writing it" in refused.stderr
    assert score(data, "--url", stub.url, "-o", out).exit_code == 0


def test_an_output_of_other_data_is_not_added_to(stub: StubService, tmp_path: Path) -> None:
    out = tmp_path / "scored.jsonl"
    assert score(write(tmp_path / "a.jsonl", rows("2", "3")), "--url", stub.url, "-o", out).exit_code == 0
    before = out.read_bytes()
    for other in (rows("3", "3", "2"), rows("2")):
        result = score(write(tmp_path / "b.jsonl", other), "--url", stub.url, "-o", out)
        assert (result.exit_code, out.read_bytes()) == (2, before)
        assert "give another output" in result.stderr


ONE = b'{"response": "2", "answer": "2"}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "no rows to score"),
        ("a.jsonl", b"\xef\xbb\xbf" + ONE + b"\r\n" + ONE + b"\r\n\r\n", "2 samples: 2 ok"),
        ("a.jsonl", b'{"id": "x", ' + ONE[1:] + b'\n{"id": "x", ' + ONE[1:], "2 samples: 2 ok"),
        ("a.jsonl", ONE + b'\n{"resp', "a.jsonl:2: not JSON"),
        ("a.jsonl", ONE + b'\n{"answer": "2"}', "row 2: no column holds the response; it has answer"),
        ("a.jsonl", b"\xff\n", "a.jsonl:1: not JSON"),
        ("a.json", b"[" + ONE + b"]", "a.json:1: must be a JSON object"),
        ("a.jsonl.gz", b"no gzip", "a.jsonl.gz: Not a gzipped file"),
        ("a.jsonl.gz", gzip.compress(ONE)[:-9], "a.jsonl.gz: Compressed file ended"),
        ("a.parquet", b"no parquet", "a.parquet: Parquet"),
    ],
)
def test_odd_files_are_read_or_named(
    stub: StubService, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    result = score(tmp_path / name, "--url", stub.url)
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.exit_code == (0 if "ok" in message or "no rows" in message else 2)


def test_odd_outputs_are_refused_before_anything_is_scored(stub: StubService, tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", rows("2"))
    outputs = {
        data: "is the data itself",
        tmp_path / "out.csv": "rows are written to .jsonl or .parquet",
        tmp_path / "out.jsonl.gz": "rows are written to .jsonl or .parquet",
        tmp_path / "no" / "out.jsonl": f"{tmp_path}/no/out.jsonl: No such file or directory",
    }
    (tmp_path / "folder.jsonl").mkdir()
    for out, message in {**outputs, tmp_path / "folder.jsonl": "is no file"}.items():
        result = score(data, "--url", stub.url, "-o", out)
        assert (message in result.stderr, result.exit_code > 0) == (True, True), out
    assert (samples(stub), read(data)) == (0, rows("2"))


def test_a_full_disk_is_named_and_the_run_goes_on(
    stub: StubService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = write(tmp_path / "data.jsonl", rows("2", "3", "2")), tmp_path / "scored.jsonl"
    write_row = bulk_files._write

    def full(file: BinaryIO, row: bulk_files.Row) -> None:
        if row["n"] == 2:
            file.write(b'{"respon')
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_row(file, row)

    with monkeypatch.context() as patch:
        patch.setattr(bulk_files, "_write", full)
        result = score(data, "--url", stub.url, "-o", out)
    assert (result.exit_code, result.stderr) == (1, f"error: {out}: No space left on device\n")
    assert "2 were scored already" in score(data, "--url", stub.url, "-o", out).stderr
    assert [row["reward"] for row in read(out)] == [1.0, 0.0, 1.0]


def test_a_mix_that_is_not_there_is_named(tmp_path: Path) -> None:
    data = write(tmp_path / "data.jsonl", rows("2"))
    for command in (["score", str(data), "--rewards", "none.yaml"], ["up", "none.yaml"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code > 0
        assert "none.yaml" in result.stderr
        assert "No such file or directory" in result.stderr
        assert "Errno" not in result.stderr


def test_a_parquet_file_that_is_complete_is_not_scored_again(stub: StubService, tmp_path: Path) -> None:
    texts = [{"response": "2", "answer": "2"}, {"response": "gone", "answer": "2", "level": 3}]
    data, out = write(tmp_path / "data.jsonl", texts), tmp_path / "scored.parquet"
    assert score(data, "--url", stub.url, "-o", out, "--timeout", "3").exit_code == 1
    stub.score = lambda _: 0.5
    asked = samples(stub)
    assert "all 2 rows were scored already" in score(data, "--url", stub.url, "-o", out).stderr
    assert samples(stub) == asked
    assert score(data, "--url", stub.url, "-o", out, "--again").exit_code == 0
    assert [(row["reward"], row["level"]) for row in bulk_files.read_rows(out)] == [(1.0, None), (0.5, 3)]
    assert samples(stub) == asked + 1
    mixed = write(tmp_path / "mixed.jsonl", [{**texts[0], "n": 1}, {**texts[0], "n": "a"}])
    result = score(mixed, "--url", stub.url, "-o", tmp_path / "mixed.parquet")
    assert "cannot be Parquet" in result.stderr
    assert len(read(tmp_path / "mixed.partial.jsonl")) == 2


def test_a_file_of_no_known_kind(stub: StubService, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a,b\n")
    result = score(file, "--url", stub.url)
    assert (result.exit_code, ".parquet" in result.stderr) == (2, True)
