"""The text side of a model: tokenizer, chat template, grammars and DRY breakers.

Each part is built when it is first used, once, by whichever thread asks first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
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


class ModelText:
    """The text parts of a model, each built from the metadata of its file when first used.

    n_vocab: tokens of the model, which may be more than the tokenizer's. chat_template: replaces
    the file's template. check_open: called before a part is built; raises when the model is closed.
    """

    def __init__(
        self,
        file: GGUFFile,
        n_vocab: int,
        chat_template: str | None,
        check_open: Callable[[], None],
    ) -> None:
        self._file, self._n_vocab = file, n_vocab
        self._chat_template, self._check_open = chat_template, check_open
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
        """The tokenizer; once built, it also works when the model is closed.

        Raises FormatError if the file's tokenizer is damaged.
        """
        built = cast("Tokenizer | None", self._built.get("tokenizer"))
        return built or self._once("tokenizer", self._make_tokenizer)

    def _make_tokenizer(self) -> Tokenizer:
        metadata: Mapping[str, Any] = self._file.metadata
        if self._chat_template is not None:  # replaces the named templates too
            own = {"tokenizer.chat_template": self._chat_template, "tokenizer.chat_templates": []}
            metadata = {**metadata, **own}
        return Tokenizer.from_metadata(metadata, str(self._file.path))

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
