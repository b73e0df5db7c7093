"""A real Dynamo worker that Shunter can move: Dynamo's own runtime, discovery and request plane around a synthetic engine without a GPU.

It is Dynamo's sample engine with two engine controls, `POST /engine/control/fence` and `/unfence` on the system port, which take its
endpoint out of discovery and put it back; it keeps its instance id and its streams. An engine with weights needs the same two, in its own
subclass: they are in `Fencing`, which has nothing of the sample engine in it. Runs in the environment that scripts/install-dynamo makes.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from dynamo.common.backend.run import run  # pyright: ignore[reportMissingImports]
from dynamo.common.backend.sample_engine import SampleLLMEngine  # pyright: ignore[reportMissingImports]
from token_chain import FIRST_WORD, VOCABULARY, chain

CONTROLS = frozenset({"fence", "unfence"})


class Fencing:
    """Mixed into a Dynamo backend engine, before its base class: an agent can take the worker out of the router's sight and put it back."""

    _endpoint: Any = None
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
        await super().on_endpoint_ready(endpoint)  # type: ignore[misc]

    async def engine_control(self, control: str, body: dict[str, Any]) -> dict[str, Any]:
        """Both controls are idempotent, and answer with the instance id, by which the agent finds the entry in discovery."""
        if control not in CONTROLS:
            answer: dict[str, Any] = await super().engine_control(control, body)  # type: ignore[misc]
            return answer
        async with self._turn:
            if control == "unfence":
                await self._endpoint.register_endpoint_instance()
            elif not self._fenced:  # Dynamo refuses to unregister twice
                await self._endpoint.unregister_endpoint_instance()
            self._fenced = control == "fence"
        return {"status": "ok", "instance_id": self._endpoint.connection_id()}


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
