"""A real Dynamo worker that Shunter can move: Dynamo's own runtime, discovery and request plane around a synthetic engine without a GPU.

It is Dynamo's sample engine with two engine controls, `POST /engine/control/fence` and `/unfence` on the system port, which take its
endpoint out of discovery and put it back; it keeps its instance id and its streams. An engine with weights needs the same two, in its own
subclass: they are in `Fencing`, which has nothing of the sample engine in it. Runs in the environment that scripts/install-dynamo makes.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dynamo.common.backend.run import run  # pyright: ignore[reportMissingImports]
from dynamo.common.backend.sample_engine import SampleLLMEngine  # pyright: ignore[reportMissingImports]
from own_entries import OwnEntries
from token_chain import FIRST_WORD, VOCABULARY, chain

CONTROLS = frozenset({"fence", "unfence"})


class Fencing:
    """Mixed into a Dynamo backend engine, before its base class: an agent can take the worker out of the router's sight and put it back."""

    _endpoint: Any = None
    _entries: OwnEntries | None = None
    """None without a file discovery of its own address: other discoveries have no files that could be lost."""
    _fenced = False

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  (whatever the engine takes)
        super().__init__(*arguments, **options)
        self._turn = asyncio.Lock()

    def supported_controls(self) -> set[str]:
        """The engine's own and ours."""
        return {*super().supported_controls(), *CONTROLS}  # type: ignore[misc]

    async def on_endpoint_ready(self, endpoint: Any) -> None:  # noqa: ANN401  (Dynamo's binding)
        """Keep the endpoint: it is what is registered."""
        self._endpoint = endpoint
        root, host = os.environ.get("DYN_FILE_KV"), os.environ.get("DYN_EVENT_PLANE_HOST")
        if root and host:
            self._entries = OwnEntries(Path(root), endpoint.connection_id(), host)
        await super().on_endpoint_ready(endpoint)  # type: ignore[misc]

    async def engine_control(self, control: str, body: dict[str, Any]) -> dict[str, Any]:
        """Both controls are idempotent, and answer with the instance id, by which the agent finds the entry in discovery."""
        if control not in CONTROLS:
            answer: dict[str, Any] = await super().engine_control(control, body)  # type: ignore[misc]
            return answer
        async with self._turn:
            if control == "unfence":
                await self._unfence()
            elif not self._fenced:  # Dynamo refuses to unregister twice
                await self._fence()
        return {"status": "ok", "instance_id": self._endpoint.connection_id()}

    async def _fence(self) -> None:
        await self._endpoint.unregister_endpoint_instance()
        self._fenced = True
        if self._entries:
            self._entries.remember()  # without the endpoint's own, which is registered by Dynamo

    async def _unfence(self) -> None:
        if self._entries:
            self._entries.put_back()
        await self._endpoint.register_endpoint_instance()
        self._fenced = False


class MovableEngine(Fencing, SampleLLMEngine):  # type: ignore[misc]
    """The sample engine with tokens that can be checked. `delay` is seconds per token."""

    async def _generate_tokens(
        self,
        prompt_len: int,
        max_new: int,
        context: Any,  # noqa: ANN401  (Dynamo's binding)
        logprobs_k: int | None,
    ) -> AsyncIterator[dict[str, Any]]:
        source = chain(random.randrange(FIRST_WORD, VOCABULARY))
        done = 0
        async for chunk in super()._generate_tokens(prompt_len, max_new, context, logprobs_k):
            if chunk["token_ids"]:
                chunk["token_ids"] = [next(source)]
                done += 1
            yield chunk


def main() -> None:
    """Serve until SIGTERM. Options: those of Dynamo's sample engine (`--model-name DIR`, `--disaggregation-mode`, `--delay`, ...)."""
    run(MovableEngine)


if __name__ == "__main__":
    main()
