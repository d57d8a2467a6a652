"""Turns one service class into one process that answers HTTP, gRPC and the Redis queue. Knows no service."""

import os

# The C library of gRPC writes what strangers send to standard error, unless it is told otherwise before it is loaded;
# malformed headers even at its level ERROR. What fails on our side reaches us as an exception.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
