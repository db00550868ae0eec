"""The kernel store: admitted kernels, content-addressed, with where they came from and what they were measured at."""

from kb.store.entry import DamagedEntryError, Entry, read_entry
from kb.store.store import Admission, KernelStore, StoreError

__all__ = ["Admission", "DamagedEntryError", "Entry", "KernelStore", "StoreError", "read_entry"]
