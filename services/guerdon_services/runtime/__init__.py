"""Turns one service class into one process that answers HTTP, gRPC and the Redis queue. Knows no service."""

import os

# The C library of gRPC writes what strangers send to standard error, unless it is told otherwise before it is loaded.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
