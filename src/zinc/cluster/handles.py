"""Calls of deployments through Ray Serve."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import grpc
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from zinc.cluster.front import ReplicaLostError
from zinc.cluster.messages import Forwarded, Part


def deployment_handle(application: str, deployment: str) -> DeploymentHandle:
    """Return a handle, also of a deployment that does not exist yet."""
    return serve.get_deployment_handle(deployment, application, _check_exists=False)


class ServeReplicas:
    """The replicas of a deployment. To be created in the event loop that calls `answer`."""

    def __init__(self, application: str, deployment: str) -> None:
        handle = deployment_handle(application, deployment)
        # This event loop, and gRPC instead of Ray's object store, are faster for short answers.
        handle._init(_run_router_in_separate_loop=False)
        self._handle = handle.options(
            stream=True,
            method_name="answer",
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
        )

    async def answer(self, request: Forwarded) -> AsyncGenerator[Part]:
        """Yield the parts of the answer of a replica. Raises ReplicaLostError."""
        response = self._handle.remote(request)
        is_done = False
        try:
            async for part in response:
                yield part
            is_done = True
        except (RayError, RayServeException, grpc.RpcError) as error:
            is_done = True
            raise ReplicaLostError from error
        finally:
            if not is_done:
                response.cancel()
