"""Test the weights cache: installing, downloading, checksums, malicious pickles, licenses."""

import functools
import hashlib
import http.server
import os
import pickle
import threading
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from selfmark import weights_cache
from selfmark.config import FirstKeypoints
from selfmark.errors import InputError
from selfmark.keypoints import create_detector
from tests.keypoints.scenes import require_published_weights

CONTENT = b"these are the weights" * 1000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SELFMARK_CACHE", str(folder))
    return folder


@pytest.fixture
def publish(monkeypatch):
    """Make CONTENT the published weights of alike-t; return a function that changes what is published."""

    def change(content=CONTENT, **changes):
        published = replace(
            weights_cache.PUBLISHED_WEIGHTS["alike-t"], sha256=hashlib.sha256(content).hexdigest(), **changes
        )
        monkeypatch.setitem(weights_cache.PUBLISHED_WEIGHTS, "alike-t", published)

    change()
    return change


@pytest.fixture
def server(tmp_path):
    """Run a local web server with good.pth, wrong.pth and the truncated short.pth."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "good.pth").write_bytes(CONTENT)
    (folder / "wrong.pth").write_bytes(CONTENT[:-1])

    class QuietHandler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            if self.path == "/short.pth":
                self.send_response(200)
                self.send_header("Content-Length", "1000000")
                self.end_headers()
                self.wfile.write(CONTENT[:5000])
            else:
                super().do_GET()

    web = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder))
    )
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    thread.join()
    web.server_close()


def test_the_cache_folder_depends_on_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "own"))
    assert weights_cache.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("SELFMARK_CACHE")
    assert weights_cache.cache_folder() == tmp_path / "xdg" / "selfmark"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert weights_cache.cache_folder() == tmp_path / "home" / ".cache" / "selfmark"


def test_missing_weights_raise_with_advice(cache):
    with pytest.raises(InputError, match=r"'selfmark weights superpoint' to download.*--from FILE"):
        weights_cache.find_weights("superpoint")
    with pytest.raises(InputError, match=r"weights file .*absent\.pth does not exist"):
        weights_cache.find_weights("superpoint", str(cache / "absent.pth"))
    with pytest.raises(InputError, match="no weights for 'sift'"):
        weights_cache.find_weights("sift")


def test_a_local_file_is_installed_and_then_found(cache, publish, tmp_path):
    source = tmp_path / "download.bin"
    source.write_bytes(CONTENT)
    path = weights_cache.install_weights("alike-t", str(source))
    assert path == weights_cache.find_weights("alike-t") == cache / "alike-t.pth"
    assert path.read_bytes() == CONTENT
    assert [item.name for item in cache.iterdir()] == ["alike-t.pth"]
    path.write_bytes(b"damaged")
    assert weights_cache.install_weights("alike-t", str(source)).read_bytes() == CONTENT


def test_a_wrong_file_raises_with_its_name_and_installs_nothing(cache, publish, tmp_path):
    source = tmp_path / "other.pth"
    source.write_bytes(CONTENT + b"!")
    with pytest.raises(InputError, match=r"other\.pth is not the published alike-t\.pth"):
        weights_cache.install_weights("alike-t", str(source))
    assert list(cache.iterdir()) == []


def test_a_wrong_file_keeps_the_installed_weights(cache, publish, tmp_path):
    good_folder, bad_folder = tmp_path / "good", tmp_path / "bad"
    good_folder.write_bytes(CONTENT)
    bad_folder.write_bytes(b"")
    weights_cache.install_weights("alike-t", str(good_folder))
    with pytest.raises(InputError):
        weights_cache.install_weights("alike-t", str(bad_folder))
    assert weights_cache.find_weights("alike-t").read_bytes() == CONTENT
    assert len(list(cache.iterdir())) == 1


def test_sources_that_cannot_be_read_raise(cache, publish, tmp_path):
    for source, reason in ((tmp_path / "absent", "cannot read"), (tmp_path, "is not a regular file")):
        with pytest.raises(InputError, match=reason) as caught:
            weights_cache.install_weights("alike-t", str(source))
        assert str(source) in str(caught.value)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_created_raises(publish, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot write to the cache folder"):
        weights_cache.install_weights("alike-t", str(tmp_path / "file"))


def test_a_download_is_installed(cache, publish, server):
    publish(url=f"{server}/good.pth")
    assert weights_cache.install_weights("alike-t", None).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("wrong.pth", "is not the published"),
        ("short.pth", "is not the published|failed"),
        ("absent.pth", r"cannot download .*--from FILE"),
    ],
)
def test_failed_downloads_raise(cache, publish, server, page, message):
    publish(url=f"{server}/{page}")
    with pytest.raises(InputError, match=message):
        weights_cache.install_weights("alike-t", None)
    assert list(cache.iterdir()) == []


def test_an_unreachable_server_gives_a_one_line_error(cache, publish):
    publish(url="http://127.0.0.1:1/weights.pth")  # No server listens on this port.
    with pytest.raises(InputError, match=r"cannot download .*selfmark weights alike-t --from FILE") as caught:
        weights_cache.install_weights("alike-t", None)
    assert "\n" not in str(caught.value)


class MaliciousObject:
    """An object that runs a shell command when it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_malicious_pickle_is_not_opened(tmp_path):
    marker = tmp_path / "harm"
    attack = pickle.dumps(MaliciousObject(f"touch '{marker}'"), protocol=2)
    pickle.loads(attack)
    assert marker.exists(), "the test proves nothing, because the attack itself does not work"
    marker.unlink()
    for name in ("superpoint_v1.pth", "weights.pt", "weights.safetensors", "weights"):
        path = tmp_path / name
        path.write_bytes(attack)
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            weights_cache.load_weights(path, "superpoint")
        with pytest.raises(InputError):
            create_detector(FirstKeypoints(detector="superpoint", weights=str(path)), torch.device("cpu"))
        assert not marker.exists()


def test_only_tensors_are_unpickled_even_if_the_checksum_is_known(tmp_path, publish):
    marker = tmp_path / "harm"
    attack = pickle.dumps(MaliciousObject(f"touch '{marker}'"), protocol=2)
    publish(content=attack)
    (tmp_path / "alike-t.pth").write_bytes(attack)
    with pytest.raises(pickle.UnpicklingError):
        weights_cache.load_weights(tmp_path / "alike-t.pth", "alike-t")
    assert not marker.exists()


def test_safetensors_that_do_not_match_the_network_are_rejected_by_the_detector(tmp_path):
    path = tmp_path / "own.safetensors"
    save_file({"conv1a.weight": torch.arange(3.0)}, path)
    assert weights_cache.load_weights(path, "superpoint")["conv1a.weight"].tolist() == [0, 1, 2]
    with pytest.raises(
        InputError, match=r"own\.safetensors does not contain weights of the superpoint"
    ) as caught:
        create_detector(FirstKeypoints(detector="superpoint", weights=str(path)), torch.device("cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", list(weights_cache.PUBLISHED_WEIGHTS))
def test_published_files_load_without_module_prefixes(name):
    state = weights_cache.load_weights(
        weights_cache.find_weights(name, require_published_weights(name)), name
    )
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    assert not any(layer.startswith("module.") for layer in state)


def test_the_license_is_shown_once_for_each_file(cache):
    first = weights_cache.pop_license_notice("superpoint")
    assert first is not None
    assert "non-commercial" in first
    assert weights_cache.pop_license_notice("superpoint") is None
    assert weights_cache.pop_license_notice("r2d2") is not None
    assert weights_cache.pop_license_notice("sift") is None


def test_the_license_is_shown_if_the_cache_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "file"))
    assert weights_cache.pop_license_notice("r2d2") == weights_cache.PUBLISHED_WEIGHTS["r2d2"].license
