"""Limit the time that an HTTP request may take to arrive, and the number of open connections."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
"""Time that the headers of a request may take to arrive.

For the first request of a connection, the time starts when the connection is opened; for later requests, at
their first byte.
"""

MAX_CONNECTIONS = 64
"""Maximum number of open connections; a browser uses about six."""

MAX_ACCEPTED = 8
"""Maximum number of connections that are accepted at once, before other events are processed.

A larger number would have two drawbacks. A burst could open many more connections than `MAX_CONNECTIONS`. And
a new connection could be closed before its request is read, because too many others are accepted in between.
"""


class TimedProtocol(H11Protocol):
    """A connection that is closed if the headers of a request do not arrive in time.

    uvicorn closes connections that are idle after a response, but waits forever for the rest of a request. If
    there are too many connections, one is closed that has no request to answer. Those that have not sent any
    request yet are closed first, so that the browser of the user keeps its connections.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None
        self._idle_since = 0.0  # when the connection was opened or its last request was answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first request, and close a connection if there are too many."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._start_timer()
        if len(self.connections) > MAX_CONNECTIONS:
            other_connections = (
                item for item in self.connections if isinstance(item, TimedProtocol) and item is not self
            )
            idle = (item for item in other_connections if item.cycle is None or item.cycle.response_complete)
            min(idle, key=TimedProtocol._closing_order, default=self)._abort()

    def data_received(self, data: bytes) -> None:
        """Process bytes. If the headers are complete, stop the timer; otherwise make sure that it runs."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the headers are complete
            self._stop_timer()
        elif self._deadline is None:
            self._start_timer()

    def _unsupported_upgrade_warning(self) -> None:
        """Do not advise to install a package for WebSockets: the pages use none, and anybody may ask."""

    def on_response_complete(self) -> None:
        """Remember since when there is no request to answer."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _closing_order(self) -> tuple[bool, float]:
        return self.cycle is not None, self._idle_since

    def _abort(self) -> None:
        # asyncio closes the connection later. Until then, new connections must not choose it again.
        self.connections.discard(self)
        self.transport.abort()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
