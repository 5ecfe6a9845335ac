"""The models of a server: loaded on request, unloaded when idle or to free memory.

A request borrows a model with `use`; only models without borrowers can be unloaded. Models are
loaded one at a time. If the new model exceeds the memory budget, idle models are unloaded first,
the least recently used one before the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from zinc.core.errors import ModelError, ZincError
from zinc.core.progress import ProgressBar
from zinc.engine.load.options import LoadOptions
from zinc.engine.load.weights import Progress
from zinc.llm import LLM
from zinc.server.config import ModelSource, ServerConfig
from zinc.server.errors import ApiError, unknown_model
from zinc.server.runtime.entry import Entry, State
from zinc.server.runtime.loading import LoadThread
from zinc.server.runtime.runner import Observer, Runner
from zinc.server.runtime.served_model import ServedModel

log = logging.getLogger("zinc.server")


class ModelPool:
    """The models of a server, by name.

    entries: the models, the default one first. Each change makes a new mapping, because clients may
    add and delete models while another request goes through them. observer: returns the observer
    for the requests of a model, by its name. closing: the error for new requests once the server is
    shutting down.
    """

    def __init__(
        self, config: ServerConfig, entries: Iterable[Entry], observer: Callable[[str], Observer]
    ) -> None:
        self.config = config
        self.entries: Mapping[str, Entry] = {entry.source.name: entry for entry in entries}
        self.closing: ApiError | None = None
        self._observer = observer
        self._changed = asyncio.Condition()
        self._loading = asyncio.Lock()
        self._janitor: asyncio.Task[None] | None = None
        self._is_starting = False
        self._first_load: asyncio.Task[None] | None = None

    @property
    def default(self) -> Entry:
        """The model for requests that name none."""
        return next(iter(self.entries.values()))

    @property
    def loaded(self) -> list[ServedModel]:
        """The loaded models."""
        return [e.model for e in self.entries.values() if e.model is not None]

    def start(self) -> None:
        """Start loading the default model in the background."""
        self._is_starting = True
        self._first_load = self._begin_load(self.default)
        self._first_load.add_done_callback(self._started)
        if self.config.ttl_s is not None:
            self._janitor = asyncio.create_task(self._unload_idle())

    async def until_started(self) -> None:
        """Wait until the default model is loaded or has failed.

        Raises ZincError if it has failed and is the only model.
        """
        assert self._first_load is not None
        await asyncio.wait([self._first_load])
        if self.default.failure is not None and len(self.entries) == 1:
            raise self.default.failure

    def entry(self, name: str | None) -> Entry:
        """Return the model for a request that asks for `name`. Raises ApiError 404.

        A server with a single model answers any name, unless `strict_model_names` is set, because
        many clients always send the name of a hosted model.
        """
        if not name or (len(self.entries) == 1 and not self.config.strict_model_names):
            return self.default
        return self.named(name)

    def named(self, name: str) -> Entry:
        """Return the model called `name`. Raises ApiError 404."""
        try:
            return self.entries[name]
        except KeyError:
            raise unknown_model(name, self.entries) from None

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """Borrow a model; load it first if it is not loaded.

        Raises ApiError: 404 for an unknown name, 503 while the server loads its first model
        or if the load does not finish in time, 500 if the file cannot be loaded.
        """
        entry = self.entry(name)
        entry.users += 1  # before any await, so that the model is not unloaded meanwhile
        try:
            if entry.model is None:
                await self._wait_for(entry)
            assert entry.model is not None
            yield entry.model
        finally:
            entry.users -= 1
            entry.last_used = time.monotonic()
            async with self._changed:
                self._changed.notify_all()

    def abort(self, error: ApiError) -> None:
        """Refuse new requests with `error`, and end those that run or wait for a model."""
        self.closing = error
        for entry in self.entries.values():
            if entry.loading is not None:
                entry.loading.cancel()
        for model in self.loaded:
            model.runner.fail_all(error)

    async def close(self) -> None:
        """Refuse new requests, stop loading, and unload all models."""
        self.closing = self.closing or ApiError(503, "the server is shutting down")
        for task in (self._janitor, *(entry.loading for entry in self.entries.values())):
            if task is not None:
                task.cancel()
        async with self._loading:
            for entry in self.entries.values():
                await self._unload(entry)

    def loads_end_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for each cancelled load; return whether all have ended."""
        threads = [entry.thread for entry in self.entries.values() if entry.thread is not None]
        return all(thread.ends_within(seconds) for thread in threads)

    def add(self, source: ModelSource) -> None:
        """Offer a model, in place of one of the same name. Raises ZincError without its file."""
        self.entries = {**self.entries, source.name: Entry(source)}

    def forget(self, entry: Entry) -> None:
        """Stop offering a model, unless it is the only one."""
        if len(self.entries) > 1:
            self.entries = {name: e for name, e in self.entries.items() if e is not entry}

    def keep(self, entry: Entry, ttl_s: float) -> None:
        """Unload a model after `ttl_s` idle seconds; infinity keeps it loaded.

        The time of the server applies again when the model has been unloaded.
        """
        entry.ttl_s = ttl_s
        if self._janitor is None:
            self._janitor = asyncio.create_task(self._unload_idle())

    def keeps_s(self, entry: Entry) -> float:
        """Return the seconds until an idle model is unloaded; infinity if it is not."""
        ttl_s = self.config.ttl_s if entry.ttl_s is None else entry.ttl_s
        if ttl_s is None:
            return math.inf
        return max(0.0, entry.last_used + ttl_s - time.monotonic())

    async def unload(self, entry: Entry) -> bool:
        """Unload a model. Return False if it is in use or not loaded."""
        async with self._loading:
            if entry.users or entry.model is None:
                return False
            await self._unload(entry)
            return True

    def _begin_load(self, entry: Entry) -> asyncio.Task[None]:
        """Start a task that loads a model. A client that gives up does not cancel the load."""
        entry.state = State.LOADING
        task = asyncio.create_task(self._load(entry))

        def ended(task: asyncio.Task[None]) -> None:
            entry.loading = None
            if entry.state is State.LOADING:
                entry.state = State.UNLOADED
            if not task.cancelled():
                task.exception()  # mark it as retrieved; the waiting requests raise it

        task.add_done_callback(ended)
        entry.loading = task
        return task

    def _started(self, task: asyncio.Task[None]) -> None:
        self._is_starting = False

    async def _wait_for(self, entry: Entry) -> None:
        """Wait until a model is loaded; raises as `use` does."""
        if self.closing is not None:
            raise self.closing
        if entry is self.default and self._is_starting:
            raise ApiError(
                503,
                "the model is being loaded",
                "the server has just started",
                "try again in a moment",
                code="model_loading",
                headers={"Retry-After": "1"},
            )
        if entry.loading is None and entry.is_broken:
            raise _load_error(entry)
        loading = entry.loading or self._begin_load(entry)
        try:
            async with asyncio.timeout(self.config.load_wait_s):
                await asyncio.wait([loading])
            if loading.cancelled():
                raise self.closing or ApiError(503, "the server is shutting down")
            loading.result()
        except TimeoutError:
            raise ApiError(
                503,
                f"the model {entry.source.name!r} is not loaded yet",
                "other models are loading or in use",
                "try again later",
                code="model_loading",
                headers={"Retry-After": "10"},
            ) from None

    async def _load(self, entry: Entry) -> None:
        async with self._loading:
            if self.closing is not None:
                raise self.closing
            await self._load_alone(entry)

    async def _load_alone(self, entry: Entry) -> None:
        """Load a model. The caller holds the lock `_loading`."""
        if unloading := [e.unloading for e in self.entries.values() if e.unloading is not None]:
            await asyncio.wait(unloading)  # until their memory is free
        await self._make_room(entry)
        entry.failure, entry.progress = None, (0, 0)
        started = time.perf_counter()

        bar = ProgressBar(f"loading {entry.source.name}")

        def progress(done: int, total: int) -> None:
            entry.progress = (done, total)
            bar(done, total)

        try:
            entry.thread = LoadThread(load_llm, self._options(entry), progress)
            llm = await entry.thread.result()
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except ZincError as error:
            raise self._failed(entry, error) from None
        except BaseException as error:  # a bug, or a panic of a library
            log.exception("%s cannot be loaded", entry.source.name)
            what = f"loading {entry.source.name} failed"
            raise self._failed(entry, ModelError(what, type(error).__name__)) from None
        finally:
            bar.close()
        entry.thread = None
        runner = Runner(llm, self.config.max_waiting, self._observer(entry.source.name))
        entry.model = ServedModel(entry.source.name, llm, runner)
        entry.state = State.LOADED
        entry.needed_bytes = llm.memory.total_bytes
        entry.last_used = time.monotonic()
        # Until now only the size of the files was known, not that of the cache.
        await self._make_room(entry, wait=False)
        log.info(
            "%s is loaded: %s, context %d, %.1f s",
            entry.source.name,
            llm.backend.describe(),
            llm.context,
            time.perf_counter() - started,
        )
        budget = self.config.memory_budget_bytes
        if budget is not None and entry.needed_bytes > budget:
            log.warning(
                "%s: it needs %.0f MB, more than the memory budget of %.0f MB, so no other model "
                "stays loaded at the same time",
                entry.source.name,
                entry.needed_bytes / 1e6,
                budget / 1e6,
            )
        for note in entry.source.settings.notes:
            log.warning("%s: %s", entry.source.name, note)
        for message in llm.choice.messages:
            log.info("%s: %s", entry.source.name, message)

    def _options(self, entry: Entry) -> LoadOptions:
        """Return the options that load a model; its own settings override those of the server."""
        load, settings = self.config.load, entry.source.settings
        context = settings.context or load.context
        if entry.source.name != self.config.models[0].name:
            load = replace(load, lora=())
            if load.draft is not None:
                load = replace(load, draft=None, speculate="auto")
        return replace(load, path=entry.path, settings=settings, context=context)

    def _failed(self, entry: Entry, error: ZincError) -> ApiError:
        """Note why a model cannot be loaded; return the error for its clients."""
        entry.thread = None  # it refers to the partly loaded model
        entry.fail(error)
        if (
            not self._is_starting or len(self.entries) > 1
        ):  # otherwise the server ends with this error
            log.error("%s: %s", entry.source.name, error.in_options())
        return _load_error(entry)

    async def _make_room(self, entry: Entry, wait: bool = True) -> None:
        """Unload idle models until `entry` fits the memory budget or is the only model left.

        wait: wait for models in use to become idle. Raises ApiError if no request needs `entry` any
        more.
        """
        budget = self.config.memory_budget_bytes
        if budget is None:
            return
        while True:
            loaded = [e for e in self.entries.values() if e.model is not None and e is not entry]
            if sum(e.needed_bytes for e in loaded) + entry.needed_bytes <= budget or not loaded:
                return
            idle = [e for e in loaded if e.users == 0]
            if idle:
                await self._unload(min(idle, key=lambda e: e.last_used))
            elif not wait:
                return
            elif entry.users == 0:
                raise ApiError(503, "the model is not loaded", "no request waits for it any more")
            else:
                async with self._changed:
                    await self._changed.wait()

    async def _unload(self, entry: Entry) -> None:
        """Unload a model. Cancelling the caller does not stop this."""
        if entry.model is not None:
            entry.unloading = asyncio.create_task(self._free(entry, entry.model))
            entry.model, entry.state, entry.ttl_s = None, State.UNLOADED, None
        if entry.unloading is not None:
            await asyncio.shield(entry.unloading)

    async def _free(self, entry: Entry, model: ServedModel) -> None:
        try:
            await model.runner.close()
            await asyncio.to_thread(model.llm.close)
            log.info("%s is unloaded", entry.source.name)
        finally:
            entry.unloading = None

    async def _unload_idle(self) -> None:
        while True:
            await asyncio.sleep(max(0.05, min(1.0, (self.config.ttl_s or 1.0) / 4)))
            for entry in self.entries.values():
                if self._is_due(entry):
                    try:
                        async with self._loading:
                            if self._is_due(entry):  # it may have been used during another load
                                await self._unload(entry)
                    except Exception:  # go on with the other models
                        log.exception("%s could not be unloaded", entry.source.name)

    def _is_due(self, entry: Entry) -> bool:
        """Return whether a model has been idle for so long that it is to be unloaded."""
        return entry.model is not None and entry.users == 0 and self.keeps_s(entry) == 0


def _load_error(entry: Entry) -> ApiError:
    """Return the error for requests to a model that could not be loaded."""
    error = entry.failure
    assert error is not None
    return ApiError(
        500,
        f"the model {entry.source.name!r} cannot be loaded",
        error.what if not error.why else f"{error.what}: {error.why}",
        error.hint,
        code="model_load_failed",
    )


def load_llm(options: LoadOptions, progress: Progress) -> LLM:
    """Load a model and its tokenizer, in the thread of a `LoadThread`."""
    llm = LLM.from_options(options, progress)
    _ = llm.tokenizer
    return llm
