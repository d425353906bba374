"""Where a model comes from: pinned revisions of a hub, and code that is run only when trusted."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tiny_models

from cloud_verifier.hf_target import HFTarget
from cloud_verifier.loading import load_target
from cloud_verifier.model_source import locate
from draftwire.errors import InvalidRequest, ModelLoadFailed, ModelNotFound

pytestmark = pytest.mark.models

REPOSITORY = "draftwire-tests/tiny"
OLD, NEW = "a" * 40, "b" * 40
CODE = """
import pathlib
from transformers import {config} as Config, {model} as Model

pathlib.Path({ran!r}).touch()


class TinyConfig(Config):
    model_type = "tiny-llama"


class TinyModel(Model):
    config_class = TinyConfig
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An offline hub cache that holds two commits of a model; `main` is the newer."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--draftwire-tests--tiny"
    for seed, commit in enumerate((OLD, NEW)):
        directory = repository / "snapshots" / commit
        directory.mkdir(parents=True)
        tiny_models.save(tiny_models.llama(), directory, seed=seed)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(NEW)
    (repository / "refs" / "v1").write_text(OLD)
    return repository


@pytest.fixture
def with_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A model that brings its code, and a file that is there once the code has run."""
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    directory, ran = tmp_path / "model", tmp_path / "ran"
    tiny_models.save(tiny_models.llama(), directory)
    add_code(directory, ran)
    return directory, ran


def add_code(directory: Path, ran: Path, *, owner: str = "") -> None:
    code = CODE.format(config="LlamaConfig", model="LlamaForCausalLM", ran=str(ran))
    (directory / "tiny.py").write_text(code)
    config = json.loads((directory / "config.json").read_text())
    config["model_type"] = "tiny-llama"
    config["auto_map"] = {
        "AutoConfig": f"{owner}tiny.TinyConfig",
        "AutoModelForCausalLM": f"{owner}tiny.TinyModel",
    }
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("wanted", "commit"), [("", NEW), ("@main", NEW), ("@v1", OLD), (f"@{OLD}", OLD)]
)
def test_a_revision_is_resolved_to_a_commit(hub: Path, wanted: str, commit: str) -> None:
    said: list[str] = []
    found = locate(f"{REPOSITORY}{wanted}", report=said.append)
    assert found.revision == commit
    assert found.directory == hub / "snapshots" / commit
    pins = [line for line in said if f"{REPOSITORY}@{commit} names it for good" in line]
    assert len(pins) == (wanted != f"@{OLD}")


def test_a_target_from_a_hub_logs_its_commit_and_is_served_under_its_name(
    hub: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        target = HFTarget.load(f"{REPOSITORY}@v1", kv_tokens=64)
    assert any(m.startswith("serving tiny") and OLD in m for m in caplog.messages)
    assert target.card.target.model == "tiny"
    new = load_target(REPOSITORY)
    assert new.revision == NEW
    assert new.identity.digest != target.card.target.digest
    assert load_target(str(hub / "snapshots" / NEW)).identity.digest == new.identity.digest


@pytest.mark.usefixtures("hub")
def test_a_revision_that_is_not_there_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="v2"):
        load_target(f"{REPOSITORY}@v2")


def test_code_that_came_with_a_model_is_not_run(with_code: tuple[Path, Path]) -> None:
    directory, ran = with_code
    with pytest.raises(ModelLoadFailed, match="trust-remote-code"):
        load_target(str(directory))
    assert not ran.exists()


def test_trusted_code_is_run_and_named_in_the_log(
    with_code: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    directory, ran = with_code
    target = HFTarget.load(str(directory), kv_tokens=64, trust_remote_code=True)
    assert ran.exists()
    [warning] = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert "tiny.py" in warning
    digest = target.card.target.digest
    (directory / "tiny.py").write_text((directory / "tiny.py").read_text() + "\n# another\n")
    other = load_target(str(directory), trust_remote_code=True).identity
    assert other.digest != digest  # code decides the text as weights do


@pytest.mark.parametrize("wanted", ["", "@main", "@aaaaaaa"])
@pytest.mark.usefixtures("hub")
def test_code_from_a_hub_is_run_from_a_commit_only(wanted: str) -> None:
    with pytest.raises(InvalidRequest, match="names no commit"):
        load_target(f"{REPOSITORY}{wanted}", trust_remote_code=True)


@pytest.mark.usefixtures("with_code")
def test_code_of_a_pinned_commit_is_run(hub: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran-from-hub"
    add_code(hub / "snapshots" / NEW, ran)
    target = HFTarget.load(f"{REPOSITORY}@{NEW}", kv_tokens=64, trust_remote_code=True)
    assert ran.exists()
    assert target.card.target.model == "tiny"


def test_code_in_another_repository_is_refused(with_code: tuple[Path, Path]) -> None:
    directory, ran = with_code
    add_code(directory, ran, owner="someone/else--")
    with pytest.raises(ModelLoadFailed, match="another repository"):
        load_target(str(directory), trust_remote_code=True)
    assert not ran.exists()
