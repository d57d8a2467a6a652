"""A bucket of a server that speaks S3, in this process."""

import uuid
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem


@contextmanager
def bucket() -> Generator[str]:
    """Its URL; the environment leads S3's library to it meanwhile."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            environment.setenv(name, "any")
        try:
            name = uuid.uuid4().hex  # all servers of a process have the same buckets
            S3FileSystem(skip_instance_cache=True).mkdir(name)
            yield f"s3://{name}"
        finally:
            server.stop()
            # The next server has another address.
            S3FileSystem.clear_instance_cache()
