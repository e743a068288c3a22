"""A site's file, the data behind it as the federation's tasks see it, and how both are checked before a run."""

import hashlib
import secrets
import tomllib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field

from fedsynth import __version__
from fedsynth.data.check import find_problems
from fedsynth.data.config import DataConfig, parse_table
from fedsynth.data.dataset import ClientData, Dataset, Schema
from fedsynth.data.federated import PARTS, load_federated
from fedsynth.data.sources import Source, fingerprint, load_source
from fedsynth.data.splits import split_clients
from fedsynth.errors import ConfigError, DataError, FedsynthError
from fedsynth.experiment.files import Tables, find_beside, load_plugins
from fedsynth.experiment.folder import code_fingerprint
from fedsynth.network.policy import SitePolicy
from fedsynth.network.site import Site, SiteAbout

SITE_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"


class SchemaConfig(BaseModel, frozen=True, extra="forbid"):
    """The `[schema]` table: what every site of the federation agrees on."""

    shape: tuple[int, ...] = Field(min_length=1, description="shape of one example, such as [1, 28, 28]")
    classes: tuple[str, ...] = Field(min_length=2, description="names of the classes, in the order of their numbers")

    def to_schema(self) -> Schema:
        """The same, as the tasks see it."""
        return Schema(self.shape, len(self.classes), self.classes)


class Rehearsal(BaseModel, frozen=True, extra="forbid"):
    """The `[rehearsal]` table: the site pretends to be one client of a simulated split, with seeded noise."""

    client: str = Field(description="which client of the split this site plays")
    partition: Tables = Field(default_factory=dict, description="how the data is split, as in an experiment")


class FlowerConfig(BaseModel, frozen=True, extra="forbid"):
    """The `[flower]` table: whom the site's node dials, whom it trusts, and who it is."""

    superlink: str = Field(description="host:port of the federation's server")
    certificate: Path = Field(Path("ca.crt"), description="file of the certificate authority of the federation")
    key: Path = Field(Path("site.key"), description="file of this site's private key")


class SiteConfig(BaseModel, frozen=True, extra="forbid"):
    """A site's file."""

    name: str = Field(pattern=SITE_NAME, description="the name under which the site's key is registered")
    folder: Path = Field(Path("state"), description="where private state, replies and the log are kept")
    device: str = Field("cpu", description='where tasks run, such as "cuda"')
    seed: int = Field(0, ge=0, description="decides which examples are for validation and test")
    plugins: tuple[Path, ...] = Field((), description="Python files with tasks, if this site trusts them")
    socket: Path = Field(Path("site.sock"), description="the door to this site's data, for its Flower node")
    flower: FlowerConfig | None = None
    schema_: SchemaConfig = Field(alias="schema")
    data: DataConfig
    policy: SitePolicy = Field(default_factory=SitePolicy)
    rehearsal: Rehearsal | None = None


def read_site(file: Path) -> SiteConfig:
    """A site's file, checked; the files and folders it names are looked for beside it."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f'"{file}" cannot be read: {error.strerror}.') from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f'"{file}" is not a TOML file: {error}.') from None
    table["plugins"] = find_beside(table.get("plugins", []), file.parent)
    for section, kind in (("schema", SchemaConfig), ("data", DataConfig), ("policy", SitePolicy)):
        if section in table:
            parse_table(kind, table[section], f"{file}: {section}")
    config = parse_table(SiteConfig, table, str(file))
    here = file.parent.absolute()
    found: dict[str, object] = {"folder": here / config.folder, "socket": here / config.socket}
    if config.flower is not None:
        files = {"certificate": here / config.flower.certificate, "key": here / config.flower.key}
        found["flower"] = config.flower.model_copy(update=files)
    return config.model_copy(update=found)


@dataclass(frozen=True)
class SiteData:
    """The data of one site, under the federation's numbers for the classes."""

    name: str
    schema: Schema
    own: ClientData

    def client(self, client: str) -> ClientData:
        """The site's own data; nobody else's is here."""
        if client != self.name:
            raise DataError(f'"{client}" is not this site.')
        return self.own

    def pooled(self, part: str) -> Dataset:
        """Nobody holds everybody's data on a network."""
        raise FedsynthError("Pooled data exists in simulations only: this is one site of a network.")

    @cached_property
    def counts(self) -> dict[str, list[int]]:
        """Examples per class in each part."""
        return {part: getattr(self.own, part).counts(self.schema.classes).tolist() for part in PARTS}


def load_site_data(config: SiteConfig) -> SiteData:
    """Read the site's data and split it; a `DataError` that names what does not fit the federation's schema."""
    schema = config.schema_.to_schema()
    if config.rehearsal is not None:
        pretended = load_federated(config.data, config.rehearsal.partition, config.seed)
        found, own = pretended.schema, pretended.client(config.rehearsal.client)
        if (found.shape, found.class_names) != (schema.shape, schema.class_names):
            raise DataError(f"{config.data.name} does not have the shape and the classes of the [schema].")
        return SiteData(config.name, schema, replace(own, declared=config.policy.examples))
    source = load_source(config.data, config.seed)
    problems = find_misfits(source, schema)
    if problems:
        raise DataError(problems[0])
    train = renumber(source.train, source.schema, schema)
    # What the source calls its test part is this site's test part; otherwise a share is set aside.
    share = config.data.test if source.test is None else 0.0
    rows, bounds = split_clients(
        train.y, [np.arange(len(train))], [config.name], config.data.validation, share, config.seed
    )
    cuts = bounds[0]
    parts = [train.subset(rows[cuts[i] : cuts[i + 1]]) for i in range(3)]
    if source.test is not None:
        parts[2] = renumber(source.test, source.schema, schema)
    return SiteData(config.name, schema, ClientData(parts[0], parts[1], parts[2], config.policy.examples))


def find_misfits(source: Source, schema: Schema) -> list[str]:
    """One sentence for each way in which a site's data does not fit the federation's schema."""
    problems = []
    if source.schema.shape != schema.shape:
        problems.append(
            f"{source.name}: examples have shape {list(source.schema.shape)}, and the federation's have "
            f"{list(schema.shape)}: set data.image_size or data.shape, or convert them."
        )
    held = np.zeros(source.schema.classes, dtype=np.int64)
    for part in (source.train, source.test):
        held += part.counts(source.schema.classes) if part is not None else 0
    strange = [
        name for name, n in zip(source.schema.class_names, held, strict=True) if n and name not in schema.class_names
    ]
    if strange:
        problems.append(
            f"{source.name}: the federation has no class {', '.join(strange[:8])}; it has "
            f"{', '.join(schema.class_names[:20])}: rename the labels, or leave these examples out (data.classes)."
        )
    return problems


def renumber(data: Dataset, own: Schema, common: Schema) -> Dataset:
    """The same examples, labelled with the federation's numbers for the classes."""
    number = {name: position for position, name in enumerate(common.class_names)}
    numbers = np.array([number.get(name, -1) for name in own.class_names], dtype=np.int64)
    return Dataset(data.x, numbers[data.y])


def open_site(config: SiteConfig) -> Site:
    """A site with its data in memory, ready to answer."""
    import fedsynth.evaluation.views
    import fedsynth.methods  # noqa: F401 - these register the tasks

    load_plugins(list(config.plugins))
    data = load_site_data(config)
    check_ready(data)
    return Site(
        config.name,
        data,
        config.folder,
        config.policy,
        describe_site(config, data),
        config.device,
        # A rehearsal gives the bits of a simulation, noise included; a policy that is strict is strict there too.
        secret_noise=config.rehearsal is None or not config.policy.unprotected,
    )


def check_ready(data: SiteData) -> None:
    """Refuse to take part with nothing: no server is told how much a site has, so none would notice."""
    if len(data.own.train) == 0:
        raise DataError(f'Site "{data.name}" has no examples to train on: check the [data] table of its file.')


def describe_site(config: SiteConfig, data: SiteData) -> SiteAbout:
    """How a site describes itself."""
    return SiteAbout(
        site=config.name,
        fedsynth=__version__,
        code=code_fingerprint(config.plugins),
        shape=list(data.schema.shape),
        classes=list(data.schema.class_names),
        fingerprint=salted_fingerprint(config.folder, data),
        rehearsal=config.rehearsal is not None,
    )


def salted_fingerprint(folder: Path, data: SiteData) -> str:
    """A hash that changes when the data does, and tells nothing of it: the salt stays at the site."""
    salt = folder / "salt"
    if not salt.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        salt.write_text(secrets.token_hex(32), encoding="utf-8")
    digest = hashlib.sha256(salt.read_bytes())
    for part in PARTS:
        digest.update(fingerprint(getattr(data.own, part), None, None).encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class SiteCheck:
    """What was found: examples per part and class, classes that the site lacks, and a sentence per problem."""

    site: str
    shape: list[int]
    classes: list[str]
    counts: dict[str, list[int]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def check_site(config: SiteConfig) -> SiteCheck:
    """Read the data as a run would and compare it with the schema. A class that it lacks is listed, not a problem."""
    schema = config.schema_.to_schema()
    problems: list[str] = []
    if config.rehearsal is None:
        source = load_source(config.data, config.seed)
        problems = find_misfits(source, schema)
        if problems:
            return SiteCheck(config.name, list(schema.shape), list(schema.class_names), problems=problems)
        problems = find_problems(source)
    data = load_site_data(config)
    missing = [name for name, n in zip(schema.class_names, data.counts["train"], strict=True) if n == 0]
    if len(data.own.train) == 0:
        problems.append("There are no examples to train on.")
    return SiteCheck(config.name, list(schema.shape), list(schema.class_names), data.counts, missing, problems)


def site_check_lines(found: SiteCheck) -> list[str]:
    """What `fedsynth site check` says, line by line."""
    shape = "×".join(map(str, found.shape))
    lines = [f'site "{found.site}": {shape}, {len(found.classes)} classes in the federation']
    for part, counts in found.counts.items():
        listed = ", ".join(f"{name} {count}" for name, count in zip(found.classes, counts, strict=True) if count)
        lines.append(f"  {part}: {sum(counts)} examples; {listed or 'none'}")
    if found.missing:
        lines.append(f"  lacks {', '.join(found.missing)}: no training examples of these classes")
    lines += [f"problem: {problem}" for problem in found.problems]
    return lines if found.problems else [*lines, "fits the federation; nothing was sent"]
