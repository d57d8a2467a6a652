"""A key-value cache with room: a decoded token is written into place, where transformers copies all before it.

Shapes: B rows, H heads, T tokens, D head size.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

#: Tokens of room that a layer is made with beyond what it holds, at least, and as a share of it.
_ROOM, _ROOM_SHARE = 64, 0.25


def roomy_cache(config: PreTrainedConfig) -> DynamicCache:
    """A cache for a model of `config`; layers with a window or a state of another kind are transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [_RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class _RoomyLayer(DynamicLayer):
    """`keys` and `values` are the used beginnings of larger tensors."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens, of shape BHTD; all of them so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._keys_room, self._values_room = key_states[..., :0, :], value_states[..., :0, :]
        held, end = self.get_seq_length(), self.get_seq_length() + key_states.shape[-2]
        if end > self._keys_room.shape[-2]:
            size = end + max(_ROOM, int(end * _ROOM_SHARE))
            self._keys_room = _enlarged(self._keys_room[..., :held, :], size)
            self._values_room = _enlarged(self._values_room[..., :held, :], size)
        self._keys_room[..., held:end, :] = key_states
        self._values_room[..., held:end, :] = value_states
        return self._use(end)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Go on with these rows; an index may repeat. Only rows that change places are copied."""
        held, rows = self.get_seq_length(), len(indices)
        if not held:
            return
        if rows > len(self._keys_room):
            self._keys_room = self._keys_room.index_select(0, indices)
            self._values_room = self._values_room.index_select(0, indices)
        else:
            moved_R = (indices != torch.arange(rows, device=indices.device)).nonzero()[:, 0]
            for room in (self._keys_room, self._values_room):
                room[moved_R, :, :held] = room[indices[moved_R], :, :held]
            self._keys_room, self._values_room = self._keys_room[:rows], self._values_room[:rows]
        self._use(held)

    def _use(self, length: int) -> tuple[Tensor, Tensor]:
        keys, values = self._keys_room[..., :length, :], self._values_room[..., :length, :]
        self.keys, self.values = keys, values
        return keys, values


def _enlarged(held_BHTD: Tensor, size: int) -> Tensor:
    B, H, T, D = held_BHTD.shape
    room = torch.empty(B, H, size, D, dtype=held_BHTD.dtype, device=held_BHTD.device)
    room[..., :T, :] = held_BHTD
    return room
