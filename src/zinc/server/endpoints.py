"""The table of endpoints: path, handler, and description for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from zinc.core.dataclass import dataclass
from zinc.server import operations
from zinc.server.apis.anthropic import messages
from zinc.server.apis.anthropic.fields import MessagesFields, PromptFields
from zinc.server.apis.cohere import embed as cohere_embed
from zinc.server.apis.llama import adapters, completion, status, tokens
from zinc.server.apis.llama import embeddings as llama_embeddings
from zinc.server.apis.llama import rerank as llama_rerank
from zinc.server.apis.llama.fields import InfillFields, NativeFields
from zinc.server.apis.lmstudio import generate as lmstudio_generate
from zinc.server.apis.lmstudio import models as lmstudio_models
from zinc.server.apis.ollama import chat as ollama_chat
from zinc.server.apis.ollama import embed as ollama_embed
from zinc.server.apis.ollama import generate as ollama_generate
from zinc.server.apis.ollama import manage as ollama_manage
from zinc.server.apis.ollama import models as ollama_models
from zinc.server.apis.openai import batches, chat, completions, embeddings, files
from zinc.server.apis.openai.chat_request import ChatFields
from zinc.server.apis.openai.responses import endpoints as responses
from zinc.server.apis.openai.responses.fields import ResponseFields
from zinc.server.apis.shared.fields import LoraScale
from zinc.server.apis.shared.service import Service
from zinc.server.http.fields import Fields
from zinc.server.http.openapi import EVENT_STREAM, NDJSON, Operation

Handler = Callable[[Service, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of the server. aliases: further paths with the same handler."""

    handler: Handler
    operation: Operation
    aliases: tuple[str, ...] = ()


def _post(
    path: str,
    handler: Handler,
    fields: type[Fields],
    summary: str,
    tag: str,
    *aliases: str,
    streams: str = "",
    statuses: tuple[int, ...] = (),
    method: str = "POST",
) -> Endpoint:
    more = (*statuses, 429) if streams else statuses
    operation = Operation(
        method, path, summary, tag, fields, streams=streams, statuses=more
    )  # fmt: skip
    return Endpoint(handler, operation, aliases)


def _get(
    path: str,
    handler: Handler,
    summary: str,
    tag: str,
    *aliases: str,
    method: str = "GET",
    query: tuple[str, ...] = (),
    media_type: str = "application/json",
    statuses: tuple[int, ...] = (),
) -> Endpoint:
    more = (*statuses, 404) if "{" in path or query else statuses
    operation = Operation(
        method, path, summary, tag, query=query, media_type=media_type, statuses=more
    )
    return Endpoint(handler, operation, aliases)


_RESPONSE = "/v1/responses/{id}"
_FILE, _BATCH = "/v1/files/{id}", "/v1/batches/{id}"

ENDPOINTS: tuple[Endpoint, ...] = (
    _post(
        "/v1/chat/completions", chat.chat_completions, ChatFields,
        "Continue a conversation", "OpenAI", "/chat/completions", streams=EVENT_STREAM,
    ),
    _post(
        "/v1/chat/completions/input_tokens", chat.count_tokens, ChatFields,
        "Count the tokens of a conversation", "llama.cpp", "/chat/completions/input_tokens",
    ),
    _post(
        "/v1/completions", completions.completions, completions.CompletionFields,
        "Continue text or tokens", "OpenAI", streams=EVENT_STREAM,
    ),
    _post(
        "/v1/embeddings", embeddings.embeddings, embeddings.EmbeddingFields,
        "Texts to vectors", "OpenAI", statuses=(429,),
    ),
    _post(
        "/v1/responses", responses.create_response, ResponseFields,
        "Create a response", "OpenAI", "/responses", streams=EVENT_STREAM,
    ),
    _post(
        "/v1/responses/input_tokens", responses.count_tokens,
        ResponseFields, "Count the tokens of a response's prompt", "OpenAI",
        "/responses/input_tokens",
    ),
    _get(
        _RESPONSE, responses.get_response, "A stored response", "OpenAI",
        query=("stream", "starting_after"),
    ),
    _get(
        _RESPONSE, responses.delete_response, "Forget a stored response", "OpenAI",
        method="DELETE",
    ),
    _get(
        f"{_RESPONSE}/cancel", responses.cancel_response, "Refuse to cancel a response",
        "OpenAI", method="POST",
    ),
    _get(
        f"{_RESPONSE}/input_items", responses.get_input_items,
        "The input of a stored response", "OpenAI",
    ),
    Endpoint(
        files.create_file,
        Operation(
            "POST", "/v1/files", "Upload a file", "OpenAI", is_upload=True, statuses=(413, 501),
        ),
    ),
    _get(
        "/v1/files", files.list_files, "The files", "OpenAI",
        query=("purpose", "limit", "order", "after"), statuses=(501,),
    ),
    _get(_FILE, files.get_file, "One file", "OpenAI", statuses=(501,)),
    _get(
        _FILE, files.delete_file, "Delete a file", "OpenAI", method="DELETE", statuses=(409, 501),
    ),
    _get(
        f"{_FILE}/content", files.get_content, "The contents of a file", "OpenAI",
        media_type="application/jsonl", statuses=(501,),
    ),
    _post(
        "/v1/batches", batches.create_batch, batches.BatchFields, "Run the requests of a file",
        "OpenAI", statuses=(501,),
    ),
    _get(
        "/v1/batches", batches.list_batches, "The batches", "OpenAI", query=("limit", "after"),
        statuses=(501,),
    ),
    _get(_BATCH, batches.get_batch, "One batch", "OpenAI", statuses=(501,)),
    _get(
        f"{_BATCH}/cancel", batches.cancel_batch, "Cancel a batch", "OpenAI", method="POST",
        statuses=(409, 501),
    ),
    _get(
        "/v1/models", operations.models, "The models and their state", "OpenAI", "/models",
        query=("limit", "before_id", "after_id"),
    ),
    _get("/v1/models/{name:path}", operations.model, "One model", "OpenAI"),
    _post(
        "/v1/messages", messages.create_message, MessagesFields,
        "Create a message", "Anthropic", streams=EVENT_STREAM,
    ),
    _post(
        "/v1/messages/count_tokens", messages.count_tokens, PromptFields,
        "Count the tokens of a prompt", "Anthropic",
    ),
    _post(
        "/completion", completion.completion, NativeFields,
        "Continue text or tokens", "llama.cpp", "/completions", streams=EVENT_STREAM,
    ),
    _post(
        "/infill", completion.infill, InfillFields,
        "Fill the gap in a text", "llama.cpp", streams=EVENT_STREAM, statuses=(501,),
    ),
    _post(
        "/embedding", llama_embeddings.native_embeddings, llama_embeddings.NativeEmbeddingFields,
        "Texts to vectors", "llama.cpp", "/embeddings", statuses=(429,),
    ),
    _post(
        "/v1/rerank", llama_rerank.rerank, llama_rerank.RerankFields, "Rank documents for a query",
        "llama.cpp", "/rerank", "/reranking", "/v1/reranking", "/v2/rerank", statuses=(429,),
    ),
    _post(
        "/v2/embed", cohere_embed.embed, cohere_embed.CohereEmbedFields,
        "Texts to vectors", "Cohere", "/v1/embed", statuses=(429,),
    ),
    _post("/tokenize", tokens.tokenize, tokens.TokenizeFields, "Text to tokens", "llama.cpp"),
    _post("/detokenize", tokens.detokenize, tokens.DetokenizeFields, "Tokens to text", "llama.cpp"),
    _post(
        "/apply-template", tokens.apply_template, ChatFields,
        "The prompt of a conversation, as text", "llama.cpp",
    ),
    _get("/props", status.props, "Properties and defaults", "llama.cpp", query=("model",)),
    _get(
        "/slots", status.slots, "Sequences that run or wait", "llama.cpp",
        query=("model", "fail_on_no_slot"),
    ),
    _get(
        "/lora-adapters", adapters.list_adapters, "The LoRA adapters and their scales", "llama.cpp",
        query=("model",),
    ),
    Endpoint(
        adapters.set_scales,
        Operation(
            "POST", "/lora-adapters", "Set the scales of LoRA adapters", "llama.cpp",
            items=LoraScale, query=("model",), statuses=(404, 413, 415),
        ),
    ),
    _post(
        "/api/chat", ollama_chat.chat, ollama_chat.OllamaChatFields,
        "Continue a conversation", "Ollama", streams=NDJSON,
    ),
    _post(
        "/api/generate", ollama_generate.generate, ollama_generate.GenerateFields,
        "Continue a prompt", "Ollama", streams=NDJSON,
    ),
    _post(
        "/api/embed", ollama_embed.embed, ollama_embed.EmbedFields,
        "Texts to vectors", "Ollama", statuses=(429,),
    ),
    _post(
        "/api/embeddings", ollama_embed.embeddings, ollama_embed.EmbeddingsFields,
        "A text to a vector", "Ollama", statuses=(429,),
    ),
    _get("/api/tags", ollama_models.tags, "The models", "Ollama"),
    _get("/api/ps", ollama_models.ps, "The models that are loaded", "Ollama"),
    _post(
        "/api/show", ollama_models.show, ollama_models.ShowFields,
        "Details of a model", "Ollama", statuses=(404,),
    ),
    _post(
        "/api/pull", ollama_manage.pull_model, ollama_manage.PullFields,
        "Download a model", "Ollama", streams=NDJSON, statuses=(409, 502),
    ),
    _post(
        "/api/delete", ollama_manage.delete_model, ollama_manage.DeleteFields,
        "Delete a model", "Ollama", statuses=(409,), method="DELETE",
    ),
    _post(
        "/api/copy", ollama_manage.copy_model, ollama_manage.CopyFields,
        "Offer a model under a second name", "Ollama", statuses=(409,),
    ),
    _post(
        "/api/create", ollama_manage.create_model, ollama_manage.CreateFields,
        "Offer a model with other settings", "Ollama", statuses=(409,),
    ),
    _get("/api/version", ollama_models.version, "The level of Ollama's API", "Ollama"),
    _get("/api/v0/models", lmstudio_models.models, "The models and their state", "LM Studio"),
    _get("/api/v0/models/{name:path}", lmstudio_models.model, "One model", "LM Studio"),
    _post(
        "/api/v0/chat/completions", lmstudio_generate.chat_completions, ChatFields,
        "Continue a conversation", "LM Studio", streams=EVENT_STREAM,
    ),
    _post(
        "/api/v0/completions", lmstudio_generate.text_completions, completions.CompletionFields,
        "Continue text or tokens", "LM Studio", streams=EVENT_STREAM,
    ),
    _post(
        "/api/v0/embeddings", embeddings.embeddings, embeddings.EmbeddingFields,
        "Texts to vectors", "LM Studio", statuses=(429,),
    ),
    _post(
        "/models/load", operations.load_model, operations.ModelFields, "Load a model now",
        "operation",
    ),
    _post(
        "/models/unload", operations.unload_model, operations.ModelFields, "Unload a model",
        "operation", statuses=(409,),
    ),
    _get("/health", operations.health, "Whether the server can answer", "operation", "/v1/health"),
    _get(
        "/metrics", operations.metrics, "Figures for Prometheus", "operation",
        media_type="text/plain",
    ),
)  # fmt: skip

OPERATIONS = tuple(endpoint.operation for endpoint in ENDPOINTS)
