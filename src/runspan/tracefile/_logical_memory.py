"""Which storages are live while a captured step allocates and frees them: what health checks and the graph adds up."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runspan.tracefile._evidence import Identifier
    from runspan.tracefile.events import Memory

__all__ = ["AllocationFault", "LogicalMemory"]


class AllocationFault(StrEnum):
    """What is wrong with an allocation or a release; the values are health codes."""

    UNPAIRED_FREE = "unpaired_free"
    SIZE_MISMATCH = "allocation_size_mismatch"
    DUPLICATE = "duplicate_allocation"


class LogicalMemory:
    """The live storages, by (device, storage id).

    An allocation of a live storage for another tensor is an alias (a view, a reshape): its bytes are there already. A
    release ends the storage, whichever of its tensors it names.

    Attributes:
        live_bytes: by device, the bytes of the live storages.
    """

    def __init__(self) -> None:
        self.live_bytes: dict[str, int] = {}
        #: The size of each live storage and the tensor that it was allocated for; the others in it by themselves.
        self._storages: dict[tuple[str, Identifier], tuple[int, Identifier]] = {}
        self._aliases: dict[tuple[str, Identifier], set[Identifier]] = {}
        #: One string a device, where each event has its own.
        self._devices: dict[str, str] = {}

    @property
    def live_storages(self) -> list[tuple[str, Identifier]]:
        """The device and id of each live storage, oldest first."""
        return list(self._storages)

    def apply(self, event: Memory) -> tuple[int, AllocationFault | None]:
        """Take an allocation or a release into account.

        Returns:
            By how many bytes the live memory of the event's device changed, and what is wrong with the event.
        """
        key = (self._devices.setdefault(event.device, event.device), event.storage_id)
        known = self._storages.get(key)
        if event.action == "free":
            if known is None:
                return 0, AllocationFault.UNPAIRED_FREE
            del self._storages[key]
            self._aliases.pop(key, None)
            change, fault = -known[0], AllocationFault.SIZE_MISMATCH if known[0] != event.bytes else None
        elif known is None:
            self._storages[key] = (event.bytes, event.tensor_id)
            change, fault = event.bytes, None
        else:
            return 0, self._add_alias(event, key, *known)
        self.live_bytes[event.device] = self.live_bytes.get(event.device, 0) + change
        return change, fault

    def _add_alias(
        self, event: Memory, key: tuple[str, Identifier], size_bytes: int, first_tensor: Identifier
    ) -> AllocationFault | None:
        if event.bytes != size_bytes:
            return AllocationFault.SIZE_MISMATCH
        aliases = self._aliases.setdefault(key, set())
        if event.tensor_id == first_tensor or event.tensor_id in aliases:
            return AllocationFault.DUPLICATE
        aliases.add(event.tensor_id)
        return None
