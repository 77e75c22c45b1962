"""Settings that every HTTP process has: its address, tokens, metrics and drain time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.runtime.http.bearer_tokens import Tokens
from headrace.runtime.http.local_senders import is_this_machine
from headrace.runtime.http.server import tokens_for
from headrace.runtime.http.token_files import TokenSource


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Address, tokens, metrics and drain time. The collector and prediction servers extend it."""

    host: str = "127.0.0.1"
    """Other addresses than loopback need tokens, or `anyone`."""
    port: int = 0
    """0: a free port, which the log names."""
    tokens: Sequence[str] = field(default=(), repr=False)
    """A request needs one of them. Without tokens every client that reaches the port is allowed."""
    tokens_from: TokenSource = field(default=TokenSource(), repr=False)
    """Source of the tokens, which is read again when it changes."""
    anyone: bool = False
    """Whether to listen to other machines without tokens, because a proxy in front checks."""
    metrics_port: int = 0
    """A port for metrics; 0: no such port."""
    metrics_host: str = "127.0.0.1"
    """Metrics contain no event data."""
    drain_ms: int = 0
    """Time to accept requests once not ready: longer than a load balancer's probe interval."""

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Host and port for metrics."""
        return self.metrics_host, self.metrics_port

    @property
    def local_only(self) -> bool:
        """Whether only processes of this machine may send requests, and any of them may."""
        return not self.tokens and not self.anyone and is_this_machine(self.host)

    def checked_tokens(self, flags: str) -> Tokens:
        """Return the tokens. Raises BadTokens if other machines could connect without one.

        flags: how to set tokens, for the error message.
        """
        return tokens_for(self.tokens, self.host, flags, anyone=self.anyone)
