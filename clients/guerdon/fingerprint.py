"""Tells the weights of one model from those of another, by which an adapter names the model that it belongs to.

An adapter that is published in place of whole weights (`guerdon.weights`) has the fingerprint of its base beside it, in
the file `BASE`. Where the file is not there, nothing but names and shapes of tensors is compared.
"""

import hashlib
import json
from pathlib import Path

#: File of an adapter's folder with the fingerprint of the model that it was trained on.
BASE = "base.sha256"
#: Bytes of each tensor that count: training moves all of it.
_BYTES = 4096


def fingerprint(folder: Path) -> str:
    """SHA-256 over each tensor's name, type, shape and first bytes in a folder's safetensors, however they are split.

    Raises:
        ValueError: there are none, or a file is torn.
        OSError: a file cannot be read.
    """
    tensors: dict[str, bytes] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if length > file.stat().st_size:
                raise ValueError(f"{file} is torn")
            header = json.loads(handle.read(length))
            header.pop("__metadata__", None)
            for name, entry in header.items():
                begin, end = entry["data_offsets"]
                handle.seek(8 + length + begin)
                described = json.dumps([name, entry["dtype"], entry["shape"]]).encode()
                tensors[name] = described + handle.read(min(end - begin, _BYTES))
    if not tensors:
        raise ValueError(f"no safetensors file in {folder}")
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(hashlib.sha256(tensors[name]).digest())
    return digest.hexdigest()
