"""Control the access to a local page: only a browser that has the token may use the page.

- The socket is bound to 127.0.0.1, so other machines cannot connect (see `page_server`).
- The `Host` header must be the address of this server. This stops DNS rebinding: another site
  can make its host name resolve to 127.0.0.1, but its requests still have that host name.
- Every request needs the token. The first request has the token in its address. The response moves the
  token into a cookie that scripts cannot read and that browsers do not send with requests of other sites.
- A request that changes something must have a header that other sites cannot add, and must come from the page
  of this server.
- The size of requests, the number of their parameters and the time that they take are limited (see also
  `timed_protocol`).
- Responses forbid the page to load anything from other servers.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import unquote_plus

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

WRITE_HEADER = "x-selfmark"  # forms and scripts of other sites cannot send this header
MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024
BODY_SECONDS = 20.0  # time that the body of a request may take to arrive
_DEFAULT_PORT = 80  # browsers leave this port out of the Host header
_MAX_QUERY_BYTES = 2_048
_MAX_PARAMETERS = 20
_TOKEN = b"token="
_READ_METHODS = ("GET", "HEAD")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class AccessGuard:
    """ASGI middleware that rejects requests without permission."""

    def __init__(self, app: ASGIApp, token: str, port: int, command: str) -> None:
        """Wrap an application.

        Args:
            app: application that receives the accepted requests.
            token: secret that every request must contain.
            port: port of this server.
            command: command that printed the address, for messages, e.g. `selfmark name`.
        """
        self._app = app
        self._token = token.encode()
        self._command = command
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        if port == _DEFAULT_PORT:
            self._hosts |= {"127.0.0.1", "localhost"}
        self._cookie = f"selfmark_{port}"  # ports of a host share cookies, so each port needs its own name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer requests that are rejected and the first visit; forward all other requests."""
        if scope["type"] != "http":  # web sockets are not used
            raise RuntimeError(f"unexpected connection: {scope['type']}")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        response = self._reject(scope, headers) or self._redirect_first_visit(scope)
        if response is None:
            await self._forward(scope, receive, _add_headers(send))
        else:
            await response(scope, receive, _add_headers(send))

    def _reject(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        """Return the response that rejects a request; None if the request is accepted."""
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("This server answers only requests to 127.0.0.1.", 421)
        if not (self._is_token(_read_query_token(scope)) or self._is_token(self._read_cookie_token(headers))):
            return PlainTextResponse(
                f"Open the complete address that '{self._command}' printed, including the token at its end.",
                403,
            )
        if scope["method"] not in _READ_METHODS and not _is_from_own_page(headers):
            return PlainTextResponse("Only the page itself can make changes.", 403)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            return PlainTextResponse("The headers are too large.", 431)
        query = scope["query_string"]
        if len(query) > _MAX_QUERY_BYTES or query.count(b"&") >= _MAX_PARAMETERS:
            return PlainTextResponse(
                f"The address is too long or has more than {_MAX_PARAMETERS} parameters.", 400
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 10 or int(length) > MAX_BODY_BYTES:
            return PlainTextResponse("The request is too large.", 413)
        return None

    def _redirect_first_visit(self, scope: Scope) -> Response | None:
        """Move the token from the address into a cookie, because addresses are stored in the browser history.

        Returns:
            A redirect to the same path without the query; None if the address has no token.
        """
        if not _read_query_token(scope):
            return None
        # Two slashes at the start would lead to another server.
        response = RedirectResponse(f"/{scope['path'].lstrip('/')}", 303)
        response.set_cookie(self._cookie, self._token.decode(), httponly=True, samesite="strict", path="/")
        response.headers["cache-control"] = "no-store"
        return response

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", errors="replace"), self._token)

    def _read_cookie_token(self, headers: dict[str, str]) -> str:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return ""
        return cookies[self._cookie].value if self._cookie in cookies else ""

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body of a request, reject a body that is too large or too slow, and call the application.

        The size is checked again here, because a chunked request does not declare its length.
        """
        body, more = b"", scope["method"] not in _READ_METHODS
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while more:
                    message = await receive()
                    body, more = body + message.get("body", b""), message.get("more_body", False)
                    if len(body) > MAX_BODY_BYTES:
                        await PlainTextResponse("The request is too large.", 413)(scope, receive, send)
                        return
        except TimeoutError:
            await PlainTextResponse("The request took too long.", 408)(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)


def _read_query_token(scope: Scope) -> str:
    """Return the token in the address; empty if there is none.

    The rest of the query is not parsed before access is granted.
    """
    query: bytes = scope["query_string"]
    tokens = (part[len(_TOKEN) :] for part in query.split(b"&") if part.startswith(_TOKEN))
    return unquote_plus(next(tokens, b"").decode("latin-1"))


def _is_from_own_page(headers: dict[str, str]) -> bool:
    """Return True if the headers show that the page of this server sent the request."""
    own_origin = f"http://{headers.get('host', '')}"
    return (
        WRITE_HEADER in headers
        and headers.get("origin", own_origin) == own_origin
        and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    )


def _add_headers(send: Send) -> Send:
    """Return a `send` that adds the security headers to each response."""

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return send_with_headers
