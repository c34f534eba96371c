"""``python -m vmmcts``."""

from vmmcts.cli import main

main()
