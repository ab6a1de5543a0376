"""Who may speak to the server, tried one attack at a time against a real one."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

import httpx
import pytest

from selfmark.naming.access_guard import MOST_BYTES
from tests.naming.toy_server import WRITE, Served

RENAME = {"edits": [{"kind": "rename", "landmark": 0, "name": "nose"}]}


def names(running: Served) -> list[str]:
    values = json.loads((running.folder / "model" / "model.json").read_text())
    found: list[str] = values["names"]
    return found


def raw(running: Served, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
    """A request exactly as given, cookie included only if given; status and text, 0 if the server hung up."""
    port = int(running.origin.rsplit(":", 1)[1])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    try:
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except ConnectionError:
        return 0, ""
    finally:
        connection.close()


def cookie(running: Served) -> dict[str, str]:
    (entry,) = running.client.cookies.jar
    return {"cookie": f"{entry.name}={entry.value}"}


def test_only_this_machine_can_connect(still: Served) -> None:
    port = int(still.origin.rsplit(":", 1)[1])
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)}
    for other in (others | {"127.0.0.2"}) - {"127.0.0.1"}:
        with pytest.raises(OSError):
            socket.create_connection((other, port), timeout=2)


@pytest.mark.parametrize(
    "path", ["/", "/api/run", "/api/names", "/page/main.js", "/pictures/0/large", "/nowhere"]
)
@pytest.mark.parametrize("token", ["", "?token=", "?token=wrong", "?token=%00", "?tok=1&token=%ff"])
def test_nothing_is_answered_without_the_token(still: Served, path: str, token: str) -> None:
    answer = httpx.get(still.origin + path + token)
    assert answer.status_code == 403
    assert "token" in answer.text


def test_a_part_of_the_token_is_not_enough(still: Served) -> None:
    assert httpx.get(still.address[:-1]).status_code == 403
    assert httpx.get(still.address + "x").status_code == 403
    assert httpx.get(still.origin + "/", headers={"cookie": "selfmark_1=x; ;;=;"}).status_code == 403


def test_the_token_moves_from_the_address_into_a_cookie_no_script_can_read(still: Served) -> None:
    answer = httpx.get(still.address)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/"
    set_cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in set_cookie
    assert "samesite=strict" in set_cookie
    assert "no-store" in answer.headers["cache-control"]


FOREIGN = ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "0.0.0.0:{port}"]


@pytest.mark.parametrize("host", FOREIGN)
def test_a_foreign_name_that_points_here_is_turned_away(still: Served, host: str) -> None:
    """DNS rebinding: the page of evil.example, whose address has become 127.0.0.1."""
    named = host.format(port=still.origin.rsplit(":", 1)[1])
    status, text = raw(still, "GET", "/api/names", {"host": named, **cookie(still)})
    assert status in (400, 421), text
    assert "landmark" not in text


def test_localhost_is_a_name_of_this_machine(still: Served) -> None:
    port = still.origin.rsplit(":", 1)[1]
    assert raw(still, "GET", "/api/names", {"host": f"localhost:{port}", **cookie(still)})[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},  # what a form of another site can send, were the cookie to come along
        {"content-type": "text/plain"},
        {**WRITE, "origin": "http://evil.example"},
        {**WRITE, "origin": "null"},
        {**WRITE, "origin": "https://127.0.0.1:{port}"},
        {**WRITE, "origin": "http://127.0.0.1:1"},
        {**WRITE, "sec-fetch-site": "cross-site"},
        {**WRITE, "sec-fetch-site": "same-site"},
    ],
)
def test_other_pages_cannot_write(still: Served, headers: dict[str, str]) -> None:
    port = still.origin.rsplit(":", 1)[1]
    filled = {name: value.format(port=port) for name, value in headers.items()}
    answer = still.client.post("/api/edits", content=json.dumps(RENAME), headers=filled)
    assert answer.status_code == 403
    assert names(still)[0] == "landmark_0"


def test_the_page_itself_can_write(toy: Served) -> None:
    own = {**WRITE, "origin": toy.origin, "sec-fetch-site": "same-origin"}
    assert toy.client.post("/api/edits", json=RENAME, headers=own).status_code == 200
    assert names(toy)[0] == "nose"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_there_are_no_other_ways_to_write(still: Served, method: str) -> None:
    assert still.client.request(method, "/api/edits", json=RENAME, headers=WRITE).status_code in (403, 405)
    assert names(still)[0] == "landmark_0"


def test_large_requests_are_refused(toy: Served) -> None:
    large = json.dumps({"edits": [], "x": "y" * MOST_BYTES})
    assert toy.client.post("/api/edits", content=large, headers=WRITE).status_code == 413
    head = {**cookie(toy), **WRITE, "content-type": "application/json"}
    assert raw(toy, "POST", "/api/edits", {**head, "content-length": "99999999999"})[0] == 413
    assert raw(toy, "POST", "/api/edits", {**head, "content-length": "-5"})[0] in (0, 400, 413)
    assert raw(toy, "GET", "/" + "a" * 200_000, cookie(toy))[0] in (0, 400, 404, 414, 431)
    assert toy.client.get("/api/run").status_code == 200, "it still answers"


def test_a_large_request_in_pieces_is_cut_off(toy: Served) -> None:
    """Chunks do not say how much will come: the server must stop listening by itself."""
    port = int(toy.origin.rsplit(":", 1)[1])
    head = f"POST /api/edits HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nx-selfmark: 1\r\n"
    head += f"cookie: {cookie(toy)['cookie']}\r\ntransfer-encoding: chunked\r\n\r\n"
    piece = b"1000\r\n" + b" " * 4096 + b"\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        line.sendall(head.encode() + piece * 17)  # a little more than is allowed, and never an end
        assert b" 413 " in line.recv(200)
    assert toy.client.get("/api/run").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/page/../../../../../etc/passwd",
        "/page/..%2f..%2fserve.py",
        "/page/%2e%2e/serve.py",
        "/page/../app.py",
        "/page//etc/passwd",
        "/page/index.html%00.js",
        "/pictures/../model/model.json",
        "/pictures/-1/large",
        "/pictures/5/large",
        "/pictures/99999999999999999999/large",
        "/pictures/0.5/large",
        "/pictures/0/landmark/6",
        "/pictures/0/landmark/-1",
        "/pictures/%2fetc%2fpasswd/large",
        "/api/gallery/6",
        "/api/images?start=-1",
        "/api/images?most=100000",
        "/docs",
        "/openapi.json",
        "/model/model.json",
    ],
)
def test_nothing_but_the_images_of_the_run_can_be_had(still: Served, path: str) -> None:
    status, text = raw(still, "GET", path, cookie(still))
    assert status in (404, 422), path
    assert "root:" not in text
    assert "import" not in text


def test_every_answer_says_what_the_page_may_load(still: Served) -> None:
    for path in ("/", "/page/main.js", "/api/names", "/pictures/0/tile", "/nowhere"):
        headers = still.client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers
    refused = httpx.get(still.origin)
    assert "content-security-policy" in refused.headers


def test_the_page_names_no_other_server() -> None:
    page = Path(__file__).parents[2] / "src" / "selfmark" / "naming" / "page"
    for file in page.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file.name
        assert "innerHTML" not in text, file.name
        assert "eval(" not in text, file.name
        assert len(text.splitlines()) < 300, file.name


def test_tokens_are_compared_in_constant_time(still: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision comes from the library's constant-time comparison: seen by putting another in place."""
    monkeypatch.setattr("selfmark.naming.access_guard.hmac.compare_digest", lambda one, other: False)
    assert still.client.get("/api/run").status_code == 403
    monkeypatch.setattr("selfmark.naming.access_guard.hmac.compare_digest", lambda one, other: True)
    assert httpx.get(still.origin + "/api/run").status_code == 200
