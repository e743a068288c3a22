"""The commands for networks: `fedsynth deploy …` for whoever sets one up, `fedsynth site …` for the sites."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedsynth.cli.common import AsJson, print_json
from fedsynth.experiment.files import override

deploy = typer.Typer(no_args_is_help=True, help="Set up a federation over a network.")
site = typer.Typer(no_args_is_help=True, help="For the people at a site.")


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, separated by commas.")],
    shape: Annotated[str, typer.Option(help="Shape of one example, such as 1x28x28, or 12 for twelve columns.")],
    classes: Annotated[str, typer.Option(help="Names of the classes, separated by commas, or how many: 10 is 0 to 9.")],
    host: Annotated[str, typer.Option(help="Name or address under which the sites reach the server.")] = "localhost",
    port: Annotated[int, typer.Option(help="Port under which the sites reach the server's proxy.")] = 9443,
    superlink_port: Annotated[int, typer.Option(help="Port of the SuperLink on the server's own machine.")] = 9092,
) -> None:
    """Write a federation folder: certificates, a key and a start script per site, the server's files, and a page that
    says who does what."""
    from fedsynth.network.deploy import Federation, parse_classes, parse_shape, parse_sites, write_federation

    wanted = Federation(parse_sites(sites), parse_shape(shape), parse_classes(classes), host, port, superlink_port)
    write_federation(folder, wanted)
    print(f"{folder} is ready: {folder / 'README.md'} says who does what, in which order.")


@deploy.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Settings of the run, such as train.rounds=6.")
    ] = None,
) -> None:
    """Show all of it on this machine: a SuperLink, three sites with TLS and registered keys, and FedDPMS on digits."""
    from fedsynth.network.demo import run_demo
    from fedsynth.report.tables import summary_lines

    result = run_demo(folder, override({}, words or []), print, None)
    for name, text in summary_lines(result.summary):
        print(f"{name}: {text}")


@site.command()
def start(
    file: Annotated[Path, typer.Argument(help="The site's file, site.toml.")] = Path("site.toml"),
    superlink: Annotated[str | None, typer.Option(help="Another host:port than the file's.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port of this machine for the node's own use; any free one otherwise.")
    ] = None,
) -> None:
    """Take part: run the site's Flower node and the process that holds its data, until they are stopped."""
    from fedsynth.network.loopback import free_port
    from fedsynth.network.resident import start_site
    from fedsynth.network.site_config import read_site

    start_site(read_site(file), superlink, free_port() if port is None else port)


@site.command()
def serve(file: Annotated[Path, typer.Argument(help="The site's file, site.toml.")] = Path("site.toml")) -> None:
    """Run the process that holds the data, alone: for sites whose Flower node runs as another user."""
    from fedsynth.network.resident import serve_site
    from fedsynth.network.site_config import read_site

    serve_site(read_site(file))


@site.command()
def check(
    file: Annotated[Path, typer.Argument(help="The site's file, site.toml.")] = Path("site.toml"),
    as_json: AsJson = False,
) -> None:
    """Compare a site's data with the federation's schema. Nothing is sent. Exit code 1 when there are problems."""
    from fedsynth.network.site_config import check_site, read_site, site_check_lines

    found = check_site(read_site(file))
    if as_json:
        print_json(asdict(found))
    else:
        print("\n".join(site_check_lines(found)))
    if found.problems:
        raise typer.Exit(1)
