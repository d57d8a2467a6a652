"""Files of samples with their rewards: read as JSON lines, Parquet or a saved `datasets` folder, written row by row.

A row of the output is the row of the input with `reward`, `reward_status`, `reward_reason` and `reward_scorer`. Rows
are written in order as soon as all before them are, so that a run that was killed goes on where it ended.
"""

import errno
import fcntl
import gzip
import json
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import ValidationError

from guerdon.bulk import Judge, score_each
from guerdon.codec import describe
from guerdon.columns import Columns
from guerdon.errors import InvalidRequest
from guerdon.summary import Summary
from guerdon.texts import plain
from guerdon.types import Result, Sample, Status

Row = dict[str, Any]

_ADDED = ("", "_status", "_reason", "_scorer")
#: Bytes that are read at a time from the end of a file.
_BLOCK = 65536
_LINES = (".jsonl", ".ndjson", ".json")
_SAMPLE_FIELDS = frozenset(Sample.model_fields)


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a file, or of a folder that `datasets` has saved.

    Raises:
        InvalidRequest: it is not there, of no known kind, or a line is no JSON object.
        OSError: it cannot be read.
    """
    if not file.exists():
        raise InvalidRequest(f"there is no file {file}")
    if file.is_dir():
        return _saved_rows(file)
    if file.suffix == ".parquet":
        return _parquet_rows(file)
    if file.suffix in (*_LINES, ".gz"):
        return _json_rows(file)
    raise InvalidRequest(f"{file}: rows are read from .jsonl, .jsonl.gz, .parquet or a folder of datasets")


def count_rows(file: Path) -> int | None:
    """How many rows there are, where that can be had without reading all of them."""
    if file.suffix != ".parquet":
        return None
    return int(_parquet_file(file).metadata.num_rows)


def sample_of(row: Row, columns: Columns, number: int) -> Sample:
    """Row number `number` as a sample: as it is where it has only a sample's fields, else by its columns.

    Raises:
        InvalidRequest: it is none; the message names the row.
    """
    try:
        if columns == Columns() and set(row) <= _SAMPLE_FIELDS:
            return Sample.model_validate(row)
        sample = columns.sample(row)
    except ValidationError as error:
        raise InvalidRequest(f"row {number}: {describe(error)}") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"row {number}: {error}") from error
    if sample.response is None:
        raise InvalidRequest(f"row {number}: no column holds the response; it has {', '.join(row)}")
    return sample


@dataclass(frozen=True)
class Scoring:
    """What is scored, where the rows go, and what of an earlier run is kept.

    With `again`, rows of an earlier run whose failure may have passed are scored once more; else only those that are
    missing. `name` is the column of the reward.
    """

    data: Path
    out: Path
    columns: Columns
    name: str = "reward"
    again: bool = False
    window: int = 4096

    async def run(self, judge: Judge, done: Callable[[Result], None] = lambda _: None) -> Summary:
        """Score what there is to score, calling `done` with each result; the summary of these.

        Raises:
            InvalidRequest: a row is no sample, or the output is of other data, of no known kind, the data itself, or
                being written by another run.
            Unauthorized: the service wants another token.
            OSError: the output cannot be written.
        """
        self._check_output()
        lines = self._lines()
        with _alone(lines):
            _cut_torn_line(lines)
            summary = await self._score(lines, judge, done)
            if lines != self.out:
                _to_parquet(lines, self.out)
        return summary

    async def _score(self, lines: Path, judge: Judge, done: Callable[[Result], None]) -> Summary:
        summary = Summary()
        with _written(lines, anew=self.again) as file:
            wanted = (
                sample_of(row, self.columns, number) for number, row, old in self._pairs(lines) if old is None
            )
            async with aclosing(score_each(judge, wanted, window=self.window)) as results:
                for _, row, old in self._pairs(lines):
                    if old is not None:
                        summary.kept += 1
                        if self.again:
                            _write(file, old)
                        continue
                    result = await anext(results)
                    _write(file, {**row, **self._added(result)})
                    summary.add(result)
                    done(result)
        return summary

    def _check_output(self) -> None:
        """A million rows are not to be scored first, and their file lost."""
        if self.out.suffix not in (*_LINES, ".parquet"):
            raise InvalidRequest(f"{self.out}: rows are written to .jsonl or .parquet")
        if self.out.exists() and not self.out.is_file():
            raise InvalidRequest(f"{self.out}: is no file")
        if self.out.exists() and self.data.exists() and self.out.samefile(self.data):
            raise InvalidRequest(f"{self.out}: is the data itself; give another output")

    def _lines(self) -> Path:
        """The file that rows are added to: the output, or one beside a Parquet file, with what that holds already."""
        if self.out.suffix != ".parquet":
            lines = self.out
        else:
            lines = self.out.with_suffix(".partial.jsonl")
            if self.out.exists() and not lines.exists():
                with _written(lines, anew=True) as file:
                    for row in _parquet_rows(self.out):
                        _write(file, row)
        return lines

    def _pairs(self, lines: Path) -> Iterator[tuple[int, Row, Row | None]]:
        """Each row, its number, and what an earlier run wrote of it, where that stands."""
        olds = _json_rows(lines) if lines.exists() else iter(())
        for number, (row, old) in enumerate(zip_longest(read_rows(self.data), olds), start=1):
            if row is None or (old is not None and not self._same(row, old)):
                raise InvalidRequest(f"{lines}: row {number} is not of {self.data}; give another output")
            if self.name in row and old is None:
                raise InvalidRequest(
                    f"row {number}: has a column {self.name!r} already; name another (--name)"
                )
            stands = old is not None and not (self.again and Status(old[f"{self.name}_status"]).retryable)
            yield number, cast(Row, row), cast(Row, old) if stands else None

    def _same(self, row: Row, old: Row) -> bool:
        added = {self.name + suffix for suffix in _ADDED}
        kept = {key: value for key, value in old.items() if key not in added}
        return added <= set(old) and (kept == row or _without_nulls(kept) == _without_nulls(row))

    def _added(self, result: Result) -> Row:
        scorer = f"{result.scorer} {result.scorer_version}".strip()
        values = (result.value, str(result.status), result.reason, scorer)
        return {self.name + suffix: value for suffix, value in zip(_ADDED, values, strict=True)}


def _without_nulls(value: Any) -> Any:
    """A value without what is null in it: Parquet gives every row the columns of all."""
    if isinstance(value, dict):
        items = cast(Row, value).items()
        return {key: _without_nulls(one) for key, one in items if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in cast(list[Any], value)]
    return value


def _json_rows(file: Path) -> Iterator[Row]:
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
        try:
            for number, line in enumerate(cast(Iterable[bytes], lines), start=1):
                if line.strip():
                    yield _row(file, number, line)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidRequest(f"{file}: {error}") from error


def _row(file: Path, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"{file}:{number}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise InvalidRequest(f"{file}:{number}: must be a JSON object")
    return cast(Row, row)


def _parquet_rows(file: Path) -> Iterator[Row]:
    for batch in _parquet_file(file).iter_batches(batch_size=1024):
        for row in batch.to_pylist():
            yield _through_json(row)


def _parquet_file(file: Path) -> Any:
    parquet: Any = _imported("pyarrow.parquet", file)
    arrow: Any = _imported("pyarrow", file)
    try:
        return parquet.ParquetFile(file)
    except arrow.ArrowException as error:
        raise InvalidRequest(f"{file}: {error}") from error


def _saved_rows(folder: Path) -> Iterator[Row]:
    datasets: Any = _imported("datasets", folder)
    for row in datasets.load_from_disk(str(folder)):
        yield _through_json(row)


def _through_json(row: Any) -> Row:
    """The row as it will be read back."""
    return json.loads(json.dumps(plain(row), default=str))


def _imported(module: str, file: Path) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InvalidRequest(f"{file}: {error}; pip install {package}") from error


@contextmanager
def _written(file: Path, *, anew: bool) -> Generator[BinaryIO]:
    """The file to append to; or, `anew`, one that takes its place at the end.

    Raises:
        OSError: it cannot be written; the error names it, as those of a full disk do not by themselves.
    """
    try:
        with _replaced(file) if anew else file.open("ab") as lines:
            yield lines
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


@contextmanager
def _alone(file: Path) -> Generator[None]:
    """Nobody else writes the file meanwhile: two runs at once would both add every row.

    Raises:
        InvalidRequest: another run does.
        OSError: it cannot be written.
    """
    with file.open("ab") as lines:
        try:
            fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest(f"{file}: another run is writing it") from None
        except OSError as error:
            # Some network file systems have no locks.
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise
        yield


@contextmanager
def _replaced(file: Path) -> Generator[BinaryIO]:
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with beside.open("wb") as lines:
            yield lines
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def _write(file: BinaryIO, row: Row) -> None:
    file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
    file.flush()


def _cut_torn_line(file: Path) -> None:
    """What a killed run wrote of its last line goes."""
    if not file.exists():
        return
    with file.open("r+b") as lines:
        end = lines.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK)
            lines.seek(begin)
            if (newline := lines.read(end - begin).rfind(b"\n")) >= 0:
                end = begin + newline + 1
                break
            end = begin
        lines.truncate(end)


def _to_parquet(lines: Path, out: Path) -> None:
    """The rows as Parquet, which knows one type per column.

    Raises:
        InvalidRequest: a column has several; the rows stay where they are.
    """
    parquet: Any = _imported("pyarrow.parquet", out)
    arrow: Any = _imported("pyarrow", out)
    rows = list(_json_rows(lines))
    # Arrow takes the columns of the first row for those of all.
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        table = arrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
        parquet.write_table(table, out)
    except (arrow.ArrowException, TypeError) as error:
        raise InvalidRequest(f"{out}: cannot be Parquet: {error}; all rows are in {lines}") from error
    lines.unlink()
