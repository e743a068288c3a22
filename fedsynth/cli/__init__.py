"""The commands: they parse and print, nothing more."""


def main() -> None:
    """Run the command line."""
    from fedsynth.cli.app import main

    main()
