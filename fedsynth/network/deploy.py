"""Writes a federation folder: what the server and each site need, and a page that says who does what in which order."""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from fedsynth.errors import ConfigError
from fedsynth.network.site_config import SITE_NAME

LOOPBACK = ("localhost", "127.0.0.1")
TEMPLATES = Path(__file__).parent / "templates"  # in their files, `@word@` stands for what differs


@dataclass(frozen=True)
class Federation:
    """What a federation folder is made from.

    `host` and `port` are where the sites reach the proxy; the SuperLink itself listens on the server's loopback only.
    """

    sites: tuple[str, ...]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    host: str = "localhost"
    port: int = 9443
    superlink_port: int = 9092

    def check(self) -> None:
        """Refuse what cannot work, in a sentence."""
        if not self.sites:
            raise ConfigError("--sites is empty: name at least one site, such as --sites berlin,paris,rome.")
        for name in self.sites:
            if not re.fullmatch(SITE_NAME, name):
                raise ConfigError(f'--sites: "{name}" cannot be a name: use letters, digits, "-" and "_".')
        if len(set(self.sites)) < len(self.sites):
            raise ConfigError("--sites names one site twice.")
        if not self.shape or min(self.shape) < 1:
            raise ConfigError("--shape must hold whole numbers of at least 1, such as 1x28x28.")
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ConfigError("--classes must name two classes at least, and none twice.")
        for port in (self.port, self.superlink_port):
            if not 1 <= port <= 65535:
                raise ConfigError(f"{port} is not a port: choose one from 1 to 65535.")


def write_federation(folder: Path, federation: Federation) -> None:
    """Make the folder of a federation; one that exists is never touched."""
    federation.check()
    if folder.exists():
        raise ConfigError(f'"{folder}" exists: choose another folder. Its keys are in use, perhaps.')
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f'"{folder}" cannot be made: {error.strerror}.') from None
    try:
        _write(folder, federation)
    except BaseException:
        shutil.rmtree(folder)  # half a federation is none
        raise


def _write(folder: Path, federation: Federation) -> None:
    from fedsynth.network.certificates import Authority, write_certificate, write_key, write_key_pair

    authority = Authority.create(f"{folder.name} federation")
    (folder / "authority").mkdir(mode=0o700)
    write_key(folder / "authority" / "ca.key", authority.key)
    server = folder / "server"
    (server / "keys").mkdir(parents=True)
    key, certificate = authority.for_server(tuple(dict.fromkeys((federation.host, *LOOPBACK))))
    write_key(server / "server.key", key)
    write_certificate(server / "server.crt", certificate)
    for site in federation.sites:
        own = folder / "sites" / site
        own.mkdir(parents=True)
        write_key_pair(own / "site.key", server / "keys" / f"{site}.pub")
        write_certificate(own / "ca.crt", authority.certificate)
        _fill(own, "site", federation, site)
    for place in (folder / "authority", server):
        write_certificate(place / "ca.crt", authority.certificate)
    _fill(server, "server", federation)
    _fill(folder, "federation", federation)


def _fill(folder: Path, kind: str, federation: Federation, site: str = "") -> None:
    """Write the files of one kind of folder from their templates, with what is special about this federation put in."""
    words = {
        "sites": json.dumps(list(federation.sites)),
        "listed": ", ".join(federation.sites),
        "names": " ".join(federation.sites),
        "site": site,
        "shape": json.dumps(list(federation.shape)),
        "classes": json.dumps(list(federation.classes), ensure_ascii=False),
        "host": federation.host,
        "port": str(federation.port),
        "superlink_port": str(federation.superlink_port),
    }
    for template in (TEMPLATES / kind).iterdir():
        path, text = folder / template.name, template.read_text(encoding="utf-8")
        path.write_text(re.sub(r"@(\w+)@", lambda found: words[found[1]], text), encoding="utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)


def parse_shape(text: str) -> tuple[int, ...]:
    """A shape such as 1x28x28 or 12."""
    try:
        return tuple(int(side) for side in re.split(r"[x×,]", text))
    except ValueError:
        raise ConfigError(f'--shape: "{text}" is not a shape: write it as 1x28x28, or 12 for twelve columns.') from None


def parse_classes(text: str) -> tuple[str, ...]:
    """Names separated by commas, or how many there are: 10 stands for 0, 1, … 9."""
    if text.isdigit():
        return tuple(map(str, range(int(text))))
    return parse_sites(text)


def parse_sites(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
