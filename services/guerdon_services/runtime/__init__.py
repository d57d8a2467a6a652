"""Turns one service class into one process that answers HTTP, gRPC and the Redis queue. Knows no service."""
