"""Who may speak to the page: the browser that was given the token, on a page of this server, and nobody else.

- The socket is bound to 127.0.0.1, so other machines cannot connect (`serve`).
- `Host` must be this server's own address. A foreign page whose name was made to point to 127.0.0.1 (DNS
  rebinding) still says its own name there.
- Every request needs the token: at first in the address, from where it moves into a cookie that scripts
  cannot read and other sites' pages do not send.
- What writes must carry a header that other sites' pages cannot add, and come from this server's own page.
- A request has a bounded size; answers say what the page may load, which is nothing from elsewhere.
"""

from __future__ import annotations

import hmac
from collections.abc import MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

WRITE_HEADER = "x-selfmark"  # a header that forms and other sites' scripts cannot send
MOST_BYTES = 64 * 1024  # of a request's body
_READS = ("GET", "HEAD")

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
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"selfmark_{port}"  # ports share their cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no web sockets here
            raise RuntimeError(f"unexpected connection: {scope['type']}")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        answer = self._refusal(scope, headers) or self._first_visit(scope)
        if answer is None:
            await self._pass_on(scope, receive, _with_headers(send))
        else:
            await answer(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("This server goes by 127.0.0.1 alone.", 421)
        if not (self._knows(_query_token(scope)) or self._knows(self._cookie_token(headers))):
            return PlainTextResponse(
                "Open the whole address that 'selfmark name' printed, with the token at its end.", 403
            )
        if scope["method"] not in _READS and not _from_own_page(headers):
            return PlainTextResponse("Only the naming page itself may change names.", 403)
        if not headers.get("content-length", "0").isdecimal() or (
            int(headers.get("content-length", "0")) > MOST_BYTES
        ):
            return PlainTextResponse("The request is too large.", 413)
        return None

    def _first_visit(self, scope: Scope) -> Response | None:
        """The token moves from the address, which is seen and kept in many places, into a cookie."""
        if not _query_token(scope):
            return None
        answer = RedirectResponse(scope["path"], 303)
        answer.set_cookie(self._cookie, self._token.decode(), httponly=True, samesite="strict", path="/")
        answer.headers["cache-control"] = "no-store"
        return answer

    def _knows(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", errors="replace"), self._token)

    def _cookie_token(self, headers: dict[str, str]) -> str:
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except CookieError:
            return ""
        return cookies[self._cookie].value if self._cookie in cookies else ""

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand over a request whose body is small; one that comes in pieces does not say its length."""
        body, more = b"", scope["method"] not in _READS
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if len(body) > MOST_BYTES:
                await PlainTextResponse("The request is too large.", 413)(scope, receive, send)
                return
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return parts.pop() if parts else await receive()

        await self._app(scope, replayed, send)


def _query_token(scope: Scope) -> str:
    query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20)
    return str(query.get("token", [""])[0])


def _from_own_page(headers: dict[str, str]) -> bool:
    own = {f"http://{headers.get('host', '')}"}
    return (
        WRITE_HEADER in headers
        and headers.get("origin", next(iter(own))) in own
        and headers.get("sec-fetch-site", "same-origin") == "same-origin"
    )


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message["headers"], *given]
        await send(message)

    return sending
