"""An API server's opinion of tokens, as far as TokenReviewer goes."""

import asyncio
from dataclasses import dataclass, field

from controller.access import BoundPod, TokenIdentity, TokenReviewUnavailableError


def token_of(namespace: str, name: str, uid: str) -> TokenIdentity:
    """The identity of a token that is bound to a pod."""
    return TokenIdentity(
        f"system:serviceaccount:{namespace}:default", BoundPod(namespace, name, uid)
    )


@dataclass
class FakeTokenReviewer:
    known: dict[str, TokenIdentity] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    down: bool = False
    binding_webhook: asyncio.Event | None = None
    """Answers wait for it."""
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def review(self, token: str) -> TokenIdentity | None:
        self.asked.append(token)
        self.was_asked.set()
        await asyncio.sleep(0)
        if self.binding_webhook is not None:
            await self.binding_webhook.wait()
        if self.down:
            raise TokenReviewUnavailableError("the API server did not answer")
        return self.known.get(token)
