"""Answers as text: the results of `LLM`, and the tasks that produce them in the engine's thread.

Stop strings end a sequence, so tokens are decoded in the engine's thread, not by the caller.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from zinc.core.dataclass import dataclass
from zinc.engine.adapters import AdapterUse
from zinc.engine.engine import Engine
from zinc.engine.readout import NO_ANSWER, Readout
from zinc.engine.request import Request
from zinc.engine.sampling import Sampled
from zinc.engine.sequence import Sequence, Timings
from zinc.engine.worker import EngineWorker, Task
from zinc.tokenizer import StreamDecoder, Tokenizer

# Chunks that a stream may be ahead of its reader. The engine runs while the reader prints, and
# stops soon after the reader does.
_CHUNKS_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer.

    text: with the markers of reasoning and calls. finish_reason: "stop" (an end token or stop
    string), "length" or "cancelled". logprobs: an entry for each token, if the request asked for
    them. message: the answer of `chat` as an assistant message of OpenAI's API, with
    "reasoning_content" and "tool_calls" apart from "content".
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    timings: Timings
    logprobs: list[Sampled] | None = None
    message: dict[str, Any] | None = None

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls of the answer in OpenAI's form, with `arguments` as JSON text.

        Arguments that `max_tokens` cut off are not whole JSON.
        """
        calls: list[dict[str, Any]] = (self.message or {}).get("tool_calls", [])
        return calls


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer.

    The last one has a `finish_reason`, `timings` and, in a conversation, the whole answer as a
    `message` (see `Completion`).
    """

    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    timings: Timings | None = None
    message: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document that suits a query. index: its place among the documents given."""

    index: int
    score: float


def ranked(scores: Seq[float], top_n: int | None = None) -> list[RankedDocument]:
    """Return documents by their scores, the highest first, at most `top_n` of them.

    Of equal scores, the document that was given first comes first.
    """
    found = [RankedDocument(index, score) for index, score in enumerate(scores)]
    return sorted(found, key=lambda each: -each.score)[:top_n]


class Answer:
    """The growing text of a sequence."""

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer) -> None:
        self.sequence = sequence
        self._decoder = StreamDecoder(tokenizer, sequence.request.params.stop)
        self._text: list[str] = []
        self._taken = 0
        self.ended = False

    @property
    def finish_reason(self) -> str:
        """The reason why the answer ended."""
        return "stop" if self._decoder.stopped is not None else str(self.sequence.finish_reason)

    def take(self, engine: Engine) -> tuple[list[int], str]:
        """Return new tokens, and the text that they complete. A stop string ends the sequence.

        Raises the sequence's error.
        """
        if self.ended:
            return [], ""
        fresh = [each.token for each in self.sequence.sampled[self._taken :]]
        text = ""
        for n, token in enumerate(fresh, 1):
            if token in self.sequence.end_tokens and not self.sequence.request.params.ignore_eos:
                break
            text += self._decoder.push(token)
            if self._decoder.stopped is not None:
                del fresh[n:]
                engine.cancel(self.sequence, "stop", self._taken + n)
                break
        self._taken += len(fresh)
        if self.sequence.error is not None:
            raise self.sequence.error
        if self.sequence.finish_reason is not None:
            text += self._decoder.finish()
            self.ended = True
        self._text.append(text)
        return fresh, text

    def completion(self) -> Completion:
        """Return the whole answer, once it has ended."""
        wants = self.sequence.request.params.logprobs is not None
        return Completion(
            text="".join(self._text),
            token_ids=self.sequence.generated,
            finish_reason=self.finish_reason,
            timings=self.sequence.timings(),
            logprobs=list(self.sequence.sampled) if wants else None,
        )


class CompletionTask(Task):
    """Task that runs `requests` in one batch. Its results are the whole answers."""

    def __init__(self, requests: Seq[Request], tokenizer: Tokenizer) -> None:
        super().__init__()
        self._requests, self._tokenizer = requests, tokenizer
        self._answers: list[Answer] = []

    def submit(self, engine: Engine) -> None:
        for request in self._requests:
            self.sequences.append(engine.submit(request))
        self._answers = [Answer(s, self._tokenizer) for s in self.sequences]

    def collect(self, engine: Engine) -> bool:
        for answer in self._answers:
            answer.take(engine)
        return all(answer.ended for answer in self._answers)

    def completions(self) -> list[Completion]:
        """Return the answers in the order of the requests, once they have ended."""
        return [answer.completion() for answer in self._answers]


class ReadoutTask(Task):
    """Task that runs prompts without an answer; `readouts[i]` takes the rows of `prompts[i]`.

    adapters: the LoRA adapters that the prompts use.
    """

    def __init__(
        self,
        prompts: Seq[Seq[int]],
        readouts: Seq[Readout],
        adapters: AdapterUse | None = None,
    ) -> None:
        super().__init__()
        self._prompts, self._readouts, self._adapters = prompts, readouts, adapters

    def submit(self, engine: Engine) -> None:
        for ids, readout in zip(self._prompts, self._readouts, strict=True):
            request = Request(ids, NO_ANSWER, readout=readout, adapters=self._adapters)
            self.sequences.append(engine.submit(request))


class StreamTask(Task):
    """Task that runs a request and puts chunks of its answer into `chunks`, then None."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._request, self._tokenizer = request, tokenizer
        self._answer: Answer | None = None
        self._held: list[int] = []  # tokens whose text is not complete yet
        self._last: Chunk | None = None
        self._n_put = self._n_taken = 0
        self.chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()

    @property
    def wants_step(self) -> bool:
        return self._n_put - self._n_taken < _CHUNKS_AHEAD

    def take(self) -> tuple[Chunk | None, bool]:
        """Wait for the next chunk; return it, and whether the engine may be waiting for the reader.

        The reader calls it.
        """
        chunk = self.chunks.get()
        if chunk is None:
            self.chunks.put(None)  # for other threads that read
            if self._error is not None:
                raise self._error
            return None, False
        self._n_taken += 1
        return chunk, self._n_put - self._n_taken >= _CHUNKS_AHEAD - 1

    def submit(self, engine: Engine) -> None:
        self.sequences.append(engine.submit(self._request))
        self._answer = Answer(self.sequences[0], self._tokenizer)

    def collect(self, engine: Engine) -> bool:
        assert self._answer is not None
        fresh, text = self._answer.take(engine)
        self._held += fresh
        if self._answer.ended:
            timings = self._answer.sequence.timings()
            self._last = Chunk(text, self._held, self._answer.finish_reason, timings)
        elif text or not fresh:  # an empty chunk marks a step of a long prompt
            self._put(Chunk(text, self._held))
            self._held = []
        return self._answer.ended

    def end(self, error: BaseException | None) -> None:
        if self._last is not None and error is None:
            self._put(self._last)
        super().end(error)
        self.chunks.put(None)

    def _put(self, chunk: Chunk) -> None:
        self._n_put += 1
        self.chunks.put(chunk)


class Stream(Iterator[Chunk]):
    """A growing answer: an iterator of chunks, which any thread may read.

    `close`, or dropping the last reference, cancels the request. The engine stays at most a few
    chunks ahead of the reader, unless it also steps for other requests.
    """

    def __init__(
        self,
        worker: EngineWorker,
        task: StreamTask,
        read: Callable[[Seq[int]], dict[str, Any]] | None = None,
    ) -> None:
        """Iterate over the chunks of `task`. read: returns the tokens of an answer as a message."""
        self._worker, self._task, self._read = worker, task, read
        self._closed = False

    def __next__(self) -> Chunk:
        if self._closed:
            raise StopIteration
        try:
            chunk, may_wait = self._task.take()
        except Exception:
            self._closed = True  # an error is raised once, as by a generator
            raise
        if chunk is None:
            raise StopIteration
        if may_wait:
            self._worker.wake()
        if chunk.finish_reason is not None and self._read is not None:
            return replace(chunk, message=self._read(self._task.sequences[0].generated))
        return chunk

    def close(self) -> None:
        """Cancel the request and wait until its memory is free. Does nothing after its end."""
        self._closed = True
        self._worker.stop(self._task)

    def __del__(self) -> None:
        self._worker.cancel(self._task)
