"""`keep_alive`: how long a model stays loaded after a request."""

from __future__ import annotations

from zinc.server.apis.shared.service import Service
from zinc.server.runtime.served_model import ServedModel


async def load_or_unload(service: Service, name: str | None, seconds: float | None) -> str:
    """Load the model `name`, or unload it if `seconds` is 0; return Ollama's `done_reason`.

    A model in use is unloaded after its last request. Raises ApiError if it cannot be loaded.
    """
    if seconds == 0:
        entry = service.pool.entry(name)
        if entry.model is not None and not await service.pool.unload(entry):
            service.pool.keep(entry, 0)
        return "unload"
    async with service.pool.use(name) as model:
        keep(service, model, seconds)
    return "load"


def keep(service: Service, model: ServedModel, seconds: float | None) -> None:
    """Keep `model` loaded for `seconds` after its last request; None changes nothing."""
    if seconds is not None:
        service.pool.keep(service.pool.named(model.name), seconds)
