"""Attack a running server; all attacks must fail."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse

from selfmark.local_page.access_guard import MAX_BODY_BYTES, AccessGuard
from tests.naming.toy_server import WRITE_HEADERS, ToyServer

RENAME = {"edits": [{"kind": "rename", "landmark": 0, "name": "nose"}]}


def read_names(running: ToyServer) -> list[str]:
    values = json.loads((running.folder / "model" / "model.json").read_text())
    names: list[str] = values["names"]
    return names


def send_raw(running: ToyServer, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Send a request with exactly these headers; return status (0 if the connection was closed) and text."""
    port = int(running.origin.rsplit(":", 1)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    try:
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except ConnectionError:
        return 0, ""
    finally:
        connection.close()


def get_cookie_header(running: ToyServer) -> dict[str, str]:
    (entry,) = running.client.cookies.jar
    return {"cookie": f"{entry.name}={entry.value}"}


def test_only_this_machine_can_connect(shared_server: ToyServer) -> None:
    port = int(shared_server.origin.rsplit(":", 1)[1])
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}
    for address in (addresses | {"127.0.0.2"}) - {"127.0.0.1"}:
        with pytest.raises(OSError):
            socket.create_connection((address, port), timeout=2)


@pytest.mark.parametrize(
    "path", ["/", "/api/run", "/api/card", "/page/main.js", "/images/0/large", "/nowhere"]
)
@pytest.mark.parametrize("token", ["", "?token=", "?token=wrong", "?token=%00", "?tok=1&token=%ff"])
def test_every_request_needs_the_token(shared_server: ToyServer, path: str, token: str) -> None:
    response = httpx.get(shared_server.origin + path + token)
    assert response.status_code == 403
    assert "token" in response.text


def test_similar_tokens_are_rejected(shared_server: ToyServer) -> None:
    assert httpx.get(shared_server.address[:-1]).status_code == 403
    assert httpx.get(shared_server.address + "x").status_code == 403
    assert httpx.get(shared_server.origin + "/", headers={"cookie": "selfmark_1=x; ;;=;"}).status_code == 403


def test_token_moves_from_the_address_into_a_protected_cookie(shared_server: ToyServer) -> None:
    response = httpx.get(shared_server.address)
    assert response.status_code == 303
    assert response.headers["location"] == "/"
    set_cookie = response.headers["set-cookie"].lower()
    assert "httponly" in set_cookie
    assert "samesite=strict" in set_cookie
    assert "no-store" in response.headers["cache-control"]


def test_the_first_visit_does_not_lead_to_another_server(shared_server: ToyServer) -> None:
    token = shared_server.address.partition("?")[2]
    response = httpx.get(f"{shared_server.origin}//evil.example/?{token}")
    assert response.status_code == 303
    assert response.headers["location"] == "/evil.example/"


FOREIGN_HOSTS = ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "0.0.0.0:{port}"]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_foreign_host_names_are_rejected(shared_server: ToyServer, host: str) -> None:
    """Reject DNS rebinding, in which the address of another site, such as evil.example, becomes 127.0.0.1."""
    sent = host.format(port=shared_server.origin.rsplit(":", 1)[1])
    headers = {"host": sent, **get_cookie_header(shared_server)}
    status, text = send_raw(shared_server, "GET", "/api/card", headers)
    assert status in (400, 421), text
    assert "landmark" not in text


def test_localhost_is_accepted(shared_server: ToyServer) -> None:
    port = shared_server.origin.rsplit(":", 1)[1]
    headers = {"host": f"localhost:{port}", **get_cookie_header(shared_server)}
    status, _ = send_raw(shared_server, "GET", "/api/card", headers)
    assert status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},  # what a form of another site could send with the cookie
        {"content-type": "text/plain"},
        {**WRITE_HEADERS, "origin": "http://evil.example"},
        {**WRITE_HEADERS, "origin": "null"},
        {**WRITE_HEADERS, "origin": "https://127.0.0.1:{port}"},
        {**WRITE_HEADERS, "origin": "http://127.0.0.1:1"},
        {**WRITE_HEADERS, "sec-fetch-site": "cross-site"},
        {**WRITE_HEADERS, "sec-fetch-site": "same-site"},
    ],
)
def test_other_sites_cannot_write(shared_server: ToyServer, headers: dict[str, str]) -> None:
    port = shared_server.origin.rsplit(":", 1)[1]
    filled = {name: value.format(port=port) for name, value in headers.items()}
    response = shared_server.client.post("/api/edits", content=json.dumps(RENAME), headers=filled)
    assert response.status_code == 403
    assert read_names(shared_server)[0] == "landmark_0"


def test_own_page_can_write(toy: ToyServer) -> None:
    own_headers = {**WRITE_HEADERS, "origin": toy.origin, "sec-fetch-site": "same-origin"}
    assert toy.client.post("/api/edits", json=RENAME, headers=own_headers).status_code == 200
    assert read_names(toy)[0] == "nose"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_cannot_write(shared_server: ToyServer, method: str) -> None:
    response = shared_server.client.request(method, "/api/edits", json=RENAME, headers=WRITE_HEADERS)
    assert response.status_code in (403, 405)
    assert read_names(shared_server)[0] == "landmark_0"


def test_large_requests_are_rejected(toy: ToyServer) -> None:
    large_body = json.dumps({"edits": [], "x": "y" * MAX_BODY_BYTES})
    assert toy.client.post("/api/edits", content=large_body, headers=WRITE_HEADERS).status_code == 413
    head = {**get_cookie_header(toy), **WRITE_HEADERS, "content-type": "application/json"}
    assert send_raw(toy, "POST", "/api/edits", {**head, "content-length": "99999999999"})[0] == 413
    assert send_raw(toy, "POST", "/api/edits", {**head, "content-length": "-5"})[0] in (0, 400, 413)
    status, _ = send_raw(toy, "GET", "/" + "a" * 200_000, get_cookie_header(toy))
    assert status in (0, 400, 404, 414, 431)
    assert toy.client.get("/api/run").status_code == 200, "the server is still running"


def test_large_chunked_requests_are_rejected(toy: ToyServer) -> None:
    """Chunked requests do not declare a length, so the server must count the bytes."""
    port = int(toy.origin.rsplit(":", 1)[1])
    head = f"POST /api/edits HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nx-selfmark: 1\r\n"
    head += f"cookie: {get_cookie_header(toy)['cookie']}\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(head.encode() + chunk * 17)  # 68 KiB, with no last chunk; 64 KiB are allowed
        assert b" 413 " in connection.recv(200)
    assert toy.client.get("/api/run").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/page/../../../../../etc/passwd",
        "/page/..%2f..%2fserver.py",
        "/page/%2e%2e/server.py",
        "/page/../app.py",
        "/page//etc/passwd",
        "/page/index.html%00.js",
        "/images/../model/model.json",
        "/images/-1/large",
        "/images/5/large",
        "/images/99999999999999999999/large",
        "/images/0.5/large",
        "/images/0/crop/6",
        "/images/0/crop/-1",
        "/images/%2fetc%2fpasswd/large",
        "/api/gallery/6",
        "/api/images?start=-1",
        "/api/images?limit=100000",
        "/docs",
        "/openapi.json",
        "/model/model.json",
    ],
)
def test_only_images_of_the_run_are_served(shared_server: ToyServer, path: str) -> None:
    status, text = send_raw(shared_server, "GET", path, get_cookie_header(shared_server))
    assert status in (404, 422), path
    assert "root:" not in text
    assert "import" not in text


def test_every_response_has_security_headers(shared_server: ToyServer) -> None:
    for path in ("/", "/page/main.js", "/api/card", "/images/0/thumbnail", "/nowhere"):
        headers = shared_server.client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers
    rejected = httpx.get(shared_server.origin)
    assert "content-security-policy" in rejected.headers


def test_page_loads_nothing_from_other_servers_and_inserts_no_html() -> None:
    page = Path(__file__).parents[2] / "src" / "selfmark" / "naming" / "page"
    for file in page.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file.name
        assert "innerHTML" not in text, file.name
        assert "eval(" not in text, file.name
        assert len(text.splitlines()) < 300, file.name


def test_tokens_are_compared_in_constant_time(
    shared_server: ToyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every decision comes from `hmac.compare_digest`: replacing it changes the responses."""
    monkeypatch.setattr("selfmark.local_page.access_guard.hmac.compare_digest", lambda a, b: False)
    assert shared_server.client.get("/api/run").status_code == 403
    monkeypatch.setattr("selfmark.local_page.access_guard.hmac.compare_digest", lambda a, b: True)
    assert httpx.get(shared_server.origin + "/api/run").status_code == 200


@pytest.mark.parametrize(("port", "status"), [(80, 200), (8080, 421)])
def test_the_default_port_may_be_missing_from_the_host(port: int, status: int) -> None:
    """Browsers leave out port 80; other ports are always in the Host header."""
    app = AccessGuard(PlainTextResponse("page"), "secret", port, "selfmark name")

    async def visit() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.cookies.set(f"selfmark_{port}", "secret")
            return (await client.get("/")).status_code

    assert asyncio.run(visit()) == status
