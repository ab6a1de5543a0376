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

from selfmark.config import FirstKeypoints
from selfmark.errors import InputError
from selfmark.keypoints import create_detector, weights_cache

from .scenes import published_weights

CONTENT = b"these are the weights" * 1000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SELFMARK_CACHE", str(folder))
    return folder


@pytest.fixture
def known(monkeypatch):
    """Make CONTENT the published weights of alike-t."""

    def change(content=CONTENT, **changes):
        entry = replace(weights_cache.KNOWN["alike-t"], sha256=hashlib.sha256(content).hexdigest(), **changes)
        monkeypatch.setitem(weights_cache.KNOWN, "alike-t", entry)

    change()
    return change


@pytest.fixture
def server(tmp_path):
    """A web server on this machine with good.pth, wrong.pth and nothing else."""
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "good.pth").write_bytes(CONTENT)
    (folder / "wrong.pth").write_bytes(CONTENT[:-1])

    class Quiet(http.server.SimpleHTTPRequestHandler):
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

    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    thread.join()
    web.server_close()


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "own"))
    assert weights_cache.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("SELFMARK_CACHE")
    assert weights_cache.cache_folder() == tmp_path / "xdg" / "selfmark"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert weights_cache.cache_folder() == tmp_path / "home" / ".cache" / "selfmark"


def test_missing_weights_say_how_to_get_them(cache):
    with pytest.raises(InputError, match=r"'selfmark weights superpoint' downloads.*--from FILE"):
        weights_cache.find_weights("superpoint")
    with pytest.raises(InputError, match=r"there is no weights file .*absent\.pth"):
        weights_cache.find_weights("superpoint", str(cache / "absent.pth"))
    with pytest.raises(InputError, match="no weights called 'sift'"):
        weights_cache.find_weights("sift")


def test_a_local_file_is_installed_and_then_found(cache, known, tmp_path):
    source = tmp_path / "download.bin"
    source.write_bytes(CONTENT)
    path = weights_cache.install_weights("alike-t", str(source))
    assert path == weights_cache.find_weights("alike-t") == cache / "alike-t.pth"
    assert path.read_bytes() == CONTENT
    assert [item.name for item in cache.iterdir()] == ["alike-t.pth"]
    path.write_bytes(b"damaged")
    assert weights_cache.install_weights("alike-t", str(source)).read_bytes() == CONTENT


def test_a_wrong_file_is_refused_by_name_and_leaves_nothing(cache, known, tmp_path):
    source = tmp_path / "other.pth"
    source.write_bytes(CONTENT + b"!")
    with pytest.raises(InputError, match=r"other\.pth is not the published alike-t\.pth"):
        weights_cache.install_weights("alike-t", str(source))
    assert list(cache.iterdir()) == []


def test_a_refused_file_leaves_installed_weights_alone(cache, known, tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(CONTENT)
    bad.write_bytes(b"")
    weights_cache.install_weights("alike-t", str(good))
    with pytest.raises(InputError):
        weights_cache.install_weights("alike-t", str(bad))
    assert weights_cache.find_weights("alike-t").read_bytes() == CONTENT
    assert len(list(cache.iterdir())) == 1


def test_sources_that_cannot_be_read(cache, known, tmp_path):
    for source in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputError, match="cannot read") as caught:
            weights_cache.install_weights("alike-t", str(source))
        assert str(source) in str(caught.value)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_made(known, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be written"):
        weights_cache.install_weights("alike-t", str(tmp_path / "file"))


def test_a_download_is_installed(cache, known, server):
    known(url=f"{server}/good.pth")
    assert weights_cache.install_weights("alike-t", None).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("wrong.pth", "is not the published"),
        ("short.pth", "is not the published|broke off"),
        ("absent.pth", r"cannot download .*--from FILE"),
    ],
)
def test_downloads_that_fail(cache, known, server, page, says):
    known(url=f"{server}/{page}")
    with pytest.raises(InputError, match=says):
        weights_cache.install_weights("alike-t", None)
    assert list(cache.iterdir()) == []


def test_no_network_is_one_sentence(cache, known, server):
    known(url="http://127.0.0.1:1/weights.pth")  # nobody listens there
    with pytest.raises(InputError, match=r"cannot download .*selfmark weights alike-t --from FILE") as caught:
        weights_cache.install_weights("alike-t", None)
    assert "\n" not in str(caught.value)


class Malice:
    """Runs a shell command when unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_malicious_pickle_is_refused_unopened(tmp_path):
    marker = tmp_path / "harm"
    attack = pickle.dumps(Malice(f"touch '{marker}'"), protocol=2)
    pickle.loads(attack)
    assert marker.exists(), "the attack itself must work, or this test shows nothing"
    marker.unlink()
    for name in ("superpoint_v1.pth", "weights.pt", "weights.safetensors", "weights"):
        path = tmp_path / name
        path.write_bytes(attack)
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            weights_cache.load_weights(path, "superpoint")
        with pytest.raises(InputError):
            create_detector(FirstKeypoints(detector="superpoint", weights=str(path)), torch.device("cpu"))
        assert not marker.exists()


def test_even_a_known_checksum_opens_tensors_only(tmp_path, known):
    marker = tmp_path / "harm"
    attack = pickle.dumps(Malice(f"touch '{marker}'"), protocol=2)
    known(content=attack)
    (tmp_path / "alike-t.pth").write_bytes(attack)
    with pytest.raises(pickle.UnpicklingError):
        weights_cache.load_weights(tmp_path / "alike-t.pth", "alike-t")
    assert not marker.exists()


def test_safetensors_are_welcome_but_must_fit(tmp_path):
    path = tmp_path / "own.safetensors"
    save_file({"conv1a.weight": torch.arange(3.0)}, path)
    assert weights_cache.load_weights(path, "superpoint")["conv1a.weight"].tolist() == [0, 1, 2]
    with pytest.raises(
        InputError, match=r"own\.safetensors does not hold weights of the superpoint"
    ) as caught:
        create_detector(FirstKeypoints(detector="superpoint", weights=str(path)), torch.device("cpu"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", list(weights_cache.KNOWN))
def test_published_files_load_and_have_plain_layer_names(name):
    state = weights_cache.load_weights(weights_cache.find_weights(name, published_weights(name)), name)
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    assert not any(layer.startswith("module.") for layer in state)


def test_the_license_is_shown_once_per_weights(cache):
    first = weights_cache.license_notice("superpoint")
    assert first is not None
    assert "non-commercial" in first
    assert weights_cache.license_notice("superpoint") is None
    assert weights_cache.license_notice("r2d2") is not None
    assert weights_cache.license_notice("sift") is None


def test_a_read_only_cache_does_not_hide_the_license(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "file"))
    assert weights_cache.license_notice("r2d2") == weights_cache.KNOWN["r2d2"].license
