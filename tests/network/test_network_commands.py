"""The commands for networks: a federation folder, the check at a site, and what is refused before anything starts."""

from __future__ import annotations

import re
import ssl
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from typer.testing import CliRunner, Result

from fedsynth.cli.app import app
from fedsynth.errors import ConfigError, UserError
from fedsynth.experiment.config import load_experiment
from fedsynth.experiment.runner import run_experiment
from fedsynth.network.site_config import read_site

Files = Callable[..., dict[str, Path]]


def call(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    folder = tmp_path / "fed"
    sites = ["--sites", "berlin,paris", "--shape", "1x8x8", "--classes", "cat,dog"]
    done = call("deploy", "init", folder, *sites, "--host", "fed.example.org")
    assert done.exit_code == 0, done.output
    return folder


def test_a_federation_folder_has_what_everybody_needs(federation: Path) -> None:
    for site in ("berlin", "paris"):
        own = {path.name for path in (federation / "sites" / site).iterdir()}
        assert own == {"ca.crt", "site.key", "site.toml", "start.sh"}
        config = read_site(federation / "sites" / site / "site.toml")
        assert (config.name, config.schema_.classes) == (site, ("cat", "dog"))
        assert config.flower is not None
        assert config.flower.superlink == "fed.example.org:9443"
        assert not config.policy.records
    page = (federation / "README.md").read_text()
    assert "berlin, paris" in page
    assert not re.search(r"@\w+@", "".join(p.read_text() for p in federation.rglob("*") if p.is_file()))


def test_secrets_are_for_their_owner_alone_and_stay_where_they_belong(federation: Path) -> None:
    secrets = list(federation.rglob("*.key"))
    assert len(secrets) == 4
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets)
    assert {path.name for path in (federation / "server" / "keys").iterdir()} == {"berlin.pub", "paris.pub"}
    keys = {path.read_bytes() for path in secrets}
    assert len(keys) == 4


def test_the_servers_certificate_is_signed_for_its_names(federation: Path) -> None:
    authority = x509.load_pem_x509_certificate((federation / "sites" / "paris" / "ca.crt").read_bytes())
    certificate = x509.load_pem_x509_certificate((federation / "server" / "server.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fed.example.org" in names.get_values_for_type(x509.DNSName)
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    ssl.create_default_context(cafile=str(federation / "sites" / "paris" / "ca.crt"))


def test_the_servers_experiment_is_ready_to_run(federation: Path) -> None:
    experiment = load_experiment(federation / "server" / "experiment.toml")
    assert experiment.engine.sites == ("berlin", "paris")
    assert experiment.engine.certificate == federation / "server" / "ca.crt"


def test_scripts_are_whole(federation: Path) -> None:
    for script in federation.rglob("*.sh"):
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
        assert script.stat().st_mode & 0o100


def test_the_proxy_lets_the_fleet_path_pass_and_nothing_else(federation: Path) -> None:
    text = (federation / "server" / "nginx.conf").read_text()
    assert re.findall(r"location (\S+)", text) == ["/v1/fleet/", "/"]
    assert "return 403" in text.split("location / ")[1]
    assert "--host 127.0.0.1" in (federation / "server" / "start.sh").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sites", "a,a"], "twice"),
        (["--sites", "a/b"], '"a/b"'),
        (["--sites", "a", "--shape", "wide"], "--shape"),
        (["--sites", "a", "--classes", "one"], "--classes"),
        (["--sites", "a", "--port", "0"], "not a port"),
    ],
)
def test_a_federation_that_cannot_work_is_refused(words: list[str], says: str, tmp_path: Path) -> None:
    rest = [] if "--shape" in words else ["--shape", "1x8x8"]
    rest += [] if "--classes" in words else ["--classes", "10"]
    done = call("deploy", "init", tmp_path / "fed", *words, *rest)
    assert isinstance(done.exception, UserError)
    assert says in str(done.exception)
    assert not (tmp_path / "fed").exists()


def test_a_federation_is_never_written_over(federation: Path) -> None:
    before = (federation / "authority" / "ca.key").read_bytes()
    done = call("deploy", "init", federation, "--sites", "a", "--shape", "1x8x8", "--classes", "2")
    assert isinstance(done.exception, ConfigError)
    assert (federation / "authority" / "ca.key").read_bytes() == before


# -- at a site ------------------------------------------------------------------------------------------------------


def site_with(folder: Path, x: np.ndarray, y: np.ndarray) -> Path:
    np.savez(folder / "data.npz", x=x, y=y)
    file = folder / "site.toml"
    file.write_text(file.read_text().replace("npz:data.npz", f"npz:{folder}/data.npz"))
    return file


def test_a_site_that_fits_is_told_what_it_holds_and_lacks(federation: Path) -> None:
    x = np.random.default_rng(0).random((40, 8, 8), dtype=np.float32)
    file = site_with(federation / "sites" / "paris", x, np.array(["dog"] * 20 + ["cat"] * 20))
    done = call("site", "check", file)
    assert done.exit_code == 0, done.output
    assert "train: 32 examples; cat 16, dog 16" in done.output
    assert "nothing was sent" in done.output
    assert not (file.parent / "state").exists()


@pytest.mark.parametrize(
    ("shape", "labels", "says"),
    [
        ((40, 9, 9), ["dog", "cat"], "examples have shape [1, 9, 9]"),
        ((40, 8, 8), ["dog", "bird"], "the federation has no class bird"),
        ((40, 8, 8), ["dog", "dog"], "only one class"),
    ],
)
def test_a_site_that_does_not_fit_is_told_why(
    shape: tuple[int, ...], labels: list[str], says: str, federation: Path
) -> None:
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    file = site_with(federation / "sites" / "paris", x, np.array(labels * 20))
    done = call("site", "check", file)
    assert done.exit_code == 1
    assert says in done.output


def test_a_missing_class_is_told_and_is_no_problem(federation: Path) -> None:
    file = federation / "sites" / "paris" / "site.toml"
    file.write_text(file.read_text().replace('["cat", "dog"]', '["cat", "dog", "owl"]'))
    x = np.random.default_rng(0).random((40, 8, 8), dtype=np.float32)
    done = call("site", "check", site_with(file.parent, x, np.array(["dog", "cat"] * 20)))
    assert done.exit_code == 0
    assert "lacks owl" in done.output


# -- before a run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["superlink", "certificate", "sites"])
def test_a_network_that_is_not_described_is_refused(missing: str) -> None:
    words = {"superlink": "localhost:1", "certificate": "ca.crt", "sites": '["a"]'}
    settings = [f"engine.{key}={value}" for key, value in words.items() if key != missing]
    with pytest.raises(ConfigError, match=f"engine.{missing}"):
        load_experiment(None, ["engine.name=flower", *settings])


def test_nothing_is_left_of_a_run_that_could_not_start(federation: Path, tmp_path: Path) -> None:
    """Nobody listens at this port."""
    experiment = load_experiment(
        federation / "server" / "experiment.toml", [f"runs={tmp_path}/runs", "engine.superlink=127.0.0.1:9"]
    )
    with pytest.raises(UserError, match="did not start the run"):
        run_experiment(experiment)
    assert not list((tmp_path / "runs").iterdir())


def test_comparisons_are_for_one_machine(federation: Path) -> None:
    done = call("compare", federation / "server" / "experiment.toml", "--methods", "fedavg")
    assert isinstance(done.exception, ConfigError)
    assert "one machine" in str(done.exception)


def test_faults_are_for_simulations(federation: Path) -> None:
    experiment = load_experiment(federation / "server" / "experiment.toml", ["faults.failure=0.5"])
    with pytest.raises(ConfigError, match="faults"):
        run_experiment(experiment)


def test_the_page_of_a_federation_names_files_that_are_there(federation: Path) -> None:
    page = (federation / "README.md").read_text()
    for name in re.findall(r"`(server/[\w.]+)`", page):
        assert (federation / name).exists(), name


def test_the_site_file_is_toml_with_a_comment_for_each_choice(federation: Path) -> None:
    table = tomllib.loads((federation / "sites" / "berlin" / "site.toml").read_text())
    assert set(table) == {"name", "flower", "schema", "data", "policy"}
