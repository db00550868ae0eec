"""Opening a checkpoint for a command: every refusal is one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kb.cli.failure import Failure
from kb.library import library_root

if TYPE_CHECKING:
    from kb.store import KernelStore
    from runtime.engine.choosing import BucketChoice
    from runtime.engine.engine import Engine


def open_engine(model_dir: Path, *, device: str, dtype: str, allow_fallback: bool = True, **settings: Any) -> Engine:
    """An engine for ``model_dir``; ``settings`` are EngineConfig's. Raises Failure."""
    try:
        from runtime.engine.config import ConfigError, EngineConfig
        from runtime.engine.engine import Engine
        from runtime.engine.library_ops import Library
        from runtime.engine.request import RequestError
        from runtime.models.spec import ModelError
        from runtime.sites import Selection
    except ImportError as error:
        raise Failure(f"running a model needs {error.name}; install agentcompile[run]") from None
    try:
        config = EngineConfig(**settings)
        selection = Selection(Library(), allow_fallback=allow_fallback)
        return Engine.from_pretrained(model_dir, config, device=device, dtype=dtype, selection=selection)
    except (ModelError, ConfigError, RequestError) as error:
        raise Failure(str(error)) from error


def kernels_of(library: Path | None, store: Path | None) -> tuple[Path, KernelStore | None]:
    """The library's root, and the kernel store where there is one. Raises Failure for a store that is not there."""
    from kb.store import KernelStore

    root = library_root(library)
    folder = store if store is not None else root / "kernels"
    if store is not None and not store.is_dir():
        raise Failure(f"{store}: no such folder; name the store's folder with --store")
    return root, KernelStore(folder) if folder.is_dir() else None


def select_kernels(
    engine: Engine,
    *,
    library: Path | None = None,
    store: Path | None = None,
    context: int | None = None,
    cache: Path | None = None,
) -> list[BucketChoice]:
    """Choose by measurement for all of the engine's buckets. Raises Failure when the store cannot be read."""
    from runtime.engine.selecting import DEFAULT_CONTEXT, select
    from runtime.errors import RuntimeFailure
    from runtime.sites import FallbackRefusedError

    root, kernels = kernels_of(library, store)
    try:
        return select(engine.executor, root, store=kernels, context=context or DEFAULT_CONTEXT, cache=cache)
    except (RuntimeFailure, FallbackRefusedError) as error:
        raise Failure(str(error)) from error
