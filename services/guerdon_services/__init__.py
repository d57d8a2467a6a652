"""The reward services: one folder, one deployable process."""
