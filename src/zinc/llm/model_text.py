"""The text side of a model: tokenizer, chat template, grammars and DRY breakers.

The tokenizer is built while the model is loaded. Each other part is built when it is first used,
once, by whichever thread asks first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar, cast

from zinc.chat.style import ChatStyle
from zinc.chat.template import ChatTemplate
from zinc.engine.sampling import breaker_sequences
from zinc.engine.structured import Grammars
from zinc.formats.gguf import GGUFFile
from zinc.tokenizer import Tokenizer

log = logging.getLogger("zinc.chat")
T = TypeVar("T")
_Breakers: TypeAlias = Callable[[tuple[str, ...]], tuple[tuple[int, ...], ...]]


def start_tokenizer(file: GGUFFile, chat_template: str | None) -> Future[Tokenizer]:
    """Start to build the tokenizer of a file in a thread.

    chat_template: replaces the file's template. The result raises FormatError if the file's
    tokenizer is damaged.
    """
    metadata: Mapping[str, Any] = file.metadata
    if chat_template is not None:  # replaces the named templates too
        own = {"tokenizer.chat_template": chat_template, "tokenizer.chat_templates": []}
        metadata = {**metadata, **own}
    thread = ThreadPoolExecutor(1, "zinc-tokenizer")
    try:
        return thread.submit(Tokenizer.from_metadata, metadata, str(file.path))
    finally:
        thread.shutdown(wait=False)


class ModelText:
    """The text parts of a model.

    n_vocab: tokens of the model, which may be more than the tokenizer's. tokenizer: see
    `start_tokenizer`. check_open: called before a part is built or first used; raises when the
    model is closed.
    """

    def __init__(
        self, n_vocab: int, tokenizer: Future[Tokenizer], check_open: Callable[[], None]
    ) -> None:
        self._n_vocab, self._tokenizer, self._check_open = n_vocab, tokenizer, check_open
        self._lock = threading.RLock()
        self._built: dict[str, object] = {}

    def _once(self, name: str, make: Callable[[], T]) -> T:
        """Return the part `name`; the first call makes it."""
        self._check_open()
        with self._lock:
            if name not in self._built:
                self._built[name] = make()
            return cast(T, self._built[name])

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; once used, it also works when the model is closed.

        Raises FormatError if the file's tokenizer is damaged.
        """
        built = cast("Tokenizer | None", self._built.get("tokenizer"))
        return built or self._once("tokenizer", self._tokenizer.result)

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Raises TemplateError if the model has none."""
        return self._once("template", lambda: ChatTemplate.from_tokenizer(self.tokenizer))

    def style(self, for_tools: bool) -> ChatStyle:
        """Return the chat style, or that of conversations with tools.

        Raises TemplateError if the model has no template.
        """
        return self._once(f"style {for_tools}", lambda: self._make_style(for_tools))

    def _make_style(self, for_tools: bool) -> ChatStyle:
        style = ChatStyle.of(self.tokenizer, for_tools)
        if for_tools and style.tools_note:
            log.warning("%s; `chat_template=` sets another one", style.tools_note)
        return style

    @property
    def grammars(self) -> Grammars:
        """The compiler of constraints for this vocabulary."""
        return self._once("grammars", lambda: Grammars(self.tokenizer, self._n_vocab))

    def dry_breakers(self, breakers: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return DRY sequence breakers as token ids. The first call walks the vocabulary."""
        return self._once("breakers", self._make_breakers)(breakers)

    def _make_breakers(self) -> _Breakers:
        tokenizer = self.tokenizer
        vocabulary = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
        encode = partial(tokenizer.encode, add_special=False)
        # Bounded, because clients of a server choose the breakers.
        return lru_cache(16)(lambda breakers: breaker_sequences(breakers, vocabulary, encode))
