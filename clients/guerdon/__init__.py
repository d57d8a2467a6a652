"""Guerdon: rewards for reinforcement learning on language models, over HTTP, gRPC or a Redis queue."""
