"""The fingerprint of a folder's weights: a golden value, and what it does and does not depend on."""

import hashlib
import json
from pathlib import Path

import pytest

from guerdon.fingerprint import fingerprint


def write(file: Path, tensors: dict[str, bytes], metadata: dict[str, str] | None = None) -> None:
    """Vectors of 8-bit numbers as safetensors lays them out: a length, a header, then the bytes."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    place = 0
    for name, content in tensors.items():
        offsets = [place, place + len(content)]
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": offsets}
        place += len(content)
    encoded = json.dumps(header).encode()
    file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"".join(tensors.values()))


def test_it_is_of_names_types_shapes_and_first_bytes(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"b": b"\x01\x02", "a": b"\x07" * 5000})
    parts = [b'["a", "U8", [5000]]' + b"\x07" * 4096, b'["b", "U8", [2]]' + b"\x01\x02"]
    golden = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    assert fingerprint(tmp_path) == golden


def test_how_tensors_are_split_over_files_does_not_matter(tmp_path: Path) -> None:
    whole, split = tmp_path / "whole", tmp_path / "split"
    whole.mkdir()
    split.mkdir()
    write(whole / "model.safetensors", {"a": b"12", "b": b"345"}, {"format": "pt"})
    write(split / "model-00001-of-00002.safetensors", {"b": b"345"})
    write(split / "model-00002-of-00002.safetensors", {"a": b"12"})
    assert fingerprint(whole) == fingerprint(split)
    write(split / "model-00002-of-00002.safetensors", {"a": b"13"})
    assert fingerprint(whole) != fingerprint(split)


def test_what_is_no_model_or_torn_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no safetensors file"):
        fingerprint(tmp_path)
    file = tmp_path / "model.safetensors"
    write(file, {"a": b"12"})
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(ValueError, match="is torn"):
        fingerprint(tmp_path)
